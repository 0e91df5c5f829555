// Small vector pieces that the AVX-512 kernels share: loads of odd sizes, sums over rows, transposition of 16 rows.
#pragma once

// gcc 12 takes the undefined vectors of its own header for mistakes (gcc bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include "contract.h"

// Loops whose arrays must become registers; gcc decides too late by itself.
#define KT_UNROLL _Pragma("GCC unroll 16")
// Functions that take such arrays.
#define KT_INLINE inline __attribute__((always_inline))

namespace {

constexpr int LANES = 16;  // weight rows that are computed together: one 32-bit lane each

inline __m512i zero512() { return _mm512_setzero_si512(); }
inline __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
inline __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

// 32 bytes in both halves, and 2 x 16 bytes, each in two neighbouring quarters: from memory these cost no shuffle.
inline __m512i load_twice(const uint8_t *p) { return _mm512_broadcast_i64x4(load256(p)); }
inline __m512i load_twice_each(const uint8_t *a, const uint8_t *b) {
    return _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(load128(a)), 0xff00, load128(b));
}

// Two 32-byte halves from two addresses.
inline __m512i load_halves(const void *a, const void *b) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(load256(a)), load256(b), 1);
}

// Four int8 activations in every lane.
inline __m512i broadcast4(const void *p) {
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

// sum + u * (four int8 at p, in every lane). In assembly because gcc 12 loads the four bytes with an instruction of its
// own, and the decoder is what limits the tile kernels.
KT_INLINE __m512i add_dots(__m512i sum, __m512i u, const int8_t *p) {
    typedef int32_t __attribute__((may_alias, aligned(1))) Four;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(u), "m"(*(const Four *)p));
    return sum;
}

// The same bytes in each 128-bit quarter; first argument for the lowest bits.
inline __m512i quarters(int q0, int q1, int q2, int q3) {
    return _mm512_set_epi32(q3, q3, q3, q3, q2, q2, q2, q2, q1, q1, q1, q1, q0, q0, q0, q0);
}
inline __m512i halves(int low, int high) { return quarters(low, low, high, high); }

// a + b with the lanes of a quarter folded once: two sources go in, half as many lanes of each come out.
inline __m512i fold_dwords(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
}
inline __m512i fold_qwords(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}
// Quarters of four sources: lane i of each quarter is the quarter's sum of source i.
KT_INLINE __m512i fold_four(__m512i a, __m512i b, __m512i c, __m512i d) {
    return fold_qwords(fold_dwords(a, b), fold_dwords(c, d));
}
// Neighbouring quarters added: {a0 + a1, a2 + a3, b0 + b1, b2 + b3}.
inline __m512i fold_quarters(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

// Lane r of the result is the sum of the sixteen lanes of v[r].
KT_INLINE __m512i sum_each_of_16(const __m512i *v) {
    const __m512i a = fold_four(v[0], v[1], v[2], v[3]), b = fold_four(v[4], v[5], v[6], v[7]);
    const __m512i c = fold_four(v[8], v[9], v[10], v[11]), d = fold_four(v[12], v[13], v[14], v[15]);
    return fold_quarters(fold_quarters(a, b), fold_quarters(c, d));
}

// Eight vectors of two halves each. Lane r is the sum of the half that half_slot(r) numbers (2 i: low half of v[i]).
KT_INLINE __m512i sum_each_half_of_8(const __m512i *v) {
    return fold_quarters(fold_four(v[0], v[1], v[2], v[3]), fold_four(v[4], v[5], v[6], v[7]));
}
inline int half_slot(int r) { return 2 * ((r & 3) + (r >> 3) * 4) + ((r >> 2) & 1); }

// Sixteen rows of 16 bytes that lie `stride` bytes apart: out[i] has dword i of every row, lane = row.
KT_INLINE void transpose_16x4(const uint8_t *rows, size_t stride, __m512i *out) {
    __m512i row[4];
    for (int i = 0; i < 4; i++) {
        const uint8_t *p = rows + (size_t)i * stride;
        row[i] = _mm512_broadcast_i32x4(load128(p));
        row[i] = _mm512_mask_broadcast_i32x4(row[i], 0x00f0, load128(p + 4 * stride));
        row[i] = _mm512_mask_broadcast_i32x4(row[i], 0x0f00, load128(p + 8 * stride));
        row[i] = _mm512_mask_broadcast_i32x4(row[i], 0xf000, load128(p + 12 * stride));
    }
    const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]), b = _mm512_unpackhi_epi32(row[0], row[1]);
    const __m512i c = _mm512_unpacklo_epi32(row[2], row[3]), d = _mm512_unpackhi_epi32(row[2], row[3]);
    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

// `count` activation rows in parts of at most `most`, evenly, so that no part is much smaller than the others: with
// count and most at least 4, so is every part.
template <class Work> KT_INLINE void for_parts(int64_t count, int64_t most, Work work) {
    const int64_t parts = (count + most - 1) / most;
    for (int64_t i = 0, first = 0; i < parts; i++) {
        const int64_t next = count * (i + 1) / parts;
        work(first, next - first);
        first = next;
    }
}

inline __mmask16 first_lanes(int count) { return (__mmask16)((1u << count) - 1); }

}  // namespace
