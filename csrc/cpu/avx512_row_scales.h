// Integer scales and mins of super-blocks as the row kernel uses them: scales spread over the lanes of one row's dots,
// mins kept as bytes and multiplied for sixteen rows at once.
#pragma once

#include "avx512_formula.h"
#include "avx512_unpack_iq.h"

namespace {

// ---- scales ----

// Dots of four numbers (vector i, quarter k: four dots of 16-group 4 i + k) are packed to int16, vectors 0 and 1
// together, and 2 and 3. So quarter k then has four dots of 16-group k and four of 4 + k; or of 8 + k and 12 + k. This
// makes an index vector of that shape: quarter k has four times the word a_k, four times b_k.
inline __m512i word_picks(uint64_t a0, uint64_t b0, uint64_t a1, uint64_t b1, uint64_t a2, uint64_t b2, uint64_t a3,
                          uint64_t b3) {
    constexpr uint64_t four = 0x0001000100010001u;
    return _mm512_set_epi64((long long)(b3 * four), (long long)(a3 * four), (long long)(b2 * four),
                            (long long)(a2 * four), (long long)(b1 * four), (long long)(a1 * four),
                            (long long)(b0 * four), (long long)(a0 * four));
}

// Groups `first` .. first + 7 in the order above. unit, base: the index word of group g is g * unit + base.
inline __m512i group_picks(uint64_t first, uint64_t unit, uint64_t base) {
    const uint64_t i = first * unit + base;
    return word_picks(i, i + 4 * unit, i + unit, i + 5 * unit, i + 2 * unit, i + 6 * unit, i + 3 * unit, i + 7 * unit);
}

// Bases of byte shuffles: the byte goes to the low half of the word, zero to the high half.
constexpr uint64_t TO_LOW = 0x8000;

// Any type: from the sixteen int16.
template <int type> inline void word_scales(const uint8_t *, __m256i scale, __m512i *out) {
    const __m512i wide = _mm512_castsi256_si512(scale);
    out[0] = _mm512_permutexvar_epi16(group_picks(0, 1, 0), wide);
    out[1] = _mm512_permutexvar_epi16(group_picks(8, 1, 0), wide);
}

template <> inline void word_scales<KT_Q2_K>(const uint8_t *block, __m256i, __m512i *out) {
    const __m512i bytes = _mm512_and_si512(_mm512_broadcast_i32x4(load128(block)), _mm512_set1_epi8(15));
    out[0] = _mm512_shuffle_epi8(bytes, group_picks(0, 1, TO_LOW));
    out[1] = _mm512_shuffle_epi8(bytes, group_picks(8, 1, TO_LOW));
}

// Eight bytes, each the scale of two 16-groups.
inline void word_scales_q4(const uint8_t *packed, __m512i *out) {
    const __m512i bytes = _mm512_set1_epi64((long long)q4_scale_bytes(packed));
    const uint64_t z = TO_LOW;
    out[0] = _mm512_shuffle_epi8(bytes, word_picks(z, z + 2, z, z + 2, z + 1, z + 3, z + 1, z + 3));
    out[1] = _mm512_shuffle_epi8(bytes, word_picks(z + 4, z + 6, z + 4, z + 6, z + 5, z + 7, z + 5, z + 7));
}
template <> inline void word_scales<KT_Q4_K>(const uint8_t *block, __m256i, __m512i *out) {
    word_scales_q4(block + 4, out);
}
template <> inline void word_scales<KT_Q5_K>(const uint8_t *block, __m256i, __m512i *out) {
    word_scales_q4(block + 4, out);
}

// Signed bytes: shuffled to the high half, then shifted down.
template <> inline void word_scales<KT_Q6_K>(const uint8_t *block, __m256i, __m512i *out) {
    const __m512i bytes = _mm512_broadcast_i32x4(load128(block + 192));
    out[0] = _mm512_srai_epi16(_mm512_shuffle_epi8(bytes, group_picks(0, 256, 0x80)), 8);
    out[1] = _mm512_srai_epi16(_mm512_shuffle_epi8(bytes, group_picks(8, 256, 0x80)), 8);
}

// The scales of one block, ready for any number of activation rows. fits: a dot of four is an int16.
template <int type, bool fits = fits_int16(4, largest_weight<type>())> struct RowScales {
    RowScales(const uint8_t *block, __m256i scale) { word_scales<type>(block, scale, words); }

    __m512i apply(const __m512i *dots) const {
        const __m512i S = _mm512_dpwssd_epi32(zero512(), _mm512_packs_epi32(dots[0], dots[1]), words[0]);
        return _mm512_dpwssd_epi32(S, _mm512_packs_epi32(dots[2], dots[3]), words[1]);
    }
    __m512i words[2];
};

template <int type> struct RowScales<type, false> {
    RowScales(const uint8_t *, __m256i scale) {
        const __m512i wide = _mm512_cvtepi16_epi32(scale);
        for (int i = 0; i < 4; i++) {
            lanes[i] = _mm512_permutexvar_epi32(quarters(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3), wide);
        }
    }

    __m512i apply(const __m512i *dots) const {
        __m512i S = zero512();
        for (int i = 0; i < 4; i++) S = _mm512_add_epi32(S, _mm512_mullo_epi32(dots[i], lanes[i]));
        return S;
    }
    __m512i lanes[4];
};

// ---- mins ----

// Mins of a row are bytes, 8 or 16 of them; words of the even bytes and of the odd ones are multiplied with these.
struct SumsForMins {
    __m512i even, odd;  // sums of q of every second group, repeated for each row in the vector
};

template <int sub> inline SumsForMins sums_for_mins(const int16_t *sums) {
    const __m256i s = load256(sums);
    if (sub == 16) {
        const __m128i even = _mm256_cvtepi32_epi16(s), odd = _mm256_cvtepi32_epi16(_mm256_srli_epi32(s, 16));
        return {_mm512_broadcast_i32x4(even), _mm512_broadcast_i32x4(odd)};
    }
    const __m256i pairs = _mm256_madd_epi16(s, _mm256_set1_epi16(1));  // of 32; at most 4064, so an int16
    const __m128i even = _mm256_cvtepi64_epi16(pairs), odd = _mm256_cvtepi64_epi16(_mm256_srli_epi64(pairs, 32));
    return {_mm512_broadcastq_epi64(even), _mm512_broadcastq_epi64(odd)};
}

template <int type> inline void store_mins(const uint8_t *block, uint8_t *out) {
    const uint64_t bytes = q4_min_bytes(block + 4);
    memcpy(out, &bytes, sizeof bytes);
}
template <> inline void store_mins<KT_Q2_K>(const uint8_t *block, uint8_t *out) {
    memcpy(out, block, 16);  // in the high nibbles
}

inline __m512i multiply_bytes(__m512i bytes, const SumsForMins &sums) {
    const __m512i even = _mm512_and_si512(bytes, _mm512_set1_epi16(255)), odd = _mm512_srli_epi16(bytes, 8);
    return _mm512_dpwssd_epi32(_mm512_madd_epi16(even, sums.even), odd, sums.odd);
}

// M of sixteen rows. Eight mins a row: two lanes for each of eight rows in a vector.
template <int type> inline __m512i multiply_mins(const uint8_t *mins, const SumsForMins &sums) {
    const __m512i a = multiply_bytes(_mm512_load_si512(mins), sums);
    const __m512i b = multiply_bytes(_mm512_load_si512(mins + 64), sums);
    const __m512i first = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_permutex2var_epi32(a, first, b), _mm512_permutex2var_epi32(a, second, b));
}

// Sixteen mins a row: four lanes for each of four rows in a vector.
template <> inline __m512i multiply_mins<KT_Q2_K>(const uint8_t *mins, const SumsForMins &sums) {
    __m512i products[4];
    for (int i = 0; i < 4; i++) {
        const __m512i high = _mm512_srli_epi16(_mm512_load_si512(mins + 64 * i), 4);
        products[i] = multiply_bytes(_mm512_and_si512(high, _mm512_set1_epi8(15)), sums);
    }
    // Lane i of quarter k is row 4 i + k.
    const __m512i rows = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(rows, fold_four(products[0], products[1], products[2], products[3]));
}

}  // namespace
