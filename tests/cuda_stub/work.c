/* Submitted work: a queue per stream, run as late as the waits of the host allow, or at once in eager mode. */
#include "stub.h"

#include <time.h>

static Hook hook;
static Stream default_stream; /* the legacy one: in order with every stream that is not "non-blocking" */
static int launches;

API stub_set_hook(Hook function) { /* runs for every kernel; anything but 0 is a failed launch */
    hook = function;
    return SUCCESS;
}

void stub_set_default_stream(void) {
    default_stream = (Stream){.object = {.kind = STREAM}};
    launches = 0;
}

Stream *stub_stream(void *handle) {
    if (!handle || handle == (void *)1) return &default_stream;
    return stub_is(handle, STREAM) ? handle : NULL;
}

static void run_kernel(const Launch *launch) {
    const Function *f = launch->function;
    stub_note("run %s", f->name);
    if (f->object.dead) {
        stub_fault = stub_refuse(LAUNCH_FAILED, "%s was unloaded", f->name);
        return;
    }
    for (unsigned i = 0; i < f->count; i++) {
        Address pointer = 0;
        if (f->size[i] != sizeof pointer) continue;
        memcpy(&pointer, launch->arguments + f->offset[i], sizeof pointer);
        if (pointer && !stub_touches(pointer))
            stub_fault = stub_refuse(ILLEGAL_ADDRESS, "parameter %u of %s points nowhere", i, f->name);
    }
    if (!stub_fault && hook && hook(f->name, f->image, launch->dims, launch->arguments, f->bytes))
        stub_fault = stub_refuse(LAUNCH_FAILED, "the hook failed on %s", f->name);
}

static void run_node(const Node *node) {
    if (stub_fault) return;
    if (node->type == KERNEL_NODE) run_kernel(&node->launch);
    if (node->type == MEMCPY_NODE) {
        stub_note("copy bytes=%zu", node->bytes);
        memmove((void *)node->destination, (const void *)node->source, node->bytes);
    }
    if (node->type == MEMSET_NODE)
        for (size_t i = 0; i < node->bytes; i += node->width)
            memcpy((unsigned char *)node->destination + i, &node->value, node->width);
}

static void run(const Work *work) {
    struct timespec now;
    switch (work->kind) {
    case RUN_NODE: run_node(work->node); return;
    case RUN_EXEC:
        stub_note("begin graph launch %d", work->serial);
        for (int i = 0; i < work->exec->count; i++) run_node(work->exec->nodes[i]);
        stub_note("end graph launch %d", work->serial);
        return;
    case RECORD:
        clock_gettime(CLOCK_MONOTONIC, &now);
        work->record->milliseconds = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
        work->record->done = 1;
        return;
    case WAIT: stub_run_until(work->record->stream, work->record); return;
    }
}

int stub_run_one(Stream *stream) { /* whether there was anything to run */
    Work *work = stream->first;
    if (!work || stream->running) return 0;
    stream->first = work->next;
    if (!stream->first) stream->last = NULL;
    stream->running = 1; /* a hook may not wait for its own stream */
    run(work);
    stream->running = 0;
    return 1;
}

int stub_run_until(Stream *stream, const Record *record) {
    while (!(record && record->done) && stub_run_one(stream)) {}
    return stub_fault;
}

int stub_drain(void) {
    for (Object *object = stub_objects(); object; object = object->next)
        if (object->kind == STREAM) stub_run_until((Stream *)object, NULL);
    return stub_run_until(&default_stream, NULL);
}

int stub_push(Stream *stream, Work work) {
    if (work.kind == RUN_EXEC) {
        work.serial = ++launches;
        stub_note("graph launch %d", work.serial);
    }
    if (stream == &default_stream)
        for (Object *object = stub_objects(); object; object = object->next)
            if (object->kind == STREAM && !(((Stream *)object)->flags & 1)) stub_run_until((Stream *)object, NULL);
    Work *queued = stub_keep(sizeof *queued);
    *queued = work;
    if (stream->last) stream->last->next = queued;
    else stream->first = queued;
    stream->last = queued;
    if (settings.eager || stream == &default_stream) return stub_run_until(stream, NULL);
    return stub_fault;
}

int stub_submit(Stream *stream, const Node *node) { /* into the capture, or into the queue */
    if (stream->invalid) return stub_refuse(CAPTURE_INVALIDATED, "an earlier call spoiled the capture");
    if (stream->capture) {
        Node added = *node;
        added.dependencies = stream->tails;
        memcpy(added.dependency, stream->tail, sizeof added.dependency);
        stream->tail[0] = stub_add(stream->capture, &added);
        stream->tails = 1;
        return SUCCESS;
    }
    Node *own = stub_keep(sizeof *own);
    *own = *node;
    return stub_push(stream, (Work){.kind = RUN_NODE, .node = own});
}
