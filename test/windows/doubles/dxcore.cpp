// A stand-in for DXCore (dxcore.dll), which Wine 8 does not have. Its interfaces are those of Microsoft's own header, so a
// caller that reaches them has their layout right. Build:
//   x86_64-w64-mingw32-g++ -shared -static -idirafter /usr/include -o dxcore.dll dxcore.cpp -luuid
//
// C:\dxcore.txt has a line for each adapter. It is read for each list. Numbers are hexadecimal:
//   LUID ATTRIBUTES PROPERTIES MEMORY REFUSED DESCRIPTION
// ATTRIBUTES is 1 for Direct3D 11 graphics, 2 for Direct3D 12 graphics, 4 for Direct3D 12 core compute, 8 for machine
//   learning, added up;
// PROPERTIES 1 for hardware, 2 for integrated, 4 for detachable. The property of the number REFUSED is said to be
// supported and cannot be read. Without the file DXCore fails.
//
// As in Windows, a list holds the adapters that have every attribute asked for, each object counts its references, and
// a buffer that is too small is refused. DXCoreDoubleObjects returns the number of objects.
#include <windows.h>
#include <initguid.h>
#include <directx/dxcore.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <vector>

static volatile LONG objects;

static const HRESULT NO_ADAPTERS = MAKE_HRESULT(1, FACILITY_WIN32, ERROR_DEVICE_NOT_AVAILABLE);
static const HRESULT TOO_SMALL = MAKE_HRESULT(1, FACILITY_WIN32, ERROR_INSUFFICIENT_BUFFER);

struct Description {
    LUID luid;
    unsigned attributes, properties, refused;
    uint64_t memory;
    std::string text;
};

// read adds the file's adapters to the list, and returns whether the file exists.
static bool read(std::vector<Description> &list) {
    FILE *file = fopen("C:\\dxcore.txt", "r");
    if (!file) return false;
    char line[1024];
    while (fgets(line, sizeof line, file)) {
        unsigned long long luid, memory;
        Description d{};
        int text = 0;
        if (sscanf(line, "%llx %x %x %llx %x %n", &luid, &d.attributes, &d.properties, &memory, &d.refused, &text) < 5) continue;
        d.luid.LowPart = (DWORD)luid;
        d.luid.HighPart = (LONG)(luid >> 32);
        d.memory = memory;
        d.text.assign(line + text, strcspn(line + text, "\r\n"));
        list.push_back(d);
    }
    fclose(file);
    return true;
}

// Counted is what every object has: a count of references, and the one interface that it is asked for.
template <class Interface>
class Counted : public Interface {
    volatile LONG references = 1;

public:
    Counted() { InterlockedIncrement(&objects); }
    virtual ~Counted() { InterlockedDecrement(&objects); }
    HRESULT STDMETHODCALLTYPE QueryInterface(REFIID iid, void **object) override {
        if (!object) return E_POINTER;
        *object = nullptr;
        if (iid != IID_IUnknown && iid != this->id()) return E_NOINTERFACE;
        AddRef();
        *object = static_cast<Interface *>(this);
        return S_OK;
    }
    ULONG STDMETHODCALLTYPE AddRef() override { return InterlockedIncrement(&references); }
    ULONG STDMETHODCALLTYPE Release() override {
        ULONG left = InterlockedDecrement(&references);
        if (!left) delete this;
        return left;
    }

protected:
    virtual const IID &id() const = 0;
};

// give hands out a new object by the interface that is asked for.
static HRESULT give(IUnknown *object, REFIID iid, void **out) {
    HRESULT result = object->QueryInterface(iid, out);
    object->Release();
    return result;
}

class Adapter : public Counted<IDXCoreAdapter> {
    const Description d;

    // property returns the size of a property, 0 when it is not one of ours, and the place of its bytes.
    size_t property(DXCoreAdapterProperty p, const void **bytes) const {
        static const bool flags[2] = {false, true};
        auto flag = [&](unsigned bit) { *bytes = &flags[(d.properties & bit) != 0]; return sizeof(bool); };
        switch (p) {
        case DXCoreAdapterProperty::InstanceLuid: *bytes = &d.luid; return sizeof d.luid;
        case DXCoreAdapterProperty::DriverDescription: *bytes = d.text.c_str(); return d.text.size() + 1;
        case DXCoreAdapterProperty::DedicatedAdapterMemory: *bytes = &d.memory; return sizeof d.memory;
        case DXCoreAdapterProperty::IsHardware: return flag(1);
        case DXCoreAdapterProperty::IsIntegrated: return flag(2);
        case DXCoreAdapterProperty::IsDetachable: return flag(4);
        default: return 0;
        }
    }

protected:
    const IID &id() const override { return IID_IDXCoreAdapter; }

public:
    explicit Adapter(const Description &d) : d(d) {}
    bool STDMETHODCALLTYPE IsValid() override { return true; }
    bool STDMETHODCALLTYPE IsAttributeSupported(REFGUID attribute) override { return has(d, attribute); }
    bool STDMETHODCALLTYPE IsPropertySupported(DXCoreAdapterProperty p) override {
        const void *bytes;
        return property(p, &bytes) != 0;
    }
    HRESULT STDMETHODCALLTYPE GetProperty(DXCoreAdapterProperty p, size_t size, void *buffer) override {
        const void *bytes;
        size_t have = property(p, &bytes);
        if (!have) return DXGI_UNSUPPORTED;
        if ((unsigned)p == d.refused) return E_FAIL;
        if (!buffer) return E_POINTER;
        if (size < have) return TOO_SMALL;
        memcpy(buffer, bytes, have);
        return S_OK;
    }
    HRESULT STDMETHODCALLTYPE GetPropertySize(DXCoreAdapterProperty p, size_t *size) override {
        const void *bytes;
        if (!size) return E_POINTER;
        *size = property(p, &bytes);
        return *size ? S_OK : DXGI_UNSUPPORTED;
    }
    bool STDMETHODCALLTYPE IsQueryStateSupported(DXCoreAdapterState) override { return false; }
    HRESULT STDMETHODCALLTYPE QueryState(DXCoreAdapterState, size_t, const void *, size_t, void *) override { return DXGI_UNSUPPORTED; }
    bool STDMETHODCALLTYPE IsSetStateSupported(DXCoreAdapterState) override { return false; }
    HRESULT STDMETHODCALLTYPE SetState(DXCoreAdapterState, size_t, const void *, size_t, const void *) override { return DXGI_UNSUPPORTED; }
    HRESULT STDMETHODCALLTYPE GetFactory(REFIID iid, void **factory) override;

    // has returns whether an adapter has an attribute.
    static bool has(const Description &d, REFGUID attribute) {
        if (attribute == DXCORE_ADAPTER_ATTRIBUTE_D3D11_GRAPHICS) return d.attributes & 1;
        if (attribute == DXCORE_ADAPTER_ATTRIBUTE_D3D12_GRAPHICS) return d.attributes & 2;
        if (attribute == DXCORE_ADAPTER_ATTRIBUTE_D3D12_CORE_COMPUTE) return d.attributes & 4;
        if (attribute == MACHINE_LEARNING) return d.attributes & 8;
        return false;
    }

    // DXCORE_ADAPTER_ATTRIBUTE_D3D12_GENERIC_ML, which older headers do not have.
    static constexpr GUID MACHINE_LEARNING = {0xb71b0d41, 0x1088, 0x422f, {0xa2, 0x7c, 0x02, 0x50, 0xb7, 0xd3, 0xa9, 0x88}};
    static const HRESULT DXGI_UNSUPPORTED = (HRESULT)0x887A0004; // DXGI_ERROR_UNSUPPORTED
};

class List : public Counted<IDXCoreAdapterList> {
    const std::vector<Description> adapters;

protected:
    const IID &id() const override { return IID_IDXCoreAdapterList; }

public:
    explicit List(const std::vector<Description> &adapters) : adapters(adapters) {}
    HRESULT STDMETHODCALLTYPE GetAdapter(uint32_t index, REFIID iid, void **adapter) override {
        if (index >= adapters.size()) return E_INVALIDARG;
        return give(new Adapter(adapters[index]), iid, adapter);
    }
    uint32_t STDMETHODCALLTYPE GetAdapterCount() override { return (uint32_t)adapters.size(); }
    bool STDMETHODCALLTYPE IsStale() override { return false; }
    HRESULT STDMETHODCALLTYPE GetFactory(REFIID iid, void **factory) override;
    HRESULT STDMETHODCALLTYPE Sort(uint32_t, const DXCoreAdapterPreference *) override { return S_OK; }
    bool STDMETHODCALLTYPE IsAdapterPreferenceSupported(DXCoreAdapterPreference) override { return false; }
};

class Factory : public Counted<IDXCoreAdapterFactory> {
protected:
    const IID &id() const override { return IID_IDXCoreAdapterFactory; }

public:
    HRESULT STDMETHODCALLTYPE CreateAdapterList(uint32_t count, const GUID *attributes, REFIID iid, void **list) override {
        if (!count || !attributes) return E_INVALIDARG;
        std::vector<Description> all, chosen;
        if (!read(all)) return NO_ADAPTERS;
        for (const Description &d : all) {
            bool wanted = true;
            for (uint32_t i = 0; i < count; i++) wanted = wanted && Adapter::has(d, attributes[i]);
            if (wanted) chosen.push_back(d);
        }
        return give(new List(chosen), iid, list);
    }
    HRESULT STDMETHODCALLTYPE GetAdapterByLuid(const LUID &luid, REFIID iid, void **adapter) override {
        std::vector<Description> all;
        if (!read(all)) return NO_ADAPTERS;
        for (const Description &d : all)
            if (d.luid.LowPart == luid.LowPart && d.luid.HighPart == luid.HighPart) return give(new Adapter(d), iid, adapter);
        return E_INVALIDARG;
    }
    bool STDMETHODCALLTYPE IsNotificationTypeSupported(DXCoreNotificationType) override { return false; }
    HRESULT STDMETHODCALLTYPE RegisterEventNotification(IUnknown *, DXCoreNotificationType, PFN_DXCORE_NOTIFICATION_CALLBACK, void *, uint32_t *) override { return E_NOTIMPL; }
    HRESULT STDMETHODCALLTYPE UnregisterEventNotification(uint32_t) override { return E_NOTIMPL; }
};

HRESULT STDMETHODCALLTYPE Adapter::GetFactory(REFIID iid, void **factory) { return give(new Factory, iid, factory); }
HRESULT STDMETHODCALLTYPE List::GetFactory(REFIID iid, void **factory) { return give(new Factory, iid, factory); }

extern "C" {
__declspec(dllexport) HRESULT WINAPI DXCoreCreateAdapterFactory(REFIID iid, void **factory) { return give(new Factory, iid, factory); }
__declspec(dllexport) LONG WINAPI DXCoreDoubleObjects() { return objects; }
}
