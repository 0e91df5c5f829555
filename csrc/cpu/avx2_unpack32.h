// Stored blocks of 32 numbers, and of 64 (NVFP4), to vectors. Layouts: ggml (MIT), ggml-common.h, as decode.h defines.
// quants(block) is a vector of 32 numbers in natural order: u, or, where the zero point is 128, the signed weight.
#pragma once

#include "avx2_unpack256.h"

namespace {

// `count` (1 to 8) halves that lie `stride` bytes apart; the other lanes are 0.
KT_INLINE __m256 halves(const uint8_t *p, int stride, int count) {
    __m128i packed = _mm_setzero_si128();
    if (count == 8) {
        packed = _mm_setr_epi16((short)read_u16(p), (short)read_u16(p + stride), (short)read_u16(p + 2 * stride),
                                (short)read_u16(p + 3 * stride), (short)read_u16(p + 4 * stride),
                                (short)read_u16(p + 5 * stride), (short)read_u16(p + 6 * stride),
                                (short)read_u16(p + 7 * stride));
    } else {
        alignas(16) uint16_t few[8] = {};
        for (int i = 0; i < count; i++) few[i] = read_u16(p + i * stride);
        packed = load_half(few);
    }
    return _mm256_cvtph_ps(packed);
}

// Blocks that begin with an f16 d. m() belongs to the types that have an offset behind it.
template <int type> struct Halves {
    KT_INLINE __m256 d(const uint8_t *block, int count) { return halves(block, Format<type>::bytes, count); }
    KT_INLINE __m256 m(const uint8_t *block, int count) { return halves(block + 2, Format<type>::bytes, count); }
};

template <> struct Unpack<KT_Q4_0> : Halves<KT_Q4_0> {
    KT_INLINE __m256i quants(const uint8_t *block) { return nibbles_of_16(block + 2); }
};

template <> struct Unpack<KT_Q4_1> : Halves<KT_Q4_1> {
    KT_INLINE __m256i quants(const uint8_t *block) { return nibbles_of_16(block + 4); }
};

// 32 bits to 32 bytes that are 16 or 0.
KT_INLINE __m256i fifth_bits(const uint8_t *bits) { return mask_bytes(masks_of_bits(bits), 16); }

template <> struct Unpack<KT_Q5_0> : Halves<KT_Q5_0> {
    KT_INLINE __m256i quants(const uint8_t *block) {
        return _mm256_or_si256(nibbles_of_16(block + 6), fifth_bits(block + 2));
    }
};

template <> struct Unpack<KT_Q5_1> : Halves<KT_Q5_1> {
    KT_INLINE __m256i quants(const uint8_t *block) {
        return _mm256_or_si256(nibbles_of_16(block + 8), fifth_bits(block + 4));
    }
};

template <> struct Unpack<KT_Q8_0> : Halves<KT_Q8_0> {
    KT_INLINE __m256i quants(const uint8_t *block) { return load(block + 2); }
};

template <> struct Unpack<KT_IQ4_NL> : Halves<KT_IQ4_NL> {
    KT_INLINE __m256i quants(const uint8_t *block) {
        return _mm256_shuffle_epi8(iq4_values(), nibbles_of_16(block + 2));
    }
};

// mxfp4_scale in eight lanes.
KT_INLINE __m256 mxfp4_scales(__m256i e) {
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    const __m256i usual = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(usual, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

template <> struct Unpack<KT_MXFP4> {
    KT_INLINE __m256 d(const uint8_t *block, int count) {
        alignas(8) uint8_t e[8] = {};
        for (int i = 0; i < count; i++) e[i] = block[i * Format<KT_MXFP4>::bytes];
        return mxfp4_scales(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)e)));
    }
    KT_INLINE __m256i quants(const uint8_t *block) {
        return _mm256_shuffle_epi8(load_twice(FP4_VALUE), nibbles_of_16(block + 1));
    }
};

// nvfp4_scale in eight lanes. The exponent is moved as it stands, except for subnormal numbers.
KT_INLINE __m256 nvfp4_scales(__m256i e4m3) {
    const __m256i bits = _mm256_and_si256(e4m3, _mm256_set1_epi32(0x7f));
    const __m256i usual = _mm256_add_epi32(_mm256_slli_epi32(bits, 20), _mm256_set1_epi32(119 << 23));
    const __m256 tiny = _mm256_mul_ps(_mm256_cvtepi32_ps(bits), _mm256_set1_ps(0x1p-10f));
    const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), bits);
    const __m256i is_none = _mm256_cmpeq_epi32(e4m3, _mm256_set1_epi32(0x7f));
    const __m256 scale = _mm256_blendv_ps(_mm256_castsi256_ps(usual), tiny, _mm256_castsi256_ps(is_tiny));
    return _mm256_andnot_ps(_mm256_castsi256_ps(is_none), scale);
}

// quants(block, half) is one half of the 64 numbers, d(blocks, count) the scales of 16 of one or two blocks.
template <> struct Unpack<KT_NVFP4> {
    KT_INLINE __m256 d(const uint8_t *blocks, int count) {
        const int second = count > 1 ? read_i32(blocks + Format<KT_NVFP4>::bytes) : 0;
        return nvfp4_scales(_mm256_cvtepu8_epi32(_mm_setr_epi32(read_i32(blocks), second, 0, 0)));
    }
    KT_INLINE __m256i quants(const uint8_t *block, int half) {
        // Each 8 bytes hold 16 numbers: their low nibbles, then the high ones.
        const __m128i packed = load_half(block + 4 + 16 * half);
        const __m128i high = _mm_srli_epi16(packed, 4);
        const __m256i codes = _mm256_set_m128i(_mm_unpackhi_epi64(packed, high), _mm_unpacklo_epi64(packed, high));
        return _mm256_shuffle_epi8(load_twice(FP4_VALUE), mask_bytes(codes, 15));
    }
};

}  // namespace
