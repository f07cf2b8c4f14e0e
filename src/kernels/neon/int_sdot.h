/* int_gemv.h's sums of four bytes by the dot-product extension, for the levels that have it. */
#define LM_DP_WIDE 0
LM_INLINE vi i_dp(vi acc, vi u, int32_t word) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(word));
#define DP(s, b) vdotq_s32(s, vreinterpretq_s8_s32(b), x)
    return LM_Q2(vi, DP, acc, u);
#undef DP
}
