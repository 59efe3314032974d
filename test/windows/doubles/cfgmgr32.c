// A stand-in for what Wine 8's configuration manager (cfgmgr32.dll) does not have: telling of devices. The structures are
// those of MinGW's header. Build:
//   x86_64-w64-mingw32-gcc -shared -o cfgmgr32.dll cfgmgr32.c -lole32 -luuid
//
// What happens is appended to C:\notify.txt, a line for each event:
//   ACTION CLASS NAME
// ACTION is a number of CM_NOTIFY_ACTION, CLASS the interface's GUID in braces, NAME its symbolic link. Lines from before
// the first registration are ignored.
//
// As in Windows, a filter that is not well formed is refused, callbacks come on a thread that is not the registrar's, and
// who unregisters waits for a callback that is under way. C:\notify.log has a line for each registration and callback.
#define _WIN32_WINNT 0x0A00
#include <windows.h>
#include <cfgmgr32.h>
#include <stdio.h>

#define EXPORT __declspec(dllexport)

struct registration {
    struct registration *next;
    CM_NOTIFY_FILTER filter;
    PVOID context;
    PCM_NOTIFY_CALLBACK callback;
};

static SRWLOCK lock = SRWLOCK_INIT; // held while callbacks run
static struct registration *registrations;
static long position;

static void note(const char *format, const char *what, int number) {
    FILE *file = fopen("C:\\notify.log", "a");
    if (!file) return;
    fprintf(file, format, what, number);
    fclose(file);
}

// notify calls the callbacks that are registered for the event in the line.
static void notify(char *line) {
    int action, begin = 0;
    char class_text[64];
    GUID class;
    WCHAR wide[64], name[1024];
    if (sscanf(line, "%d %63s %n", &action, class_text, &begin) < 2 || !begin) return;
    line[strcspn(line, "\r\n")] = 0;
    MultiByteToWideChar(CP_UTF8, 0, class_text, -1, wide, 64);
    if (FAILED(CLSIDFromString(wide, &class))) return;
    MultiByteToWideChar(CP_UTF8, 0, line + begin, -1, name, 1024);

    union {
        CM_NOTIFY_EVENT_DATA data;
        BYTE bytes[sizeof(CM_NOTIFY_EVENT_DATA) + sizeof name];
    } event = {0};
    WCHAR *text = event.data.u.DeviceInterface.SymbolicLink;
    event.data.FilterType = CM_NOTIFY_FILTER_TYPE_DEVICEINTERFACE;
    event.data.u.DeviceInterface.ClassGuid = class;
    lstrcpyW(text, name);
    DWORD size = (DWORD)((BYTE *)(text + lstrlenW(name) + 1) - event.bytes);

    for (struct registration *r = registrations; r; r = r->next) {
        if (!IsEqualGUID(&class, &r->filter.u.DeviceInterface.ClassGuid)) continue;
        DWORD answer = r->callback((HCMNOTIFICATION)r, r->context, action, &event.data, size);
        note("event %s %d\n", class_text, answer ? -1 : action);
    }
}

static DWORD WINAPI serve(void *unused) {
    for (;; Sleep(20)) {
        AcquireSRWLockExclusive(&lock);
        FILE *file = fopen("C:\\notify.txt", "rb");
        if (file) {
            char line[4096];
            fseek(file, position, SEEK_SET);
            while (fgets(line, sizeof line, file)) notify(line);
            position = ftell(file);
            fclose(file);
        }
        ReleaseSRWLockExclusive(&lock);
    }
    return 0;
}

// begin starts the thread that notifies, once.
static BOOL begin(void) {
    static HANDLE thread;
    if (thread) return TRUE;
    FILE *file = fopen("C:\\notify.txt", "rb");
    if (file) {
        fseek(file, 0, SEEK_END);
        position = ftell(file);
        fclose(file);
    }
    thread = CreateThread(NULL, 0, serve, NULL, 0, NULL);
    return thread != NULL;
}

static BOOL well_formed(const CM_NOTIFY_FILTER *f) {
    return f->cbSize == sizeof *f && !f->Reserved && !f->Flags && f->FilterType == CM_NOTIFY_FILTER_TYPE_DEVICEINTERFACE &&
           !IsEqualGUID(&f->u.DeviceInterface.ClassGuid, &GUID_NULL);
}

EXPORT CONFIGRET WINAPI CM_Register_Notification(PCM_NOTIFY_FILTER filter, PVOID context, PCM_NOTIFY_CALLBACK callback, PHCMNOTIFICATION handle) {
    if (!filter || !callback || !handle) return CR_INVALID_POINTER;
    if (!well_formed(filter)) return CR_INVALID_DATA;
    struct registration *r = calloc(1, sizeof *r);
    if (!r) return CR_OUT_OF_MEMORY;
    r->filter = *filter;
    r->context = context;
    r->callback = callback;
    AcquireSRWLockExclusive(&lock);
    r->next = registrations;
    registrations = r;
    BOOL ok = begin();
    note("%s %d\n", "registered", filter->FilterType);
    ReleaseSRWLockExclusive(&lock);
    *handle = (HCMNOTIFICATION)r;
    return ok ? CR_SUCCESS : CR_FAILURE;
}

EXPORT CONFIGRET WINAPI CM_Unregister_Notification(HCMNOTIFICATION handle) {
    CONFIGRET result = CR_INVALID_DATA;
    AcquireSRWLockExclusive(&lock);
    for (struct registration **r = &registrations; *r; r = &(*r)->next) {
        if ((HCMNOTIFICATION)*r != handle) continue;
        struct registration *gone = *r;
        *r = gone->next;
        note("%s %d\n", "unregistered", gone->filter.FilterType);
        free(gone);
        result = CR_SUCCESS;
        break;
    }
    ReleaseSRWLockExclusive(&lock);
    return result;
}
