/* Shared by the example programs. They load the driver's DLLs at run time, because a
 * program that links them does not start in a container without a GPU. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

/* FAIL prints an error and exits. */
#define FAIL(...) (fprintf(stderr, "error: " __VA_ARGS__), fputc('\n', stderr), exit(1))

/* library loads a DLL from System32, where the driver's files are mounted. */
static inline HMODULE library(const char *name, const char *advice) {
    HMODULE module = LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    if (!module) FAIL("cannot load %s (error %lu): %s", name, GetLastError(), advice);
    return module;
}

/* function returns a function of a library. */
static void *function(HMODULE module, const char *name) {
    FARPROC found = GetProcAddress(module, name);
    if (!found) FAIL("the driver is too old: it has no %s", name);
    return (void *)found;
}

/* mine prints the environment variable that describes the container's own GPUs. Windows
 * shows a container all GPUs of its node:
 * https://github.com/microsoft/Windows-Containers/issues/333 */
static void mine(void) {
    const char *devices = getenv("DIRECTX_DEVICES");
    printf("DIRECTX_DEVICES: %s\n", devices ? devices : "not set");
}

#endif
