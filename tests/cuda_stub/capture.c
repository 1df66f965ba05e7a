/* Streams captured into graphs. */
#include "stub.h"

enum { NONE, ACTIVE, INVALIDATED, RELAXED = 2 };

int stub_capturing(void) {
    for (Object *object = stub_objects(); object; object = object->next) {
        const Stream *stream = (const Stream *)object;
        if (object->kind == STREAM && stream->capture && stream->origin && stream->mode != RELAXED) return 1;
    }
    return 0;
}

API cuStreamBeginCapture_v2(void *handle, int mode) {
    READY;
    if (!stub_is(handle, STREAM)) return stub_refuse(CAPTURE_UNSUPPORTED, "the legacy stream cannot be captured");
    Stream *stream = handle;
    if (mode < 0 || mode > RELAXED || stream->capture)
        return stub_refuse(INVALID_VALUE, "it captures already, or mode %d", mode);
    stream->capture = stub_object(GRAPH, sizeof *stream->capture);
    stream->mode = mode;
    stream->origin = 1;
    stream->tails = stream->invalid = 0;
    return SUCCESS;
}

static int joined(const Graph *graph, const Stream *stream, const Node *node) {
    for (int i = 0; i < stream->tails; i++)
        if (stream->tail[i] == node) return 1;
    for (int i = 0; i < graph->count; i++)
        for (int d = 0; d < graph->nodes[i]->dependencies; d++)
            if (graph->nodes[i]->dependency[d] == node) return 1;
    return 0;
}

API cuStreamEndCapture(void *handle, Graph **result) {
    READY;
    Stream *stream = handle;
    *result = NULL;
    if (!stub_is(handle, STREAM) || !stream->capture || !stream->origin)
        return stub_refuse(INVALID_VALUE, "no capture began on this stream");
    Graph *graph = stream->capture;
    int invalid = 0;
    for (Object *object = stub_objects(); object; object = object->next) {
        Stream *other = (Stream *)object;
        if (object->kind != STREAM || other->capture != graph) continue;
        invalid |= other->invalid;
        other->capture = NULL;
        other->origin = other->invalid = 0;
    }
    if (invalid) return stub_refuse(CAPTURE_INVALIDATED, "an earlier call spoiled the capture");
    for (int i = 0; i < graph->count; i++)
        if (!joined(graph, stream, graph->nodes[i])) return stub_refuse(CAPTURE_UNJOINED, "a branch was not joined");
    stub_note("captured nodes=%d", graph->count);
    *result = graph;
    return SUCCESS;
}

API cuStreamIsCapturing(void *handle, int *status) {
    READY;
    const Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    *status = !stream->capture ? NONE : stream->invalid ? INVALIDATED : ACTIVE;
    return SUCCESS;
}
