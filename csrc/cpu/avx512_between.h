// What stands between matrix products: norms, the parts of a softmax, sums of values. Lane by lane the formulas of
// contract.h.
#pragma once

#include "avx512_activations.h"
#include "avx512_float.h"

namespace {

inline __m512 all(float x) { return _mm512_set1_ps(x); }

// Runs step(i, mask of the lanes that are there) on every sixteen numbers.
template <class Step> KT_INLINE void by_lanes(int64_t count, Step step) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) step(i, (__mmask16)0xffff);
    if (i < count) step(i, first_lanes((int)(count - i)));
}

void rms_norm(const float *x, const float *weight, int unit_offset, float eps, int64_t count, float *out) {
    __m512 lanes = _mm512_setzero_ps();
    by_lanes(count, [=, &lanes](int64_t i, __mmask16 here) {
        const __m512 v = _mm512_maskz_loadu_ps(here, x + i);  // squares are not below 0: adding 0 changes no lane
        lanes = _mm512_fmadd_ps(v, v, lanes);
    });
    const __m512 s = all(norm_factor(sum_of_lanes(lanes), count, eps));
    by_lanes(count, [=](int64_t i, __mmask16 here) {
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(here, x + i), s);
        if (weight) {
            const __m512 w = _mm512_maskz_loadu_ps(here, weight + i);
            y = _mm512_mul_ps(y, unit_offset ? _mm512_add_ps(all(1.0f), w) : w);
        }
        _mm512_mask_storeu_ps(out + i, here, y);
    });
}

// max_ps(x, top) is top where x is NaN.
float largest(const float *x, int64_t count) {
    __m512 top = all(-INFINITY);
    by_lanes(count, [=, &top](int64_t i, __mmask16 here) {
        top = _mm512_max_ps(_mm512_mask_loadu_ps(all(-INFINITY), here, x + i), top);
    });
    return _mm512_reduce_max_ps(top) + 0.0f;
}

float exponentials(float *x, int64_t count, float shift) {
    __m512 lanes = _mm512_setzero_ps();
    by_lanes(count, [=, &lanes](int64_t i, __mmask16 here) {
        const __m512 y = exponential_16(_mm512_sub_ps(_mm512_maskz_loadu_ps(here, x + i), all(shift)));
        _mm512_mask_storeu_ps(x + i, here, y);
        lanes = _mm512_mask_add_ps(lanes, here, lanes, y);
    });
    return sum_of_lanes(lanes);
}

inline __m512 tanh_16(__m512 x) {
    const __m512 sign = _mm512_and_ps(x, all(-0.0f)), size = _mm512_xor_ps(x, sign);
    const __m512 z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_fmadd_ps(all(TANH_C11), z, all(TANH_C9));
    p = _mm512_fmadd_ps(p, z, all(TANH_C7));
    p = _mm512_fmadd_ps(p, z, all(TANH_C5));
    p = _mm512_fmadd_ps(p, z, all(TANH_C3));
    const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    const __m512 power = _mm512_add_ps(exponential_16(_mm512_add_ps(size, size)), all(1.0f));
    const __m512 large = _mm512_or_ps(_mm512_sub_ps(all(1.0f), _mm512_div_ps(all(2.0f), power)), sign);
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(size, all(TANH_SMALL), _CMP_LT_OQ), large, small);
}

void softcap(float *x, int64_t count, float cap) {
    by_lanes(count, [=](int64_t i, __mmask16 here) {
        const __m512 y = tanh_16(_mm512_div_ps(_mm512_maskz_loadu_ps(here, x + i), all(cap)));
        _mm512_mask_storeu_ps(x + i, here, _mm512_mul_ps(all(cap), y));
    });
}

void logistic(float *x, int64_t count) {
    by_lanes(count, [=](int64_t i, __mmask16 here) {
        const __m512 power = exponential_16(_mm512_xor_ps(_mm512_maskz_loadu_ps(here, x + i), all(-0.0f)));
        _mm512_mask_storeu_ps(x + i, here, _mm512_div_ps(all(1.0f), _mm512_add_ps(all(1.0f), power)));
    });
}

// R rows by V vectors of sixteen columns stay in registers while all values pass; `here`: the lanes of the last vector.
template <int R, int V>
KT_INLINE void sum_block(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t count, float *out,
                         int64_t ldo, __mmask16 here) {
    __m512 sum[R][V];
    KT_UNROLL
    for (int r = 0; r < R; r++) {
        KT_UNROLL
        for (int i = 0; i < V; i++) {
            sum[r][i] = _mm512_maskz_loadu_ps(i + 1 < V ? (__mmask16)0xffff : here, out + r * ldo + LANES * i);
        }
    }
    for (int64_t j = 0; j < count; j++, v += ldv) {
        __m512 value[V];
        KT_UNROLL
        for (int i = 0; i < V; i++) {
            value[i] = _mm512_maskz_loadu_ps(i + 1 < V ? (__mmask16)0xffff : here, v + LANES * i);
        }
        KT_UNROLL
        for (int r = 0; r < R; r++) {
            const __m512 weight = all(p[r * ldp + j]);
            KT_UNROLL
            for (int i = 0; i < V; i++) sum[r][i] = _mm512_fmadd_ps(weight, value[i], sum[r][i]);
        }
    }
    KT_UNROLL
    for (int r = 0; r < R; r++) {
        KT_UNROLL
        for (int i = 0; i < V; i++) {
            _mm512_mask_storeu_ps(out + r * ldo + LANES * i, i + 1 < V ? (__mmask16)0xffff : here, sum[r][i]);
        }
    }
}

// R rows: as many columns at a time as registers hold, then sixteen at a time, the last ones masked.
template <int R>
void sum_rows(const float *p, int64_t ldp, const float *v, int64_t ldv, int64_t count, int64_t width, float *out,
              int64_t ldo) {
    constexpr int V = R <= 2 ? 8 : 4;
    const __mmask16 whole = 0xffff;
    int64_t d = 0;
    for (; d + LANES * V <= width; d += LANES * V) {
        sum_block<R, V>(p, ldp, v + d, ldv, count, out + d, ldo, whole);
    }
    for (; d + LANES * 2 <= width; d += LANES * 2) {
        sum_block<R, 2>(p, ldp, v + d, ldv, count, out + d, ldo, whole);
    }
    for (; d < width; d += LANES) {
        const __mmask16 here = width - d < LANES ? first_lanes((int)(width - d)) : whole;
        sum_block<R, 1>(p, ldp, v + d, ldv, count, out + d, ldo, here);
    }
}

void weighted_sum(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t count, int64_t width,
                  float *out, int64_t ldo) {
    for_parts(rows, 6, [&](int64_t r, int64_t part) {
        const float *from = p + r * ldp;
        float *to = out + r * ldo;
        switch (part) {
            case 1: return sum_rows<1>(from, ldp, v, ldv, count, width, to, ldo);
            case 2: return sum_rows<2>(from, ldp, v, ldv, count, width, to, ldo);
            case 3: return sum_rows<3>(from, ldp, v, ldv, count, width, to, ldo);
            case 4: return sum_rows<4>(from, ldp, v, ldv, count, width, to, ldo);
            case 5: return sum_rows<5>(from, ldp, v, ldv, count, width, to, ldo);
            default: return sum_rows<6>(from, ldp, v, ldv, count, width, to, ldo);
        }
    });
}

void blend(float a, float b, const float *in, int64_t count, float *out) {
    by_lanes(count, [=](int64_t i, __mmask16 here) {
        const __m512 kept = _mm512_mul_ps(all(a), _mm512_maskz_loadu_ps(here, out + i));
        _mm512_mask_storeu_ps(out + i, here, _mm512_fmadd_ps(all(b), _mm512_maskz_loadu_ps(here, in + i), kept));
    });
}

}  // namespace
