// What stands between matrix products, in plain C++: norms, the parts of a softmax, sums of values.
#pragma once

#include "contract.h"

namespace {

void rms_norm(const float *x, const float *weight, int unit_offset, float eps, int64_t count, float *out) {
    float lane[16] = {};
    for (int64_t k = 0; k < count; k++) lane[k % 16] = fused(x[k], x[k], lane[k % 16]);
    const float s = norm_factor(sum_lanes(lane), count, eps);
    for (int64_t k = 0; k < count; k++) {
        const float y = x[k] * s;
        out[k] = weight ? y * (unit_offset ? 1.0f + weight[k] : weight[k]) : y;
    }
}

// Adding 0 makes the sign of a zero the same in whatever order the numbers are compared.
float largest(const float *x, int64_t count) {
    float top = -INFINITY;
    for (int64_t i = 0; i < count; i++) top = x[i] > top ? x[i] : top;
    return top + 0.0f;
}

float exponentials(float *x, int64_t count, float shift) {
    float lane[16] = {};
    for (int64_t i = 0; i < count; i++) {
        x[i] = exponential(x[i] - shift);
        lane[i % 16] += x[i];
    }
    return sum_lanes(lane);
}

void softcap(float *x, int64_t count, float cap) {
    for (int64_t i = 0; i < count; i++) x[i] = softcapped(x[i], cap);
}

void logistic(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) x[i] = logistic_of(x[i]);
}

void weighted_sum(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t count, int64_t width,
                  float *out, int64_t ldo) {
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t j = 0; j < count; j++) {
            for (int64_t d = 0; d < width; d++) {
                out[r * ldo + d] = fused(p[r * ldp + j], v[j * ldv + d], out[r * ldo + d]);
            }
        }
    }
}

void blend(float a, float b, const float *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = fused(b, in[i], a * out[i]);
}

}  // namespace
