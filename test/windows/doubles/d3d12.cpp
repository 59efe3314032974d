// A stand-in for Direct3D 12 (d3d12.dll) on the adapters of the double of DXCore. Wine's own takes adapters of DXGI
// only. Build:
//   x86_64-w64-mingw32-g++ -shared -static -idirafter /usr/include -o d3d12.dll d3d12.cpp -luuid
//
// It creates devices on adapters with an attribute of Direct3D 12, compute-only ones of level 1_0_CORE at most, but only
// says that it would: a caller that wants the device gets none.
#include <windows.h>
#include <initguid.h>
#include <directx/dxcore.h>
#include <directx/d3d12.h>

static const HRESULT UNSUPPORTED = (HRESULT)0x887A0004; // DXGI_ERROR_UNSUPPORTED

extern "C" __declspec(dllexport) HRESULT WINAPI D3D12CreateDevice(IUnknown *object, D3D_FEATURE_LEVEL level, REFIID iid, void **device) {
    IDXCoreAdapter *adapter = nullptr;
    if (!object || iid != IID_ID3D12Device || FAILED(object->QueryInterface(IID_IDXCoreAdapter, (void **)&adapter))) return E_INVALIDARG;
    bool graphics = adapter->IsAttributeSupported(DXCORE_ADAPTER_ATTRIBUTE_D3D12_GRAPHICS);
    bool compute = adapter->IsAttributeSupported(DXCORE_ADAPTER_ATTRIBUTE_D3D12_CORE_COMPUTE);
    adapter->Release();
    if (level < D3D_FEATURE_LEVEL_1_0_CORE) return E_INVALIDARG; // An older Windows does not know 1_0_GENERIC.
    bool creates = graphics || (compute && level == D3D_FEATURE_LEVEL_1_0_CORE);
    return creates && !device ? S_FALSE : UNSUPPORTED;
}
