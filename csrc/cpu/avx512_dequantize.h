// Stored rows to float32, in the operations of dequantize.h: types with an unpacker in registers sixteen at a time.
#pragma once

#include "avx512_float.h"
#include "avx512_unpack_iq.h"
#include "dequantize.h"

namespace {

// Sixteen u as the floats u - zero.
template <int zero> inline __m512 widen_numbers(const uint8_t *u) {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_cvtepu8_epi32(load128(u)), _mm512_set1_epi32(zero)));
}

template <int type> void dequantize_256(const uint8_t *row, int64_t columns, float *out) {
    typedef Format<type> F;
    for (int64_t k = 0; k < columns; k += 256, row += F::bytes) {
        Super<typename Unpack256<type>::Scale> w;
        Unpack256<type>::unpack(row, w);
        alignas(64) float scale[16], min[16];
        const __m512 d = _mm512_set1_ps(scale_to_float(w.d));
        _mm512_store_ps(scale, _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(w.scale))));
        if (F::kind == SUPER_MIN) {
            const __m512 dmin = _mm512_set1_ps(scale_to_float(w.dmin));
            _mm512_store_ps(min, _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(w.min))));
        }
        const uint8_t *u = (const uint8_t *)w.u;
        for (int j = 0; j < 16; j++) {
            __m512 x = _mm512_mul_ps(_mm512_set1_ps(scale[j]), widen_numbers<F::zero>(u + 16 * j));
            if (F::kind == SUPER_MIN) x = _mm512_sub_ps(x, _mm512_set1_ps(min[j]));
            _mm512_storeu_ps(out + k + 16 * j, x);
        }
    }
}

template <int type> void dequantize_32(const uint8_t *row, int64_t columns, float *out) {
    typedef Format<type> F;
    for (int64_t k = 0; k < columns; k += 32, row += F::bytes) {
        alignas(64) uint8_t u[64];
        _mm512_store_si512(u, Unpack32<type>::pair(row, row));
        const __m512 d = _mm512_set1_ps(scale_to_float(Unpack32<type>::d(row)));
        for (int j = 0; j < 32; j += 16) {
            __m512 x = _mm512_mul_ps(d, widen_numbers<F::zero>(u + j));
            if constexpr (F::kind == BLOCK32_MIN) {
                x = _mm512_add_ps(x, _mm512_set1_ps(scale_to_float(Unpack32<type>::m(row))));
            }
            _mm512_storeu_ps(out + k + j, x);
        }
    }
}

template <int type> void dequantize_floats(const uint8_t *row, int64_t columns, float *out) {
    constexpr int size = Format<type>::bytes;
    for (int64_t k = 0; k < columns; k += LANES) {
        const __mmask16 here = columns - k < LANES ? first_lanes((int)(columns - k)) : (__mmask16)0xffff;
        _mm512_mask_storeu_ps(out + k, here, Widen<type>::load(row + k * size, here));
    }
}

}  // namespace
