// Small pieces that all AVX2 headers use: loads, sums and transpositions. A "vector" has 32 bytes.
#pragma once

#include <immintrin.h>

#include "contract.h"
#include "decode.h"

#define KT_INLINE static inline __attribute__((always_inline))

namespace {

KT_INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
KT_INLINE void store(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
KT_INLINE __m128i load_half(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
KT_INLINE __m256i load_twice(const void *p) { return _mm256_broadcastsi128_si256(load_half(p)); }

KT_INLINE int32_t read_i32(const void *p) {
    int32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
KT_INLINE __m256i broadcast4(const void *p) { return _mm256_set1_epi32(read_i32(p)); }

KT_INLINE __m256i ones16() { return _mm256_set1_epi16(1); }

// First `count` (0 to 8) of eight int32 or float lanes, as a mask for maskstore and blendv.
KT_INLINE __m256i first_lanes(int64_t count) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane);
}

// Up to eight int32 or floats; nothing behind them is read, the other lanes are 0. (Not maskload: QEMU reads what the
// mask leaves out.)
KT_INLINE __m256i load_words(const void *p, int64_t count) {
    if (count >= 8) return load(p);
    alignas(32) int32_t few[8] = {};
    for (int64_t i = 0; i < count; i++) few[i] = read_i32((const uint8_t *)p + 4 * i);
    return load(few);
}
KT_INLINE __m256 load_floats(const float *p, int64_t count) { return _mm256_castsi256_ps(load_words(p, count)); }

// The first `count` lanes, at most eight.
KT_INLINE void store_floats(float *p, int64_t count, __m256 v) {
    if (count >= 8) {
        _mm256_storeu_ps(p, v);
    } else {
        _mm256_maskstore_ps(p, first_lanes(count), v);
    }
}

// Pairs of products of bytes as int16: u is unsigned, q signed. No pair may pass 32767.
KT_INLINE __m256i pair_products(__m256i u, __m256i q) { return _mm256_maddubs_epi16(u, q); }

// The same for weights that are signed bytes (-128 to 127): |w| times q with the sign of w.
KT_INLINE __m256i signed_pair_products(__m256i w, __m256i q) {
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
}

// Lane i of the result: the sum of the eight int32 lanes of v[i].
KT_INLINE __m256i sum_each(const __m256i *v) {
    const __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(v[0], v[1]), _mm256_hadd_epi32(v[2], v[3]));
    const __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(v[4], v[5]), _mm256_hadd_epi32(v[6], v[7]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

// Sixteen bytes of each of two vectors that lie four rows apart.
KT_INLINE __m256i load_pair(const __m256i *in, int pitch, int part) {
    const uint8_t *first = (const uint8_t *)(const void *)in + 16 * part;
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(first)), load_half(first + 4 * 32 * pitch), 1);
}

// out[i] lane j = in[j] lane i, for eight vectors in memory of eight 4-byte lanes, `pitch` vectors apart.
KT_INLINE void transpose8(const __m256i *in, int pitch, __m256i *out) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; part++) {
        const __m256i a = load_pair(in, pitch, part), b = load_pair(in + pitch, pitch, part);
        const __m256i c = load_pair(in + 2 * pitch, pitch, part), d = load_pair(in + 3 * pitch, pitch, part);
        const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
        const __m256i ab2 = _mm256_unpackhi_epi32(a, b), cd2 = _mm256_unpackhi_epi32(c, d);
        out[4 * part] = _mm256_unpacklo_epi64(ab, cd);
        out[4 * part + 1] = _mm256_unpackhi_epi64(ab, cd);
        out[4 * part + 2] = _mm256_unpacklo_epi64(ab2, cd2);
        out[4 * part + 3] = _mm256_unpackhi_epi64(ab2, cd2);
    }
}

// Asks for the cache lines of [from, to), in memory order, to come into the second-level cache.
KT_INLINE void fetch(const uint8_t *from, const uint8_t *to) {
    for (; from < to; from += 64) _mm_prefetch((const char *)from, _MM_HINT_T1);
}

}  // namespace
