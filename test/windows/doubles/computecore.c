// A double of the queries of the Host Compute Service (computecore.dll), which Wine does not have. The
// declaration is that of MinGW's header. Build:
//   x86_64-w64-mingw32-gcc -shared -o computecore.dll computecore.c
//
// The answer to a question for basic properties is C:\hcs-properties.json. Any other question, or none, fails and has a
// document that says so, as in Windows. So does every question while that file is not there.
#include <windows.h>
#include <computecore.h>
#include <stdio.h>
#include <wchar.h>

#define FAILED_TO_PARSE ((HRESULT)0x8037010D) // HCS_E_INVALID_JSON

static PWSTR answer(const char *text) {
    int length = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    PWSTR wide = LocalAlloc(LMEM_FIXED, length * sizeof *wide);
    if (wide) MultiByteToWideChar(CP_UTF8, 0, text, -1, wide, length);
    return wide;
}

__declspec(dllexport) HRESULT WINAPI HcsGetServiceProperties(PCWSTR query, PWSTR *result) {
    static char text[65536];
    FILE *file = fopen("C:\\hcs-properties.json", "rb");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    BOOL good = query && wcsstr(query, L"PropertyTypes") && wcsstr(query, L"\"Basic\"") && length;
    if (result) *result = answer(good ? text : "{\"Error\":-2143878899,\"ErrorMessage\":\"the double does not know\"}");
    return good ? S_OK : FAILED_TO_PARSE;
}
