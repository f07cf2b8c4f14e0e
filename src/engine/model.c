#include "engine/model.h"
#include "engine/swap.h"
#include <string.h>

bool lm_weight_same_rows(const lm_weight *a, const lm_weight *b) {
    if (a->n_mat != b->n_mat || a->rows != b->rows || a->cols != b->cols || a->n_seg != b->n_seg) return false;
    for (uint32_t i = 0; i < a->n_seg; i++) {
        const lm_segment *x = &a->seg[i], *y = &b->seg[i];
        if (x->t != y->t || x->per_mat || y->per_mat || x->first != y->first || x->count != y->count || x->base != y->base ||
            x->mat_stride != y->mat_stride || x->group != y->group || x->group_stride != y->group_stride || x->step != y->step ||
            x->rope_dim != y->rope_dim)
            return false;
    }
    return true;
}

/* File pages of what was just repacked are let go: at no time is much more than one copy of the weights resident. */
static void release_pages(const lm_engine *e, const lm_weight *w) {
    for (uint32_t i = 0; i < w->n_seg; i++) {
        const lm_segment *s = &w->seg[i];
        uint32_t n = s->per_mat ? w->n_mat : 1;
        for (uint32_t m = 0; m < n; m++) {
            const lm_tensor *t = s->per_mat ? s->per_mat[m] : s->t;
            if (t->file != UINT32_MAX) lm_source_release(e->src, t);
        }
    }
}

static lm_status upload_all(lm_engine *e, lm_error *err) {
    const lm_program *p = e->program;
    uint32_t *handle = e->handle = lm_calloc(p->n_weights ? p->n_weights : 1, sizeof *handle);
    if (!handle) return lm_fail_nomem(err, "weight handles", p->n_weights * sizeof *handle);
    lm_status s = LM_OK;
    uint64_t done = 0;
    for (uint32_t i = 0; i < p->n_weights && s == LM_OK; i++) {
        const lm_weight *w = &p->weight[i];
        uint32_t k = 0;
        while (k < i && !lm_weight_same_rows(&p->weight[k], w)) k++;
        if (k < i) { /* a tied head shares its copy with the embedding */
            handle[i] = handle[k];
            continue;
        }
        s = e->backend->upload(e->device, w, &handle[i], err);
        if (s == LM_OK && strcmp(e->backend->name, "f64")) release_pages(e, w);
        for (uint32_t g = 0; g < w->n_seg; g++) done += w->seg[g].t->bytes;
        if (s == LM_OK && e->opt.progress.fn &&
            !e->opt.progress.fn(e->opt.progress.ctx, "loading weights", done < p->bytes_used ? done : p->bytes_used, p->bytes_used))
            s = lm_fail(err, LM_INTERRUPTED, "interrupted while loading weights");
    }
    return s == LM_OK ? e->backend->configure(e->device, p, handle, err) : s;
}

static bool has_blocks(const lm_program *p) {
    for (uint32_t i = 0; i < p->n_weights; i++)
        if (!p->weight[i].type->is_float) return true;
    return false;
}
static lm_status make_device(lm_engine *e, const lm_engine_options *opt, lm_error *err) {
    e->opt = opt ? *opt : (lm_engine_options){0};
    const char *name = e->opt.backend ? e->opt.backend : "cpu";
    e->backend = lm_backend_by_name(name);
    if (!e->backend) return lm_fail_at(err, LM_USAGE, NULL, LM_NO_OFFSET, "backend", "'%.40s' is not a backend of lemma (f64, cpu)", name);
    if (!e->backend->compiled() || !e->backend->available())
        return lm_fail_at(err, LM_MISSING, NULL, LM_NO_OFFSET, "backend", "'%s' is not available on this machine", name);
    if (e->opt.fast && !e->opt.device.lane && strcmp(name, "cpu") == 0 && has_blocks(e->program)) e->opt.device.lane = "i8";
    LM_TRY(e->backend->create(&e->opt.device, &e->device, err));
    for (uint32_t i = 0; i < e->program->n_ops; i++)
        if (!e->backend->supports(e->device, &e->program->op[i]))
            return lm_fail_at(err, LM_UNSUPPORTED, NULL, LM_NO_OFFSET, e->program->op[i].name,
                              "backend %s can't compute this op (%s) in lane %.40s", name, lm_op_name(e->program->op[i].kind),
                              e->opt.device.lane ? e->opt.device.lane : e->backend->lanes[0]);
    return LM_OK;
}

lm_status lm_engine_open(const char *path, const lm_engine_options *opt, lm_engine **out, lm_error *err) {
    lm_engine *e = lm_calloc(1, sizeof *e);
    if (!e) return lm_fail_nomem(err, "the model", sizeof *e);
    e->owner = true;
    lm_status s = lm_source_open(path, &e->src, err);
    if (s == LM_OK) s = lm_arch_build(e->src, &e->program, &e->arch, &e->skipped, &e->n_skipped, err);
    if (s == LM_OK) s = make_device(e, opt, err);
    if (s == LM_OK) s = upload_all(e, err);
    if (s != LM_OK) {
        lm_error_set_file(err, path);
        lm_engine_close(e);
        return s;
    }
    *out = e;
    return LM_OK;
}

lm_status lm_engine_share(const lm_engine *from, const lm_engine_options *opt, lm_engine **out, lm_error *err) {
    lm_engine *e = lm_calloc(1, sizeof *e);
    if (!e) return lm_fail_nomem(err, "the model", sizeof *e);
    e->src = from->src;
    e->program = from->program;
    e->arch = from->arch;
    e->skipped = from->skipped;
    e->n_skipped = from->n_skipped;
    lm_status s = make_device(e, opt, err);
    if (s == LM_OK) s = upload_all(e, err);
    if (s != LM_OK) {
        lm_engine_close(e);
        return s;
    }
    *out = e;
    return LM_OK;
}

lm_status lm_engine_change(lm_engine *e, const lm_engine_options *opt, bool *kept, lm_error *err) {
    const lm_backend *b = e->backend;
    lm_device *old = e->device;
    if (e->swap) LM_TRY(lm_engine_swap(e, NULL, NULL, NULL, err));
    e->device = NULL;
    lm_status s = make_device(e, opt, err);
    *kept = s == LM_OK && e->backend == b && b->inherit && b->inherit(e->device, old);
    b->destroy(old);
    if (*kept) return e->backend->configure(e->device, e->program, e->handle, err);
    lm_free(e->handle);
    e->handle = NULL;
    return s == LM_OK ? upload_all(e, err) : s;
}

void lm_engine_close(lm_engine *e) {
    if (!e) return;
    if (e->device) e->backend->destroy(e->device);
    lm_swap_free(e->swap);
    lm_free(e->handle);
    if (e->owner) {
        lm_program_free(e->program);
        if (e->src) lm_source_close(e->src);
    }
    lm_free(e);
}

void lm_engine_touched(const lm_engine *e, uint32_t *files, uint64_t *bytes) {
    *files = e->src->n_files;
    *bytes = e->program->bytes_used;
}
