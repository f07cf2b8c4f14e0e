/* A tile's activations, block by block, in every lane. The including file gives
 *   largest(x): the largest magnitude of a block, NaN above infinity;
 *   quantise_block(wide, quiet, m, x, w, t, dst, tail): block x of token t of w, its largest m, to its places; wide: tokens have tails; quiet: by
 * i8's rule. */
static void quantise_mixed(const float *x, uint32_t w, uint32_t t, uint32_t K, uint8_t *dst, uint8_t *tail) {
    float sum = 0;
    for (uint32_t k = 0; k < K; k += LM_INT_BLK) {
        const float m = largest(x + k);
        sum = __builtin_fmaf(m, m, sum);
    }
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, dst += w * LM_INT_FRONT, tail += w * LM_INT_TAIL) {
        const float m = largest(x + k);
        if (lm_int_loud(m, sum, K / LM_INT_BLK))
            quantise_block(true, false, m, x + k, w, t, dst, tail);
        else
            quantise_block(true, true, m, x + k, w, t, dst, tail);
    }
}
static void quantise_tile(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst) {
    uint8_t *tail = dst + (size_t)(K / LM_INT_BLK) * w * LM_INT_FRONT;
    for (uint32_t t = 0; lane == LM_INT_MIXED && t < w; t++) quantise_mixed(x[t], w, t, K, dst, tail);
    if (lane == LM_INT_MIXED) return;
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, dst += w * LM_INT_FRONT, tail += w * LM_INT_TAIL)
        for (uint32_t t = 0; t < w; t++) {
            if (lane == LM_INT_8)
                quantise_block(false, true, largest(x[t] + k), x[t] + k, w, t, dst, tail);
            else
                quantise_block(true, false, largest(x[t] + k), x[t] + k, w, t, dst, tail);
        }
}
