/* Streams, events, copies and launches. */
#include "stub.h"

static int streams;

API cuStreamCreate(Stream **handle, unsigned flags) {
    READY;
    if (flags > 1) return stub_refuse(INVALID_VALUE, "flags %u", flags);
    Stream *stream = stub_object(STREAM, sizeof *stream);
    stream->flags = flags;
    stream->number = ++streams;
    *handle = stream;
    return SUCCESS;
}

API cuStreamCreateWithPriority(Stream **handle, unsigned flags, int priority) {
    (void)priority;
    return cuStreamCreate(handle, flags);
}

API cuStreamDestroy_v2(Stream *stream) {
    READY;
    if (!stub_is(stream, STREAM)) return stub_handle("stream");
    int status = stub_run_until(stream, NULL);
    stream->object.dead = 1;
    return status;
}

API cuStreamSynchronize(void *handle) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    if (stream->capture) {
        stream->invalid = 1;
        return stub_refuse(CAPTURE_UNSUPPORTED, "the stream is capturing");
    }
    return stub_run_until(stream, NULL);
}

API cuStreamQuery(void *handle) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    return stub_run_one(stream) ? NOT_READY : stub_fault; /* somebody who polls gets there in the end */
}

API cuEventCreate(Event **handle, unsigned flags) {
    READY;
    Event *event = stub_object(EVENT, sizeof *event);
    event->flags = flags;
    *handle = event;
    return SUCCESS;
}

API cuEventDestroy_v2(Event *event) {
    READY;
    if (!stub_is(event, EVENT)) return stub_handle("event");
    event->object.dead = 1;
    return SUCCESS;
}

API cuEventRecord(Event *event, void *handle) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream || !stub_is(event, EVENT)) return stub_handle("event or stream");
    if (stream->capture) {
        event->captured = stream->capture;
        event->tails = stream->tails;
        memcpy(event->tail, stream->tail, sizeof event->tail);
        return SUCCESS;
    }
    event->captured = NULL;
    event->record = stub_keep(sizeof *event->record);
    event->record->stream = stream;
    return stub_push(stream, (Work){.kind = RECORD, .record = event->record});
}

API cuEventSynchronize(Event *event) {
    READY;
    if (!stub_is(event, EVENT)) return stub_handle("event");
    if (event->captured) return stub_refuse(CAPTURE_UNSUPPORTED, "the event was captured");
    return event->record ? stub_run_until(event->record->stream, event->record) : SUCCESS;
}

API cuEventQuery(Event *event) {
    READY;
    if (!stub_is(event, EVENT)) return stub_handle("event");
    if (event->captured) return stub_refuse(CAPTURE_UNSUPPORTED, "the event was captured");
    if (!event->record || event->record->done) return stub_fault;
    stub_run_one(event->record->stream);
    return NOT_READY;
}

API cuEventElapsedTime_v2(float *milliseconds, Event *from, Event *to) {
    READY;
    if (!stub_is(from, EVENT) || !stub_is(to, EVENT)) return stub_handle("event");
    if ((from->flags | to->flags) & 2) return stub_refuse(INVALID_HANDLE, "the event keeps no time");
    if (!from->record || !to->record) return stub_refuse(INVALID_HANDLE, "the event was not recorded");
    if (!from->record->done || !to->record->done) return NOT_READY;
    *milliseconds = (float)(to->record->milliseconds - from->record->milliseconds);
    return SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, Event *from, Event *to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}

API cuStreamWaitEvent(void *handle, Event *event, unsigned flags) {
    (void)flags;
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream || !stub_is(event, EVENT)) return stub_handle("event or stream");
    if (event->captured) { /* the stream joins the capture */
        if (!stream->capture) stream->capture = event->captured, stream->tails = 0;
        for (int i = 0; i < event->tails; i++) {
            int known = 0;
            for (int j = 0; j < stream->tails; j++) known |= stream->tail[j] == event->tail[i];
            if (!known && stream->tails < MAX_DEPENDENCIES) stream->tail[stream->tails++] = event->tail[i];
        }
        return SUCCESS;
    }
    if (stream->capture) return stub_refuse(CAPTURE_UNSUPPORTED, "the event was recorded outside the capture");
    return event->record ? stub_push(stream, (Work){.kind = WAIT, .record = event->record}) : SUCCESS;
}

enum { HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

static int copy(Address destination, Address source, size_t bytes, int direction, void *handle) {
    Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    if (!bytes) return SUCCESS;
    stub_note("bytes=%zu", bytes);
    if (direction != DEVICE_TO_HOST && !stub_on_device(destination, bytes))
        return stub_refuse(INVALID_VALUE, "the destination is not all within one device allocation");
    if (direction != HOST_TO_DEVICE && !stub_on_device(source, bytes))
        return stub_refuse(INVALID_VALUE, "the source is not all within one device allocation");
    Address host = direction == HOST_TO_DEVICE ? source : destination;
    int pinned = direction == DEVICE_TO_DEVICE || stub_pinned(host, bytes);
    if (!pinned && stub_touches(host)) return stub_refuse(INVALID_VALUE, "the host side leaves its allocation");
    Node node = {.type = MEMCPY_NODE, .destination = destination, .source = source, .bytes = bytes};
    if (!pinned && stream->capture) return stub_refuse(CAPTURE_UNSUPPORTED, "pageable memory in a capture");
    int status = stub_submit(stream, &node);
    if (pinned || status) return status;
    stub_note("pageable: the call waits");
    return stub_run_until(stream, NULL);
}

static int copy_now(Address destination, Address source, size_t bytes, int direction) {
    if (stub_capturing()) return stub_refuse(CAPTURE_UNSUPPORTED, "a stream is capturing");
    return copy(destination, source, bytes, direction, NULL);
}

API cuMemcpyHtoDAsync_v2(Address destination, Address source, size_t bytes, void *stream) {
    READY;
    return copy(destination, source, bytes, HOST_TO_DEVICE, stream);
}

API cuMemcpyDtoHAsync_v2(Address destination, Address source, size_t bytes, void *stream) {
    READY;
    return copy(destination, source, bytes, DEVICE_TO_HOST, stream);
}

API cuMemcpyDtoDAsync_v2(Address destination, Address source, size_t bytes, void *stream) {
    READY;
    return copy(destination, source, bytes, DEVICE_TO_DEVICE, stream);
}

API cuMemcpyAsync(Address destination, Address source, size_t bytes, void *stream) {
    READY;
    int to = stub_on_device(destination, 1), from = stub_on_device(source, 1);
    if (!to && !from) return stub_refuse(INVALID_VALUE, "neither side is on the device");
    int direction = to && from ? DEVICE_TO_DEVICE : to ? HOST_TO_DEVICE : DEVICE_TO_HOST;
    return copy(destination, source, bytes, direction, stream);
}

API cuMemcpyHtoD_v2(Address destination, Address source, size_t bytes) {
    READY;
    return copy_now(destination, source, bytes, HOST_TO_DEVICE);
}

API cuMemcpyDtoH_v2(Address destination, Address source, size_t bytes) {
    READY;
    return copy_now(destination, source, bytes, DEVICE_TO_HOST);
}

static int fill(Address destination, unsigned value, unsigned width, size_t count, void *handle) {
    Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    if (!count) return SUCCESS;
    if (!stub_on_device(destination, count * width) || destination % width)
        return stub_refuse(INVALID_VALUE, "the memory is not all within one device allocation, or not aligned");
    Node node = {
        .type = MEMSET_NODE, .destination = destination, .value = value, .width = width, .bytes = count * width,
    };
    return stub_submit(stream, &node);
}

API cuMemsetD8Async(Address destination, unsigned char value, size_t count, void *stream) {
    READY;
    return fill(destination, value, 1, count, stream);
}

API cuMemsetD32Async(Address destination, unsigned value, size_t count, void *stream) {
    READY;
    return fill(destination, value, 4, count, stream);
}

API cuMemsetD8_v2(Address destination, unsigned char value, size_t count) {
    READY;
    if (stub_capturing()) return stub_refuse(CAPTURE_UNSUPPORTED, "a stream is capturing");
    return fill(destination, value, 1, count, NULL);
}

API cuLaunchKernel(
    void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
    void *handle, void **params, void **extra
) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream) return stub_handle("stream");
    Node node = {.type = KERNEL_NODE};
    unsigned dims[6] = {gx, gy, gz, bx, by, bz};
    int status = stub_make_launch(&node.launch, function, dims, shared, params, extra);
    return status ? status : stub_submit(stream, &node);
}
