// A stand-in for NVIDIA's management library (nvml.dll), of which discovery asks for the UUIDs of GPUs. Build:
//   x86_64-w64-mingw32-gcc -shared -o nvml.dll nvml.c
//
// C:\nvml.txt says which GPUs there are, a line for each: its place on the PCI bus, as 00000000:1B:00.0, and its UUID.
// Without the file there is no driver. As in the real one, all but the start fails before the start, and a buffer that
// is too small is refused. https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html
#include <windows.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __declspec(dllexport)

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

static struct gpu { char place[32], uuid[96]; } gpus[64];
static int count;
static LONG started;

EXPORT int nvmlInit_v2(void) {
    FILE *file = fopen("C:\\nvml.txt", "r");
    if (!file) return DRIVER_NOT_LOADED;
    count = 0;
    while (count < 64 && fscanf(file, "%31s %95s", gpus[count].place, gpus[count].uuid) == 2) count++;
    fclose(file);
    InterlockedIncrement(&started);
    return SUCCESS;
}

EXPORT int nvmlShutdown(void) {
    if (started <= 0) return UNINITIALIZED;
    InterlockedDecrement(&started);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *place, struct gpu **device) {
    if (started <= 0) return UNINITIALIZED;
    if (!place || !device) return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        if (!_stricmp(gpus[i].place, place)) {
            *device = &gpus[i];
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetUUID(struct gpu *device, char *buffer, unsigned length) {
    if (started <= 0) return UNINITIALIZED;
    if (device < gpus || device >= gpus + count || !buffer) return INVALID_ARGUMENT;
    if (strlen(device->uuid) >= length) return INSUFFICIENT_SIZE;
    strcpy(buffer, device->uuid);
    return SUCCESS;
}
