/* The cpu device: its life and its weights. */
#include "backend/cpu/cpu.h"
#include <stdio.h>
#include <string.h>

static const char *const lanes[] = {"f32", "i8", "i16", "mixed", "bf16", NULL};
static bool yes(void) { return true; }

/* Lane, level, threads, how keys and values are kept; which bf16 kernels run stands beside the first thing that they are for. */
static void tell(lm_device *d, lm_kv kv, const lm_bf16_kernels *own, const char *passed_over) {
    char kernels[32] = "";
    const uint32_t n = lm_pool_size(d->pool);
    if (own) snprintf(kernels, sizeof kernels, " (%s%s%s)", own->level, passed_over ? ", not " : "", passed_over ? passed_over : "");
    snprintf(d->text, sizeof d->text, "cpu %s %s%s %u thread%s", d->lane, d->k->level, d->bf16 ? kernels : "", n, n == 1 ? "" : "s");
    if (kv == LM_KV_F32) return;
    snprintf(d->text + strlen(d->text), sizeof d->text - strlen(d->text), ", kv %s%s", lm_kv_name(kv), d->bf16 ? "" : kernels);
}
static lm_status create(const lm_device_options *o, lm_device **out, lm_error *err) {
    const char *lane = o->lane ? NULL : lanes[0];
    for (uint32_t i = 0; !lane && lanes[i]; i++)
        if (strcmp(o->lane, lanes[i]) == 0) lane = lanes[i];
    if (!lane) return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "lane", "the cpu backend has no lane '%.40s': use f32, i16, mixed, i8 or bf16", o->lane);
    const bool bf16 = strcmp(lane, "bf16") == 0, coarse = strcmp(lane, "i8") == 0 || strcmp(lane, "mixed") == 0;
    lm_kv kv = LM_KV_F32;
    if (coarse) kv = LM_KV_F16; /* far below what those lanes round off anyway */
    if (bf16) kv = LM_KV_BF16;
    if (o->kv && !lm_kv_by_name(o->kv, &kv))
        return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, "kv", "keys and values can't be kept as '%.40s': use f32, f16, bf16 or q8_0", o->kv);
    const lm_kernels *k;
    LM_TRY(lm_kernels_pick(o->cpu_level, &k, err));
    lm_device *d = lm_calloc(1, sizeof *d);
    if (!d) return lm_fail_nomem(err, "the cpu device", sizeof *d);
    lm_status s = lm_pool_create(o->threads, &d->pool, err);
    if (s != LM_OK) {
        lm_free(d);
        return s;
    }
    d->k = k;
    d->ik = lm_int_pick(k);
    d->lane = lane;
    const bool pairs = kv == LM_KV_BF16 && (bf16 || coarse); /* f32 and i16 round what is stored, and nothing else */
    const char *passed_over = NULL; /* an instruction that doesn't give the contract's bits on this CPU */
    const lm_bf16_kernels *own = bf16 || pairs ? lm_bf16_pick(k, &passed_over) : NULL;
    d->bf16 = bf16 ? own : NULL;
    d->pairs = pairs ? own : NULL;
    d->cache = &lm_cache_kv[pairs ? LM_KV_BF16X2 : kv];
    tell(d, kv, own, passed_over);
    *out = d;
    return LM_OK;
}
static void reset(lm_device *d) {
    lm_cpu_unconfigure(d);
    for (uint32_t i = 0; i < d->n_uploaded; i++) lm_packed_free(&d->uploaded[i]);
    d->n_uploaded = 0;
    lm_slab_leave(&d->slab);
    lm_cpu_buf *const buf[] = {&d->body, &d->head, &d->thread, &d->shared, &d->blocks, &d->tables};
    for (size_t i = 0; i < sizeof buf / sizeof *buf; i++) lm_cpu_shrink(buf[i]);
}
static void destroy(lm_device *d) {
    if (!d) return;
    reset(d);
    lm_free(d->uploaded);
    lm_pool_destroy(d->pool);
    lm_free(d);
}
static uint64_t memory(const lm_device *d) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < d->n_uploaded; i++) n += d->uploaded[i].data ? d->uploaded[i].bytes : 0;
    for (uint32_t i = 0; d->program && i < d->program->n_ops; i++) n += d->op[i].kt.bytes + d->op[i].v.bytes;
    return n;
}
static const char *describe(const lm_device *d) { return d->text; }

static lm_status upload(lm_device *d, const lm_weight *w, uint32_t *id, lm_error *err) {
    if (d->n_uploaded == d->cap_uploaded) {
        uint32_t cap = d->cap_uploaded ? 2 * d->cap_uploaded : 64;
        lm_packed_matrix *q = lm_realloc(d->uploaded, cap * sizeof *q);
        if (!q) return lm_fail_nomem(err, "the weights' table", cap * sizeof *q);
        d->uploaded = q;
        d->cap_uploaded = cap;
    }
    lm_status s = lm_cpu_pack(d, w, &d->uploaded[d->n_uploaded], err);
    if (s != LM_OK) {
        lm_error_set_field(err, w->name);
        return s;
    }
    *id = d->n_uploaded++;
    return LM_OK;
}
static void release(lm_device *d, uint32_t id) {
    if (id < d->n_uploaded) lm_packed_free(&d->uploaded[id]);
}
/* Every lane but bf16 has weights packed by their type alone, at every level. */
static bool inherit(lm_device *d, lm_device *from) {
    if (!d->bf16 != !from->bf16) return false;
    d->slab = from->slab;
    d->uploaded = from->uploaded;
    d->n_uploaded = from->n_uploaded;
    d->cap_uploaded = from->cap_uploaded;
    from->slab = NULL;
    from->uploaded = NULL;
    from->n_uploaded = from->cap_uploaded = 0;
    reset(from);
    return true;
}
static bool supports(const lm_device *d, const lm_op *op) {
    (void)d;
    return (unsigned)op->kind < LM_OP_COUNT;
}

static const lm_cache_type *cache(const lm_device *d) { return d->cache; }

const lm_backend lm_backend_cpu = {
    .name = "cpu",
    .exact = true,
    .lanes = lanes,
    .compiled = yes,
    .available = yes,
    .create = create,
    .destroy = destroy,
    .memory = memory,
    .describe = describe,
    .upload = upload,
    .release = release,
    .reset = reset,
    .inherit = inherit,
    .supports = supports,
    .configure = lm_cpu_configure,
    .cache = cache,
    .run = lm_cpu_run,
};
