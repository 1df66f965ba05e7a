/* Memory: poisoned when it is given and when it is taken back, with guards on both sides. */
#define _GNU_SOURCE
#include "stub.h"

enum { GUARD = 4096, GIVEN = 0xA5, TAKEN = 0xDD, EDGE = 0x5A };
typedef struct Allocation {
    Address address;
    size_t bytes;
    int host;
    unsigned char *raw;
    struct Allocation *next;
} Allocation;

static Allocation *allocations;
static size_t used;

static int allocate(Address *address, size_t bytes, int host) {
    if (!bytes) return stub_refuse(INVALID_VALUE, "0 bytes");
    if (stub_capturing()) return stub_refuse(CAPTURE_UNSUPPORTED, "a stream is capturing");
    if (!host && bytes > (size_t)settings.memory - used) return stub_refuse(OUT_OF_MEMORY, "%zu bytes", bytes);
    Allocation *new = calloc(1, sizeof *new);
    size_t whole = (bytes + 2 * GUARD + 511) & ~(size_t)511;
    if (!new || !(new->raw = aligned_alloc(512, whole))) return free(new), OUT_OF_MEMORY;
    memset(new->raw, EDGE, whole);
    memset(new->raw + GUARD, GIVEN, bytes);
    *new = (Allocation){(Address)(new->raw + GUARD), bytes, host, new->raw, allocations};
    allocations = new;
    if (!host) used += bytes;
    *address = new->address;
    stub_note("%s bytes=%zu", host ? "host" : "device", bytes);
    return SUCCESS;
}

static int intact(const Allocation *a) {
    for (int i = 0; i < GUARD; i++)
        if (a->raw[i] != EDGE || ((unsigned char *)a->address)[a->bytes + (size_t)i] != EDGE) return 0;
    return 1;
}

API stub_intact(void) { /* whether nothing was written beside any allocation */
    ENTER;
    for (Allocation *a = allocations; a; a = a->next)
        if (!intact(a)) return stub_refuse(0, "memory beside an allocation of %zu bytes was written", a->bytes);
    return 1;
}

static int release(Address address, int host) {
    for (Allocation **at = &allocations; *at; at = &(*at)->next) {
        Allocation *a = *at;
        if (a->address != address || a->host != host) continue;
        int status = stub_drain(); /* the driver waits too */
        if (!intact(a)) status = stub_refuse(ILLEGAL_ADDRESS, "memory beside %zu bytes was written", a->bytes);
        if (!host) used -= a->bytes;
        *at = a->next;
        memset(a->raw, TAKEN, a->bytes + 2 * GUARD);
        free(a->raw);
        free(a);
        return status;
    }
    return stub_refuse(INVALID_VALUE, "that address was not allocated");
}

void stub_forget_memory(void) {
    while (allocations) {
        Allocation *next = allocations->next;
        free(allocations->raw);
        free(allocations);
        allocations = next;
    }
    used = 0;
}

static const Allocation *holding(Address address, size_t bytes) {
    for (Allocation *a = allocations; a; a = a->next)
        if (address >= a->address && address < a->address + a->bytes)
            return bytes <= a->address + a->bytes - address ? a : NULL;
    return NULL;
}

int stub_on_device(Address address, size_t bytes) {
    const Allocation *a = holding(address, bytes);
    return a && !a->host;
}

int stub_pinned(Address address, size_t bytes) {
    const Allocation *a = holding(address, bytes);
    return a && a->host;
}

API stub_holds(Address address, size_t bytes) { /* whether one device allocation holds all of them */
    return stub_on_device(address, bytes);
}

int stub_touches(Address address) { return holding(address, 1) != NULL; }

API cuMemAlloc_v2(Address *address, size_t bytes) {
    READY;
    return allocate(address, bytes, 0);
}

API cuMemFree_v2(Address address) {
    READY;
    return address ? release(address, 0) : SUCCESS;
}

API cuMemHostAlloc(Address *pointer, size_t bytes, unsigned flags) {
    READY;
    if (flags > 7) return stub_refuse(INVALID_VALUE, "flags %u", flags);
    return allocate(pointer, bytes, 1);
}

API cuMemFreeHost(Address pointer) {
    READY;
    return release(pointer, 1);
}

API cuMemGetInfo_v2(size_t *available, size_t *total) {
    READY;
    *total = (size_t)settings.memory;
    *available = *total - used;
    return SUCCESS;
}
