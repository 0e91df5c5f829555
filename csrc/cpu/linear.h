// What kt_linear and kt_rows do, for a caller that holds the call already.
#pragma once

#include "ktitan_cpu.h"
#include "threads.h"

int32_t kt_multiply(const Call &call, const kt_matrix *weights, const void *x, int32_t dtype, int64_t count,
                    const float *bias, int32_t arithmetic, void *out);
int32_t kt_look_up(const Call &call, const kt_matrix *weights, const int64_t *ids, int64_t count, float *out);
