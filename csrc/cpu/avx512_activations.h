// Activation rows: quantisation, conversions, activation functions, accumulation. contract.h has each in scalar code.
#pragma once

#include "avx512_vec.h"

namespace {

// ---- quantisation ----

inline uint32_t largest_magnitude(const float *x, int64_t block) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i largest = zero512();
    for (int64_t k = 0; k < block; k += LANES) {
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + k), magnitude));
    }
    return _mm512_reduce_max_epu32(largest);
}

inline void quantize_block_16(const float *x, int64_t block, int8_t *q, float *d, int16_t *sums) {
    const Scale scale = activation_scale(largest_magnitude(x, block));
    *d = scale.d;
    if (scale.factor == 0.0f) {
        memset(q, 0, (size_t)block);
        memset(sums, 0, (size_t)(block / 16) * sizeof *sums);
        return;
    }
    const __m512 factor = _mm512_set1_ps(scale.factor);
    for (int64_t k = 0; k < block; k += LANES) {
        const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + k), factor));
        _mm_storeu_si128((__m128i *)(q + k), _mm512_cvtepi32_epi8(rounded));
        sums[k / 16] = (int16_t)_mm512_reduce_add_epi32(rounded);
    }
}

void quantize(const float *x, int64_t columns, int64_t block, int8_t *q, float *d, int16_t *sums) {
    for (int64_t k = 0; k < columns; k += block) {
        quantize_block_16(x + k, block, q + k, d++, sums + k / 16);
    }
}

// ---- activation functions ----

inline __m512 exponential_16(__m512 x) {
    const __m512 rounder = _mm512_set1_ps(ROUNDER), one = _mm512_set1_ps(1.0f);
    const __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(LOG2_E), rounder);
    const __m512 n = _mm512_sub_ps(t, rounder);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C6), r, _mm512_set1_ps(EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    const __m512 y = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
    const __mmask16 above = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_LOW), _CMP_GE_OQ);
    const __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_HIGH), _CMP_LE_OQ);
    const __m512 beyond = _mm512_add_ps(x, _mm512_set1_ps(INFINITY));
    return _mm512_mask_blend_ps(below, beyond, _mm512_maskz_mov_ps(above, y));
}

// x / (1 + e^u)
inline __m512 gated(__m512 x, __m512 u) {
    return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), exponential_16(u)));
}

inline __m512 silu_16(__m512 x) {
    return gated(x, _mm512_xor_ps(x, _mm512_set1_ps(-0.0f)));
}

inline __m512 gelu_tanh_16(__m512 x) {
    const __m512 inner = _mm512_fmadd_ps(_mm512_set1_ps(GELU_C3), _mm512_mul_ps(x, x), _mm512_set1_ps(GELU_C1));
    return gated(x, _mm512_mul_ps(x, inner));
}

void activate(int activation, float *gate, const float *up, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
        const __mmask16 here = count - i < LANES ? first_lanes((int)(count - i)) : (__mmask16)0xffff;
        const __m512 x = _mm512_maskz_loadu_ps(here, gate + i);
        __m512 y = activation == KT_SILU ? silu_16(x) : gelu_tanh_16(x);
        if (up) y = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(here, up + i));
        _mm512_mask_storeu_ps(gate + i, here, y);
    }
}

// ---- conversions ----

// Runs `whole` on every sixteen numbers and `single` on those that are left.
template <class Whole, class Single> inline void by_sixteen(int64_t count, Whole whole, Single single) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) whole(i);
    for (; i < count; i++) single(i);
}

void row_from_f16(const uint16_t *in, int64_t count, float *out) {
    by_sixteen(
        count, [=](int64_t i) { _mm512_storeu_ps(out + i, _mm512_cvtph_ps(load256(in + i))); },
        [=](int64_t i) { out[i] = from_f16(in[i]); });
}

void row_from_bf16(const uint16_t *in, int64_t count, float *out) {
    by_sixteen(
        count,
        [=](int64_t i) {
            const __m512i wide = _mm512_cvtepu16_epi32(load256(in + i));
            _mm512_storeu_si512(out + i, _mm512_slli_epi32(wide, 16));
        },
        [=](int64_t i) { out[i] = from_bf16(in[i]); });
}

void row_to_f16(const float *in, int64_t count, uint16_t *out) {
    by_sixteen(
        count,
        [=](int64_t i) {
            const __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
            _mm256_storeu_si256((__m256i *)(out + i), half);
        },
        [=](int64_t i) { out[i] = to_f16(in[i]); });
}

// Not vcvtneps2bf16: it takes subnormals for zero.
void row_to_bf16(const float *in, int64_t count, uint16_t *out) {
    by_sixteen(
        count,
        [=](int64_t i) {
            const __m512 x = _mm512_loadu_ps(in + i);
            const __m512i bits = _mm512_castps_si512(x);
            const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
            __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
            rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
            _mm256_storeu_si256((__m256i *)(out + i), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
        },
        [=](int64_t i) { out[i] = to_bf16(in[i]); });
}

void accumulate(float scale, const float *in, int64_t count, float *out) {
    const __m512 s = _mm512_set1_ps(scale);
    by_sixteen(
        count,
        [=](int64_t i) {
            _mm512_storeu_ps(out + i, _mm512_fmadd_ps(s, _mm512_loadu_ps(in + i), _mm512_loadu_ps(out + i)));
        },
        [=](int64_t i) { out[i] = fused(scale, in[i], out[i]); });
}

}  // namespace
