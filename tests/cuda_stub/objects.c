/* Handles: every one is known until stub_reset, so that a wrong or dead one is told apart. */
#include "stub.h"

typedef struct Kept {
    struct Kept *next;
    _Alignas(16) unsigned char bytes[];
} Kept;

static Kept *kept;
static Object *objects;

void *stub_keep(size_t bytes) {
    Kept *block = calloc(1, sizeof *block + bytes);
    if (!block) abort();
    block->next = kept;
    kept = block;
    return block->bytes;
}

void *stub_object(enum Kind kind, size_t bytes) {
    Object *object = stub_keep(bytes);
    object->kind = kind;
    object->next = objects;
    objects = object;
    return object;
}

int stub_is(const void *handle, enum Kind kind) {
    for (Object *object = objects; object; object = object->next)
        if (object == handle) return object->kind == kind && !object->dead;
    return 0;
}

Object *stub_objects(void) { return objects; }

void stub_forget_objects(void) {
    objects = NULL;
    while (kept) {
        Kept *next = kept->next;
        free(kept);
        kept = next;
    }
}

int stub_handle(const char *what) { return stub_refuse(INVALID_HANDLE, "no %s, or one that was destroyed", what); }
