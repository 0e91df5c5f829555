// Tiles of types with a float scale for each 32 numbers (NVFP4: each 16), and offsets where the type has them.
#pragma once

#include "avx512_tile.h"

namespace {

// Start of each sum (-zero * sum of q) or, for types with offsets, sum of q as a float; one for each `sub` columns.
template <int sub, int zero> KT_INLINE void starts_of_blocks(const kt_row &x, int64_t k, int width, int32_t *start) {
    const __m256i sums = _mm256_maskz_loadu_epi16(first_lanes(width / 16), x.sums + k / 16);
    if (sub == 16) {
        const __m512i wide = _mm512_cvtepi16_epi32(sums);
        _mm512_store_si512(start, _mm512_mullo_epi32(wide, _mm512_set1_epi32(-zero)));
    } else if (zero) {
        _mm256_store_si256((__m256i *)start, _mm256_madd_epi16(sums, _mm256_set1_epi16((short)-zero)));
    } else {
        const __m256i pairs = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
        _mm256_store_ps((float *)start, _mm256_cvtepi32_ps(pairs));
    }
}

template <int sub, int zero, int step>
void multiply_32(const Tile &tile, const kt_row *x, int64_t k, int width, float (*acc)[LANES]) {
    alignas(64) int32_t start[step][16];
    const int8_t *q[step];
    __m512 total[step];
    KT_UNROLL
    for (int m = 0; m < step; m++) {
        q[m] = x[m].q + k;
        total[m] = _mm512_load_ps(acc[m]);
        starts_of_blocks<sub, zero>(x[m], k, width, start[m]);
    }
    for (int j = 0; j < width / sub; j++) {
        __m512i dot[step];
        KT_UNROLL
        for (int m = 0; m < step; m++) dot[m] = zero ? _mm512_set1_epi32(start[m][j]) : zero512();
        add_span<step, sub>(tile.u + j * (sub / 4), q, dot);
        const int64_t b = (k + j * sub) / 32;
        KT_UNROLL
        for (int m = 0; m < step; m++) {
            if (zero) {
                total[m] = add_scaled_16(total[m], tile.d[j], x[m].d[b], dot[m]);
            } else {
                const float bs = float_of((uint32_t)start[m][j]);
                total[m] = add_with_offset_16(total[m], tile.d[j], tile.m[j], x[m].d[b], dot[m], bs);
            }
        }
    }
    KT_UNROLL
    for (int m = 0; m < step; m++) _mm512_store_ps(acc[m], total[m]);
}

// One row of up to 256 columns into the staging area.
template <int type> struct Stage32 {
    typedef typename Unpack32<type>::Scale Scale;
    static void row(const uint8_t *block, int width, int r, Staging<Scale> &out) {
        constexpr int bytes = Format<type>::bytes;
        for (int j = 0; j < width / 32; j += 2) {
            const uint8_t *a = block + j * bytes;
            const uint8_t *b = (j + 1) * 32 < width ? a + bytes : a;  // the last block of an odd row: itself again
            _mm512_store_si512(out.u[r] + 32 * j, Unpack32<type>::pair(a, b));
        }
        for (int j = 0; j < width / 32; j++, block += bytes) {
            out.d[j][r] = Unpack32<type>::d(block);
            if constexpr (Format<type>::kind == BLOCK32_MIN) out.m[j][r] = Unpack32<type>::m(block);
        }
    }
};

template <> struct Stage32<KT_NVFP4> {
    typedef E4M3 Scale;
    static void row(const uint8_t *block, int width, int r, Staging<E4M3> &out) {
        for (int k = 0; k < width; k += 64, block += Format<KT_NVFP4>::bytes) {
            _mm512_store_si512(out.u[r] + k, unpack_nvfp4(block + 4));
            for (int j = 0; j < 4; j++) out.d[k / 16 + j][r] = {block[j]};
        }
    }
};

template <int number> struct Tile32 {
    static constexpr int type = number;
    typedef typename Stage32<type>::Scale Scale;
    static constexpr int sub = Format<type>::sub;
    static constexpr int zero = Format<type>::zero;

    static void fill(const uint8_t *weights, size_t row_bytes, int rows, int64_t k, int width, Staging<Scale> &staging,
                     Tile &tile) {
        const uint8_t *row = weights + (size_t)(k / Format<type>::block) * Format<type>::bytes;
        for (int r = 0; r < rows; r++, row += row_bytes) Stage32<type>::row(row, width, r, staging);
        interleave_numbers(staging.u, width, tile);
        for (int j = 0; j < width / sub; j++) {
            tile.d[j] = load_scales(staging.d[j]);
            if (zero == 0) tile.m[j] = load_scales(staging.m[j]);
        }
    }

    // Steps below 4 are for NVFP4, which has no other kernel.
    static void multiply(int step, const Tile &tile, const kt_row *x, int64_t k, int width, float (*acc)[LANES]) {
        switch (step) {
            case 1: return multiply_32<sub, zero, 1>(tile, x, k, width, acc);
            case 2: return multiply_32<sub, zero, 2>(tile, x, k, width, acc);
            case 3: return multiply_32<sub, zero, 3>(tile, x, k, width, acc);
            case 4: return multiply_32<sub, zero, 4>(tile, x, k, width, acc);
            case 5: return multiply_32<sub, zero, 5>(tile, x, k, width, acc);
            case 6: return multiply_32<sub, zero, 6>(tile, x, k, width, acc);
            case 7: return multiply_32<sub, zero, 7>(tile, x, k, width, acc);
            default: return multiply_32<sub, zero, 8>(tile, x, k, width, acc);
        }
    }
};

}  // namespace
