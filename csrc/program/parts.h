// What the functions of ktitan_program.h do, for a caller that holds the call already. Each needs the library's memory for
// temporaries (csrc/cpu/arena.h) for as long as it runs, so a caller has none of it meanwhile.
#pragma once

#include "../cpu/threads.h"
#include "ktitan_program.h"

int32_t kt_norm_rows(const Call &call, const kt_norm *norm, const float *x, int64_t count, float *out);
int32_t kt_turn(const Call &call, const kt_rotation *rotation, float *x, int64_t tokens, int64_t heads,
                const float *table);
int32_t kt_act(const Call &call, int32_t activation, const float *gate, const float *up, int64_t count, float *out);
int32_t kt_attend_pages(const Call &call, kt_pool *pool, int64_t layer, const kt_attention *what,
                        const int64_t *sequences, const int64_t *tokens, int64_t count, const float *query,
                        const kt_mask *mask, float *out);
int32_t kt_attend_views(const Call &call, const kt_attention *what, int64_t rows, int64_t tokens, int64_t keys,
                        const kt_view &query, const kt_view &key, const kt_view &value, const kt_mask *mask,
                        int32_t causal, float *out);
int32_t kt_multiply_heads(const Call &call, const kt_matrix *weights, int64_t heads, const float *x, int64_t tokens,
                          float *out);

// Numbers that one thread works on at a time where they cost about one instruction each.
constexpr int64_t KT_EASY_NUMBERS = 16 << 10;
