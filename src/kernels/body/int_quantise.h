/* A tile's activations, block by block, in every lane. The including file gives
 *   largest(x): the largest magnitude of a block, NaN above infinity;
 *   quantise_block(lane, quiet, m, x, w, t, dst): block x of token t of w, its largest m, to its place in dst; quiet: by i8's rule. */
static void quantise_mixed(const float *x, uint32_t w, uint32_t t, uint32_t K, uint8_t *dst) {
    float sum = 0;
    for (uint32_t k = 0; k < K; k += LM_INT_BLK) {
        const float m = largest(x + k);
        sum = __builtin_fmaf(m, m, sum);
    }
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, dst += (size_t)w * lm_int_token(LM_INT_MIXED)) {
        const float m = largest(x + k);
        if (lm_int_loud(m, sum, K / LM_INT_BLK))
            quantise_block(LM_INT_16, false, m, x + k, w, t, dst);
        else
            quantise_block(LM_INT_16, true, m, x + k, w, t, dst);
    }
}
static void quantise_tile(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst) {
    if (lane == LM_INT_MIXED) {
        for (uint32_t t = 0; t < w; t++) quantise_mixed(x[t], w, t, K, dst);
        return;
    }
    for (uint32_t k = 0; k < K; k += LM_INT_BLK, dst += (size_t)w * lm_int_token(lane))
        for (uint32_t t = 0; t < w; t++) {
            if (lane == LM_INT_8)
                quantise_block(LM_INT_8, true, largest(x[t] + k), x[t] + k, w, t, dst);
            else
                quantise_block(LM_INT_16, false, largest(x[t] + k), x[t] + k, w, t, dst);
        }
}
