// The AVX-512 unit (F, BW, DQ, VL and VNNI, with AVX2, FMA, F16C and BMI2).
#include "avx512_activations.h"
#include "avx512_between.h"
#include "avx512_dequantize.h"
#include "avx512_float.h"
#include "avx512_rows256.h"
#include "avx512_rows32.h"
#include "avx512_tile256.h"
#include "avx512_tile32.h"

namespace {

typedef TypeList<KT_Q4_0, KT_Q4_1, KT_Q5_0, KT_Q5_1, KT_Q8_0, KT_IQ4_NL, KT_MXFP4> Types32;
typedef TypeList<KT_Q2_K, KT_Q3_K, KT_Q4_K, KT_Q5_K, KT_Q6_K, KT_IQ4_XS, KT_IQ2_XXS, KT_IQ2_XS, KT_IQ2_S, KT_IQ3_XXS,
                 KT_IQ3_S, KT_IQ1_S, KT_IQ1_M, KT_TQ1_0, KT_TQ2_0>
    Types256;
typedef TypeList<KT_F32, KT_F16, KT_BF16> FloatTypes;

template <int type>
void product_32(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x,
                int64_t count, float *out, int64_t ldo) {
    switch (count) {
        case 0: return;
        case 1: return rows_32<type, 1>(weights, row_bytes, rows, columns, x, out, ldo);
        case 2: return rows_32<type, 2>(weights, row_bytes, rows, columns, x, out, ldo);
        case 3: return rows_32<type, 3>(weights, row_bytes, rows, columns, x, out, ldo);
        default: return tiles<Tile32<type>>(weights, row_bytes, rows, columns, x, count, out, ldo);
    }
}

template <int type>
void product_256(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x,
                 int64_t count, float *out, int64_t ldo) {
    switch (count) {
        case 0: return;
        case 1: return rows_256<type, 1>(weights, row_bytes, rows, columns, x, out, ldo);
        case 2: return rows_256<type, 2>(weights, row_bytes, rows, columns, x, out, ldo);
        case 3: return rows_256<type, 3>(weights, row_bytes, rows, columns, x, out, ldo);
        default: return tiles<Tile256<type>>(weights, row_bytes, rows, columns, x, count, out, ldo);
    }
}

template <int... types> constexpr void fill_32(kt_unit &unit, TypeList<types...>) {
    ((unit.product[types] = product_32<types>), ...);
    ((unit.dequantize[types] = dequantize_32<types>), ...);
}

template <int... types> constexpr void fill_256(kt_unit &unit, TypeList<types...>) {
    ((unit.product[types] = product_256<types>), ...);
    ((unit.dequantize[types] = dequantize_256<types>), ...);
}

template <int... types> constexpr void fill_floats(kt_unit &unit, TypeList<types...>) {
    ((unit.float_product[types] = float_product<types>), ...);
    ((unit.dequantize[types] = dequantize_floats<types>), ...);
}

constexpr kt_unit make_unit() {
    kt_unit unit{};
    unit.name = "avx512";
    unit.quantize = quantize;
    fill_32(unit, Types32());
    fill_256(unit, Types256());
    unit.product[KT_NVFP4] = tiles<Tile32<KT_NVFP4>>;
    unit.dequantize[KT_NVFP4] = dequantize_packed<KT_NVFP4>;
    fill_floats(unit, FloatTypes());
    unit.activate = activate;
    unit.from_f16 = row_from_f16;
    unit.from_bf16 = row_from_bf16;
    unit.to_f16 = row_to_f16;
    unit.to_bf16 = row_to_bf16;
    unit.accumulate = accumulate;
    unit.rms_norm = rms_norm;
    unit.largest = largest;
    unit.exponentials = exponentials;
    unit.softcap = softcap;
    unit.logistic = logistic;
    unit.weighted_sum = weighted_sum;
    unit.blend = blend;
    return unit;
}

}  // namespace

const kt_unit kt_unit_avx512 = make_unit();
