// Blocks of 32 numbers unpacked in registers: two blocks to 64 unsigned bytes in the order of columns.
#pragma once

#include "avx512_scales.h"

namespace {

// Low nibbles of each 16 bytes, then high nibbles: 16 bytes of block a, 16 bytes of block b.
inline __m512i nibbles_of_two(const uint8_t *a, const uint8_t *b) {
    const __m512i shifted = _mm512_srlv_epi32(load_twice_each(a, b), quarters(0, 4, 0, 4));
    return _mm512_and_si512(shifted, _mm512_set1_epi8(15));
}

// Adds 16 to the numbers whose bit is set.
inline __m512i add_fifth_bits(__m512i u, uint32_t a, uint32_t b) {
    return _mm512_mask_add_epi8(u, _cvtu64_mask64(join(a, b)), u, _mm512_set1_epi8(16));
}

inline __m512i look_up_16(const uint8_t *table, __m512i u) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(load128(table)), u);
}

// Scale: how d is kept until sixteen of them are converted. d, m: of one block. pair: the numbers of two blocks.
struct HalfScale {
    typedef uint16_t Scale;
    static Scale d(const uint8_t *block) { return read_u16(block); }
    static Scale m(const uint8_t *block) { return read_u16(block + 2); }
};

template <int type> struct Unpack32;

template <> struct Unpack32<KT_Q4_0> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) { return nibbles_of_two(a + 2, b + 2); }
};

template <> struct Unpack32<KT_Q4_1> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) { return nibbles_of_two(a + 4, b + 4); }
};

template <> struct Unpack32<KT_Q5_0> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) {
        return add_fifth_bits(nibbles_of_two(a + 6, b + 6), read_u32(a + 2), read_u32(b + 2));
    }
};

template <> struct Unpack32<KT_Q5_1> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) {
        return add_fifth_bits(nibbles_of_two(a + 8, b + 8), read_u32(a + 4), read_u32(b + 4));
    }
};

template <> struct Unpack32<KT_Q8_0> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) {
        return _mm512_xor_si512(load_halves(a + 2, b + 2), _mm512_set1_epi8(-128));
    }
};

template <> struct Unpack32<KT_IQ4_NL> : HalfScale {
    static __m512i pair(const uint8_t *a, const uint8_t *b) {
        return look_up_16(IQ4_VALUE, nibbles_of_two(a + 2, b + 2));
    }
};

template <> struct Unpack32<KT_MXFP4> {
    typedef E8M0 Scale;
    static Scale d(const uint8_t *block) { return {block[0]}; }
    static __m512i pair(const uint8_t *a, const uint8_t *b) {
        return look_up_16(FP4_VALUE, nibbles_of_two(a + 1, b + 1));
    }
};

// NVFP4: four times 8 bytes to 16 numbers, the low nibbles first.
inline __m512i unpack_nvfp4(const uint8_t *bytes) {
    const __m512i twice = _mm512_permutexvar_epi64(_mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0),
                                                   _mm512_castsi256_si512(load256(bytes)));
    const __m512i shifted = _mm512_srlv_epi64(twice, _mm512_set_epi64(4, 0, 4, 0, 4, 0, 4, 0));
    return look_up_16(FP4_VALUE, _mm512_and_si512(shifted, _mm512_set1_epi8(15)));
}

}  // namespace
