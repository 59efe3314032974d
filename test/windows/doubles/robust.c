// Keeps Wine 8 from being deadlocked when a program ends. It is a library of this system, which the bed
// preloads into all Wine programs, and not one of Windows:
//   gcc -shared -fPIC -o robust.so robust.c
//
// A program that ends kills its other threads (NtTerminateProcess in dlls/ntdll/unix/process.c). A thread that
// reads from a pipe is often killed while it holds virtual_mutex (virtual_locked_server_call). If data for that
// read arrives in this moment, a signal makes the last thread fetch it (usr1_handler, irp_completion), which needs
// the mutex: the program never ends, and its first thread remains as a zombie. All Go programs that use named
// pipes are affected; of programs that end while they read, one in ten hung.
//
// With robust mutexes the kernel releases what a killed thread held.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

int pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes) {
    static int (*next)(pthread_mutex_t *, const pthread_mutexattr_t *);
    pthread_mutexattr_t robust;
    if (!next) next = dlsym(RTLD_NEXT, "pthread_mutex_init");
    if (attributes) robust = *attributes;
    else pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    return next(mutex, &robust);
}

int pthread_mutex_lock(pthread_mutex_t *mutex) {
    static int (*next)(pthread_mutex_t *);
    if (!next) next = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    int status = next(mutex);
    return status == EOWNERDEAD ? pthread_mutex_consistent(mutex) : status;
}
