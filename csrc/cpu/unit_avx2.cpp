// The unit for processors with AVX2, FMA and F16C. Few activation rows go through avx2_rows.h, more through
// avx2_tile.h; both give the bits of unit_generic.cpp.
#include "avx2_between.h"
#include "avx2_dequantize.h"
#include "avx2_float.h"
#include "avx2_rows.h"
#include "avx2_tile.h"

namespace {

template <int type>
void product(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, int64_t count,
             float *out, int64_t ldo) {
    if (rows == 0 || count == 0) return;
    if (count <= FEW) {
        product_few<type>(weights, row_bytes, rows, columns, x, count, out, ldo);
    } else {
        product_many<type>(weights, row_bytes, rows, columns, x, count, out, ldo);
    }
}

template <int... types> constexpr void fill_packed(kt_unit &unit, TypeList<types...>) {
    ((unit.product[types] = product<types>), ...);
    ((unit.dequantize[types] = dequantize_packed<types>), ...);
}

template <int... types> constexpr void fill_plain(kt_unit &unit, TypeList<types...>) {
    ((unit.float_product[types] = float_product<types>), ...);
    ((unit.dequantize[types] = dequantize_plain<types>), ...);
}

constexpr kt_unit make_unit() {
    kt_unit unit{};
    unit.name = "avx2";
    unit.quantize = quantize;
    fill_packed(unit, PackedTypes());
    fill_plain(unit, TypeList<KT_F32, KT_F16, KT_BF16>());
    unit.activate = activate;
    unit.from_f16 = rows_from_f16;
    unit.from_bf16 = rows_from_bf16;
    unit.to_f16 = rows_to_f16;
    unit.to_bf16 = rows_to_bf16;
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

const kt_unit kt_unit_avx2 = make_unit();
