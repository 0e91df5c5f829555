// Super-blocks of 256 numbers unpacked in registers: 256 unsigned bytes in the order of columns, sixteen integer scales
// and mins (one for each 16 numbers), d and dmin.
#pragma once

#include "avx512_unpack32.h"

namespace {

// Scale: how d and dmin are kept until those of sixteen rows are converted together.
template <class Scale> struct Super {
    __m512i u[4];
    __m256i scale;  // 16 x int16
    __m256i min;    // 16 x int16, SUPER_MIN types only
    Scale d, dmin;
};
typedef Super<uint16_t> SuperHalf;

// Both halves of four vectors from 32-byte runs with two planes each: the low half is shifted right by `low` bits, the
// high one by `high`. Bits of a neighbouring byte come in at the top, so the caller masks.
inline __m512i two_planes(const uint8_t *p, int low, int high) {
    return _mm512_srlv_epi32(load_twice(p), halves(low, high));
}

// The same, but plane `low` (a bit position) is brought to position `to`, whatever the direction.
inline __m512i rotate_planes(__m512i twice, int low, int high, int to) {
    return _mm512_rorv_epi32(twice, halves((low - to) & 31, (high - to) & 31));
}

// u | (bits & mask)
inline __m512i or_masked(__m512i u, __m512i bits, int mask) {
    return _mm512_ternarylogic_epi32(u, bits, _mm512_set1_epi8((char)mask), 0xf8);
}

// 64 bytes of two-bit numbers: each 32 bytes hold four runs of 32 numbers, the lowest bits first.
inline void unpack_pairs(const uint8_t *p, __m512i *u) {
    const __m512i mask = _mm512_set1_epi8(3);
    for (int i = 0; i < 4; i++) {
        u[i] = _mm512_and_si512(two_planes(p + i / 2 * 32, i % 2 * 4, i % 2 * 4 + 2), mask);
    }
}

// 32 bytes with eight bit planes, one for each 32 numbers.
inline void or_bit_planes(const uint8_t *p, int to, __m512i *u) {
    const __m512i planes = load_twice(p);
    for (int i = 0; i < 4; i++) u[i] = or_masked(u[i], rotate_planes(planes, 2 * i, 2 * i + 1, to), 1 << to);
}

// Twice each of eight bytes, widened: a scale for every 32 numbers becomes two for every 16.
inline __m256i widen_twice(uint64_t bytes) {
    const __m128i x = _mm_cvtsi64_si128((long long)bytes);
    return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(x, x));
}

template <int type> struct Unpack256;

template <> struct Unpack256<KT_Q2_K> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block + 80);
        out.dmin = read_u16(block + 82);
        const __m256i both = _mm256_cvtepu8_epi16(load128(block));
        out.scale = _mm256_and_si256(both, _mm256_set1_epi16(15));
        out.min = _mm256_srli_epi16(both, 4);
        unpack_pairs(block + 16, out.u);
    }
};

template <> struct Unpack256<KT_TQ2_0> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block + 64);
        out.scale = _mm256_set1_epi16(1);
        unpack_pairs(block, out.u);
    }
};

// Bytes that are base-3 fractions of 256: each digit in turn is the integer part of 3 x / 256, then x becomes 3 x.
template <> struct Unpack256<KT_TQ1_0> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        alignas(64) uint8_t fractions[256];
        __m256i first = load256(block);
        __m128i second = load128(block + 32), third = _mm_loadu_si32(block + 48);
        for (int n = 0; n < 5; n++) {
            _mm256_store_si256((__m256i *)(fractions + 32 * n), first);
            _mm_store_si128((__m128i *)(fractions + 160 + 16 * n), second);
            if (n < 4) _mm_storeu_si32(fractions + 240 + 4 * n, third);
            first = _mm256_add_epi8(first, _mm256_add_epi8(first, first));
            second = _mm_add_epi8(second, _mm_add_epi8(second, second));
            third = _mm_add_epi8(third, _mm_add_epi8(third, third));
        }
        for (int i = 0; i < 4; i++) out.u[i] = first_digit(_mm512_load_si512(fractions + 64 * i));
        out.scale = _mm256_set1_epi16(1);
        out.d = read_u16(block + 52);
    }
    static __m512i first_digit(__m512i x) {
        const __m512i one = _mm512_set1_epi8(1);
        const __m512i digit = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(x, _mm512_set1_epi8(86)), one);
        return _mm512_mask_add_epi8(digit, _mm512_cmpge_epu8_mask(x, _mm512_set1_epi8((char)171)), digit, one);
    }
};

template <> struct Unpack256<KT_Q3_K> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block + 108);
        unpack_pairs(block + 32, out.u);
        or_bit_planes(block, 2, out.u);
        out.scale = scales(block + 96);
    }
    // Low nibbles of 8 bytes, then their high ones; upper pairs from 4 bytes, four planes. Offset 32.
    static __m256i scales(const uint8_t *p) {
        uint64_t low;
        memcpy(&low, p, sizeof low);
        const uint32_t high = read_u32(p + 8);
        const uint64_t nibbles = 0x0f0f0f0f0f0f0f0fu, pairs = 0x3030303030303030u;
        const uint64_t first = (low & nibbles) | (join(high << 4, high << 2) & pairs);
        const uint64_t second = ((low >> 4) & nibbles) | (join(high, high >> 2) & pairs);
        const __m128i bytes = _mm_set_epi64x((long long)second, (long long)first);
        return _mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes), _mm256_set1_epi16(32));
    }
};

// Eight scales and eight mins of 6 bits in twelve bytes (Q4_K, Q5_K), a byte each.
inline uint64_t q4_scale_bytes(const uint8_t *p) {
    const uint32_t low = read_u32(p), rest = read_u32(p + 8);
    return join(low & 0x3f3f3f3f, (rest & 0x0f0f0f0f) | ((low >> 2) & 0x30303030));
}
inline uint64_t q4_min_bytes(const uint8_t *p) {
    const uint32_t low = read_u32(p + 4), rest = read_u32(p + 8);
    return join(low & 0x3f3f3f3f, ((rest >> 4) & 0x0f0f0f0f) | ((low >> 2) & 0x30303030));
}

// 128 bytes: each 32 hold 32 low nibbles, then 32 high ones.
inline void unpack_nibbles_by_32(const uint8_t *p, __m512i *u) {
    for (int i = 0; i < 4; i++) u[i] = _mm512_and_si512(two_planes(p + 32 * i, 0, 4), _mm512_set1_epi8(15));
}

template <> struct Unpack256<KT_Q4_K> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block);
        out.dmin = read_u16(block + 2);
        out.scale = widen_twice(q4_scale_bytes(block + 4));
        out.min = widen_twice(q4_min_bytes(block + 4));
        unpack_nibbles_by_32(block + 16, out.u);
    }
};

template <> struct Unpack256<KT_Q5_K> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block);
        out.dmin = read_u16(block + 2);
        out.scale = widen_twice(q4_scale_bytes(block + 4));
        out.min = widen_twice(q4_min_bytes(block + 4));
        unpack_nibbles_by_32(block + 48, out.u);
        or_bit_planes(block + 16, 4, out.u);
    }
};

template <> struct Unpack256<KT_Q6_K> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block + 208);
        const __m512i mask = _mm512_set1_epi8(15);
        for (int c = 0; c < 2; c++) {
            const __m512i low = _mm512_loadu_si512(block + 64 * c);
            const __m512i high = load_twice(block + 128 + 32 * c);
            const __m512i first = _mm512_and_si512(low, mask);
            const __m512i second = _mm512_and_si512(_mm512_srli_epi16(low, 4), mask);
            out.u[2 * c] = or_masked(first, rotate_planes(high, 0, 2, 4), 0x30);
            out.u[2 * c + 1] = or_masked(second, rotate_planes(high, 4, 6, 4), 0x30);
        }
        out.scale = _mm256_cvtepi8_epi16(load128(block + 192));
    }
};

template <> struct Unpack256<KT_IQ4_XS> {
    typedef uint16_t Scale;
    static void unpack(const uint8_t *block, SuperHalf &out) {
        out.d = read_u16(block);
        for (int i = 0; i < 4; i++) {
            const uint8_t *p = block + 8 + 32 * i;
            out.u[i] = look_up_16(IQ4_VALUE, nibbles_of_two(p, p + 16));
        }
        out.scale = scales(read_u32(block + 4), read_u16(block + 2));
    }
    // Eight nibbles and eight upper pairs, offset 32.
    static __m256i scales(uint32_t low, uint32_t high) {
        const uint64_t nibbles = _pdep_u64(low, 0x0f0f0f0f0f0f0f0fu);
        const uint64_t pairs = _pdep_u64(high, 0x3030303030303030u);
        return _mm256_sub_epi16(widen_twice(nibbles | pairs), _mm256_set1_epi16(32));
    }
};

}  // namespace
