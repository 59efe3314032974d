// A stand-in for the Host Compute Network service (computenetwork.dll), which Wine does not have. It knows one
// network namespace without endpoints, which is enough for a container to be given one. Build:
//   x86_64-w64-mingw32-gcc -shared -o computenetwork.dll computenetwork.c -lole32
#include <windows.h>
#include <objbase.h>
#define EXPORT __declspec(dllexport)

static wchar_t *answer(const wchar_t *text) {
    wchar_t *copy = CoTaskMemAlloc((lstrlenW(text) + 1) * sizeof *text);
    if (copy) lstrcpyW(copy, text);
    return copy;
}

EXPORT HRESULT HcnCreateNamespace(GUID *id, const wchar_t *settings, void **space, wchar_t **result) { *space = (void *)1; return 0; }
EXPORT HRESULT HcnOpenNamespace(GUID *id, void **space, wchar_t **result) { *space = (void *)1; return 0; }
EXPORT HRESULT HcnModifyNamespace(void *space, const wchar_t *settings, wchar_t **result) { return 0; }
EXPORT HRESULT HcnQueryNamespaceProperties(void *space, const wchar_t *query, wchar_t **properties, wchar_t **result) {
    *properties = answer(L"{\"ID\":\"77777777-7777-7777-7777-777777777777\",\"SchemaVersion\":{\"Major\":2,\"Minor\":0}}");
    return 0;
}
EXPORT HRESULT HcnCloseNamespace(void *space) { return 0; }
EXPORT HRESULT HcnDeleteNamespace(GUID *id, wchar_t **result) { return 0; }
EXPORT HRESULT HcnEnumerateNamespaces(const wchar_t *query, wchar_t **spaces, wchar_t **result) { *spaces = answer(L"[]"); return 0; }
EXPORT HRESULT HcnEnumerateEndpoints(const wchar_t *query, wchar_t **endpoints, wchar_t **result) { *endpoints = answer(L"[]"); return 0; }
