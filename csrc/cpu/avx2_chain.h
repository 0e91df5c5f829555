// The float end of a dot. A weight row and an activation row give a list of terms (x, y); the output is
// acc = fma(x, y, acc) over them in ascending order, from +0. One row's chain would wait for each fma, so eight weight
// rows are chained side by side, a row a lane.
#pragma once

#include "avx2_common.h"

namespace {

constexpr int CHAIN_ROWS = 8;
constexpr int CHAIN_TERMS = 128;  // most terms of a row that are kept before they are chained

struct Terms {
    alignas(32) float x[CHAIN_ROWS][CHAIN_TERMS];
    alignas(32) float y[CHAIN_ROWS][CHAIN_TERMS];
};

KT_INLINE void load_terms(const float (*terms)[CHAIN_TERMS], int first, __m256i *lanes) {
    const __m256i *rows = (const __m256i *)(const void *)(terms[0] + first);
    transpose8(rows, CHAIN_TERMS / 8, lanes);
}

// acc lane r: the sum so far of row r, continued by `count` terms.
KT_INLINE __m256 chain(const Terms &terms, int count, __m256 acc) {
    for (int first = 0; first < count; first += 8) {
        __m256i x[8], y[8];
        load_terms(terms.x, first, x);
        load_terms(terms.y, first, y);
        const int n = count - first < 8 ? count - first : 8;
        for (int i = 0; i < n; i++) acc = _mm256_fmadd_ps(_mm256_castsi256_ps(x[i]), _mm256_castsi256_ps(y[i]), acc);
    }
    return acc;
}

}  // namespace
