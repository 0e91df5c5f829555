// What kt_experts does, for a caller that holds the call already.
#pragma once

#include "ktitan_cpu.h"
#include "threads.h"

int32_t kt_run_experts(const Call &call, const kt_bank *bank, const void *hidden, int32_t dtype, int64_t tokens,
                       const int64_t *index, int64_t slots, const float *weights, int32_t arithmetic, void *out);
