// Lists the GPUs of a container by DXCore, and tries to create a Direct3D 12 device on each.
// For display GPUs and compute-only devices of all vendors.
// https://learn.microsoft.com/windows/win32/dxcore/dxcore
#include "example.h"

#include <initguid.h>

#include <directx/dxcore.h>
#include <directx/d3d12.h>

#include <cstdint>
#include <cstring>

// property reads a property of an adapter. If it is not available, value is unchanged.
template <class T>
static T property(IDXCoreAdapter *adapter, DXCoreAdapterProperty which, T value) {
    T read{};
    if (adapter->IsPropertySupported(which) && SUCCEEDED(adapter->GetProperty(which, sizeof read, &read))) return read;
    return value;
}

// broken is the number of adapters on which Direct3D 12 creates no device.
static unsigned broken;

// directML reports whether DirectML creates a device.
// https://learn.microsoft.com/windows/win32/api/directml/nf-directml-dmlcreatedevice
static const char *directML(ID3D12Device *device) {
    static const GUID wanted = {0x6dbd6437, 0x96fd, 0x423f, {0xa9, 0x8c, 0xae, 0x5e, 0x7c, 0x2a, 0x57, 0x3f}};
    HMODULE library = LoadLibraryExA("DirectML.dll", NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    if (!library) return "DirectML.dll is not there";
    auto create = reinterpret_cast<HRESULT(WINAPI *)(ID3D12Device *, int, REFIID, void **)>(function(library, "DMLCreateDevice"));
    IUnknown *created = nullptr;
    if (FAILED(create(device, 0, wanted, reinterpret_cast<void **>(&created))) || !created) return "no device";
    created->Release();
    return "works";
}

// feature returns the highest feature level of which Direct3D 12 creates a device, and what DirectML does with it.
// https://learn.microsoft.com/windows/win32/direct3d12/hardware-feature-levels
static const char *feature(IDXCoreAdapter *adapter, const char **learning) {
    static const struct {
        int level;
        const char *name;
    } levels[] = {{0xc200, "12_2"}, {0xc100, "12_1"}, {0xc000, "12_0"}, {0xb100, "11_1"}, {0xb000, "11_0"}, {0x1000, "1_0_CORE"}};
    HMODULE d3d12 = LoadLibraryExA("d3d12.dll", NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    broken++;
    if (!d3d12) return "d3d12.dll is not there: the image has no DirectX, take windows/server";
    auto create = reinterpret_cast<PFN_D3D12_CREATE_DEVICE>(function(d3d12, "D3D12CreateDevice"));
    for (const auto &l : levels) {
        ID3D12Device *device = nullptr;
        if (SUCCEEDED(create(adapter, static_cast<D3D_FEATURE_LEVEL>(l.level), IID_ID3D12Device, reinterpret_cast<void **>(&device))) && device) {
            *learning = directML(device);
            device->Release();
            broken--;
            return l.name;
        }
    }
    return "no device: the driver's own files may be missing in the container";
}

static void describe(unsigned index, IDXCoreAdapter *adapter) {
    char name[256] = "no name";
    size_t size = 0;
    if (SUCCEEDED(adapter->GetPropertySize(DXCoreAdapterProperty::DriverDescription, &size)) && size <= sizeof name)
        adapter->GetProperty(DXCoreAdapterProperty::DriverDescription, size, name);
    LUID luid = property(adapter, DXCoreAdapterProperty::InstanceLuid, LUID{});
    uint64_t memory = property(adapter, DXCoreAdapterProperty::DedicatedAdapterMemory, uint64_t{0});
    bool graphics = adapter->IsAttributeSupported(DXCORE_ADAPTER_ATTRIBUTE_D3D12_GRAPHICS) || adapter->IsAttributeSupported(DXCORE_ADAPTER_ATTRIBUTE_D3D11_GRAPHICS);
    printf("adapter %u: %s\n", index, name);
    printf("  LUID: 0x%08lX_0x%08lX\n", (unsigned long)luid.HighPart, (unsigned long)luid.LowPart);
    printf("  kind: %s\n", graphics ? "display" : "compute");
    printf("  dedicated memory: %llu MiB\n", (unsigned long long)memory >> 20);
    const char *learning = "no Direct3D 12 device";
    printf("  Direct3D 12: %s\n", feature(adapter, &learning));
    printf("  DirectML: %s\n", learning);
}

// list prints the hardware adapters that have an attribute and are not of the kind
// besides, and returns their number.
static unsigned list(IDXCoreAdapterFactory *factory, const GUID &attribute, const GUID *besides, unsigned index) {
    IDXCoreAdapterList *adapters = nullptr;
    if (FAILED(factory->CreateAdapterList(1, &attribute, IID_IDXCoreAdapterList, reinterpret_cast<void **>(&adapters)))) return index;
    for (uint32_t i = 0; i < adapters->GetAdapterCount(); i++) {
        IDXCoreAdapter *adapter = nullptr;
        if (FAILED(adapters->GetAdapter(i, IID_IDXCoreAdapter, reinterpret_cast<void **>(&adapter)))) continue;
        if (property(adapter, DXCoreAdapterProperty::IsHardware, false) && !(besides && adapter->IsAttributeSupported(*besides))) describe(index++, adapter);
        adapter->Release();
    }
    adapters->Release();
    return index;
}

int main(int count, char **words) {
    bool required = count == 2 && strcmp(words[1], "d3d12") == 0;
    if (count > 1 && !required) FAIL("usage: adapters.exe [d3d12]");
    mine();
    HMODULE dxcore = library("dxcore.dll", "this Windows, or this image, has no DXCore: take windows/server:ltsc2022 or newer");
    auto create = reinterpret_cast<HRESULT(WINAPI *)(REFIID, void **)>(function(dxcore, "DXCoreCreateAdapterFactory"));
    IDXCoreAdapterFactory *factory = nullptr;
    HRESULT result = create(IID_IDXCoreAdapterFactory, reinterpret_cast<void **>(&factory));
    if (FAILED(result)) FAIL("DXCore failed (0x%08lX)", (unsigned long)result);
    unsigned found = list(factory, DXCORE_ADAPTER_ATTRIBUTE_D3D12_GRAPHICS, nullptr, 0);
    found = list(factory, DXCORE_ADAPTER_ATTRIBUTE_D3D12_CORE_COMPUTE, &DXCORE_ADAPTER_ATTRIBUTE_D3D12_GRAPHICS, found);
    factory->Release();
    if (found == 0) FAIL("no GPU: the container has none, or its driver does not work in containers");
    printf("%u adapter(s)\n", found);
    if (required && broken) FAIL("Direct3D 12 does not work on %u of them", broken);
    return 0;
}
