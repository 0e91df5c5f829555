// A panel: 256 columns (or the rest) of eight weight rows, unpacked and interleaved so that lane r of every vector
// belongs to row r. It lives in the first-level cache and serves all activation rows of a tile.
#pragma once

#include "avx2_terms.h"

namespace {

constexpr int PANEL_ROWS = 8;
constexpr int PANEL_COLUMNS = 256;

struct Panel {
    __m256i quants[64];  // [column / 4]: four bytes of each row, u or the signed weight
    __m256i scale[8];    // blocks of 256, [column / 32]: two int16 of each row, one for each 16 numbers
    __m256i min[8];      // the same
    __m256 d[16];        // one of each row for: the block of 256, each block of 32, each 16 of NVFP4
    __m256 m[8];         // dmin of the block of 256, or m of each block of 32
};

// Largest u that a type can hold, however damaged its bytes are.
template <int type> constexpr int largest_u() {
    switch (type) {
        case KT_Q2_K:
        case KT_TQ1_0:
        case KT_TQ2_0:
            return 3;
        case KT_Q3_K:
            return 7;
        case KT_Q4_0:
        case KT_Q4_1:
        case KT_Q4_K:
            return 15;
        case KT_MXFP4:
        case KT_NVFP4:
        case KT_IQ1_S:
        case KT_IQ1_M:
            return 25;
        case KT_Q5_0:
        case KT_Q5_1:
        case KT_Q5_K:
            return 31;
        case KT_Q6_K:
            return 63;
        default:
            return 127;
    }
}

// How many pair products of u with q (2 * u * 127 at most) an int16 holds: 8, 4, 2 or 1. At most the numbers that share
// a scale are summed so. 0: signed weights.
template <int type> constexpr int depth() {
    constexpr int fit = 32767 / (2 * 127 * largest_u<type>());
    constexpr int shared = Format<type>::sub == 16 ? 4 : 8;
    constexpr int most = fit < shared ? fit : shared;
    return is_signed<type>() ? 0 : most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

// The eight weight rows of a panel. Where a matrix has fewer left the last one stands in; its lanes are not stored.
struct PanelRows {
    const uint8_t *row[PANEL_ROWS];
};

KT_INLINE PanelRows panel_rows(const uint8_t *weights, size_t row_bytes, int64_t n, int64_t rows) {
    PanelRows out;
    for (int r = 0; r < PANEL_ROWS; r++) out.row[r] = weights + (size_t)(n + r < rows ? n + r : rows - 1) * row_bytes;
    return out;
}

KT_INLINE void transpose_floats(const __m256 *in, __m256 *out) {
    transpose8((const __m256i *)(const void *)in, 1, (__m256i *)(void *)out);
}

template <int type> KT_INLINE void fill_super(const PanelRows &rows, int64_t block, Panel &panel) {
    __m256i quants[8][PANEL_ROWS], scale[PANEL_ROWS], min[PANEL_ROWS];
    alignas(32) float d[PANEL_ROWS], dmin[PANEL_ROWS];
    constexpr bool with_min = Format<type>::kind == SUPER_MIN;
    for (int r = 0; r < PANEL_ROWS; r++) {
        Super w;
        Unpack<type>::super(rows.row[r] + block * Format<type>::bytes, w);
        for (int j = 0; j < 8; j++) quants[j][r] = w.quants[j];
        scale[r] = w.scale;
        d[r] = w.d;
        if constexpr (with_min) min[r] = w.min;
        if constexpr (with_min) dmin[r] = w.dmin;
    }
    for (int j = 0; j < 8; j++) transpose8(quants[j], 1, panel.quants + 8 * j);
    transpose8(scale, 1, panel.scale);
    panel.d[0] = _mm256_load_ps(d);
    if constexpr (with_min) transpose8(min, 1, panel.min);
    if constexpr (with_min) panel.m[0] = _mm256_load_ps(dmin);
}

template <int type> KT_INLINE void fill_blocks(const PanelRows &rows, int64_t first, int count, Panel &panel) {
    const int64_t offset = first * Format<type>::bytes;
    __m256 d[PANEL_ROWS], m[PANEL_ROWS];
    for (int r = 0; r < PANEL_ROWS; r++) {
        d[r] = Unpack<type>::d(rows.row[r] + offset, count);
        if constexpr (Format<type>::kind == BLOCK32_MIN) m[r] = Unpack<type>::m(rows.row[r] + offset, count);
    }
    transpose_floats(d, panel.d);
    if constexpr (Format<type>::kind == BLOCK32_MIN) transpose_floats(m, panel.m);
    for (int i = 0; i < count; i++) {
        __m256i quants[PANEL_ROWS];
        for (int r = 0; r < PANEL_ROWS; r++) {
            quants[r] = Unpack<type>::quants(rows.row[r] + offset + i * Format<type>::bytes);
        }
        transpose8(quants, 1, panel.quants + 8 * i);
    }
}

// NVFP4: `count` (1 to 4) blocks of 64.
KT_INLINE void fill_nvfp4(const PanelRows &rows, int64_t first, int count, Panel &panel) {
    typedef Unpack<KT_NVFP4> Block;
    constexpr int bytes = Format<KT_NVFP4>::bytes;
    const int64_t offset = first * bytes;
    for (int i = 0; i < count; i += 2) {
        __m256 d[PANEL_ROWS];
        for (int r = 0; r < PANEL_ROWS; r++) d[r] = Block::d(rows.row[r] + offset + i * bytes, count - i);
        transpose_floats(d, panel.d + 4 * i);
    }
    for (int i = 0; i < 2 * count; i++) {
        __m256i quants[PANEL_ROWS];
        for (int r = 0; r < PANEL_ROWS; r++) quants[r] = Block::quants(rows.row[r] + offset + i / 2 * bytes, i % 2);
        transpose8(quants, 1, panel.quants + 8 * i);
    }
}

// Columns `column` to column + count - 1; count is 256 or what is left of the row.
template <int type> void fill_panel(const PanelRows &rows, int64_t column, int count, Panel &panel) {
    constexpr int block = Format<type>::block;
    if constexpr (block == 256) fill_super<type>(rows, column / block, panel);
    if constexpr (block == 64) fill_nvfp4(rows, column / block, count / block, panel);
    if constexpr (block == 32) fill_blocks<type>(rows, column / block, count / block, panel);
}

}  // namespace
