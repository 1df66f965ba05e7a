/* A libcuda that runs without a GPU: it keeps the driver's rules, moves real bytes, and hands every kernel to a hook.
 *
 * Asynchronous work is deferred: it runs only when somebody waits for it, and then no more of it than the wait demands,
 * so that a missing wait or a staging buffer reused too early shows as wrong bytes. In eager mode work runs as it is
 * submitted, which shows memory that the device overwrites before the host has read it. A program must pass in both.
 *
 * Own declarations of the documented interface; no vendor header is used. What is not static is called with the lock
 * of device.c held.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Address; /* of device memory, which is host memory here */

enum Status {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_UNJOINED = 904,
};
enum { KERNEL_NODE = 0, MEMCPY_NODE = 1, MEMSET_NODE = 2, EMPTY_NODE = 5 }; /* as the driver numbers them */
enum { MAX_PARAMS = 64, MAX_ARGUMENT_BYTES = 1024, MAX_DEPENDENCIES = 16 };
enum { SMALL_SHARED = 48 << 10 }; /* bytes of shared memory a kernel gets without asking */

/* What a handle points to begins with its kind, so that a wrong handle is refused and not followed. */
enum Kind { STREAM = 0x51, EVENT, MODULE, FUNCTION, GRAPH, NODE, EXEC };
typedef struct Object {
    enum Kind kind;
    int dead;
    struct Object *next;
} Object;

typedef struct Function {
    Object object;
    char name[256];
    unsigned count, offset[MAX_PARAMS], size[MAX_PARAMS], bytes; /* parameters */
    unsigned block, registers, shared;                           /* required threads, 0 for any; static bytes */
    int dynamic_limit, loaded;
    uint64_t image; /* FNV-1a 64 of the module's bytes: two modules may hold kernels of one name */
    struct Module *module;
} Function;

typedef struct Module {
    Object object;
    Function **functions;
    int count;
} Module;

typedef struct Edge { /* CUgraphEdgeData */
    unsigned char from, to, type, reserved[5];
} Edge;

typedef struct Launch {
    Function *function;
    unsigned dims[6], shared; /* grid, block, dynamic bytes */
    unsigned char arguments[MAX_ARGUMENT_BYTES];
} Launch;

typedef struct Node {
    Object object;
    int type, dependencies;
    struct Node *dependency[MAX_DEPENDENCIES];
    Edge edge[MAX_DEPENDENCIES];
    void *params[MAX_PARAMS]; /* into launch.arguments */
    Launch launch;
    Address destination, source;
    size_t bytes;
    unsigned value, width; /* memset: one element, and its bytes */
} Node;

typedef struct Graph {
    Object object;
    Node **nodes;
    int count;
} Graph;

typedef struct Exec {
    Object object;
    Node **nodes; /* in the order they run */
    int count;
} Exec;

typedef struct Record { /* one recording of an event, since an event may be recorded anew while somebody waits */
    struct Stream *stream;
    int done;
    double milliseconds;
} Record;

typedef struct Event {
    Object object;
    unsigned flags;
    Record *record;
    Graph *captured;
    int tails;
    Node *tail[MAX_DEPENDENCIES];
} Event;

typedef struct Work {
    enum { RUN_NODE, RUN_EXEC, RECORD, WAIT } kind;
    Node *node;
    Exec *exec;
    Record *record;
    int serial;
    struct Work *next;
} Work;

typedef struct Stream {
    Object object;
    int number, running;
    unsigned flags; /* 1: does not wait for the legacy stream */
    Work *first, *last;
    Graph *capture; /* being captured into, or NULL */
    int origin, mode, invalid, tails;
    Node *tail[MAX_DEPENDENCIES];
} Stream;

typedef int (*Hook)(const char *name, uint64_t image, const unsigned *dims, const void *arguments, unsigned bytes);

/* Settings, from STUB_* or stub_set. */
extern struct Settings {
    long cc, sms, integrated, driver, eager, memory;
} settings;

/* device.c */
typedef struct { int unused; } Guard;
Guard stub_enter(const char *name);
void stub_leave(Guard *guard);
void stub_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
int stub_refuse(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int stub_ready(void); /* a status: initialised, a current context, no earlier fault */
int stub_largest_shared(void);
extern int stub_fault; /* set by a kernel that failed; every later call reports it */
#define API __attribute__((visibility("default"))) int
#define ENTER Guard guard __attribute__((cleanup(stub_leave), unused)) = stub_enter(__func__)
#define READY \
    ENTER; \
    do { int status_ = stub_ready(); if (status_) return status_; } while (0)

/* objects.c */
void *stub_object(enum Kind kind, size_t bytes);
void *stub_keep(size_t bytes); /* zeroed memory that lives until stub_reset */
int stub_is(const void *handle, enum Kind kind);
Object *stub_objects(void); /* all there are, the newest first */
void stub_forget_objects(void);
int stub_handle(const char *what);

/* memory.c */
int stub_on_device(Address address, size_t bytes);
int stub_pinned(Address address, size_t bytes);
int stub_touches(Address address); /* whether any allocation holds this byte */
void stub_forget_memory(void);

/* image.c: what a cubin or PTX says about itself */
int stub_read_image(Module *module, const void *image);

/* work.c */
Stream *stub_stream(void *handle); /* NULL if it is none */
int stub_submit(Stream *stream, const Node *node);
int stub_push(Stream *stream, Work work);
int stub_run_until(Stream *stream, const Record *record); /* everything if record is NULL */
int stub_run_one(Stream *stream);
int stub_drain(void);
void stub_set_default_stream(void);

/* graph.c */
Node *stub_add(Graph *graph, const Node *node);
int stub_order(const Graph *graph, Node **order);
int stub_capturing(void); /* whether any stream captures in a mode that forbids unsafe calls */
int stub_make_launch(
    Launch *launch, void *function, const unsigned *dims, unsigned shared, void **params, void **extra
);
