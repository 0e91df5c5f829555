// Tiles of super-blocks: integer scales, and mins where the type has them.
#pragma once

#include "avx512_tile.h"

namespace {

// What the multiplication depends on; types that agree in it share code.
template <bool has_mins, bool fits16, int span_numbers> struct Scaling {
    static constexpr bool mins = has_mins;
    static constexpr bool fits = fits16;         // span sums are int16
    static constexpr int span = span_numbers;    // numbers summed before the scale is applied
};

template <int type> struct ScalingOf {
    typedef Format<type> F;
    static constexpr bool fits = fits_int16(16, largest_weight<type>());
    typedef Scaling<F::kind == SUPER_MIN, fits, fits || F::sub == 16 ? 16 : 32> Type;
};

// Pairs of int16 scales, lane = row, to one scale a lane.
template <bool fits> KT_INLINE void split_scales(const int16_t (*scales)[16], __m512i *out) {
    for (int j = 0; j < 16; j += 8) {
        __m512i pairs[4];
        transpose_16x4((const uint8_t *)&scales[0][j], sizeof scales[0], pairs);
        for (int i = 0; i < 4; i++) {
            const __m512i high = pairs[i], low = _mm512_slli_epi32(pairs[i], 16);
            out[j + 2 * i] = fits ? _mm512_srli_epi32(low, 16) : _mm512_srai_epi32(low, 16);
            out[j + 2 * i + 1] = fits ? _mm512_srli_epi32(high, 16) : _mm512_srai_epi32(high, 16);
        }
    }
}

// -zero * sum of each 16 activations: where the sum of a span starts, so that it ends as the sum of w * q.
KT_INLINE void starts_of_spans(const int16_t *sums, int zero, int span, int32_t *start) {
    const __m256i s = load256(sums);
    const __m512i z = _mm512_set1_epi32(-zero);
    if (span == 16) {
        _mm512_store_si512(start, _mm512_mullo_epi32(_mm512_cvtepi16_epi32(s), z));
    } else {
        const __m256i pairs = _mm256_madd_epi16(s, _mm256_set1_epi16(1));
        _mm256_store_si256((__m256i *)start, _mm256_mullo_epi32(pairs, _mm512_castsi512_si256(z)));
    }
}

template <class S, int step, int zero>
void multiply_256(const Tile &tile, const kt_row *x, int64_t b, float (*acc)[LANES]) {
    constexpr int spans = 256 / S::span;
    alignas(64) int32_t start[step][16];
    const int8_t *q[step];
    __m512i total[step];
    KT_UNROLL
    for (int m = 0; m < step; m++) {
        q[m] = x[m].q + b * 256;
        total[m] = zero512();
        if (zero) starts_of_spans(x[m].sums + b * 16, zero, S::span, start[m]);
    }
    for (int j = 0; j < spans; j++) {
        __m512i dot[step];
        KT_UNROLL
        for (int m = 0; m < step; m++) dot[m] = zero ? _mm512_set1_epi32(start[m][j]) : zero512();
        add_span<step, S::span>(tile.u + j * (S::span / 4), q, dot);
        const __m512i scale = tile.scale[j * (S::span / 16)];
        KT_UNROLL
        for (int m = 0; m < step; m++) total[m] = add_product<S::fits>(total[m], dot[m], scale);
    }
    KT_UNROLL
    for (int m = 0; m < step; m++) {
        const __m512 before = _mm512_load_ps(acc[m]);
        __m512 after;
        if (S::mins) {
            __m512i M = zero512();
            for (int j = 0; j < 8; j++) {
                M = _mm512_dpwssd_epi32(M, tile.min[j], broadcast4(x[m].sums + b * 16 + 2 * j));
            }
            after = add_with_mins_16(before, tile.d[0], tile.m[0], x[m].d[b], total[m], M);
        } else {
            after = add_scaled_16(before, tile.d[0], x[m].d[b], total[m]);
        }
        _mm512_store_ps(acc[m], after);
    }
}

template <int number> struct Tile256 {
    static constexpr int type = number;
    typedef typename Unpack256<type>::Scale Scale;
    typedef typename ScalingOf<type>::Type S;
    static constexpr int zero = Format<type>::zero;

    static void fill(const uint8_t *weights, size_t row_bytes, int rows, int64_t k, int, Staging<Scale> &staging,
                     Tile &tile) {
        const uint8_t *block = weights + (size_t)(k / 256) * Format<type>::bytes;
        for (int r = 0; r < rows; r++, block += row_bytes) {
            Super<Scale> w;
            Unpack256<type>::unpack(block, w);
            for (int i = 0; i < 4; i++) _mm512_store_si512(staging.u[r] + 64 * i, w.u[i]);
            _mm256_storeu_si256((__m256i *)staging.scale[r], w.scale);
            staging.d[0][r] = w.d;
            if (S::mins) {
                _mm256_storeu_si256((__m256i *)staging.min[r], w.min);
                staging.m[0][r] = w.dmin;
            }
        }
        interleave_numbers(staging.u, TILE_COLUMNS, tile);
        split_scales<S::fits>(staging.scale, tile.scale);
        tile.d[0] = load_scales(staging.d[0]);
        if (S::mins) {
            for (int j = 0; j < 16; j += 8) {
                transpose_16x4((const uint8_t *)&staging.min[0][j], sizeof staging.min[0], tile.min + j / 2);
            }
            tile.m[0] = load_scales(staging.m[0]);
        }
    }

    static void multiply(int step, const Tile &tile, const kt_row *x, int64_t k, int, float (*acc)[LANES]) {
        const int64_t b = k / 256;
        switch (step) {
            case 4: return multiply_256<S, 4, zero>(tile, x, b, acc);
            case 5: return multiply_256<S, 5, zero>(tile, x, b, acc);
            case 6: return multiply_256<S, 6, zero>(tile, x, b, acc);
            case 7: return multiply_256<S, 7, zero>(tile, x, b, acc);
            default: return multiply_256<S, 8, zero>(tile, x, b, acc);
        }
    }
};

}  // namespace
