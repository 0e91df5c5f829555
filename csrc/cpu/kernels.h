// What an instruction-set unit exports: one table of plain C functions. Everything here is plain data, so that units
// compiled with different instruction sets share no code.
//
// The arithmetic contract ("same bits"): for equal inputs every unit gives equal bits, whatever the number of rows,
// threads or chunks. The formulas are in contract.h; README.md says them in words.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Storage types by ggml's own numbers (ggml.h, enum ggml_type).
enum kt_type {
    KT_F32 = 0,
    KT_F16 = 1,
    KT_Q4_0 = 2,
    KT_Q4_1 = 3,
    KT_Q5_0 = 6,
    KT_Q5_1 = 7,
    KT_Q8_0 = 8,
    KT_Q2_K = 10,
    KT_Q3_K = 11,
    KT_Q4_K = 12,
    KT_Q5_K = 13,
    KT_Q6_K = 14,
    KT_IQ2_XXS = 16,
    KT_IQ2_XS = 17,
    KT_IQ3_XXS = 18,
    KT_IQ1_S = 19,
    KT_IQ4_NL = 20,
    KT_IQ3_S = 21,
    KT_IQ2_S = 22,
    KT_IQ4_XS = 23,
    KT_IQ1_M = 29,
    KT_BF16 = 30,
    KT_TQ1_0 = 34,
    KT_TQ2_0 = 35,
    KT_MXFP4 = 39,
    KT_NVFP4 = 40,
    KT_TYPES = 41
};

// One row of activations, quantised: x[k] is about d[k / block] * q[k]. `block` is 256 for types whose blocks hold 256
// numbers and 32 for all others (kt_activation_block). q is in [-127, 127].
struct kt_row {
    const int8_t *q;      // [columns]
    const float *d;       // [columns / block]
    const int16_t *sums;  // [columns / 16]: sums of 16 neighbours of q; the last one covers what is left
};

// out[m * ldo + n] = dot(weight row n, activation row m) for n < rows, m < count.
// Weight rows lie `row_bytes` apart; no alignment is promised, and nothing past the last row may be read.
typedef void (*kt_product)(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x,
                           int64_t count, float *out, int64_t ldo);

// The same for weights stored as floats and float32 activations; x[m] points to a row of `columns` numbers.
typedef void (*kt_float_product)(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns,
                                 const float *const *x, int64_t count, float *out, int64_t ldo);

// One stored row to float32: the bits of gguf's reference dequantiser.
typedef void (*kt_dequantize)(const uint8_t *row, int64_t columns, float *out);

enum kt_activation { KT_SILU = 0, KT_GELU_TANH = 1, KT_ACTIVATIONS = 2 };

struct kt_unit {
    const char *name;

    // x [columns] -> q [columns], d [columns / block], sums [columns / 16, rounded up]. columns is a multiple of block.
    void (*quantize)(const float *x, int64_t columns, int64_t block, int8_t *q, float *d, int16_t *sums);

    kt_product product[KT_TYPES];              // null for F32, F16, BF16 and numbers that are no type
    kt_float_product float_product[KT_TYPES];  // F32, F16, BF16 only
    kt_dequantize dequantize[KT_TYPES];        // every type

    // gate[i] = act(gate[i]) * up[i]; up may be null, then gate[i] = act(gate[i]).
    void (*activate)(int activation, float *gate, const float *up, int64_t count);

    // Conversions, exact or rounded to nearest even; NaN stays NaN.
    void (*from_f16)(const uint16_t *in, int64_t count, float *out);
    void (*from_bf16)(const uint16_t *in, int64_t count, float *out);
    void (*to_f16)(const float *in, int64_t count, uint16_t *out);
    void (*to_bf16)(const float *in, int64_t count, uint16_t *out);

    // out[i] = fma(scale, in[i], out[i])
    void (*accumulate)(float scale, const float *in, int64_t count, float *out);

    // out[k] = x[k] * s * weight[k], or * (1 + weight[k]) with `unit_offset`, or x[k] * s without weight;
    // s = 1 / sqrt(mean of x^2 + eps). out may be x.
    void (*rms_norm)(const float *x, const float *weight, int unit_offset, float eps, int64_t count, float *out);

    // The largest number, passing over NaN; minus infinity where there is none.
    float (*largest)(const float *x, int64_t count);
    // x[i] = e^(x[i] - shift); their sum.
    float (*exponentials)(float *x, int64_t count, float shift);
    // x[i] = cap * tanh(x[i] / cap)
    void (*softcap)(float *x, int64_t count, float cap);
    // x[i] = 1 / (1 + e^-x[i])
    void (*logistic)(float *x, int64_t count);

    // out[r * ldo + d] = fma(p[r * ldp + j], v[j * ldv + d], the same) for j < count, ascending; d < width, r < rows.
    void (*weighted_sum)(const float *p, int64_t ldp, int64_t rows, const float *v, int64_t ldv, int64_t count,
                         int64_t width, float *out, int64_t ldo);
    // out[i] = fma(b, in[i], a * out[i])
    void (*blend)(float a, float b, const float *in, int64_t count, float *out);
};

extern "C" const kt_unit kt_unit_generic;
extern "C" const kt_unit kt_unit_avx2;
extern "C" const kt_unit kt_unit_avx512;
