/* Lists the CUDA devices of a container, like NVIDIA's sample deviceQuery. With "pi" it
 * estimates pi on the first one. It uses the driver API, nvcuda.dll, and needs no toolkit.
 * https://docs.nvidia.com/cuda/cuda-driver-api/ */
#include "example.h"
#include "montecarlo.h"

#include <math.h>
#include <stdint.h>

/* Declarations of cuda.h. */
typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct { unsigned char bytes[16]; } CUuuid;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream;
enum { CLOCK_KHZ = 13, MULTIPROCESSORS = 16, PCI_BUS = 33, PCI_DEVICE = 34, TCC = 35, PCI_DOMAIN = 50, MAJOR = 75, MINOR = 76 };

#define FUNCTIONS(F) \
    F(cuInit, (unsigned)) \
    F(cuDriverGetVersion, (int *)) \
    F(cuGetErrorName, (CUresult, const char **)) \
    F(cuDeviceGetCount, (int *)) \
    F(cuDeviceGet, (CUdevice *, int)) \
    F(cuDeviceGetName, (char *, int, CUdevice)) \
    F(cuDeviceGetUuid, (CUuuid *, CUdevice)) \
    F(cuDeviceTotalMem_v2, (size_t *, CUdevice)) \
    F(cuDeviceGetAttribute, (int *, int, CUdevice)) \
    F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice)) \
    F(cuDevicePrimaryCtxRelease_v2, (CUdevice)) \
    F(cuCtxSetCurrent, (CUcontext)) \
    F(cuCtxSynchronize, (void)) \
    F(cuModuleLoadData, (CUmodule *, const void *)) \
    F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *)) \
    F(cuMemAlloc_v2, (CUdeviceptr *, size_t)) \
    F(cuMemFree_v2, (CUdeviceptr)) \
    F(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t)) \
    F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

#define DECLARE(name, arguments) static CUresult (WINAPI *name) arguments;
FUNCTIONS(DECLARE)

static void load(void) {
    HMODULE driver = library("nvcuda.dll", "the container has no NVIDIA GPU, or its driver does not list the file for containers");
#define FIND(name, arguments) name = (CUresult (WINAPI *) arguments)function(driver, #name);
    FUNCTIONS(FIND)
}

/* check exits with an error if a call failed. */
static void check(CUresult result, const char *call) {
    const char *name = NULL;
    if (!result) return;
    if (cuGetErrorName(result, &name) || !name) name = "no name";
    FAIL("%s: error %d (%s)", call, result, name);
}
#define CHECK(call) check(call, #call)

static int attribute(CUdevice device, int which) {
    int value = 0;
    CHECK(cuDeviceGetAttribute(&value, which, device));
    return value;
}

static void describe(int index) {
    CUdevice device;
    CUuuid uuid;
    char name[256];
    size_t memory;
    CHECK(cuDeviceGet(&device, index));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDeviceGetUuid(&uuid, device));
    CHECK(cuDeviceTotalMem_v2(&memory, device));
    printf("device %d: %s\n  UUID: GPU-", index, name);
    for (int i = 0; i < 16; i++) printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid.bytes[i]);
    printf("\n  PCI: %04x:%02x:%02x.0\n", attribute(device, PCI_DOMAIN), attribute(device, PCI_BUS), attribute(device, PCI_DEVICE));
    printf("  memory: %llu MiB\n", (unsigned long long)memory >> 20);
    printf("  compute capability: %d.%d\n", attribute(device, MAJOR), attribute(device, MINOR));
    printf("  multiprocessors: %d at %d MHz\n", attribute(device, MULTIPROCESSORS), attribute(device, CLOCK_KHZ) / 1000);
    printf("  driver model: %s\n", attribute(device, TCC) ? "TCC" : "WDDM or MCDM");
}

enum { BLOCKS = 256, THREADS = 256, EACH = 4096 };

static void estimate(void) {
    static unsigned hits[BLOCKS * THREADS];
    unsigned points = EACH;
    unsigned long long all = 0;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr memory;
    void *arguments[] = {&memory, &points};
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, montecarlo_ptx));
    CHECK(cuModuleGetFunction(&kernel, module, "montecarlo"));
    CHECK(cuMemAlloc_v2(&memory, sizeof hits));
    CHECK(cuLaunchKernel(kernel, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, arguments, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(hits, memory, sizeof hits));
    CHECK(cuMemFree_v2(memory));
    CHECK(cuDevicePrimaryCtxRelease_v2(device));
    for (int i = 0; i < BLOCKS * THREADS; i++) all += hits[i];
    double pi = 4.0 * (double)all / ((double)BLOCKS * THREADS * EACH);
    printf("pi by %d points on device 0: %.4f\n", BLOCKS * THREADS * EACH, pi);
    if (fabs(pi - 3.14159265) > 0.001) FAIL("the result is wrong: %.6f", pi);
    printf("passed\n");
}

int main(int count, char **words) {
    int version, devices;
    if (count > 2 || (count == 2 && strcmp(words[1], "pi") != 0)) FAIL("usage: cuda.exe [pi]");
    mine();
    load();
    CHECK(cuInit(0));
    CHECK(cuDriverGetVersion(&version));
    CHECK(cuDeviceGetCount(&devices));
    printf("CUDA %d.%d of the driver, %d device(s)\n", version / 1000, version % 1000 / 10, devices);
    if (devices == 0) FAIL("CUDA has no device: does CUDA_VISIBLE_DEVICES name a device of another container?");
    for (int i = 0; i < devices; i++) describe(i);
    if (count == 2) estimate();
    return 0;
}
