/* A tile of any tokens by one strip or two, where registers hold the sums of six. The including file gives
 *   tile_body(T, w, n, x, ldx, first, total): T tokens, 1 to 6, of the ldx that lie side by side in x, by a strip (kernels.h). */
static void tile(const float *w, uint32_t n, const float *x, uint32_t n_t, bool first, float *total) {
    for (uint32_t t = 0; t < n_t;) {
        const uint32_t left = n_t - t, T = left <= 6 ? left : left < 12 ? (left + 1) / 2 : 6;
        switch (T) {
        case 1: tile_body(1, w, n, x + t, n_t, first, total + 16 * t); break;
        case 2: tile_body(2, w, n, x + t, n_t, first, total + 16 * t); break;
        case 3: tile_body(3, w, n, x + t, n_t, first, total + 16 * t); break;
        case 4: tile_body(4, w, n, x + t, n_t, first, total + 16 * t); break;
        case 5: tile_body(5, w, n, x + t, n_t, first, total + 16 * t); break;
        default: tile_body(6, w, n, x + t, n_t, first, total + 16 * t);
        }
        t += T;
    }
}
static void k_tile(const float *w, const float *w1, uint32_t n, const float *x, uint32_t n_t, bool first, float *total, float *total1) {
    tile(w, n, x, n_t, first, total);
    if (w1) tile(w1, n, x, n_t, first, total1);
}
