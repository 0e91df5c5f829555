// What linear.cpp and experts.cpp share: activations in the forms that kernels take, and products with pieces of a matrix.
#pragma once

#include "arena.h"
#include "kernels.h"
#include "ktitan_cpu.h"

// How a matrix wants its activations.
enum Form { WIDE, BLOCKS_32, BLOCKS_256, FORMS };

// The block of the quantised forms.
constexpr int64_t BLOCK_OF[FORMS] = {0, 32, 256};

// The form for weights of `type`, or FORMS where the unit has no kernel for it.
Form kt_form(const kt_unit &unit, int32_t type, int32_t arithmetic);

// Whether a number of rows, tokens or slots is one; products of two of them do not overflow.
static inline bool kt_counts(int64_t count) { return count >= 0 && count <= INT32_MAX; }
// Whether a matrix of a known type has sizes that can be computed with, and rows that do not overlap.
bool kt_sound(const kt_matrix &matrix);

// Rows of float32, float16 or bfloat16 numbers.
struct Plain {
    const void *data;
    int32_t dtype;
    int64_t columns;

    bool known() const { return dtype == KT_F32 || dtype == KT_F16 || dtype == KT_BF16; }
    const uint8_t *row(int64_t index) const;
};

// Read row `index` as float32: where it lies, or converted into `room`.
const float *kt_read_row(const kt_unit &unit, const Plain &rows, int64_t index, float *room);
// Round `count` numbers to `dtype` at `out`.
void kt_write_row(const kt_unit &unit, const float *x, int64_t count, int32_t dtype, void *out);

// Activation rows in several forms. Make it with the forms that are needed, reserve, take the arena, place, then fill.
class Operands {
public:
    void need(Form form) { needed[form] = true; }
    bool needs(Form form) const { return needed[form]; }
    // Room for `rows` rows; `borrow` when wide rows lie in the caller's float32 memory and need no copy.
    void reserve(Arena &arena, int64_t rows, int64_t columns, bool borrow);
    void place(const Arena &arena);

    // Fill row `row` in every form from float32 numbers; they must stay where they are if wide rows are borrowed.
    void fill(const kt_unit &unit, int64_t row, const float *x);

    // The rows in one form.
    const kt_row *quantised(Form form) const { return blocks[form].rows; }
    const float *const *wide() const { return wide_rows; }

private:
    struct Blocks {
        size_t q_place, d_place, sums_place, rows_place;
        int8_t *q;
        float *d;
        int16_t *sums;
        kt_row *rows;
    };
    bool needed[FORMS] = {};
    bool borrowed = false;
    int64_t columns = 0;
    size_t copies_place = 0, wide_place = 0;
    float *copies = nullptr;
    const float **wide_rows = nullptr;
    Blocks blocks[FORMS] = {};
};

// Rows for one product: pointers to `count` rows, in the form of the weights.
struct Picked {
    const kt_row *quantised;
    const float *const *wide;
    int64_t count;
};

// Weights, the kernel's unit and the form, ready for products.
struct Weights {
    const kt_unit *unit;
    const kt_matrix *matrix;
    Form form;

    // float32 numbers of scratch that `multiply` needs.
    int64_t scratch() const;
    // out[m * ldo + n] = weights[first + n] . x[m] + bias[n] for n < rows; bias may be null.
    void multiply(int64_t first, int64_t rows, const Picked &x, const float *bias, float *out, int64_t ldo,
                  float *scratch) const;

private:
    bool dequantises() const { return form == WIDE && unit->float_product[matrix->type] == nullptr; }
    int64_t strip() const;
};

// How many weight rows make one piece of work when `rows` rows of `row_bytes` meet `count` activation rows.
int64_t kt_piece(int64_t rows, int64_t row_bytes, int64_t count, int threads);

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
