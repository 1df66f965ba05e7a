/* Process, device, context, errors, settings and the log.
 *
 * Settings: STUB_CC=89 STUB_SMS=24 STUB_MEM=bytes STUB_INTEGRATED=0 STUB_DRIVER=13000 STUB_EAGER=0, or stub_set at run
 * time. STUB_LOG=file takes one line per call; lines with two spaces in front say what came of it.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <pthread.h>
#include <stdarg.h>

struct Settings settings = {89, 24, 0, 13000, 0, 8L << 30};
int stub_fault;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static FILE *log_file;
static int initialised, retained;
static _Thread_local void *current;
static int context; /* the primary context is the only one */

static const struct { const char *name; long *value; } names[] = {
    {"CC", &settings.cc}, {"SMS", &settings.sms}, {"INTEGRATED", &settings.integrated},
    {"DRIVER", &settings.driver}, {"EAGER", &settings.eager}, {"MEM", &settings.memory},
};
enum { NAMES = sizeof names / sizeof *names };

__attribute__((constructor)) static void start(void) {
    for (int i = 0; i < NAMES; i++) {
        char variable[32];
        snprintf(variable, sizeof variable, "STUB_%s", names[i].name);
        if (getenv(variable)) *names[i].value = strtol(getenv(variable), NULL, 10);
    }
    if (getenv("STUB_LOG")) log_file = fopen(getenv("STUB_LOG"), "w");
    stub_set_default_stream();
}

API stub_set(const char *name, long value) {
    for (int i = 0; i < NAMES; i++)
        if (!strcmp(names[i].name, name)) return *names[i].value = value, SUCCESS;
    return NOT_FOUND;
}

API stub_log(const char *path) { /* into another file from here on; NULL ends it */
    if (log_file) fclose(log_file);
    log_file = path ? fopen(path, "w") : NULL;
    return path && !log_file ? NOT_FOUND : SUCCESS;
}

API stub_mark(const char *text) { /* a line of the caller's in the log */
    ENTER;
    stub_note("mark %s", text);
    return SUCCESS;
}

API stub_reset(void) { /* as if the process had just begun; all handles and addresses are void */
    ENTER;
    stub_forget_memory();
    stub_forget_objects();
    stub_set_default_stream();
    initialised = retained = stub_fault = 0;
    current = NULL;
    return SUCCESS;
}

Guard stub_enter(const char *name) {
    pthread_mutex_lock(&lock);
    if (log_file) fprintf(log_file, "%s\n", name), fflush(log_file);
    return (Guard){0};
}

void stub_leave(Guard *guard) {
    (void)guard;
    pthread_mutex_unlock(&lock);
}

static void write_note(const char *prefix, const char *format, va_list values) {
    if (!log_file) return;
    fputs(prefix, log_file);
    vfprintf(log_file, format, values);
    fputc('\n', log_file);
    fflush(log_file);
}

void stub_note(const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_note("  ", format, values);
    va_end(values);
}

int stub_refuse(int status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_note("  refused: ", format, values);
    va_end(values);
    return status;
}

int stub_ready(void) {
    if (!initialised) return stub_refuse(NOT_INITIALIZED, "cuInit was not called");
    if (!current) return stub_refuse(INVALID_CONTEXT, "this thread has no current context");
    return stub_fault;
}

API cuInit(unsigned flags) {
    ENTER;
    if (flags) return stub_refuse(INVALID_VALUE, "flags must be 0");
    if (!settings.cc) return NO_DEVICE;
    initialised = 1;
    return SUCCESS;
}

API cuDriverGetVersion(int *version) {
    ENTER;
    *version = (int)settings.driver;
    return SUCCESS;
}

API cuGetErrorName(int status, const char **name) {
    ENTER;
    static const struct { int status; const char *name; } known[] = {
        {SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"}, {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {INVALID_PTX, "CUDA_ERROR_INVALID_PTX"},
        {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"}, {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status) return *name = known[i].name, SUCCESS;
    *name = NULL;
    return INVALID_VALUE;
}

API cuGetErrorString(int status, const char **text) {
    ENTER;
    *text = status ? "refused by the stub driver" : "no error";
    return SUCCESS;
}

API cuDeviceGetCount(int *count) {
    ENTER;
    if (!initialised) return NOT_INITIALIZED;
    *count = 1;
    return SUCCESS;
}

API cuDeviceGet(int *device, int ordinal) {
    ENTER;
    if (!initialised) return NOT_INITIALIZED;
    if (ordinal) return INVALID_DEVICE;
    *device = 0;
    return SUCCESS;
}

API cuDeviceGetName(char *name, int bytes, int device) {
    ENTER;
    snprintf(name, (size_t)bytes, "Stub GPU %ld.%ld", settings.cc / 10, settings.cc % 10);
    return device ? INVALID_DEVICE : SUCCESS;
}

API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER;
    memset(uuid, 0x5B, 16);
    return device ? INVALID_DEVICE : SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, int device) {
    ENTER;
    *bytes = (size_t)settings.memory;
    return device ? INVALID_DEVICE : SUCCESS;
}

int stub_largest_shared(void) { /* per block after asking: the table of compute capabilities in the programming guide */
    switch (settings.cc) {
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: case 121: return 99 << 10;
    default: return settings.cc >= 90 ? 227 << 10 : 64 << 10;
    }
}

API cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    if (device) return INVALID_DEVICE;
    switch (attribute) {
    case 1: case 2: case 3: *value = attribute == 3 ? 64 : 1024; return SUCCESS; /* threads of a block, and its sides */
    case 4: *value = 64; return SUCCESS;
    case 5: *value = INT32_MAX; return SUCCESS; /* the grid's sides */
    case 6: case 7: *value = 65535; return SUCCESS;
    case 8: *value = SMALL_SHARED; return SUCCESS;
    case 10: *value = 32; return SUCCESS;
    case 13: *value = 1500000; return SUCCESS; /* kHz */
    case 16: *value = (int)settings.sms; return SUCCESS;
    case 18: *value = (int)settings.integrated; return SUCCESS;
    case 36: *value = 8000000; return SUCCESS; /* kHz of the memory */
    case 37: *value = 128; return SUCCESS;     /* bits of its bus */
    case 38: *value = 24 << 20; return SUCCESS;
    case 41: *value = 1; return SUCCESS; /* unified addressing */
    case 75: *value = (int)settings.cc / 10; return SUCCESS;
    case 76: *value = (int)settings.cc % 10; return SUCCESS;
    case 97: *value = stub_largest_shared(); return SUCCESS;
    default: *value = 0; return stub_refuse(INVALID_VALUE, "attribute %d is unknown here", attribute);
    }
}

API cuDevicePrimaryCtxRetain(void **handle, int device) {
    ENTER;
    if (!initialised) return NOT_INITIALIZED;
    retained++;
    *handle = &context;
    return device ? INVALID_DEVICE : SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER;
    if (device || !retained) return stub_refuse(INVALID_CONTEXT, "the primary context is not retained");
    stub_drain();
    retained--;
    return SUCCESS;
}

API cuCtxSetCurrent(void *handle) {
    ENTER;
    if (handle && (handle != &context || !retained)) return stub_refuse(INVALID_CONTEXT, "that is no live context");
    current = handle;
    return SUCCESS;
}

API cuCtxGetCurrent(void **handle) {
    ENTER;
    *handle = current;
    return SUCCESS;
}

API cuCtxSynchronize(void) {
    READY;
    if (stub_capturing()) return stub_refuse(CAPTURE_UNSUPPORTED, "a stream is capturing");
    return stub_drain();
}
