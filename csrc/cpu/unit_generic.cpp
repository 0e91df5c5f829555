// The reference unit: plain C++ for any x86-64. The other units are tested against it, so it is clear before it is
// fast; still, each block is decoded once for all activation rows.
#include "dequantize.h"
#include "generic_between.h"

namespace {

// Activation rows that share one decoding of a weight row.
constexpr int TILE = 64;

// ---- packed weights, integer activations ----

// A decoded block and its integers: u - zero, times the integer scale in SUPER kinds (at most 4096, in Q6_K).
template <int type> struct Weights {
    Decoded<type> block;
    int16_t w[Format<type>::block];
};

template <int type> void load_weights(const uint8_t *block, Weights<type> &out) {
    decode<type>(block, out.block);
    for (int i = 0; i < Format<type>::block; i++) out.w[i] = (int16_t)(out.block.u[i] - Format<type>::zero);
    if constexpr (Format<type>::block == 256) {
        for (int j = 0; j < 16; j++) {
            const int16_t scale = out.block.scale[j];
            for (int i = 16 * j; i < 16 * j + 16; i++) out.w[i] = (int16_t)(out.w[i] * scale);
        }
    }
}

template <int numbers> int32_t dot(const int16_t *w, const int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < numbers; i++) sum += w[i] * (int16_t)q[i];
    return sum;
}

// What one block adds to the output of one activation row.
template <int type> float add_block(const Block32 &block, const int16_t *w, const kt_row &x, int64_t b, float acc) {
    const int32_t S = dot<32>(w, x.q + 32 * b);
    if (Format<type>::kind == BLOCK32) return add_scaled(acc, block.d, x.d[b], S);
    const int32_t bs = x.sums[2 * b] + x.sums[2 * b + 1];
    return add_with_offset(acc, block.d, block.m, x.d[b], S, bs);
}

template <int type> float add_block(const Block64 &block, const int16_t *w, const kt_row &x, int64_t b, float acc) {
    for (int j = 0; j < 4; j++) {
        const int32_t S = dot<16>(w + 16 * j, x.q + 64 * b + 16 * j);
        acc = add_scaled(acc, block.d[j], x.d[2 * b + j / 2], S);
    }
    return acc;
}

template <int type> float add_block(const Block256 &block, const int16_t *w, const kt_row &x, int64_t b, float acc) {
    const int32_t S = dot<256>(w, x.q + 256 * b);
    if (Format<type>::kind == SUPER) return add_scaled(acc, block.d, x.d[b], S);
    int32_t M = 0;
    for (int j = 0; j < 16; j++) M += block.min[j] * x.sums[16 * b + j];
    return add_with_mins(acc, block.d, block.dmin, x.d[b], S, M);
}

template <int type>
void product_row(const uint8_t *row, int64_t columns, const kt_row *x, int count, float *acc) {
    Weights<type> weights;
    for (int m = 0; m < count; m++) acc[m] = 0.0f;
    for (int64_t b = 0; b < columns / Format<type>::block; b++) {
        load_weights<type>(row + b * Format<type>::bytes, weights);
        for (int m = 0; m < count; m++) acc[m] = add_block<type>(weights.block, weights.w, x[m], b, acc[m]);
    }
}

template <int type>
void product(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const kt_row *x, int64_t count,
             float *out, int64_t ldo) {
    float acc[TILE];
    for (int64_t first = 0; first < count; first += TILE) {
        const int tile = (int)(count - first < TILE ? count - first : TILE);
        for (int64_t n = 0; n < rows; n++) {
            product_row<type>(weights + (size_t)n * row_bytes, columns, x + first, tile, acc);
            for (int m = 0; m < tile; m++) out[(first + m) * ldo + n] = acc[m];
        }
    }
}

// ---- float weights ----

// Lane k mod 16 of every activation row of a tile.
struct Lanes {
    float lane[TILE][16];
};

template <int type>
void float_product_row(const uint8_t *row, int64_t columns, const float *const *x, int count, Lanes &lanes) {
    memset(lanes.lane, 0, (size_t)count * sizeof lanes.lane[0]);
    for (int64_t k = 0; k < columns; k++) {
        const float w = widen<type>(row + k * Format<type>::bytes);
        for (int m = 0; m < count; m++) {
            float &lane = lanes.lane[m][k % 16];
            lane = fused(w, x[m][k], lane);
        }
    }
}

template <int type>
void float_product(const uint8_t *weights, size_t row_bytes, int64_t rows, int64_t columns, const float *const *x,
                   int64_t count, float *out, int64_t ldo) {
    Lanes lanes;
    for (int64_t first = 0; first < count; first += TILE) {
        const int tile = (int)(count - first < TILE ? count - first : TILE);
        for (int64_t n = 0; n < rows; n++) {
            float_product_row<type>(weights + (size_t)n * row_bytes, columns, x + first, tile, lanes);
            for (int m = 0; m < tile; m++) out[(first + m) * ldo + n] = sum_lanes(lanes.lane[m]);
        }
    }
}

// ---- element-wise functions ----

void quantize(const float *x, int64_t columns, int64_t block, int8_t *q, float *d, int16_t *sums) {
    for (int64_t b = 0; b < columns / block; b++) {
        quantize_block(x + b * block, block, q + b * block, d + b, sums + b * (block / 16));
    }
}

void activate(int activation, float *gate, const float *up, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const float y = activation == KT_SILU ? silu(gate[i]) : gelu_tanh(gate[i]);
        gate[i] = up ? y * up[i] : y;
    }
}

void rows_from_f16(const uint16_t *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = from_f16(in[i]);
}

void rows_from_bf16(const uint16_t *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = from_bf16(in[i]);
}

void rows_to_f16(const float *in, int64_t count, uint16_t *out) {
    for (int64_t i = 0; i < count; i++) out[i] = to_f16(in[i]);
}

void rows_to_bf16(const float *in, int64_t count, uint16_t *out) {
    for (int64_t i = 0; i < count; i++) out[i] = to_bf16(in[i]);
}

void accumulate(float scale, const float *in, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i++) out[i] = fused(scale, in[i], out[i]);
}

// ---- the table ----

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
    unit.name = "generic";
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

const kt_unit kt_unit_generic = make_unit();
