// One stored block of 256 numbers to vectors: the K types and IQ4_XS, unpacked in registers. Layouts: ggml (MIT),
// ggml-common.h, as decode.h defines them.
#pragma once

#include "avx2_common.h"

namespace {

// Natural order: quants[j] holds numbers 32 j to 32 j + 31 as u, or, where the zero point is 128, as the signed weight.
// scale and min are int16, one for each 16 numbers; min and dmin are set for the kind SUPER_MIN only.
struct Super {
    __m256i quants[8];
    __m256i scale, min;
    float d, dmin;
};

// Zero points that are not taken out by a sum: u would not fit maddubs, so the weights stay signed.
template <int type> constexpr bool is_signed() { return Format<type>::zero == 128; }

KT_INLINE float half_at(const uint8_t *p) { return _cvtsh_ss(read_u16(p)); }

KT_INLINE __m256i mask_bytes(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }

// Bits `from` and up of each byte to bits `to` and up, those in `mask` (named after the move) kept.
KT_INLINE __m256i move_bits(__m256i v, int from, int to, int mask) {
    const __m256i moved = from >= to ? _mm256_srli_epi16(v, from - to) : _mm256_slli_epi16(v, to - from);
    return mask_bytes(moved, mask);
}

// 32 bits from memory to 32 bytes that are -1 or 0.
KT_INLINE __m256i masks_of_bits(const void *bits) {
    const __m256i byte_of_lane = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit_of_lane = _mm256_set1_epi64x((long long)0x8040201008040201u);
    const __m256i spread = _mm256_shuffle_epi8(broadcast4(bits), byte_of_lane);
    return _mm256_cmpeq_epi8(_mm256_and_si256(spread, bit_of_lane), bit_of_lane);
}

// Eight bytes to int16, each twice: a scale of 32 numbers as two scales of 16.
KT_INLINE __m256i doubled(__m128i bytes) { return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(bytes, bytes)); }

// Specialised for each type: super(block, out) here and in avx2_unpack_iq.h, quants() and d() in avx2_unpack32.h.
template <int type> struct Unpack;

// 32 bytes hold four runs of 32 two-bit numbers, the lowest bits first.
KT_INLINE void two_bits(const uint8_t *bytes, __m256i *out) {
    const __m256i v = load(bytes);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) out[i] = move_bits(v, 2 * i, 0, 3);
}

template <> struct Unpack<KT_Q2_K> {
    KT_INLINE void super(const uint8_t *block, Super &out) {
        const __m128i packed = load_half(block);
        const __m128i low = _mm_set1_epi8(15);
        out.scale = _mm256_cvtepu8_epi16(_mm_and_si128(packed, low));
        out.min = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(packed, 4), low));
        two_bits(block + 16, out.quants);
        two_bits(block + 48, out.quants + 4);
        out.d = half_at(block + 80);
        out.dmin = half_at(block + 82);
    }
};

// Sixteen 6-bit scales in twelve bytes: four words of low nibbles, the upper pairs in the third word read.
KT_INLINE __m256i q3_scales(const uint8_t *bytes) {
    const uint32_t a = read_u32(bytes), b = read_u32(bytes + 4), high = read_u32(bytes + 8);
    const uint32_t nibbles = 0x0f0f0f0f, pairs = 0x30303030;
    const __m128i six = _mm_setr_epi32((int)((a & nibbles) | (high << 4 & pairs)),
                                       (int)((b & nibbles) | (high << 2 & pairs)),
                                       (int)((a >> 4 & nibbles) | (high & pairs)),
                                       (int)((b >> 4 & nibbles) | (high >> 2 & pairs)));
    return _mm256_cvtepi8_epi16(_mm_sub_epi8(six, _mm_set1_epi8(32)));
}

template <> struct Unpack<KT_Q3_K> {
    KT_INLINE void super(const uint8_t *block, Super &out) {
        two_bits(block + 32, out.quants);
        two_bits(block + 64, out.quants + 4);
        const __m256i third = load(block);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) out.quants[j] = _mm256_or_si256(out.quants[j], move_bits(third, j, 2, 4));
        out.scale = q3_scales(block + 96);
        out.d = half_at(block + 108);
    }
};

// Eight 6-bit scales and eight 6-bit mins in twelve bytes (Q4_K, Q5_K).
KT_INLINE void q4_scales(const uint8_t *bytes, Super &out) {
    const uint32_t a = read_u32(bytes), b = read_u32(bytes + 4), c = read_u32(bytes + 8);
    const uint32_t six = 0x3f3f3f3f, nibbles = 0x0f0f0f0f, pairs = 0x30303030;
    const uint64_t scales = join(a & six, (c & nibbles) | (a >> 2 & pairs));
    const uint64_t mins = join(b & six, (c >> 4 & nibbles) | (b >> 2 & pairs));
    out.scale = doubled(_mm_cvtsi64_si128((long long)scales));
    out.min = doubled(_mm_cvtsi64_si128((long long)mins));
}

// 32 bytes to 64 numbers: the low nibbles, then the high ones.
KT_INLINE void nibbles_of_32(const uint8_t *bytes, __m256i *out) {
    const __m256i v = load(bytes);
    out[0] = mask_bytes(v, 15);
    out[1] = move_bits(v, 4, 0, 15);
}

template <> struct Unpack<KT_Q4_K> {
    KT_INLINE void super(const uint8_t *block, Super &out) {
        q4_scales(block + 4, out);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) nibbles_of_32(block + 16 + 32 * c, out.quants + 2 * c);
        out.d = half_at(block);
        out.dmin = half_at(block + 2);
    }
};

template <> struct Unpack<KT_Q5_K> {
    KT_INLINE void super(const uint8_t *block, Super &out) {
        q4_scales(block + 4, out);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) nibbles_of_32(block + 48 + 32 * c, out.quants + 2 * c);
        const __m256i fifth = load(block + 16);
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) out.quants[j] = _mm256_or_si256(out.quants[j], move_bits(fifth, j, 4, 16));
        out.d = half_at(block);
        out.dmin = half_at(block + 2);
    }
};

template <> struct Unpack<KT_Q6_K> {
    KT_INLINE void half(const uint8_t *low, const uint8_t *high, __m256i *out) {
        const __m256i a = load(low), b = load(low + 32), h = load(high);
        out[0] = _mm256_or_si256(mask_bytes(a, 15), move_bits(h, 0, 4, 48));
        out[1] = _mm256_or_si256(mask_bytes(b, 15), move_bits(h, 2, 4, 48));
        out[2] = _mm256_or_si256(move_bits(a, 4, 0, 15), mask_bytes(h, 48));
        out[3] = _mm256_or_si256(move_bits(b, 4, 0, 15), move_bits(h, 6, 4, 48));
    }
    KT_INLINE void super(const uint8_t *block, Super &out) {
        half(block, block + 128, out.quants);
        half(block + 64, block + 160, out.quants + 4);
        out.scale = _mm256_cvtepi8_epi16(load_half(block + 192));
        out.d = half_at(block + 208);
    }
};

// 16 bytes to 32 numbers: the low nibbles, then the high ones.
KT_INLINE __m256i nibbles_of_16(const uint8_t *bytes) {
    const __m256i shift = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
    return mask_bytes(_mm256_srlv_epi32(load_twice(bytes), shift), 15);
}

// The 16 values of IQ4_NL and IQ4_XS as signed weights, in both halves.
KT_INLINE __m256i iq4_values() {
    return _mm256_xor_si256(load_twice(IQ4_VALUE), _mm256_set1_epi8((char)0x80));
}

// Eight 6-bit scales, offset 32: nibbles in four bytes, the upper pairs in one 16-bit word.
KT_INLINE __m256i iq4_scales(const uint8_t *nibbles, uint32_t pairs) {
    const __m128i packed = _mm_cvtsi32_si128(read_i32(nibbles));
    const __m128i split = _mm_unpacklo_epi8(packed, _mm_srli_epi16(packed, 4));
    const __m128i low = _mm_cvtepu8_epi16(_mm_and_si128(split, _mm_set1_epi8(15)));
    // Multiplying moves pair j to the top of lane j.
    const __m128i to_top = _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1);
    const __m128i high = _mm_srli_epi16(_mm_mullo_epi16(_mm_set1_epi16((short)pairs), to_top), 14);
    const __m128i six = _mm_sub_epi16(_mm_or_si128(low, _mm_slli_epi16(high, 4)), _mm_set1_epi16(32));
    return _mm256_set_m128i(_mm_unpackhi_epi16(six, six), _mm_unpacklo_epi16(six, six));
}

template <> struct Unpack<KT_IQ4_XS> {
    KT_INLINE void super(const uint8_t *block, Super &out) {
        const __m256i values = iq4_values();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) out.quants[j] = _mm256_shuffle_epi8(values, nibbles_of_16(block + 8 + 16 * j));
        out.scale = iq4_scales(block + 4, read_u16(block + 2));
        out.d = half_at(block);
    }
};

}  // namespace
