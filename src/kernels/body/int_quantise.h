/* A tile's activations, block by block, in every lane (lane_int.h). The including file gives
 *   small: a quarter of a block's integers, which 16 bits hold;
 *   largest(x): the largest magnitude of a block, NaN above infinity;
 *   rounded(quiet, finite, x, s, hi, lo): a block's v = 256·hi + lo, in quiet blocks hi = v and lo = 0; all 0 where x is not finite;
 *   put_bytes(v, dst, step): a block's integers as bytes, its eight quads `step` bytes apart;
 *   corrections(v, c): −128 times their sum, and that of the first 16. */

/* Block x of token t of w, its largest m, to its places. wide: tokens have tails; quiet: by i8's rule. */
LM_INLINE void quantise_block(bool wide, bool quiet, float m, const float *x, uint32_t w, uint32_t t, uint8_t *dst, uint8_t *tail) {
    const float top = quiet ? 127.0f : 32512.0f;
    const bool finite = m < __builtin_inff(), zero = finite && m < 0x1p-100f;
    const float dx = zero ? 0.0f : finite ? m / top : __builtin_nanf(""), s = zero || !finite ? 0.0f : top / m;
    small hi[4], lo[4];
    int32_t c[2], both[2]; /* of h and of v */
    rounded(quiet, finite, x, s, hi, lo);
    put_bytes(hi, dst + 16 * w + 4 * t, (size_t)w * 4);
    corrections(hi, c);
    both[0] = c[0], both[1] = c[1];
    if (!quiet) {
        corrections(lo, both);
        both[0] += 256 * c[0], both[1] += 256 * c[1];
    }
    if (wide) {
        memcpy(tail + LM_INT_TAIL * t, both, 8);
        put_bytes(lo, tail + LM_INT_TAIL * t + 8, 4);
    }
    const float sx = dx * (float)(both[0] / -128), step = quiet || !finite ? dx : -dx;
    memcpy(dst + 4 * t, &step, 4);
    memcpy(dst + 4 * (w + t), &sx, 4);
    memcpy(dst + 4 * (2 * w + t), &c[0], 4);
    memcpy(dst + 4 * (3 * w + t), &c[1], 4);
}
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
static void quantise_tile(lm_int_lane lane, const float *const *x, uint32_t w, uint32_t K, uint8_t *dst, uint8_t *tail) {
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
