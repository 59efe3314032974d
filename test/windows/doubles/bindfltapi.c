// A stand-in for the bind filter (bindfltapi.dll), which Wine does not have. containerd asks it to unbind a bundle's
// rootfs before it removes the bundle. Nothing is ever bound here, and it says so. Build:
//   x86_64-w64-mingw32-gcc -shared -o bindfltapi.dll bindfltapi.c
#include <windows.h>

#define NOT_FOUND ((HRESULT)0x80070490) // ERROR_NOT_FOUND

__declspec(dllexport) HRESULT BfRemoveMapping(HANDLE job, const wchar_t *root) { return NOT_FOUND; }
