// Blocks of the codebook types (IQ1, IQ2, IQ3) and of the ternary types to vectors. The grids are looked up by scalar
// loads (gather instructions are slow on many processors); signs and scales are made in vectors. Out of line: the work
// here is long against the call. Layouts: ggml (MIT), ggml-common.h, as decode.h defines them.
#pragma once

#include "avx2_unpack256.h"

#define KT_OUT_OF_LINE static __attribute__((noinline))

namespace {

// ---- signs ----

// 28 bits in each int32, seven in a byte.
KT_INLINE __m256i spread_sevens(__m256i v) {
    const __m256i first = _mm256_and_si256(v, _mm256_set1_epi32(0x7f));
    const __m256i second = _mm256_and_si256(_mm256_slli_epi32(v, 1), _mm256_set1_epi32(0x7f00));
    const __m256i third = _mm256_and_si256(_mm256_slli_epi32(v, 2), _mm256_set1_epi32(0x7f0000));
    const __m256i fourth = _mm256_and_si256(_mm256_slli_epi32(v, 3), _mm256_set1_epi32(0x7f000000));
    return _mm256_or_si256(_mm256_or_si256(first, second), _mm256_or_si256(third, fourth));
}

// even_signs of decode.h for 32 bytes: the eighth bit is the parity of the others.
KT_INLINE __m256i complete_signs(__m256i sevens) {
    const __m256i top = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,  //
                                         0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i low = _mm256_shuffle_epi8(top, mask_bytes(sevens, 15));
    const __m256i high = _mm256_shuffle_epi8(top, move_bits(sevens, 4, 0, 7));
    return _mm256_or_si256(sevens, _mm256_xor_si256(low, high));
}

// u = 64 + magnitude, or 64 - magnitude where the sign bit is set.
KT_INLINE __m256i with_signs(__m256i magnitudes, const void *signs) {
    const __m256i negative = masks_of_bits(signs);
    const __m256i w = _mm256_sub_epi8(_mm256_xor_si256(magnitudes, negative), negative);
    return _mm256_add_epi8(w, _mm256_set1_epi8(64));
}

// ---- scales: 2 s + 1 ----

KT_INLINE __m256i odd_scales(__m256i s) { return _mm256_or_si256(_mm256_add_epi16(s, s), ones16()); }

// Sixteen nibbles in eight bytes, the low one first.
KT_INLINE __m256i nibble_scales(const uint8_t *bytes) {
    const __m128i packed = _mm_loadl_epi64((const __m128i *)(const void *)bytes);
    const __m128i split = _mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4));
    return odd_scales(_mm256_cvtepu8_epi16(_mm_and_si128(split, _mm_set1_epi8(15))));
}

// The top four bits of eight int32, each for 32 numbers.
KT_INLINE __m256i top_scales(__m256i v) {
    const __m256i s = _mm256_srli_epi32(v, 28);
    return odd_scales(_mm256_or_si256(s, _mm256_slli_epi32(s, 16)));
}

// Eight int16, each for 32 numbers.
KT_INLINE __m256i twice_each(__m128i s) {
    return odd_scales(_mm256_set_m128i(_mm_unpackhi_epi16(s, s), _mm_unpacklo_epi16(s, s)));
}

// ---- IQ2: eight magnitudes a code ----

KT_INLINE __m256i four_codes(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    return _mm256_setr_epi64x((long long)a, (long long)b, (long long)c, (long long)d);
}

template <> struct Unpack<KT_IQ2_XXS> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        // Eight groups of four codes and one word with signs and scale; the words in order:
        const __m256i a = load(block + 2), b = load(block + 34);
        const __m256 odd = _mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd);
        const __m256i words = _mm256_permute4x64_epi64(_mm256_castps_si256(odd), 0xd8);
        alignas(32) uint32_t signs[8];
        store(signs, complete_signs(spread_sevens(words)));
        const uint64_t *grid = kt_grid_iq2_xxs.row;
        for (int j = 0; j < 8; j++) {
            const uint8_t *code = block + 2 + 8 * j;
            const __m256i magnitudes = four_codes(grid[code[0]], grid[code[1]], grid[code[2]], grid[code[3]]);
            out.quants[j] = with_signs(magnitudes, signs + j);
        }
        out.scale = top_scales(words);
        out.d = half_at(block) * 0.125f;
    }
};

template <> struct Unpack<KT_IQ2_XS> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        const __m256i a = _mm256_srli_epi16(load(block + 2), 9), b = _mm256_srli_epi16(load(block + 34), 9);
        alignas(32) uint32_t signs[8];
        store(signs, complete_signs(_mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0xd8)));
        const uint64_t *grid = kt_grid_iq2_xs.row;
        for (int j = 0; j < 8; j++) {
            const uint8_t *code = block + 2 + 8 * j;
            const __m256i magnitudes = four_codes(grid[read_u16(code) & 511], grid[read_u16(code + 2) & 511],
                                                  grid[read_u16(code + 4) & 511], grid[read_u16(code + 6) & 511]);
            out.quants[j] = with_signs(magnitudes, signs + j);
        }
        out.scale = nibble_scales(block + 66);
        out.d = half_at(block) * 0.125f;
    }
};

template <> struct Unpack<KT_IQ2_S> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        const uint64_t *grid = kt_grid_iq2_s.row;
        for (int j = 0; j < 8; j++) {
            const uint8_t *code = block + 2 + 4 * j;
            const uint32_t high = block[66 + j];
            const __m256i magnitudes =
                four_codes(grid[code[0] | (high << 8 & 0x300)], grid[code[1] | (high << 6 & 0x300)],
                           grid[code[2] | (high << 4 & 0x300)], grid[code[3] | (high << 2 & 0x300)]);
            out.quants[j] = with_signs(magnitudes, block + 34 + 4 * j);
        }
        out.scale = nibble_scales(block + 74);
        out.d = half_at(block) * 0.125f;
    }
};

// ---- IQ3: four magnitudes a code ----

KT_INLINE __m256i eight_codes(const uint32_t *grid, const uint8_t *code, uint32_t high) {
    int v[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) v[i] = (int)grid[code[i] | (high << (8 - i) & 0x100)];
    return _mm256_setr_epi32(v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]);
}

template <> struct Unpack<KT_IQ3_XXS> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        const __m256i words = load(block + 66);
        alignas(32) uint32_t signs[8];
        store(signs, complete_signs(spread_sevens(words)));
        for (int j = 0; j < 8; j++) {
            out.quants[j] = with_signs(eight_codes(kt_grid_iq3_xxs.row, block + 2 + 8 * j, 0), signs + j);
        }
        out.scale = top_scales(words);
        out.d = half_at(block) * 0.25f;
    }
};

template <> struct Unpack<KT_IQ3_S> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        for (int j = 0; j < 8; j++) {
            const __m256i magnitudes = eight_codes(kt_grid_iq3_s.row, block + 2 + 8 * j, block[66 + j]);
            out.quants[j] = with_signs(magnitudes, block + 74 + 4 * j);
        }
        const __m128i packed = _mm_cvtsi32_si128(read_i32(block + 106));
        const __m128i split = _mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4));
        out.scale = twice_each(_mm_cvtepu8_epi16(_mm_and_si128(split, _mm_set1_epi8(15))));
        out.d = half_at(block);
    }
};

// ---- IQ1: eight numbers a code, all moved one unit up or down ----

template <> struct Unpack<KT_IQ1_S> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        const uint64_t *grid = kt_grid_iq1.row;
        for (int j = 0; j < 8; j++) {
            const uint8_t *code = block + 2 + 4 * j;
            const uint32_t high = read_u16(block + 34 + 2 * j);
            const __m256i plain = four_codes(grid[code[0] | (high << 8 & 0x700)], grid[code[1] | (high << 5 & 0x700)],
                                             grid[code[2] | (high << 2 & 0x700)], grid[code[3] | (high >> 1 & 0x700)]);
            out.quants[j] = _mm256_add_epi8(plain, _mm256_set1_epi8(high & 0x8000 ? -1 : 1));
        }
        const __m128i words = _mm_srli_epi16(load_half(block + 34), 12);
        out.scale = twice_each(_mm_and_si128(words, _mm_set1_epi16(7)));
        out.d = half_at(block) * 0.125f;
    }
};

template <> struct Unpack<KT_IQ1_M> {
    KT_INLINE uint64_t code(uint32_t low, uint32_t high) {
        const uint64_t grid = kt_grid_iq1.row[low | (high << 8 & 0x700)];
        return high & 8 ? grid - EACH_BYTE : grid + EACH_BYTE;
    }
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        alignas(32) int16_t scale[16];
        uint32_t d = 0;
        for (int i = 0; i < 4; i++) {
            const uint32_t word = read_u16(block + 48 + 2 * i);
            for (int k = 0; k < 4; k++) scale[4 * i + k] = (int16_t)(2 * ((word >> (3 * k)) & 7) + 1);
            d |= word >> 12 << (4 * i);
        }
        for (int j = 0; j < 8; j++) {
            const uint8_t *low = block + 4 * j;
            const uint32_t high = read_u16(block + 32 + 2 * j);
            out.quants[j] = four_codes(code(low[0], high), code(low[1], high >> 4), code(low[2], high >> 8),
                                       code(low[3], high >> 12));
        }
        out.scale = load(scale);
        out.d = _cvtsh_ss((uint16_t)d) * 0.125f;
    }
};

// ---- ternary types ----

// The first base-3 digit of each byte, a fraction of 256: (byte * 3) >> 8.
KT_INLINE __m256i ternary_digit(__m256i v) {
    const __m256i some = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8(86)), v);
    const __m256i two = _mm256_cmpeq_epi8(_mm256_max_epu8(v, _mm256_set1_epi8((char)171)), v);
    return _mm256_sub_epi8(_mm256_setzero_si256(), _mm256_add_epi8(some, two));
}

// Makes the next digit the first.
KT_INLINE __m256i next_digit(__m256i v) { return _mm256_add_epi8(_mm256_add_epi8(v, v), v); }

KT_INLINE __m256i low_halves(__m256i a, __m256i b) { return _mm256_permute2x128_si256(a, b, 0x20); }

template <> struct Unpack<KT_TQ1_0> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        __m256i v = load(block);
        for (int n = 0; n < 5; n++, v = next_digit(v)) out.quants[n] = ternary_digit(v);
        __m256i of_16[5], of_4[4];
        of_16[0] = load_twice(block + 32);
        of_4[0] = broadcast4(block + 48);
        for (int n = 1; n < 5; n++) of_16[n] = next_digit(of_16[n - 1]);
        for (int n = 1; n < 4; n++) of_4[n] = next_digit(of_4[n - 1]);
        const __m256i last = _mm256_unpacklo_epi64(_mm256_unpacklo_epi32(of_4[0], of_4[1]),
                                                   _mm256_unpacklo_epi32(of_4[2], of_4[3]));
        out.quants[5] = ternary_digit(low_halves(of_16[0], of_16[1]));
        out.quants[6] = ternary_digit(low_halves(of_16[2], of_16[3]));
        out.quants[7] = ternary_digit(low_halves(of_16[4], last));
        out.scale = ones16();
        out.d = half_at(block + 52);
    }
};

template <> struct Unpack<KT_TQ2_0> {
    KT_OUT_OF_LINE void super(const uint8_t *block, Super &out) {
        two_bits(block, out.quants);
        two_bits(block + 32, out.quants + 4);
        out.scale = ones16();
        out.d = half_at(block + 64);
    }
};

}  // namespace
