/* Lists the OpenCL platforms and devices of a container. With "pi" it estimates pi on the
 * first device. The loader, OpenCL.dll, is a file that drivers list for containers.
 * https://registry.khronos.org/OpenCL/specs/3.0-unified/html/OpenCL_API.html */
#include "example.h"
#include "montecarlo.h"

#include <math.h>
#include <stdint.h>

/* Declarations of CL/cl.h. */
typedef struct object *cl_platform_id, *cl_device_id, *cl_context, *cl_command_queue, *cl_mem, *cl_program, *cl_kernel;
enum { CL_DEVICE_NOT_FOUND = -1, CL_PLATFORM_NOT_FOUND = -1001 };
enum { CL_PLATFORM_VERSION = 0x0901, CL_PLATFORM_NAME = 0x0902 };
enum { CL_DEVICE_TYPE = 0x1000, CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002, CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F, CL_DEVICE_NAME = 0x102B, CL_DRIVER_VERSION = 0x102D };
enum { CL_DEVICE_TYPE_GPU = 4, CL_MEM_WRITE_ONLY = 2, CL_PROGRAM_BUILD_LOG = 0x1183 };
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFull

#define FUNCTIONS(F) \
    F(int, clGetPlatformIDs, (unsigned, cl_platform_id *, unsigned *)) \
    F(int, clGetPlatformInfo, (cl_platform_id, unsigned, size_t, void *, size_t *)) \
    F(int, clGetDeviceIDs, (cl_platform_id, uint64_t, unsigned, cl_device_id *, unsigned *)) \
    F(int, clGetDeviceInfo, (cl_device_id, unsigned, size_t, void *, size_t *)) \
    F(cl_context, clCreateContext, (const intptr_t *, unsigned, const cl_device_id *, void *, void *, int *)) \
    F(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, uint64_t, int *)) \
    F(cl_mem, clCreateBuffer, (cl_context, uint64_t, size_t, void *, int *)) \
    F(cl_program, clCreateProgramWithSource, (cl_context, unsigned, const char **, const size_t *, int *)) \
    F(int, clBuildProgram, (cl_program, unsigned, const cl_device_id *, const char *, void *, void *)) \
    F(int, clGetProgramBuildInfo, (cl_program, cl_device_id, unsigned, size_t, void *, size_t *)) \
    F(cl_kernel, clCreateKernel, (cl_program, const char *, int *)) \
    F(int, clSetKernelArg, (cl_kernel, unsigned, size_t, const void *)) \
    F(int, clEnqueueNDRangeKernel, (cl_command_queue, cl_kernel, unsigned, const size_t *, const size_t *, const size_t *, unsigned, void *, void *)) \
    F(int, clEnqueueReadBuffer, (cl_command_queue, cl_mem, unsigned, size_t, size_t, void *, unsigned, void *, void *))

#define DECLARE(result, name, arguments) static result (WINAPI *name) arguments;
FUNCTIONS(DECLARE)

static void load(void) {
    HMODULE loader = library("OpenCL.dll", "the GPU's driver does not list it for containers");
#define FIND(result, name, arguments) name = (result (WINAPI *) arguments)function(loader, #name);
    FUNCTIONS(FIND)
}

static void check(int result, const char *call) {
    if (result) FAIL("%s: OpenCL error %d", call, result);
}

enum { THREADS = 65536 };

static void estimate(cl_device_id device) {
    static unsigned hits[THREADS];
    unsigned points = 1024;
    unsigned long long all = 0;
    size_t threads = THREADS;
    const char *source = montecarlo_cl;
    int result;
    cl_context context = clCreateContext(NULL, 1, &device, NULL, NULL, &result);
    check(result, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(context, device, 0, &result);
    check(result, "clCreateCommandQueue");
    cl_mem memory = clCreateBuffer(context, CL_MEM_WRITE_ONLY, sizeof hits, NULL, &result);
    check(result, "clCreateBuffer");
    cl_program program = clCreateProgramWithSource(context, 1, &source, NULL, &result);
    check(result, "clCreateProgramWithSource");
    if (clBuildProgram(program, 1, &device, "", NULL, NULL)) {
        char log[4096] = "";
        clGetProgramBuildInfo(program, device, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        FAIL("the driver does not compile the kernel: %s", log);
    }
    cl_kernel kernel = clCreateKernel(program, "montecarlo", &result);
    check(result, "clCreateKernel");
    check(clSetKernelArg(kernel, 0, sizeof memory, &memory), "clSetKernelArg 0");
    check(clSetKernelArg(kernel, 1, sizeof points, &points), "clSetKernelArg 1");
    check(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &threads, NULL, 0, NULL, NULL), "clEnqueueNDRangeKernel");
    check(clEnqueueReadBuffer(queue, memory, 1, 0, sizeof hits, hits, 0, NULL, NULL), "clEnqueueReadBuffer");
    for (int i = 0; i < THREADS; i++) all += hits[i];
    double pi = 4.0 * (double)all / ((double)THREADS * points);
    printf("pi by %u points on the first device: %.4f\n", THREADS * points, pi);
    if (fabs(pi - 3.14159265) > 0.002) FAIL("the result is wrong: %.6f", pi);
    printf("passed\n");
}

enum { MOST = 16 };

/* platform prints the devices of a platform and returns the first one, or NULL. */
static cl_device_id platform(unsigned index, cl_platform_id id) {
    char name[256] = "", version[256] = "";
    cl_device_id devices[MOST];
    unsigned count = 0;
    check(clGetPlatformInfo(id, CL_PLATFORM_NAME, sizeof name, name, NULL), "clGetPlatformInfo");
    check(clGetPlatformInfo(id, CL_PLATFORM_VERSION, sizeof version, version, NULL), "clGetPlatformInfo");
    int result = clGetDeviceIDs(id, CL_DEVICE_TYPE_ALL, MOST, devices, &count);
    if (result == CL_DEVICE_NOT_FOUND) count = 0;
    else check(result, "clGetDeviceIDs");
    printf("platform %u: %s, %s, %u device(s)\n", index, name, version, count);
    for (unsigned i = 0; i < count && i < MOST; i++) {
        char device[256] = "", driver[256] = "";
        uint64_t type = 0, memory = 0;
        unsigned units = 0;
        check(clGetDeviceInfo(devices[i], CL_DEVICE_NAME, sizeof device, device, NULL), "clGetDeviceInfo");
        check(clGetDeviceInfo(devices[i], CL_DRIVER_VERSION, sizeof driver, driver, NULL), "clGetDeviceInfo");
        check(clGetDeviceInfo(devices[i], CL_DEVICE_TYPE, sizeof type, &type, NULL), "clGetDeviceInfo");
        check(clGetDeviceInfo(devices[i], CL_DEVICE_GLOBAL_MEM_SIZE, sizeof memory, &memory, NULL), "clGetDeviceInfo");
        check(clGetDeviceInfo(devices[i], CL_DEVICE_MAX_COMPUTE_UNITS, sizeof units, &units, NULL), "clGetDeviceInfo");
        printf("  device %u: %s (%s), driver %s, %u compute units, %llu MiB\n", i, device, type & CL_DEVICE_TYPE_GPU ? "GPU" : "no GPU", driver, units,
               (unsigned long long)memory >> 20);
    }
    return count ? devices[0] : NULL;
}

int main(int count, char **words) {
    cl_platform_id platforms[MOST];
    cl_device_id first = NULL;
    unsigned found = 0;
    if (count > 2 || (count == 2 && strcmp(words[1], "pi") != 0)) FAIL("usage: opencl.exe [pi]");
    mine();
    load();
    int result = clGetPlatformIDs(MOST, platforms, &found);
    if (result == CL_PLATFORM_NOT_FOUND) found = 0;
    else check(result, "clGetPlatformIDs");
    for (unsigned i = 0; i < found && i < MOST; i++) {
        cl_device_id device = platform(i, platforms[i]);
        if (!first) first = device;
    }
    if (!first) FAIL("OpenCL has no device: the loader does not find the driver");
    if (count == 2) estimate(first);
    return 0;
}
