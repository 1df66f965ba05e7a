/* What a cubin (ELF64) or PTX text says about itself, as far as a driver needs it to load and launch.
 *
 * Cubin: section .text.NAME is kernel NAME. .nv.info.NAME holds records {format u8, attribute u8, value or length u16,
 * payload if the format is 4}: 0x17 one parameter (ordinal, offset, size), 0x19 bytes of all parameters, 0x10 required
 * block, 0x37 toolkit release * 10. The architecture is byte 0 of e_flags (ELF ABI 7) or byte 1 (ABI 8). Code for one
 * compute capability only ("sm_90a") is bit 0x800 of e_flags in ABI 7; ABI 8 has it in the assembler's command line in
 * .note.nv.tkinfo.
 */
#define _GNU_SOURCE
#include "stub.h"

#include <ctype.h>
#include <stdbool.h>

enum { PARAMETER = 0x17, PARAMETER_BYTES = 0x19, BLOCK = 0x10, TOOLKIT = 0x37, NO_BITS = 8, LARGEST = 1 << 28 };
typedef struct Section {
    unsigned name, type;
    uint64_t flags, address, offset, bytes;
    unsigned link, info;
    uint64_t align, entry;
} Section;

static uint64_t number(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, at, (size_t)bytes);
    return value;
}

static uint64_t fnv(const unsigned char *bytes, size_t count) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

static int suits(unsigned architecture, bool exact) {
    unsigned cc = (unsigned)settings.cc;
    bool tegra = cc == 72 || cc == 87 || cc == 101 || cc == 110;
    bool for_tegra = architecture == 72 || architecture == 87 || architecture == 101 || architecture == 110;
    if (architecture == cc) return 1;
    return !exact && !tegra && !for_tegra && architecture / 10 == cc / 10 && architecture < cc;
}

static Function *function(Module *module, const char *name, uint64_t image) {
    Function *made = stub_object(FUNCTION, sizeof *made);
    Function **more = stub_keep(((size_t)module->count + 1) * sizeof *more);
    if (module->count) memcpy(more, module->functions, (size_t)module->count * sizeof *more);
    module->functions = more;
    snprintf(made->name, sizeof made->name, "%s", name);
    made->module = module;
    made->image = image;
    made->dynamic_limit = SMALL_SHARED;
    const char *loading = getenv("CUDA_MODULE_LOADING");
    made->loaded = loading && !strcmp(loading, "EAGER");
    return module->functions[module->count++] = made;
}

static unsigned read_info(Function *f, const unsigned char *at, size_t bytes) { /* returns the toolkit, or 0 */
    unsigned toolkit = 0;
    for (const unsigned char *end = at + bytes; at + 4 <= end;) {
        unsigned format = at[0], attribute = at[1], value = (unsigned)number(at + 2, 2);
        at += 4;
        if (format == 4 && value > (size_t)(end - at)) break;
        if (attribute == PARAMETER_BYTES) f->bytes = value;
        if (attribute == TOOLKIT) toolkit = (unsigned)number(at, 4);
        if (attribute == BLOCK) f->block = (unsigned)(number(at, 4) * number(at + 4, 4) * number(at + 8, 4));
        if (attribute == PARAMETER) {
            unsigned ordinal = (unsigned)number(at + 4, 2);
            if (ordinal < MAX_PARAMS) {
                f->offset[ordinal] = (unsigned)number(at + 6, 2);
                f->size[ordinal] = (unsigned)number(at + 8, 4) >> 18;
                if (ordinal >= f->count) f->count = ordinal + 1;
            }
        }
        if (format == 4) at += value;
    }
    return toolkit;
}

static int read_cubin(Module *module, const unsigned char *image) {
    uint64_t headers = number(image + 0x28, 8), count = number(image + 0x3C, 2), names = number(image + 0x3E, 2);
    uint64_t segments = number(image + 0x20, 8), whole = headers + count * sizeof(Section);
    if (headers > LARGEST || !count || names >= count || number(image + 0x3A, 2) != sizeof(Section))
        return stub_refuse(INVALID_IMAGE, "the section headers are damaged");
    Section *sections = stub_keep(count * sizeof *sections);
    memcpy(sections, image + headers, count * sizeof *sections);
    uint64_t behind = segments + number(image + 0x36, 2) * number(image + 0x38, 2);
    whole = whole > behind ? whole : behind;
    for (uint64_t i = 0; i < count; i++) {
        if (sections[i].type == NO_BITS) continue;
        if (sections[i].offset > LARGEST || sections[i].bytes > LARGEST)
            return stub_refuse(INVALID_IMAGE, "a section lies outside the file");
        uint64_t end = sections[i].offset + sections[i].bytes;
        whole = whole > end ? whole : end;
    }
    uint64_t flags = number(image + 0x30, 4), hash = fnv(image, whole);
    unsigned abi = image[8], architecture = abi >= 8 ? flags >> 8 & 255 : flags & 255;
    bool exact = abi < 8 && flags & 0x800;
#define NAME(section) ((const char *)image + sections[names].offset + (section).name)
    for (uint64_t i = 0; i < count; i++)
        if (!strcmp(NAME(sections[i]), ".note.nv.tkinfo")) {
            const char *text = (const char *)image + sections[i].offset, *end = text + sections[i].bytes;
            const char *at = memmem(text, sections[i].bytes, "-arch sm_", 9);
            for (at = at ? at + 9 : end; at < end && isdigit((unsigned char)*at); at++) {}
            exact = exact || (at < end && *at == 'a');
        }
    if (!suits(architecture, exact))
        return stub_refuse(NO_BINARY_FOR_GPU, "sm_%u%s on sm_%ld", architecture, exact ? "a" : "", settings.cc);
    for (uint64_t i = 0; i < count; i++) {
        if (strncmp(NAME(sections[i]), ".text.", 6)) continue;
        Function *f = function(module, NAME(sections[i]) + 6, hash);
        f->registers = sections[i].info >> 24;
        unsigned toolkit = 0;
        for (uint64_t j = 0; j < count; j++) {
            const char *name = NAME(sections[j]);
            const unsigned char *bytes = image + sections[j].offset;
            bool own = !strncmp(name, ".nv.info.", 9) && !strcmp(name + 9, f->name);
            if (own || !strcmp(name, ".nv.info")) {
                unsigned found = read_info(f, bytes, sections[j].bytes);
                toolkit = found ? found : toolkit;
            }
            bool shared = !strncmp(name, ".nv.shared.", 11) && !strcmp(name + 11, f->name);
            if (shared) f->shared = (unsigned)sections[j].bytes;
        }
        f->dynamic_limit = SMALL_SHARED - (int)f->shared; /* without asking, static bytes count; the asked limit is of dynamic ones alone */
        if ((long)toolkit / 10 * 1000 > settings.driver) /* a newer major release; the code of the error is a guess */
            return stub_refuse(INVALID_IMAGE, "made by CUDA %u, the driver is %ld", toolkit, settings.driver);
        stub_note("kernel %s sm_%u parameters %u block %u", f->name, architecture, f->count, f->block);
    }
#undef NAME
    return SUCCESS;
}

static int read_ptx(Module *module, const char *text) {
    const char *target = strstr(text, ".target sm_"), *entry = text;
    if (!target) return stub_refuse(INVALID_PTX, "no .target");
    char *behind;
    long architecture = strtol(target + 11, &behind, 10);
    bool exact = *behind == 'a';
    if (architecture > settings.cc || (exact && architecture != settings.cc))
        return stub_refuse(NO_BINARY_FOR_GPU, "PTX for sm_%ld on sm_%ld", architecture, settings.cc);
    while ((entry = strstr(entry, ".entry "))) {
        char name[256];
        if (sscanf(entry + 7, "%255[A-Za-z0-9_$]", name) != 1) return stub_refuse(INVALID_PTX, "an entry has no name");
        Function *f = function(module, name, fnv((const unsigned char *)text, strlen(text)));
        const char *end = strchr(entry, ')'), *body = strchr(entry, '{'), *at = entry;
        if (!end || !body || body < end) return stub_refuse(INVALID_PTX, "entry %s has no body", name);
        while ((at = strstr(at, ".param .")) && at < end && f->count < MAX_PARAMS) {
            unsigned size = (unsigned)strtol(at + 9, NULL, 10) / 8; /* behind the letter of .u64 */
            if (!size) return stub_refuse(INVALID_PTX, "a parameter of %s has no size", name);
            f->offset[f->count] = (f->bytes + size - 1) / size * size;
            f->bytes = f->offset[f->count] + size;
            f->size[f->count++] = size;
            at += 8;
        }
        const char *block = strstr(end, ".reqntid ");
        if (block && block < body) f->block = (unsigned)strtol(block + 9, NULL, 10);
        stub_note("kernel %s from PTX for sm_%ld parameters %u block %u", name, architecture, f->count, f->block);
        entry = body;
    }
    return module->count ? SUCCESS : stub_refuse(INVALID_PTX, "no entry");
}

int stub_read_image(Module *module, const void *image) {
    if (!memcmp(image, "\177ELF", 4)) return read_cubin(module, image);
    const unsigned char *text = image; /* a digest or garbage is not printed as text */
    if (!isprint(text[0]) && !isspace(text[0])) return stub_refuse(INVALID_IMAGE, "neither ELF nor PTX");
    return read_ptx(module, image);
}
