/* SHA-256, streaming. Source: FIPS 180-4. */
#ifndef LM_BASE_HASH_H
#define LM_BASE_HASH_H
#include <stddef.h>
#include <stdint.h>

typedef struct lm_sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t buf[64];
} lm_sha256;
void lm_sha256_init(lm_sha256 *s);
void lm_sha256_update(lm_sha256 *s, const void *data, size_t n);
void lm_sha256_final(lm_sha256 *s, uint8_t out[32]);
void lm_sha256_hex(const uint8_t digest[32], char out[65]); /* lower case, NUL-terminated */
#endif
