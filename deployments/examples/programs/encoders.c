/* Lists the video encoders of a container: the hardware encoders of Media Foundation, and
 * the vendors' own interfaces. The example ffmpeg encodes with them.
 * https://learn.microsoft.com/windows/win32/api/mfapi/nf-mfapi-mftenumex */
#define COBJMACROS
#include "example.h"

#include <initguid.h>

#include <mfapi.h>
#include <mftransform.h>
#include <stdint.h>

static unsigned working;

/* vendor calls the function of a vendor's library that returns the version of its interface, and 0. */
static void vendor(const char *name, const char *dll, const char *call) {
    uint64_t version = 0;
    HMODULE module = LoadLibraryExA(dll, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    uint32_t (WINAPI *query)(uint64_t *) = module ? (void *)GetProcAddress(module, call) : NULL;
    uint32_t result = query ? query(&version) : 0;
    if (!module) printf("%s: no: cannot load %s (error %lu)\n", name, dll, GetLastError());
    else if (!query) printf("%s: no: %s has no %s\n", name, dll, call);
    else if (result) printf("%s: no: %s returns %u\n", name, call, result);
    else printf("%s: yes, version 0x%llx\n", name, (unsigned long long)version), working++;
}

/* media_foundation lists the encoders that Windows finds, of any vendor. */
static void media_foundation(void) {
    HMODULE mfplat = LoadLibraryExA("mfplat.dll", NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    IMFActivate **found = NULL;
    UINT32 count = 0;
    if (!mfplat) {
        printf("Media Foundation: no: cannot load mfplat.dll (error %lu)\n", GetLastError());
        return;
    }
    HRESULT (WINAPI *startup)(ULONG, DWORD) = function(mfplat, "MFStartup");
    HRESULT (WINAPI *enumerate)(GUID, UINT32, const MFT_REGISTER_TYPE_INFO *, const MFT_REGISTER_TYPE_INFO *, IMFActivate ***, UINT32 *) = function(mfplat, "MFTEnumEx");
    HRESULT result = startup(MF_VERSION, 0);
    if (SUCCEEDED(result)) result = enumerate(MFT_CATEGORY_VIDEO_ENCODER, MFT_ENUM_FLAG_HARDWARE | MFT_ENUM_FLAG_SORTANDFILTER, NULL, NULL, &found, &count);
    if (FAILED(result)) printf("Media Foundation: no: error 0x%08lX\n", (unsigned long)result);
    else if (!count) printf("Media Foundation: no: it has no hardware encoder\n");
    for (UINT32 i = 0; i < count; i++) {
        WCHAR name[256] = L"no name";
        IMFTransform *encoder = NULL;
        IMFActivate_GetString(found[i], &MFT_FRIENDLY_NAME_Attribute, name, 256, NULL);
        result = IMFActivate_ActivateObject(found[i], &IID_IMFTransform, (void **)&encoder);
        if (SUCCEEDED(result)) printf("Media Foundation: yes, %ls\n", name), working++;
        else printf("Media Foundation: no: %ls fails (0x%08lX)\n", name, (unsigned long)result);
    }
}

int main(void) {
    mine();
    CoInitializeEx(NULL, COINIT_MULTITHREADED);
    media_foundation();
    vendor("NVENC (NVIDIA)", "nvEncodeAPI64.dll", "NvEncodeAPIGetMaxSupportedVersion");
    vendor("AMF (AMD)", "amfrt64.dll", "AMFQueryVersion");
    if (!working) FAIL("no hardware encoder");
    return 0;
}
