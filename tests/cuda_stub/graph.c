/* Explicit graphs: nodes, edges, what was stored read back, instantiation, launch. */
#include "stub.h"

typedef struct KernelParams { /* CUDA_KERNEL_NODE_PARAMS_v2 and _v3 */
    Function *function;
    unsigned dims[6], shared;
    void **params, **extra;
    void *kernel, *context;
} KernelParams;

typedef struct NodeParams { /* CUgraphNodeParams */
    int type, reserved[3];
    union {
        long long padding[29];
        KernelParams kernel;
    } of;
    long long reserved2;
} NodeParams;

int stub_make_launch(Launch *launch, void *handle, const unsigned *dims, unsigned shared, void **params, void **extra) {
    Function *f = handle;
    if (!stub_is(f, FUNCTION)) return stub_handle("function");
    if (!dims[0] || !dims[1] || !dims[2] || dims[0] > INT32_MAX || dims[1] > 65535 || dims[2] > 65535)
        return stub_refuse(INVALID_VALUE, "%s: grid %u x %u x %u", f->name, dims[0], dims[1], dims[2]);
    unsigned long threads = (unsigned long)dims[3] * dims[4] * dims[5];
    if (!threads || threads > 1024 || (f->block && threads != f->block))
        return stub_refuse(INVALID_VALUE, "%s: %lu threads, it was compiled for %u", f->name, threads, f->block);
    if ((long)shared > f->dynamic_limit)
        return stub_refuse(INVALID_VALUE, "%s: %u bytes of shared memory of %d", f->name, shared, f->dynamic_limit);
    if (extra || (f->count && !params) || f->bytes > MAX_ARGUMENT_BYTES)
        return stub_refuse(INVALID_VALUE, "%s: arguments come as an array of pointers", f->name);
    if (!f->loaded) stub_note("lazily loaded %s", f->name), f->loaded = 1;
    *launch = (Launch){.function = f, .shared = shared};
    memcpy(launch->dims, dims, sizeof launch->dims);
    for (unsigned i = 0; i < f->count; i++) memcpy(launch->arguments + f->offset[i], params[i], f->size[i]);
    return SUCCESS;
}

Node *stub_add(Graph *graph, const Node *node) {
    Node *added = stub_object(NODE, sizeof *added);
    Object own = added->object;
    *added = *node;
    added->object = own;
    if (node->type == KERNEL_NODE)
        for (unsigned i = 0; i < node->launch.function->count; i++)
            added->params[i] = added->launch.arguments + node->launch.function->offset[i];
    Node **more = stub_keep(((size_t)graph->count + 1) * sizeof *more);
    if (graph->count) memcpy(more, graph->nodes, (size_t)graph->count * sizeof *more);
    graph->nodes = more;
    return graph->nodes[graph->count++] = added;
}

API cuGraphCreate(Graph **handle, unsigned flags) {
    READY;
    if (flags) return stub_refuse(INVALID_VALUE, "flags must be 0");
    *handle = stub_object(GRAPH, sizeof **handle);
    return SUCCESS;
}

API cuGraphDestroy(Graph *graph) {
    READY;
    if (!stub_is(graph, GRAPH)) return stub_handle("graph");
    for (int i = 0; i < graph->count; i++) graph->nodes[i]->object.dead = 1; /* what was instantiated has its own */
    graph->object.dead = 1;
    return SUCCESS;
}

static int add(Node **handle, Graph *graph, Node *const *before, const Edge *edges, size_t count, Node node) {
    if (!stub_is(graph, GRAPH)) return stub_handle("graph");
    if (count > MAX_DEPENDENCIES) return stub_refuse(INVALID_VALUE, "%zu dependencies", count);
    node.dependencies = (int)count;
    for (size_t i = 0; i < count; i++) {
        int ours = 0;
        for (int j = 0; j < graph->count; j++) ours |= graph->nodes[j] == before[i];
        if (!ours) return stub_refuse(INVALID_VALUE, "dependency %zu is no node of this graph", i);
        node.dependency[i] = before[i];
        if (edges) node.edge[i] = edges[i];
        if (edges && edges[i].type && (node.type != KERNEL_NODE || before[i]->type != KERNEL_NODE || settings.cc < 90))
            return stub_refuse(INVALID_VALUE, "a programmatic edge joins kernels, on sm_90 and later");
    }
    *handle = stub_add(graph, &node);
    return SUCCESS;
}

static int add_kernel(
    Node **handle, Graph *graph, Node *const *before, const Edge *edges, size_t count, const KernelParams *p
) {
    Node node = {.type = KERNEL_NODE};
    void *function = p->function ? (void *)p->function : p->kernel;
    int status = stub_make_launch(&node.launch, function, p->dims, p->shared, p->params, p->extra);
    return status ? status : add(handle, graph, before, edges, count, node);
}

API cuGraphAddKernelNode_v2(
    Node **handle, Graph *graph, Node *const *before, size_t count, const KernelParams *params
) {
    READY;
    return add_kernel(handle, graph, before, NULL, count, params);
}

API cuGraphAddNode_v2(
    Node **handle, Graph *graph, Node *const *before, const Edge *edges, size_t count, const NodeParams *params
) {
    READY;
    if (settings.driver < 12030) return stub_refuse(NOT_SUPPORTED, "drivers have it from CUDA 12.3 on");
    if (params->reserved[0] || params->reserved[1] || params->reserved[2] || params->reserved2)
        return stub_refuse(INVALID_VALUE, "reserved fields must be zero");
    if (params->type == EMPTY_NODE) return add(handle, graph, before, edges, count, (Node){.type = EMPTY_NODE});
    if (params->type != KERNEL_NODE) return stub_refuse(NOT_SUPPORTED, "nodes of type %d", params->type);
    return add_kernel(handle, graph, before, edges, count, &params->of.kernel);
}

API cuGraphGetNodes(Graph *graph, Node **nodes, size_t *count) {
    READY;
    if (!stub_is(graph, GRAPH)) return stub_handle("graph");
    size_t whole = (size_t)graph->count, given = nodes && *count < whole ? *count : whole;
    for (size_t i = 0; nodes && i < given; i++) nodes[i] = graph->nodes[whole - 1 - i]; /* no order is promised */
    *count = given;
    return SUCCESS;
}

API cuGraphNodeGetType(Node *node, int *type) {
    READY;
    if (!stub_is(node, NODE)) return stub_handle("node");
    *type = node->type;
    return SUCCESS;
}

API cuGraphNodeGetDependencies_v2(Node *node, Node **before, Edge *edges, size_t *count) {
    READY;
    if (!stub_is(node, NODE)) return stub_handle("node");
    size_t whole = (size_t)node->dependencies, given = before && *count < whole ? *count : whole;
    for (size_t i = 0; before && i < given; i++) {
        before[i] = node->dependency[i];
        if (edges) edges[i] = node->edge[i];
    }
    *count = given;
    return SUCCESS;
}

API cuGraphNodeGetDependencies(Node *node, Node **before, size_t *count) {
    return cuGraphNodeGetDependencies_v2(node, before, NULL, count);
}

API cuGraphKernelNodeGetParams_v2(Node *node, KernelParams *params) {
    READY;
    if (!stub_is(node, NODE) || node->type != KERNEL_NODE) return stub_handle("kernel node");
    const Launch *launch = &node->launch;
    *params = (KernelParams){.function = launch->function, .shared = launch->shared, .params = node->params};
    memcpy(params->dims, launch->dims, sizeof params->dims);
    return SUCCESS;
}

/* Any order that the edges allow is right, so the last node that may run comes first: a missing edge shows. */
int stub_order(const Graph *graph, Node **order) {
    unsigned char *placed = stub_keep((size_t)graph->count + 1);
    for (int count = 0; count < graph->count;) {
        int chosen = -1;
        for (int i = graph->count - 1; i >= 0 && chosen < 0; i--) {
            int waiting = placed[i];
            for (int d = 0; d < graph->nodes[i]->dependencies; d++)
                for (int j = 0; j < graph->count; j++)
                    waiting |= graph->nodes[j] == graph->nodes[i]->dependency[d] && !placed[j];
            if (!waiting) chosen = i;
        }
        if (chosen < 0) return stub_refuse(INVALID_VALUE, "the graph has a cycle");
        placed[chosen] = 1;
        order[count++] = graph->nodes[chosen];
    }
    return SUCCESS;
}

API cuGraphInstantiateWithFlags(Exec **handle, Graph *graph, uint64_t flags) {
    READY;
    if (!stub_is(graph, GRAPH)) return stub_handle("graph");
    if (flags & ~(uint64_t)15) return stub_refuse(INVALID_VALUE, "flags %lx", (unsigned long)flags);
    Node **order = stub_keep(((size_t)graph->count + 1) * sizeof *order);
    int status = stub_order(graph, order);
    if (status) return status;
    Exec *exec = stub_object(EXEC, sizeof *exec);
    exec->count = graph->count;
    exec->nodes = stub_keep(((size_t)graph->count + 1) * sizeof *exec->nodes);
    for (int i = 0; i < graph->count; i++) {
        exec->nodes[i] = stub_keep(sizeof **exec->nodes);
        *exec->nodes[i] = *order[i];
    }
    stub_note("nodes=%d", graph->count);
    *handle = exec;
    return SUCCESS;
}

API cuGraphExecDestroy(Exec *exec) {
    READY;
    if (!stub_is(exec, EXEC)) return stub_handle("executable graph");
    exec->object.dead = 1;
    return SUCCESS;
}

API cuGraphUpload(Exec *exec, void *handle) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream || !stub_is(exec, EXEC)) return stub_handle("executable graph or stream");
    return stream->capture ? stub_refuse(CAPTURE_UNSUPPORTED, "the stream is capturing") : SUCCESS;
}

API cuGraphLaunch(Exec *exec, void *handle) {
    READY;
    Stream *stream = stub_stream(handle);
    if (!stream || !stub_is(exec, EXEC)) return stub_handle("executable graph or stream");
    if (stream->capture) return stub_refuse(CAPTURE_UNSUPPORTED, "the stream is capturing");
    return stub_push(stream, (Work){.kind = RUN_EXEC, .exec = exec});
}
