// The order in which the row kernels read a matrix: sixteen rows at a time, and of those a run of blocks at a time. It
// is not linear when rows are longer than a run, so the kernels prefetch by this order.
#pragma once

#include "avx512_vec.h"

namespace {

constexpr size_t AHEAD_BYTES = 6144;  // measured: 3 to 12 KiB are much alike

// One run of sixteen (or fewer, at the end) weight rows.
struct Run {
    const uint8_t *weights;  // row 0 of the sixteen
    size_t row_bytes;
    size_t offset, bytes;  // of the run in a row
    bool last;             // of its rows

    const uint8_t *row(int r) const { return weights + (size_t)r * row_bytes + offset; }

    // Where row r + about AHEAD_BYTES / bytes is, counted on into the next run. It may lie past the matrix: a prefetch
    // there does nothing.
    const uint8_t *ahead_of(int r) const {
        const int rows = (int)(AHEAD_BYTES / bytes) + 1;
        const int target = r + (rows < LANES ? rows : LANES);
        if (target < LANES) return row(target);
        return last ? weights + (size_t)target * row_bytes : row(target - LANES) + bytes;
    }
};

inline void prefetch(const uint8_t *p, int bytes) {
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

}  // namespace
