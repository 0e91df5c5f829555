// Stored rows to float32: the bits of gguf's reference dequantiser (gguf/quants.py). With d of at most 11 significant
// bits every product below is exact, so only the last addition or subtraction rounds; vector units may therefore fuse
// or reorder the products. Kept in the source's order for the sign of zero and for infinite d.
#pragma once

#include "decode.h"

namespace {

template <int type> inline void dequantize_block(const uint8_t *block, Block32 &decoded, float *out) {
    decode<type>(block, decoded);
    for (int i = 0; i < 32; i++) {
        const float w = decoded.d * (float)(decoded.u[i] - Format<type>::zero);
        out[i] = Format<type>::kind == BLOCK32_MIN ? w + decoded.m : w;
    }
}

template <int type> inline void dequantize_block(const uint8_t *block, Block64 &decoded, float *out) {
    decode<type>(block, decoded);
    for (int i = 0; i < 64; i++) out[i] = decoded.d[i / 16] * (float)(decoded.u[i] - Format<type>::zero);
}

template <int type> inline void dequantize_block(const uint8_t *block, Block256 &decoded, float *out) {
    decode<type>(block, decoded);
    for (int j = 0; j < 16; j++) {
        const float scale = decoded.d * (float)decoded.scale[j];
        const float min = decoded.dmin * (float)decoded.min[j];
        for (int i = 16 * j; i < 16 * j + 16; i++) {
            const float w = scale * (float)(decoded.u[i] - Format<type>::zero);
            out[i] = Format<type>::kind == SUPER_MIN ? w - min : w;
        }
    }
}

template <int type> void dequantize_packed(const uint8_t *row, int64_t columns, float *out) {
    constexpr int numbers = Format<type>::block;
    Decoded<type> decoded;
    for (int64_t b = 0; b < columns / numbers; b++) {
        dequantize_block<type>(row + b * Format<type>::bytes, decoded, out + b * numbers);
    }
}

template <int type> void dequantize_plain(const uint8_t *row, int64_t columns, float *out) {
    for (int64_t k = 0; k < columns; k++) out[k] = widen<type>(row + k * Format<type>::bytes);
}

}  // namespace
