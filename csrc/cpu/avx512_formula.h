// The float part of the contract for sixteen weight rows at once (contract.h: add_scaled, add_with_offset,
// add_with_mins), and what the kernels need to know about the integers of a type.
#pragma once

#include "avx512_vec.h"

namespace {

inline __m512 add_scaled_16(__m512 acc, __m512 d, float d_a, __m512i S) {
    return _mm512_fmadd_ps(_mm512_mul_ps(d, _mm512_set1_ps(d_a)), _mm512_cvtepi32_ps(S), acc);
}

inline __m512 add_with_offset_16(__m512 acc, __m512 d, __m512 m, float d_a, __m512i S, float bs) {
    const __m512 t = _mm512_fmadd_ps(d, _mm512_cvtepi32_ps(S), _mm512_mul_ps(m, _mm512_set1_ps(bs)));
    return _mm512_fmadd_ps(_mm512_set1_ps(d_a), t, acc);
}

inline __m512 add_with_mins_16(__m512 acc, __m512 d, __m512 dmin, float d_a, __m512i S, __m512i M) {
    const __m512 t = _mm512_fmsub_ps(d, _mm512_cvtepi32_ps(S), _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(M)));
    return _mm512_fmadd_ps(_mm512_set1_ps(d_a), t, acc);
}

// The largest u of a SUPER type.
constexpr int largest_u(int type) {
    switch (type) {
        case KT_Q2_K: case KT_TQ1_0: case KT_TQ2_0: return 3;
        case KT_Q3_K: return 7;
        case KT_Q4_K: return 15;
        case KT_Q5_K: return 31;
        case KT_Q6_K: return 63;
        case KT_IQ1_S: case KT_IQ1_M: return 25;
        case KT_IQ4_XS: return 241;
        default: return 128;
    }
}

// The largest |u - zero|.
template <int type> constexpr int largest_weight() {
    const int zero = Format<type>::zero, above = largest_u(type) - zero;
    return above > zero ? above : zero;
}

// Whether a sum of `count` products of an activation with a number of at most `largest` fits in int16. One instruction
// (vpdpwssd) then multiplies it by its scale and adds.
constexpr bool fits_int16(int count, int largest) { return count * largest * 127 <= 32767; }

// S + sum * scale in every lane. fits: sum is an int16 and scale's upper 16 bits are zero.
template <bool fits> KT_INLINE __m512i add_product(__m512i S, __m512i sum, __m512i scale) {
    if (fits) {
        __asm__("vpdpwssd %2, %1, %0" : "+v"(S) : "v"(sum), "v"(scale));
        return S;
    }
    return _mm512_add_epi32(S, _mm512_mullo_epi32(sum, scale));
}

}  // namespace
