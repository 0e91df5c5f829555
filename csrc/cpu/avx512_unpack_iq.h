// Code-book types (IQ1, IQ2, IQ3) unpacked with gathers: eight rows of 8 numbers, or sixteen of 4, make 64 numbers.
#pragma once

#include "avx512_unpack256.h"

namespace {

constexpr uint64_t LOW_NIBBLES = 0x0f0f0f0f0f0f0f0fu;
constexpr uint64_t LOW_SEVEN = 0x7f7f7f7f7f7f7f7fu;

inline uint64_t read_u64(const uint8_t *p) { return join(read_u32(p), read_u32(p + 4)); }
inline __m128i eight_bytes(uint64_t bytes) { return _mm_cvtsi64_si128((long long)bytes); }

// ---- code books ----

// Rows of 8 numbers by eight codes: a byte each, and their upper bits, a byte each.
template <int codes> inline __m512i gather_8(const Grid8<codes> &grid, uint64_t low, uint64_t high) {
    const __m128i index = _mm_unpacklo_epi8(eight_bytes(low), eight_bytes(high));
    return _mm512_i32gather_epi64(_mm256_cvtepu16_epi32(index), grid.row, 8);
}

// Rows of 4 numbers by sixteen codes: a byte each, and a ninth bit.
template <int codes> inline __m512i gather_4(const Grid4<codes> &grid, const uint8_t *low, uint32_t ninth) {
    __m512i index = _mm512_cvtepu8_epi32(load128(low));
    index = _mm512_mask_or_epi32(index, (__mmask16)ninth, index, _mm512_set1_epi32(256));
    return _mm512_i32gather_epi32(index, grid.row, 4);
}

// 64 + magnitude, or 64 - magnitude where the sign bit is set.
inline __m512i with_signs(__m512i magnitude, uint64_t signs) {
    const __m512i zero = _mm512_set1_epi8(64);
    return _mm512_mask_sub_epi8(_mm512_add_epi8(zero, magnitude), _cvtu64_mask64(signs), zero, magnitude);
}

// In each byte seven sign bits; the eighth makes their number even.
inline uint64_t even_signs_of_eight(uint64_t seven) {
    uint64_t parity = seven ^ (seven >> 4);
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return seven | (parity & EACH_BYTE) << 7;
}

// The low 28 bits of two words are eight times seven sign bits.
inline uint64_t packed_signs(const uint8_t *first, const uint8_t *second) {
    const uint64_t bits = (read_u32(first) & 0xfffffff) | (uint64_t)(read_u32(second) & 0xfffffff) << 28;
    return even_signs_of_eight(_pdep_u64(bits, LOW_SEVEN));
}

// ---- scales: 2 s + 1 ----

inline __m256i odd_scales(__m256i s) { return _mm256_add_epi16(_mm256_add_epi16(s, s), _mm256_set1_epi16(1)); }

// Eight words, each the scale of two 16-groups.
inline __m256i odd_scales_twice(__m128i s) {
    return odd_scales(_mm256_set_m128i(_mm_unpackhi_epi16(s, s), _mm_unpacklo_epi16(s, s)));
}

// Sixteen nibbles in eight bytes.
inline __m256i odd_scales_of_nibbles(const uint8_t *p) {
    const uint64_t first = _pdep_u64(read_u32(p), LOW_NIBBLES), second = _pdep_u64(read_u32(p + 4), LOW_NIBBLES);
    return odd_scales(_mm256_cvtepu8_epi16(_mm_set_epi64x((long long)second, (long long)first)));
}

inline float scaled_half(const uint8_t *p, float factor) { return scale_to_float(read_u16(p)) * factor; }

// ---- types ----

template <> struct Unpack256<KT_IQ2_XXS> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const uint8_t *p = block + 2 + 16 * i;  // twice: four codes, four times seven signs with the scale on top
            const __m512i magnitude = gather_8(kt_grid_iq2_xxs, join(read_u32(p), read_u32(p + 8)), 0);
            out.u[i] = with_signs(magnitude, packed_signs(p + 4, p + 12));
        }
        const __m512i words = _mm512_loadu_si512(block + 2);
        out.scale = odd_scales_twice(_mm512_cvtepi64_epi16(_mm512_srli_epi64(words, 60)));
        out.d = scaled_half(block, 0.125f);
    }
};

template <> struct Unpack256<KT_IQ2_XS> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const __m128i codes = load128(block + 2 + 16 * i);  // 9 bits of code, 7 of signs
            const __m256i index = _mm256_cvtepu16_epi32(_mm_and_si128(codes, _mm_set1_epi16(511)));
            const uint64_t seven = (uint64_t)_mm_cvtsi128_si64(_mm_cvtepi16_epi8(_mm_srli_epi16(codes, 9)));
            const __m512i magnitude = _mm512_i32gather_epi64(index, kt_grid_iq2_xs.row, 8);
            out.u[i] = with_signs(magnitude, even_signs_of_eight(seven));
        }
        out.scale = odd_scales_of_nibbles(block + 66);
        out.d = scaled_half(block, 0.125f);
    }
};

template <> struct Unpack256<KT_IQ2_S> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const uint64_t high = _pdep_u64(read_u16(block + 66 + 2 * i), 3 * EACH_BYTE);
            const __m512i magnitude = gather_8(kt_grid_iq2_s, read_u64(block + 2 + 8 * i), high);
            out.u[i] = with_signs(magnitude, read_u64(block + 34 + 8 * i));
        }
        out.scale = odd_scales_of_nibbles(block + 74);
        out.d = scaled_half(block, 0.125f);
    }
};

template <> struct Unpack256<KT_IQ3_XXS> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const uint8_t *signs = block + 66 + 8 * i;
            const __m512i magnitude = gather_4(kt_grid_iq3_xxs, block + 2 + 16 * i, 0);
            out.u[i] = with_signs(magnitude, packed_signs(signs, signs + 4));
        }
        out.scale = odd_scales_twice(_mm256_cvtepi32_epi16(_mm256_srli_epi32(load256(block + 66), 28)));
        out.d = scaled_half(block, 0.25f);
    }
};

template <> struct Unpack256<KT_IQ3_S> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const __m512i magnitude = gather_4(kt_grid_iq3_s, block + 2 + 16 * i, read_u16(block + 66 + 2 * i));
            out.u[i] = with_signs(magnitude, read_u64(block + 74 + 8 * i));
        }
        out.scale = odd_scales(widen_twice(_pdep_u64(read_u32(block + 106), LOW_NIBBLES)));
        out.d = scaled_half(block, 1.0f);
    }
};

template <> struct Unpack256<KT_IQ1_S> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const uint64_t words = read_u32(block + 34 + 4 * i);  // two: four times three bits, the scale, the shift
            const uint64_t high = _pdep_u64(_pext_u64(words, 0x0fff0fff), 7 * EACH_BYTE);
            const __m512i grid = gather_8(kt_grid_iq1, read_u64(block + 2 + 8 * i), high);
            const __mmask8 down = (__mmask8)((words & 0x8000 ? 0x0f : 0) | (words & 0x80000000 ? 0xf0 : 0));
            out.u[i] = shifted(grid, down);
        }
        const __m128i scales = _mm_and_si128(_mm_srli_epi16(load128(block + 34), 12), _mm_set1_epi16(7));
        out.scale = odd_scales_twice(scales);
        out.d = scaled_half(block, 0.125f);
    }
    // One down where the row's bit is set, else one up.
    static __m512i shifted(__m512i grid, __mmask8 down) {
        const __m512i one = _mm512_set1_epi8(1);
        return _mm512_mask_blend_epi64(down, _mm512_add_epi8(grid, one), _mm512_sub_epi8(grid, one));
    }
};

template <> struct Unpack256<KT_IQ1_M> {
    typedef float Scale;
    static void unpack(const uint8_t *block, Super<float> &out) {
        for (int i = 0; i < 4; i++) {
            const uint64_t high = _pdep_u64(read_u32(block + 32 + 4 * i), LOW_NIBBLES);
            const __m512i grid = gather_8(kt_grid_iq1, read_u64(block + 8 * i), high & 7 * EACH_BYTE);
            out.u[i] = Unpack256<KT_IQ1_S>::shifted(grid, (__mmask8)_pext_u64(high, 8 * EACH_BYTE));
        }
        const uint64_t words = read_u64(block + 48);  // four: four times a scale of three bits, a quarter of d
        const uint64_t scales = _pext_u64(words, 0x0fff0fff0fff0fffu);
        const uint64_t first = _pdep_u64(scales, 7 * EACH_BYTE), second = _pdep_u64(scales >> 24, 7 * EACH_BYTE);
        out.scale = odd_scales(_mm256_cvtepu8_epi16(_mm_set_epi64x((long long)second, (long long)first)));
        out.d = scale_to_float((uint16_t)_pext_u64(words, 0xf000f000f000f000u)) * 0.125f;
    }
};

}  // namespace
