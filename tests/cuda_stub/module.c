/* Modules and functions. */
#include "stub.h"

static int load(Module **handle, const void *image) {
    if (stub_capturing()) return stub_refuse(CAPTURE_UNSUPPORTED, "a stream is capturing");
    Module *module = stub_object(MODULE, sizeof *module);
    int status = stub_read_image(module, image);
    module->object.dead = status != SUCCESS;
    *handle = status ? NULL : module;
    return status;
}

API cuModuleLoadData(Module **handle, const void *image) {
    READY;
    return load(handle, image);
}

API cuModuleLoadDataEx(Module **handle, const void *image, unsigned count, int *options, void **values) {
    (void)options, (void)values;
    READY;
    stub_note("options %u", count);
    return load(handle, image);
}

API cuModuleUnload(Module *module) {
    READY;
    if (!stub_is(module, MODULE)) return stub_handle("module");
    int status = stub_drain();
    for (int i = 0; i < module->count; i++) module->functions[i]->object.dead = 1;
    module->object.dead = 1;
    return status;
}

API cuModuleGetFunction(Function **handle, Module *module, const char *name) {
    READY;
    if (!stub_is(module, MODULE)) return stub_handle("module");
    for (int i = 0; i < module->count; i++)
        if (!strcmp(module->functions[i]->name, name)) return *handle = module->functions[i], SUCCESS;
    return stub_refuse(NOT_FOUND, "no kernel %s", name);
}

API cuModuleGetLoadingMode(int *mode) {
    ENTER;
    const char *loading = getenv("CUDA_MODULE_LOADING");
    *mode = loading && !strcmp(loading, "EAGER") ? 1 : 2;
    return SUCCESS;
}

API cuFuncLoad(Function *function) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    function->loaded = 1;
    return SUCCESS;
}

API cuFuncGetName(const char **name, Function *function) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    *name = function->name;
    return SUCCESS;
}

API cuFuncGetModule(Module **module, Function *function) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    *module = function->module;
    return SUCCESS;
}

API cuFuncGetParamInfo(Function *function, size_t index, size_t *offset, size_t *bytes) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    if (index >= function->count) return INVALID_VALUE;
    *offset = function->offset[index];
    if (bytes) *bytes = function->size[index];
    return SUCCESS;
}

API cuFuncGetAttribute(int *value, int attribute, Function *function) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    switch (attribute) {
    case 0: *value = function->block ? (int)function->block : 1024; return SUCCESS;
    case 1: *value = (int)function->shared; return SUCCESS;
    case 2: case 3: *value = 0; return SUCCESS; /* constant and local bytes */
    case 4: *value = (int)function->registers; return SUCCESS;
    case 5: case 6: *value = (int)settings.cc; return SUCCESS; /* version of the PTX, and of the code */
    case 8: *value = function->dynamic_limit; return SUCCESS;
    default: return stub_refuse(INVALID_VALUE, "attribute %d is unknown here", attribute);
    }
}

API cuFuncSetAttribute(Function *function, int attribute, int value) {
    READY;
    if (!stub_is(function, FUNCTION)) return stub_handle("function");
    if (attribute == 9) return SUCCESS; /* preferred carve-out, a hint */
    if (attribute != 8) return stub_refuse(INVALID_VALUE, "attribute %d cannot be set here", attribute);
    if (value < 0 || value + (int)function->shared > stub_largest_shared())
        return stub_refuse(INVALID_VALUE, "%d bytes of shared memory, %d at most", value, stub_largest_shared());
    function->dynamic_limit = value;
    return SUCCESS;
}
