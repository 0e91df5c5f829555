// What the kt_stream_* functions and kt_store_foresee do, for a caller that holds the call already.
#pragma once

#include "../cpu/threads.h"
#include "ktitan_tiers.h"

int32_t kt_stream_multiply(const Call &call, kt_store *store, int64_t record, int64_t place, const kt_matrix *shape,
                           const void *x, int32_t dtype, int64_t count, const float *bias, int32_t arithmetic, void *out);
int32_t kt_stream_look_up(const Call &call, kt_store *store, const kt_extent *extents, int64_t extent_count,
                          const kt_matrix *shape, const int64_t *ids, int64_t count, float *out);
int32_t kt_stream_run_experts(const Call &call, const kt_stream_bank *bank, const void *hidden, int32_t dtype,
                              int64_t tokens, const int64_t *index, int64_t slots, const float *weights,
                              int32_t arithmetic, void *out);
void kt_look_ahead(const Call &call, kt_store *store, const kt_predictor *predictor, const void *hidden, int32_t dtype,
                   int64_t tokens);
