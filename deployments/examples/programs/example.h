/* What the example programs share: loading the driver's libraries, and ending with
 * a reason. Nothing of a driver is linked: a container has its DLLs only when it
 * has a GPU, and a program that needs them at its start would not start at all. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

/* fail ends the program with one line: what failed, and what to look at. */
#define FAIL(...) (fprintf(stderr, "error: " __VA_ARGS__), fputc('\n', stderr), exit(1))

/* library loads a DLL of System32, where a driver's files are mounted. */
static HMODULE library(const char *name, const char *advice) {
    HMODULE module = LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_SYSTEM32);
    if (!module) FAIL("%s is not there (error %lu): %s", name, GetLastError(), advice);
    return module;
}

/* function finds one of a library's functions. */
static void *function(HMODULE module, const char *name) {
    FARPROC found = GetProcAddress(module, name);
    if (!found) FAIL("the driver has no %s: it is too old", name);
    return (void *)found;
}

/* mine prints what the node tells the container of its own GPUs. On a node with
 * several, Windows shows a container all of them:
 * https://github.com/microsoft/Windows-Containers/issues/333 */
static void mine(void) {
    const char *devices = getenv("DIRECTX_DEVICES");
    printf("DIRECTX_DEVICES: %s\n", devices ? devices : "not set");
}

#endif
