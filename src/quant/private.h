/* Storage types of lemma's own, for packed safetensors checkpoints whose codes and scales fit no GGUF type. No file names them: they are
 * not in lm_dtypes and no lookup finds them. Blocks of 32 consecutive elements; each repeats its group's scale, so that a block decodes
 * alone whatever the group size. Little-endian.
 *   INT4     float32 d, u8 z,  16 bytes of nibbles (byte i: element i low, i+16 high)   value d*(q-z)
 *   INT8     float32 d, i16 z, 32 unsigned bytes                                         value d*(q-z)
 *   FP8_E4M3, FP8_E5M2  float32 d, 32 bytes                                              value d*element
 * All exact in double (24 + 9 significant bits at most); the float32 value is that, rounded once.
 */
#ifndef LM_QUANT_PRIVATE_H
#define LM_QUANT_PRIVATE_H
#include "quant/dtype.h"

enum { LM_PRIVATE_BLOCK = 32, LM_INT4_BYTES = 21, LM_INT8_BYTES = 38, LM_FP8_BYTES = 36 };

extern const lm_dtype lm_private_int4, lm_private_int8, lm_private_e4m3, lm_private_e5m2;
#endif
