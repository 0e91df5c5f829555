// What kt_route and kt_gate do, for a caller that holds the call already.
#pragma once

#include "../cpu/threads.h"
#include "ktitan_program.h"

int32_t kt_route_rows(const Call &call, const kt_router &router, const float *hidden, int64_t tokens, int64_t *index,
                      float *weights, float *logits);

// out[t] = x[t] * sigmoid(scores[t]); out may be x.
int32_t kt_gate_rows(const Call &call, const float *x, const float *scores, int64_t tokens, int64_t width, float *out);
