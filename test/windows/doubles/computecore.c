// A double of the Host Compute Service's newer library (computecore.dll), which Wine does not have. The declarations
// are those of MinGW's header. Build:
//   x86_64-w64-mingw32-gcc -shared -o computecore.dll computecore.c
//
// The answer to a question for basic properties is C:\hcs-properties.json. Any other question, or none, fails and has a
// document that says so, as in Windows. So does every question while that file is not there.
//
// runhcs 0.15.0 creates containers with this library, earlier ones with vmcompute.dll. The calls go on to the double of
// that, and are done when they return.
#include <windows.h>
#include <computecore.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#define FAILED_TO_PARSE ((HRESULT)0x8037010D) // HCS_E_INVALID_JSON
#define EXPORT __declspec(dllexport)

// vmcompute calls a function of vmcompute.dll.
#define vmcompute(function, ...) \
    ((HRESULT(WINAPI *)())GetProcAddress(LoadLibraryA("vmcompute.dll"), #function))(__VA_ARGS__)

static PWSTR answer(const char *text) {
    int length = MultiByteToWideChar(CP_UTF8, 0, text, -1, NULL, 0);
    PWSTR wide = LocalAlloc(LMEM_FIXED, length * sizeof *wide);
    if (wide) MultiByteToWideChar(CP_UTF8, 0, text, -1, wide, length);
    return wide;
}

EXPORT HRESULT WINAPI HcsGetServiceProperties(PCWSTR query, PWSTR *result) {
    static char text[65536];
    FILE *file = fopen("C:\\hcs-properties.json", "rb");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    BOOL good = query && wcsstr(query, L"PropertyTypes") && wcsstr(query, L"\"Basic\"") && length;
    if (result) *result = answer(good ? text : "{\"Error\":-2143878899,\"ErrorMessage\":\"the double does not know\"}");
    return good ? S_OK : FAILED_TO_PARSE;
}

// An operation has the result of the call that it was given to.
struct operation {
    HRESULT status;
    PWSTR document;
    HCS_PROCESS_INFORMATION process;
};

static struct operation *of(HCS_OPERATION operation) { return (struct operation *)operation; }
static HRESULT done(HCS_OPERATION operation, HRESULT status) { return of(operation)->status = status; }

EXPORT HCS_OPERATION WINAPI HcsCreateOperation(const void *context, HCS_OPERATION_COMPLETION callback) {
    return (HCS_OPERATION)calloc(1, sizeof(struct operation));
}
EXPORT void WINAPI HcsCloseOperation(HCS_OPERATION operation) { free(operation); }
EXPORT HRESULT WINAPI HcsGetOperationResultAndProcessInfo(HCS_OPERATION operation, HCS_PROCESS_INFORMATION *process, PWSTR *document) {
    if (process) *process = of(operation)->process;
    if (document) *document = of(operation)->document; // The caller frees it.
    of(operation)->document = NULL;
    return of(operation)->status;
}
EXPORT HRESULT WINAPI HcsGetOperationResult(HCS_OPERATION operation, PWSTR *document) {
    return HcsGetOperationResultAndProcessInfo(operation, NULL, document);
}
EXPORT HRESULT WINAPI HcsWaitForOperationResult(HCS_OPERATION operation, DWORD timeout, PWSTR *document) {
    return HcsGetOperationResult(operation, document);
}
EXPORT HRESULT WINAPI HcsWaitForOperationResultAndProcessInfo(HCS_OPERATION operation, DWORD timeout, HCS_PROCESS_INFORMATION *process, PWSTR *document) {
    return HcsGetOperationResultAndProcessInfo(operation, process, document);
}

// A handle is that of a system or process of vmcompute.dll, with the caller's callback.
struct handle {
    void *real, *watch, *context;
    HCS_EVENT_CALLBACK callback;
};

static void *real(void *handle) { return ((struct handle *)handle)->real; }

// opened returns the handle of a call that has set real, if it was successful.
static HRESULT opened(HRESULT status, void **real, void *handle) {
    struct handle *h = status == S_OK ? calloc(1, sizeof *h) : NULL;
    if (h) h->real = *real;
    *(struct handle **)handle = h;
    return status;
}

static void CALLBACK notify(DWORD type, void *context, HRESULT status, const wchar_t *data) {
    struct handle *h = context;
    PWSTR properties = NULL;
    if (type == HcsEventProcessExited) vmcompute(HcsGetProcessProperties, h->real, &properties, NULL);
    HCS_EVENT event = {type, properties, NULL};
    h->callback(&event, h->context);
}

EXPORT HRESULT WINAPI HcsCreateComputeSystem(PCWSTR id, PCWSTR document, HCS_OPERATION operation, const SECURITY_DESCRIPTOR *security, HCS_SYSTEM *system) {
    void *created;
    return opened(done(operation, vmcompute(HcsCreateComputeSystem, id, document, NULL, &created, NULL)), &created, system);
}
EXPORT HRESULT WINAPI HcsOpenComputeSystem(PCWSTR id, DWORD access, HCS_SYSTEM *system) {
    void *found;
    return opened(vmcompute(HcsOpenComputeSystem, id, &found, NULL), &found, system);
}
EXPORT HRESULT WINAPI HcsSetComputeSystemCallback(HCS_SYSTEM system, HCS_EVENT_OPTIONS options, const void *context, HCS_EVENT_CALLBACK callback) {
    struct handle *h = (struct handle *)system;
    h->callback = callback, h->context = (void *)context;
    return vmcompute(HcsRegisterComputeSystemCallback, h->real, notify, h, &h->watch);
}
// As on Windows, there are no notifications after it has returned.
EXPORT void WINAPI HcsCloseComputeSystem(HCS_SYSTEM system) {
    struct handle *h = (struct handle *)system;
    if (h->watch) vmcompute(HcsUnregisterComputeSystemCallback, h->watch);
    vmcompute(HcsCloseComputeSystem, h->real);
    free(h);
}
EXPORT HRESULT WINAPI HcsStartComputeSystem(HCS_SYSTEM system, HCS_OPERATION operation, PCWSTR options) {
    return done(operation, vmcompute(HcsStartComputeSystem, real(system), options, NULL));
}
EXPORT HRESULT WINAPI HcsShutDownComputeSystem(HCS_SYSTEM system, HCS_OPERATION operation, PCWSTR options) {
    return done(operation, vmcompute(HcsShutdownComputeSystem, real(system), options, NULL));
}
EXPORT HRESULT WINAPI HcsTerminateComputeSystem(HCS_SYSTEM system, HCS_OPERATION operation, PCWSTR options) {
    return done(operation, vmcompute(HcsTerminateComputeSystem, real(system), options, NULL));
}
EXPORT HRESULT WINAPI HcsModifyComputeSystem(HCS_SYSTEM system, HCS_OPERATION operation, PCWSTR settings, HANDLE identity) {
    return done(operation, vmcompute(HcsModifyComputeSystem, real(system), settings, NULL));
}
EXPORT HRESULT WINAPI HcsGetComputeSystemProperties(HCS_SYSTEM system, HCS_OPERATION operation, PCWSTR query) {
    return done(operation, vmcompute(HcsGetComputeSystemProperties, real(system), query, &of(operation)->document, NULL));
}

EXPORT HRESULT WINAPI HcsCreateProcess(HCS_SYSTEM system, PCWSTR parameters, HCS_OPERATION operation, const SECURITY_DESCRIPTOR *security, HCS_PROCESS *process) {
    void *created;
    return opened(done(operation, vmcompute(HcsCreateProcess, real(system), parameters, &of(operation)->process, &created, NULL)), &created, process);
}
EXPORT HRESULT WINAPI HcsOpenProcess(HCS_SYSTEM system, DWORD pid, DWORD access, HCS_PROCESS *process) {
    void *found;
    return opened(vmcompute(HcsOpenProcess, real(system), pid, &found, NULL), &found, process);
}
EXPORT HRESULT WINAPI HcsSetProcessCallback(HCS_PROCESS process, HCS_EVENT_OPTIONS options, void *context, HCS_EVENT_CALLBACK callback) {
    struct handle *h = (struct handle *)process;
    h->callback = callback, h->context = context;
    return vmcompute(HcsRegisterProcessCallback, h->real, notify, h, &h->watch);
}
EXPORT void WINAPI HcsCloseProcess(HCS_PROCESS process) {
    struct handle *h = (struct handle *)process;
    if (h->watch) vmcompute(HcsUnregisterProcessCallback, h->watch);
    vmcompute(HcsCloseProcess, h->real);
    free(h);
}
EXPORT HRESULT WINAPI HcsTerminateProcess(HCS_PROCESS process, HCS_OPERATION operation, PCWSTR options) {
    return done(operation, vmcompute(HcsTerminateProcess, real(process), NULL));
}
EXPORT HRESULT WINAPI HcsSignalProcess(HCS_PROCESS process, HCS_OPERATION operation, PCWSTR options) {
    return done(operation, vmcompute(HcsSignalProcess, real(process), options, NULL));
}
EXPORT HRESULT WINAPI HcsModifyProcess(HCS_PROCESS process, HCS_OPERATION operation, PCWSTR settings) {
    return done(operation, vmcompute(HcsModifyProcess, real(process), settings, NULL));
}
