// A stand-in for the Host Compute Service (vmcompute.dll) under Wine. It lets the real
// containerd-shim-runhcs-v1.exe run as far as HcsCreateComputeSystem, and writes down the JSON document
// that the shim sends there. Build:
//   x86_64-w64-mingw32-gcc -shared -o vmcompute.dll vmcompute.c -lole32
// and copy into the Wine prefix's drive_c/windows/system32. Proven with hcsshim v0.11.7 to v0.13.0; v0.15.0 calls it
// through computecore.dll.
//
// A container whose document has "hcs-double-refuse" in it is refused. Any other exists from then on, as a file
// named after it in C:\hcs, until it is shut down or terminated, by whichever process. Its processes do nothing:
// one whose command line has "forever" in it runs until it is killed and ends with 137, any other ends with 0 at
// once. Each call is a line in C:\hcs.log: the call, the system's ID and what was sent along, with tabs between.
//
// C:\hcs-own-files.txt lists files that this Windows gives to a container with a device itself, as Windows Server
// 2025 does: container paths as in a document, one in each line. A document with a device and a mount at one of them
// is refused as there; either alone is not.
#include <windows.h>
#include <objbase.h>
#include <stdio.h>
#include <stdlib.h>
#define EXPORT __declspec(dllexport)

#define REFUSED ((HRESULT)0x80004005)   // E_FAIL
#define NOT_THERE ((HRESULT)0xC037010E) // HCS_E_SYSTEM_NOT_FOUND
#define NOT_DONE ((HRESULT)0x80004001)  // E_NOTIMPL
#define INVALID ((HRESULT)0x80070057)   // E_INVALIDARG

// Notifications. https://learn.microsoft.com/virtualization/api/hcs/reference/hcs_notifications
#define SYSTEM_EXITED 0x00000001
#define PROCESS_EXITED 0x00010000
typedef void(CALLBACK *notify)(DWORD type, void *context, HRESULT status, const wchar_t *data);

// A named event is shared by all processes, so that the end of a system reaches all that have it open.
struct system {
    wchar_t id[160];
    HANDLE exited;
    DWORD pid; // of the process that was made last
};

struct process {
    DWORD pid, code;
    HANDLE exited, system_exited;
};

struct watch {
    DWORD type;
    notify callback;
    void *context;
    HANDLE events[3]; // stop, exited, the system's exited
    DWORD count;
    HANDLE thread;
};

struct information {
    DWORD pid, reserved;
    HANDLE in, out, err;
};

static char *utf8(const wchar_t *text) {
    int n = text ? WideCharToMultiByte(CP_UTF8, 0, text, -1, 0, 0, 0, 0) : 0;
    char *buf = calloc(1, n + 1);
    if (n) WideCharToMultiByte(CP_UTF8, 0, text, -1, buf, n, 0, 0);
    return buf;
}

static void record(const char *call, const wchar_t *id, const wchar_t *document) {
    HANDLE turn = CreateMutexW(0, FALSE, L"hcs-double-log");
    WaitForSingleObject(turn, INFINITE);
    FILE *f = fopen("C:\\hcs.log", "ab");
    if (f) {
        char *name = utf8(id), *text = utf8(document);
        fprintf(f, "%s\t%s\t%s\n", call, name, text);
        fclose(f);
        free(name);
        free(text);
    }
    ReleaseMutex(turn);
    CloseHandle(turn);
}

static wchar_t *answer(const wchar_t *text) {
    wchar_t *copy = CoTaskMemAlloc((lstrlenW(text) + 1) * sizeof *text);
    if (copy) lstrcpyW(copy, text);
    return copy;
}

static void place(wchar_t *path, const wchar_t *id) { wsprintfW(path, L"C:\\hcs\\%s", id); }

static struct system *open_system(const wchar_t *id) {
    wchar_t name[200];
    struct system *s = calloc(1, sizeof *s);
    lstrcpynW(s->id, id, sizeof s->id / sizeof *s->id);
    wsprintfW(name, L"hcs-double-system-%s", s->id);
    s->exited = CreateEventW(0, TRUE, FALSE, name);
    return s;
}

static HANDLE process_event(DWORD pid) {
    wchar_t name[60];
    wsprintfW(name, L"hcs-double-process-%u", pid);
    return CreateEventW(0, TRUE, FALSE, name);
}

static HANDLE same(HANDLE h) {
    HANDLE copy = 0;
    DuplicateHandle(GetCurrentProcess(), h, GetCurrentProcess(), &copy, 0, FALSE, DUPLICATE_SAME_ACCESS);
    return copy;
}

static DWORD WINAPI watching(void *argument) {
    struct watch *w = argument;
    if (WaitForMultipleObjects(w->count, w->events, FALSE, INFINITE) != WAIT_OBJECT_0) w->callback(w->type, w->context, 0, 0);
    return 0;
}

static void *watch(DWORD type, notify callback, void *context, HANDLE exited, HANDLE system_exited) {
    struct watch *w = calloc(1, sizeof *w);
    w->type = type;
    w->callback = callback;
    w->context = context;
    w->events[w->count++] = CreateEventW(0, TRUE, FALSE, 0);
    w->events[w->count++] = same(exited);
    if (system_exited) w->events[w->count++] = same(system_exited);
    w->thread = CreateThread(0, 0, watching, w, 0, 0);
    return w;
}

// As on Windows, there are no notifications after it has returned.
static void unwatch(struct watch *w) {
    SetEvent(w->events[0]);
    WaitForSingleObject(w->thread, INFINITE);
    CloseHandle(w->thread);
    while (w->count) CloseHandle(w->events[--w->count]);
    free(w);
}

static HRESULT end(const char *call, struct system *s, const wchar_t *options) {
    wchar_t path[200];
    record(call, s->id, options);
    place(path, s->id);
    DeleteFileW(path);
    SetEvent(s->exited);
    return 0;
}

// mounts_own_file reports whether a document has a device and a mount at a path of C:\hcs-own-files.txt.
static BOOL mounts_own_file(const wchar_t *document) {
    char line[1100], wanted[1200], *text = strlwr(utf8(document));
    FILE *f = strstr(text, "\"assigneddevices\":[{") ? fopen("C:\\hcs-own-files.txt", "r") : 0;
    BOOL found = FALSE;
    while (f && !found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\r\n")] = 0;
        snprintf(wanted, sizeof wanted, "\"containerpath\":\"%s\"", strlwr(line));
        found = *line && strstr(text, wanted) != 0;
    }
    if (f) fclose(f);
    free(text);
    return found;
}

EXPORT HRESULT HcsCreateComputeSystem(const wchar_t *id, const wchar_t *document, HANDLE identity, void **system, wchar_t **result) {
    wchar_t path[200];
    record("HcsCreateComputeSystem", id, document);
    if (result) *result = 0;
    *system = (void *)1;
    if (wcsstr(document, L"hcs-double-refuse")) return REFUSED;
    if (mounts_own_file(document)) return INVALID;
    CreateDirectoryW(L"C:\\hcs", 0);
    place(path, id);
    CloseHandle(CreateFileW(path, GENERIC_WRITE, 0, 0, CREATE_ALWAYS, 0, 0));
    struct system *s = open_system(id);
    ResetEvent(s->exited);
    *system = s;
    return 0;
}
EXPORT HRESULT HcsOpenComputeSystem(const wchar_t *id, void **system, wchar_t **result) {
    wchar_t path[200];
    if (result) *result = 0;
    if (lstrlenW(id) >= 160) return NOT_THERE;
    place(path, id);
    if (GetFileAttributesW(path) == INVALID_FILE_ATTRIBUTES) return NOT_THERE;
    *system = open_system(id);
    return 0;
}
EXPORT HRESULT HcsCloseComputeSystem(struct system *s) {
    if (s == (void *)1) return 0;
    CloseHandle(s->exited);
    free(s);
    return 0;
}
EXPORT HRESULT HcsStartComputeSystem(struct system *s, const wchar_t *options, wchar_t **result) {
    record("HcsStartComputeSystem", s->id, options);
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsShutdownComputeSystem(struct system *s, const wchar_t *options, wchar_t **result) {
    if (result) *result = 0;
    return end("HcsShutdownComputeSystem", s, options);
}
EXPORT HRESULT HcsTerminateComputeSystem(struct system *s, const wchar_t *options, wchar_t **result) {
    if (result) *result = 0;
    return end("HcsTerminateComputeSystem", s, options);
}
EXPORT HRESULT HcsGetComputeSystemProperties(struct system *s, const wchar_t *query, wchar_t **properties, wchar_t **result) {
    wchar_t text[400];
    wsprintfW(text, L"{\"Id\":\"%s\",\"SystemType\":\"Container\",\"RuntimeOSType\":\"Windows\",\"State\":\"Running\"", s->id);
    if (s->pid) wsprintfW(text + lstrlenW(text), L",\"ProcessList\":[{\"ProcessId\":%u}]", s->pid);
    lstrcatW(text, L"}");
    *properties = answer(text);
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsModifyComputeSystem(struct system *s, const wchar_t *settings, wchar_t **result) {
    record("HcsModifyComputeSystem", s->id, settings);
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsRegisterComputeSystemCallback(struct system *s, notify callback, void *context, void **handle) {
    *handle = watch(SYSTEM_EXITED, callback, context, s->exited, 0);
    return 0;
}
EXPORT HRESULT HcsUnregisterComputeSystemCallback(void *handle) { unwatch(handle); return 0; }

// pipe makes the caller's end of a standard handle whose other end is closed already.
static HANDLE pipe(const wchar_t *parameters, const wchar_t *wanted, const wchar_t *name, DWORD pid) {
    wchar_t path[100];
    if (!wcsstr(parameters, wanted)) return 0;
    wsprintfW(path, L"\\\\.\\pipe\\hcs-double-%u-%s", pid, name);
    HANDLE ours = CreateNamedPipeW(path, PIPE_ACCESS_DUPLEX | FILE_FLAG_OVERLAPPED, 0, 1, 4096, 4096, 0, 0);
    CloseHandle(CreateFileW(path, GENERIC_READ | GENERIC_WRITE, 0, 0, OPEN_EXISTING, 0, 0));
    return ours;
}

EXPORT HRESULT HcsCreateProcess(struct system *s, const wchar_t *parameters, struct information *info, void **process, wchar_t **result) {
    static LONG made;
    record("HcsCreateProcess", s->id, parameters);
    struct process *p = calloc(1, sizeof *p);
    p->pid = s->pid = GetCurrentProcessId() * 1000 + InterlockedIncrement(&made);
    p->exited = process_event(p->pid);
    p->system_exited = same(s->exited);
    if (wcsstr(parameters, L"forever")) p->code = 137;
    else SetEvent(p->exited);
    memset(info, 0, sizeof *info);
    info->pid = p->pid;
    info->in = pipe(parameters, L"\"CreateStdInPipe\":true", L"in", p->pid);
    info->out = pipe(parameters, L"\"CreateStdOutPipe\":true", L"out", p->pid);
    info->err = pipe(parameters, L"\"CreateStdErrPipe\":true", L"err", p->pid);
    *process = p;
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsOpenProcess(struct system *s, DWORD pid, void **process, wchar_t **result) {
    struct process *p = calloc(1, sizeof *p);
    p->pid = pid;
    p->code = 137;
    p->exited = process_event(pid);
    p->system_exited = same(s->exited);
    *process = p;
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsCloseProcess(struct process *p) {
    CloseHandle(p->exited);
    CloseHandle(p->system_exited);
    free(p);
    return 0;
}
EXPORT HRESULT HcsTerminateProcess(struct process *p, wchar_t **result) {
    SetEvent(p->exited);
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsSignalProcess(struct process *p, const wchar_t *options, wchar_t **result) { return HcsTerminateProcess(p, result); }
EXPORT HRESULT HcsGetProcessInfo(struct process *p, struct information *info, wchar_t **result) {
    memset(info, 0, sizeof *info);
    info->pid = p->pid;
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsGetProcessProperties(struct process *p, wchar_t **properties, wchar_t **result) {
    wchar_t text[200];
    wsprintfW(text, L"{\"ProcessId\":%u,\"Exited\":true,\"ExitCode\":%u,\"LastWaitResult\":0}", p->pid, p->code);
    *properties = answer(text);
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsModifyProcess(struct process *p, const wchar_t *settings, wchar_t **result) {
    if (result) *result = 0;
    return 0;
}
EXPORT HRESULT HcsRegisterProcessCallback(struct process *p, notify callback, void *context, void **handle) {
    *handle = watch(PROCESS_EXITED, callback, context, p->exited, p->system_exited);
    return 0;
}
EXPORT HRESULT HcsUnregisterProcessCallback(void *handle) { unwatch(handle); return 0; }

// The Host Network Service: one network namespace without endpoints, as computenetwork.c has it.
EXPORT HRESULT HNSCall(const wchar_t *method, const wchar_t *path, const wchar_t *object, wchar_t **response) {
    *response = answer(L"{\"Success\":true,\"Output\":{\"ID\":\"77777777-7777-7777-7777-777777777777\",\"Major\":13,\"Minor\":0,\"ResourceList\":[]}}");
    return 0;
}

EXPORT HRESULT HcsEnumerateComputeSystems(const wchar_t *query, wchar_t **systems, wchar_t **result) { return NOT_DONE; }
EXPORT HRESULT HcsGetServiceProperties(const wchar_t *query, wchar_t **properties, wchar_t **result) { return NOT_DONE; }
EXPORT HRESULT ActivateLayer(void *info, const wchar_t *id) { return 0; }
EXPORT HRESULT DeactivateLayer(void *info, const wchar_t *id) { return 0; }
EXPORT HRESULT PrepareLayer(void *info, const wchar_t *id, void *layers, DWORD count) { return 0; }
EXPORT HRESULT UnprepareLayer(void *info, const wchar_t *id) { return 0; }
EXPORT HRESULT LayerExists(void *info, const wchar_t *id, DWORD *exists) { *exists = 1; return 0; }
EXPORT HRESULT DestroyLayer(void *info, const wchar_t *id) { return 0; }
EXPORT HRESULT CreateSandboxLayer(void *info, const wchar_t *id, void *parent, void *layers, DWORD count) { return 0; }
EXPORT HRESULT ExpandSandboxSize(void *info, const wchar_t *id, ULONGLONG size) { return 0; }
EXPORT HRESULT NameToGuid(const wchar_t *name, GUID *guid) { memset(guid, 0x42, sizeof *guid); return 0; }
EXPORT HRESULT GetLayerMountPath(void *info, const wchar_t *id, SIZE_T *len, wchar_t *path) {
    static const wchar_t volume[] = L"\\\\?\\Volume{11111111-2222-3333-4444-555555555555}\\";
    *len = sizeof volume / sizeof *volume;
    if (path) lstrcpyW(path, volume);
    return 0;
}
