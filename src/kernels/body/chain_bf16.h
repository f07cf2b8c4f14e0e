/* Tiles of products, and scores, values and weights of attend_bf16.h, for levels without a product of pairs, from the level's
 *     k_chain(w, step, pairs, x, xj, xt, T, acc)    acc[t][16], T ≤ LM_TILE, from what it is: the pairs at w + j·step by x[j·xj + t·xt] */
static void k_tile(const lm_bf16_tile *a) {
    for (uint32_t c = 0; c < a->n_c; c++)
        for (uint32_t j = 0, n; j < a->pairs; j += n) {
            float blk[LM_TILE * 16] = {0};
            n = a->pairs - j < LM_BLK / 2 ? a->pairs - j : LM_BLK / 2;
            k_chain(a->w + c * a->strip_bytes + (size_t)j * 64, 64, n, a->x + (size_t)j * a->n_t, a->n_t, 1, a->n_t, blk);
            k_enter(a, c, a->first && j == 0, j + n == a->pairs, blk);
        }
}
static void k_scores(const lm_attend *a, uint32_t u, size_t ahead) {
    (void)ahead;
    const uint32_t pairs = (a->dk + 1) / 2;
    const uint8_t *tile = a->keys + u * lm_kv_tile(LM_KV_BF16X2, a->dk);
    for (uint32_t h = 0; h < 2; h++) {
        float *s = a->s + (size_t)(2 * u + h) * a->n * 16, blk[LM_TILE * 16];
        for (uint32_t j = 0; j < pairs; j += LM_BLK / 2) {
            memset(blk, 0, sizeof blk);
            k_chain(tile + j * 4 * LM_KV_SPAN + 64 * h, 4 * LM_KV_SPAN, pairs - j < LM_BLK / 2 ? pairs - j : LM_BLK / 2,
                    (const uint32_t *)a->q + (size_t)j * a->n, a->n, 1, a->n, blk);
            for (uint32_t i = 0; i < a->n * 16; i++) s[i] = j ? s[i] + blk[i] : blk[i];
        }
    }
}
static void k_values(uint32_t N, const uint32_t *p, size_t unit, const uint8_t *plane, uint32_t j0, uint32_t j1, size_t ahead, float *o, size_t ldo) {
    (void)ahead;
    for (uint32_t h = 0; h < 2; h++) {
        float acc[LM_TILE * 16] = {0};
        for (uint32_t j = j0, n; j < j1; j += n) {
            n = j1 - j < 16 - j % 16 ? j1 - j : 16 - j % 16;
            k_chain(plane + j * 4 * LM_KV_SPAN + 64 * h, 4 * LM_KV_SPAN, n, p + j / 16 * unit + j % 16, 1, 16, N, acc);
        }
        for (uint32_t i = 0; i < N * 16; i++) o[i / 16 * ldo + 16 * h + i % 16] = 0.0f + acc[i];
    }
}
LM_INLINE vf k_weights(vf x0, vf x1, uint32_t *to, vf l) {
    float x[32];
    v_store(x, x0), v_store(x + 16, x1);
    k_round(x, 32, (uint16_t *)(void *)to);
    const vi w = i_load((const uint8_t *)to);
    return v_add(v_add(l, v_float(i_and(w, i_set((int32_t)0xffff0000u)))), v_float(i_sll(w, 16)));
}
