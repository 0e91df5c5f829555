// Element-wise functions: conversions, activations and their quantisation, accumulation. Lane by lane they are the
// formulas of contract.h, which also does what is left of a row after whole vectors.
#pragma once

#include "avx2_common.h"

namespace {

// ---- conversions ----

KT_INLINE __m256 floats_from_f16(const void *p) { return _mm256_cvtph_ps(load_half(p)); }

KT_INLINE __m256 floats_from_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_half(p)), 16));
}

void rows_from_f16(const uint16_t *in, int64_t count, float *out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, floats_from_f16(in + i));
    for (; i < count; i++) out[i] = from_f16(in[i]);
}

void rows_from_bf16(const uint16_t *in, int64_t count, float *out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, floats_from_bf16(in + i));
    for (; i < count; i++) out[i] = from_bf16(in[i]);
}

void rows_to_f16(const float *in, int64_t count, uint16_t *out) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(out + i), half);
    }
    for (; i < count; i++) out[i] = to_f16(in[i]);
}

// Eight floats to the upper 16 bits of each lane's result, moved down.
KT_INLINE __m256i bf16_lanes(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i rounder = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, rounder), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

void rows_to_bf16(const float *in, int64_t count, uint16_t *out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m256i low = bf16_lanes(_mm256_loadu_ps(in + i)), high = bf16_lanes(_mm256_loadu_ps(in + i + 8));
        store(out + i, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
    }
    for (; i < count; i++) out[i] = to_bf16(in[i]);
}

// ---- quantisation of activations ----

KT_INLINE uint32_t largest_magnitude(const float *x, int64_t count) {
    __m256i largest = _mm256_setzero_si256();
    for (int64_t k = 0; k < count; k += 8) {
        largest = _mm256_max_epi32(largest, _mm256_and_si256(load(x + k), _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(four);
}

// 32 numbers to q and two sums of 16.
KT_INLINE void quantize32(const float *x, __m256 factor, int8_t *q, int16_t *sums) {
    __m256i part[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) part[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor));
    const __m256i first = _mm256_add_epi32(part[0], part[1]), second = _mm256_add_epi32(part[2], part[3]);
    const __m256i low = _mm256_packs_epi32(part[0], part[1]), high = _mm256_packs_epi32(part[2], part[3]);
    const __m256i natural = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    store(q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), natural));
    const __m256i both = _mm256_hadd_epi32(first, second);
    const __m256i sum = _mm256_hadd_epi32(both, both);
    const __m128i pair = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    sums[0] = (int16_t)_mm_extract_epi32(pair, 0);
    sums[1] = (int16_t)_mm_extract_epi32(pair, 1);
}

// block is a multiple of 32.
void quantize(const float *x, int64_t columns, int64_t block, int8_t *q, float *d, int16_t *sums) {
    for (int64_t k = 0; k < columns; k += block) {
        const Scale scale = activation_scale(largest_magnitude(x + k, block));
        d[k / block] = scale.d;
        if (scale.factor == 0.0f) {
            memset(q + k, 0, (size_t)block);
            memset(sums + k / 16, 0, (size_t)(block / 16) * sizeof *sums);
            continue;
        }
        const __m256 factor = _mm256_set1_ps(scale.factor);
        for (int64_t i = k; i < k + block; i += 32) quantize32(x + i, factor, q + i, sums + i / 16);
    }
}

// ---- activation functions ----

KT_INLINE __m256 all(float x) { return _mm256_set1_ps(x); }

KT_INLINE __m256 exponential(__m256 x) {
    const __m256 t = _mm256_fmadd_ps(x, all(LOG2_E), all(ROUNDER));
    const __m256 n = _mm256_sub_ps(t, all(ROUNDER));
    __m256 r = _mm256_fmadd_ps(n, all(-LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, all(-LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(all(EXP_C6), r, all(EXP_C5));
    p = _mm256_fmadd_ps(p, r, all(EXP_C4));
    p = _mm256_fmadd_ps(p, r, all(EXP_C3));
    p = _mm256_fmadd_ps(p, r, all(EXP_C2));
    p = _mm256_fmadd_ps(p, r, all(1.0f));
    p = _mm256_fmadd_ps(p, r, all(1.0f));
    const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    y = _mm256_and_ps(y, _mm256_cmp_ps(x, all(EXP_LOW), _CMP_GE_OQ));
    return _mm256_blendv_ps(_mm256_add_ps(x, all(INFINITY)), y, _mm256_cmp_ps(x, all(EXP_HIGH), _CMP_LE_OQ));
}

template <int activation> KT_INLINE __m256 activated(__m256 x) {
    __m256 u = _mm256_xor_ps(x, all(-0.0f));
    if (activation == KT_GELU_TANH) {
        u = _mm256_mul_ps(x, _mm256_fmadd_ps(all(GELU_C3), _mm256_mul_ps(x, x), all(GELU_C1)));
    }
    return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exponential(u)));
}

template <int activation> void activate_rows(float *gate, const float *up, int64_t count) {
    for (int64_t i = 0; i < count; i += 8) {
        __m256 y = activated<activation>(load_floats(gate + i, count - i));
        if (up) y = _mm256_mul_ps(y, load_floats(up + i, count - i));
        store_floats(gate + i, count - i, y);
    }
}

void activate(int activation, float *gate, const float *up, int64_t count) {
    if (activation == KT_SILU) activate_rows<KT_SILU>(gate, up, count);
    if (activation == KT_GELU_TANH) activate_rows<KT_GELU_TANH>(gate, up, count);
}

void accumulate(float scale, const float *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += 8) {
        const __m256 sum = _mm256_fmadd_ps(all(scale), load_floats(in + i, count - i), load_floats(out + i, count - i));
        store_floats(out + i, count - i, sum);
    }
}

}  // namespace
