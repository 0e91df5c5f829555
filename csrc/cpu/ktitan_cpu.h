// The C interface of the CPU library, as ktitan/native/{library,cpu}.py call it.
//
// Callers check their arguments (addresses, dtypes, overlap) before a call; here only what costs nothing is checked. Every
// buffer belongs to the caller and is used during the call only. Any thread may call; products run one at a time. The
// results do not depend on the instruction set, the number of threads or the number of rows (README.md).
#pragma once

#include <stdint.h>

#define KT_API extern "C" __attribute__((visibility("default")))

// Changes with any change of this file; a library with another number is refused.
#define KT_ABI 5

// Instruction sets, each above the one before.
enum kt_isa_level { KT_GENERIC = 0, KT_AVX2 = 1, KT_AVX512 = 2 };

enum kt_status {
    KT_OK = 0,
    KT_NO_MEMORY = 1,     // no memory for temporaries; outputs may be written in part
    KT_OUT_OF_RANGE = 2,  // an expert or row number is out of range; nothing was written
    KT_NO_KERNEL = 3,     // a type or activation that is in no table; nothing was written
    KT_WRONG_SIZE = 4     // sizes are negative, absurd, no whole blocks, or do not fit each other; nothing was written
};

// How activations meet packed weights: quantised per row and block, or as they are. Plain float weights ignore it.
enum kt_arithmetic { KT_INT8 = 0, KT_FLOAT32 = 1 };

// [rows, columns] weights of one type (enum kt_type), rows `row_bytes` apart.
struct kt_matrix {
    const uint8_t *data;
    int64_t rows;
    int64_t columns;
    int64_t row_bytes;
    int32_t type;
};

// The experts of a layer: gate and up [E * I, H], down [E * H, I]; gate and the biases ([E, I], [E, I], [E, H]) may be
// null. The activation (enum kt_activation) acts on the gate, or on up where there is no gate.
struct kt_bank {
    const kt_matrix *gate;
    const kt_matrix *up;
    const kt_matrix *down;
    const float *gate_bias;
    const float *up_bias;
    const float *down_bias;
    int64_t experts;
    int64_t hidden;
    int64_t intermediate;
    int32_t activation;
};

KT_API int32_t kt_abi_version(void);

// The level in use; the cap, which only ever falls; and a choice below detected level and cap, which answers what is used.
KT_API int32_t kt_isa(void);
// The highest level that this library has a unit for.
KT_API int32_t kt_built_isa(void);
KT_API int32_t kt_cap_isa(int32_t level);
KT_API int32_t kt_set_isa(int32_t level);

// The table of a level (kernels.h), or null where the processor or the cap is below it: for check/kernel_check.cpp.
KT_API const struct kt_unit *kt_unit_of(int32_t level);

// Threads of a call, the caller's included. New ones start at the next call that needs them.
KT_API int32_t kt_threads(void);
KT_API void kt_set_threads(int32_t count);

// out [count, rows] = x [count, columns] * weights^T + bias [rows] (may be null). x and out have the type `dtype`, which
// is KT_F32, KT_F16 or KT_BF16; out is rounded once.
KT_API int32_t kt_linear(const kt_matrix *weights, const void *x, int32_t dtype, int64_t count, const float *bias,
                         int32_t arithmetic, void *out);

// out [tokens, H] = sum over the slots k, ascending, of weights[t, k] * expert(index[t, k], hidden[t]); an index equal to
// the number of experts leaves the pair out. hidden and out have the type `dtype`.
KT_API int32_t kt_experts(const kt_bank *bank, const void *hidden, int32_t dtype, int64_t tokens, const int64_t *index,
                          int64_t slots, const float *weights, int32_t arithmetic, void *out);

// out [count, columns] = the rows `ids` of a matrix as float32.
KT_API int32_t kt_rows(const kt_matrix *weights, const int64_t *ids, int64_t count, float *out);
