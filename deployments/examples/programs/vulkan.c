/* Lists the Vulkan devices of a container, and creates a logical device on each GPU. The
 * loader, vulkan-1.dll, is a file that drivers list for containers.
 * https://registry.khronos.org/vulkan/specs/latest/html/vkspec.html */
#include "example.h"

#include <stdint.h>

/* Declarations of vulkan_core.h. */
typedef struct object *VkInstance, *VkPhysicalDevice, *VkDevice;
typedef struct { int type; const void *next; uint32_t flags; const void *application; uint32_t layers; const char *const *layer_names; uint32_t extensions; const char *const *extension_names; } VkInstanceCreateInfo;
typedef struct { int type; const void *next; uint32_t flags, family, count; const float *priorities; } VkDeviceQueueCreateInfo;
typedef struct { int type; const void *next; uint32_t flags, queue_count; const VkDeviceQueueCreateInfo *queues; uint32_t layers; const char *const *layer_names; uint32_t extensions; const char *const *extension_names; const void *features; } VkDeviceCreateInfo;
/* The properties end with limits, which this program does not read. */
typedef struct { uint32_t api, driver, vendor, device, type; char name[256]; char rest[2048]; } VkPhysicalDeviceProperties;
enum { INSTANCE_CREATE_INFO = 1, QUEUE_CREATE_INFO = 2, DEVICE_CREATE_INFO = 3, DEVICE_TYPE_CPU = 4, MOST = 16 };

int main(void) {
    VkInstanceCreateInfo info = {.type = INSTANCE_CREATE_INFO};
    VkInstance instance = NULL;
    VkPhysicalDevice devices[MOST];
    uint32_t count = MOST, working = 0;
    mine();
    HMODULE loader = library("vulkan-1.dll", "the GPU's driver does not list it for containers");
    int (WINAPI *create_instance)(const VkInstanceCreateInfo *, const void *, VkInstance *) = function(loader, "vkCreateInstance");
    int (WINAPI *enumerate)(VkInstance, uint32_t *, VkPhysicalDevice *) = function(loader, "vkEnumeratePhysicalDevices");
    void (WINAPI *properties_of)(VkPhysicalDevice, VkPhysicalDeviceProperties *) = function(loader, "vkGetPhysicalDeviceProperties");
    int (WINAPI *create_device)(VkPhysicalDevice, const VkDeviceCreateInfo *, const void *, VkDevice *) = function(loader, "vkCreateDevice");
    int result = create_instance(&info, NULL, &instance);
    if (result) FAIL("vkCreateInstance: Vulkan error %d: the loader does not find the driver", result);
    result = enumerate(instance, &count, devices);
    if (result < 0) FAIL("vkEnumeratePhysicalDevices: Vulkan error %d", result);
    for (uint32_t i = 0; i < count; i++) {
        VkPhysicalDeviceProperties properties = {0};
        VkDevice device = NULL;
        float priority = 1;
        VkDeviceQueueCreateInfo queue = {.type = QUEUE_CREATE_INFO, .count = 1, .priorities = &priority};
        VkDeviceCreateInfo wanted = {.type = DEVICE_CREATE_INFO, .queue_count = 1, .queues = &queue};
        properties_of(devices[i], &properties);
        result = create_device(devices[i], &wanted, NULL, &device);
        printf("device %u: %s, %04x:%04x, Vulkan %u.%u, %s\n", i, properties.name, properties.vendor, properties.device, properties.api >> 22 & 0x7f,
               properties.api >> 12 & 0x3ff, result ? "does not work" : properties.type == DEVICE_TYPE_CPU ? "no GPU" : "works");
        if (!result && properties.type != DEVICE_TYPE_CPU) working++;
    }
    if (!working) FAIL("Vulkan has no GPU");
    return 0;
}
