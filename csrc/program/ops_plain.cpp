// Operations that move numbers, or compute each from one or two others.
#include <string.h>

#include "ops.h"

namespace {

// Numbers that one thread works on at a time.
constexpr int64_t ITEM_NUMBERS = 16 << 10;

// Rows of one operation, shared among threads: row(context, number).
struct Rows {
    void (*row)(const void *context, int64_t row);
    const void *context;
    int64_t count, per_item;
};

void rows_item(void *context, int64_t item, int) {
    const Rows &rows = *static_cast<const Rows *>(context);
    const int64_t end = least((item + 1) * rows.per_item, rows.count);
    for (int64_t row = item * rows.per_item; row < end; row++) rows.row(rows.context, row);
}

void each_row(void (*row)(const void *, int64_t), const void *context, int64_t count, int64_t width) {
    Rows rows = {row, context, count, most(1, ITEM_NUMBERS / width)};
    if (count <= 2 * rows.per_item) rows.per_item = most(1, count);
    kt_run(rows_item, &rows, ceil_div(count, rows.per_item));
}

struct Two {
    const float *a, *b;
    float *out;
    int64_t width;
    float factor;
};

Two two_of(const Run &run, const kt_op &op) {
    return {run.floats(op.in[0]), op.in[1] < 0 ? nullptr : run.floats(op.in[1]), run.floats(op.out[0]),
            run.width(op.out[0]), op.factor};
}

void add_row(const void *context, int64_t row) {
    const Two &two = *static_cast<const Two *>(context);
    const float *a = two.a + row * two.width, *b = two.b + row * two.width;
    float *out = two.out + row * two.width;
    for (int64_t i = 0; i < two.width; i++) out[i] = a[i] + b[i];
}

void scale_row(const void *context, int64_t row) {
    const Two &two = *static_cast<const Two *>(context);
    const float *a = two.a + row * two.width;
    float *out = two.out + row * two.width;
    for (int64_t i = 0; i < two.width; i++) out[i] = a[i] * two.factor;
}

int32_t run_two(const Run &run, const kt_op &op, void (*row)(const void *, int64_t)) {
    const Two two = two_of(run, op);
    each_row(row, &two, run.rows(op), two.width);
    return KT_OK;
}

int32_t run_add(const Run &run, const kt_op &op) { return run_two(run, op, add_row); }
int32_t run_scale(const Run &run, const kt_op &op) { return run_two(run, op, scale_row); }

bool fits_add(const Draft &d) {
    const int64_t width = d.width(d.out()[0]);
    return d.floats(d.out()[0]) && d.floats(d.in()[0], width) && d.floats(d.in()[1], width);
}

bool fits_scale(const Draft &d) { return d.floats(d.out()[0]) && d.floats(d.in()[0], d.width(d.out()[0])); }

struct Columns {
    const float *in;
    float *out;
    int64_t in_width, out_width;  // of a group
    int64_t from, to, count, groups;
};

void copy_row(const void *context, int64_t row) {
    const Columns &c = *static_cast<const Columns *>(context);
    for (int64_t g = row * c.groups; g < (row + 1) * c.groups; g++) {
        memcpy(c.out + g * c.out_width + c.to, c.in + g * c.in_width + c.from, (size_t)c.count * sizeof(float));
    }
}

int32_t run_copy(const Run &run, const kt_op &op) {
    const int64_t groups = op.n[3];
    const Columns columns = {run.floats(op.in[0]),  run.floats(op.out[0]), run.width(op.in[0]) / groups,
                             run.width(op.out[0]) / groups, op.n[0], op.n[1], op.n[2], groups};
    each_row(copy_row, &columns, run.rows(op), op.n[2] * groups);
    return KT_OK;
}

bool fits_copy(const Draft &d) {
    const int64_t *n = d.op.n, groups = n[3], in = d.width(d.in()[0]), out = d.width(d.out()[0]);
    return d.floats(d.in()[0]) && d.floats(d.out()[0]) && d.apart(d.in()[0], d.out()[0]) && groups > 0 &&
           in % groups == 0 && out % groups == 0 && n[0] >= 0 && n[1] >= 0 && n[2] > 0 && n[0] <= in / groups &&
           n[1] <= out / groups && n[2] <= in / groups - n[0] && n[2] <= out / groups - n[1];
}

struct Order {
    const float *in;
    float *out;
    const int64_t *order;
    int64_t width;
};

void order_row(const void *context, int64_t row) {
    const Order &o = *static_cast<const Order *>(context);
    const float *in = o.in + row * o.width;
    float *out = o.out + row * o.width;
    for (int64_t i = 0; i < o.width; i++) out[i] = in[o.order[i]];
}

int32_t run_order(const Run &run, const kt_op &op) {
    const Order order = {run.floats(op.in[0]), run.floats(op.out[0]), static_cast<const int64_t *>(op.what),
                         run.width(op.out[0])};
    each_row(order_row, &order, run.rows(op), order.width);
    return KT_OK;
}

bool fits_order(const Draft &d) {
    const int64_t width = d.width(d.out()[0]);
    const int64_t *order = static_cast<const int64_t *>(d.op.what);
    if (order == nullptr || !d.floats(d.out()[0]) || !d.floats(d.in()[0], width) || !d.apart(d.in()[0], d.out()[0])) {
        return false;
    }
    for (int64_t i = 0; i < width; i++) {
        if (order[i] < 0 || order[i] >= width) return false;
    }
    return true;
}

int32_t run_last(const Run &run, const kt_op &op) {
    const int64_t width = run.width(op.out[0]);
    const float *in = run.floats(op.in[0]);
    float *out = run.floats(op.out[0]);
    int64_t end = 0;
    for (int64_t i = 0; i < run.step.count; i++) {
        end += run.step.tokens[i];
        memcpy(out + i * width, in + (end - 1) * width, (size_t)width * sizeof(float));
    }
    return KT_OK;
}

bool fits_last(const Draft &d) {
    const kt_buffer *in = d.at(d.in()[0]), *out = d.at(d.out()[0]);
    return in && out && d.apart(d.in()[0], d.out()[0]) && !in->by_sequence && out->by_sequence && in->bytes == 4 &&
           out->bytes == 4 && in->width == out->width && in->width > 0;
}

}  // namespace

Operation kt_plain_operation(int32_t kind) {
    switch (kind) {
    case KT_OP_ADD: return {fits_add, run_add};
    case KT_OP_SCALE: return {fits_scale, run_scale};
    case KT_OP_COPY: return {fits_copy, run_copy};
    case KT_OP_ORDER: return {fits_order, run_order};
    case KT_OP_LAST: return {fits_last, run_last};
    default: return {nullptr, nullptr};
    }
}
