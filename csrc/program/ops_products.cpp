// Operations that multiply with weights, in memory or out of a store.
#include "../cpu/experts.h"
#include "../cpu/linear.h"
#include "../tiers/stream.h"
#include "ops.h"

namespace {

bool product_fits(const Draft &d, const kt_matrix *weights) {
    const int32_t in = d.in()[0], out = d.out()[0];
    return kt_usable(weights) && d.apart(in, out) && d.floats(in, weights->columns) && d.floats(out, weights->rows);
}

int32_t scaled(const Run &run, const kt_op &op, int32_t status) {
    if (status != KT_OK || op.factor == 1.0f) return status;
    float *out = run.floats(op.out[0]);
    const int64_t count = run.rows(op) * run.width(op.out[0]);
    for (int64_t i = 0; i < count; i++) out[i] *= op.factor;
    return KT_OK;
}

// ---- rows of a table by token ----

bool rows_fit(const Draft &d, const kt_matrix *table) {
    const kt_buffer *out = d.at(d.out()[0]);
    return kt_usable(table) && d.floats(d.out()[0], table->columns) && !out->by_sequence;
}

bool fits_rows(const Draft &d) { return rows_fit(d, static_cast<const kt_matrix *>(d.op.what)); }

int32_t run_rows(const Run &run, const kt_op &op) {
    const kt_matrix *table = static_cast<const kt_matrix *>(op.what);
    return scaled(run, op, kt_look_up(run.call, table, run.step.ids, run.step.total, run.floats(op.out[0])));
}

const kt_stream_table *table_of(const kt_op &op) { return static_cast<const kt_stream_table *>(op.what); }

bool fits_stream_rows(const Draft &d) { return d.op.what && rows_fit(d, &table_of(d.op)->shape); }

int32_t run_stream_rows(const Run &run, const kt_op &op) {
    const kt_stream_table &table = *table_of(op);
    return scaled(run, op,
                  kt_stream_look_up(run.call, table.store, table.extents, table.extent_count, &table.shape, run.step.ids,
                                    run.step.total, run.floats(op.out[0])));
}

// ---- one matrix ----

bool fits_linear(const Draft &d) { return product_fits(d, static_cast<const kt_matrix *>(d.op.what)); }

int32_t run_linear(const Run &run, const kt_op &op) {
    return kt_multiply(run.call, static_cast<const kt_matrix *>(op.what), run.floats(op.in[0]), KT_F32, run.rows(op),
                       op.bias, op.arithmetic, run.floats(op.out[0]));
}

const kt_stream_dense *dense_of(const kt_op &op) { return static_cast<const kt_stream_dense *>(op.what); }

bool fits_stream_linear(const Draft &d) { return d.op.what && product_fits(d, &dense_of(d.op)->shape); }

int32_t run_stream_linear(const Run &run, const kt_op &op) {
    const kt_stream_dense &dense = *dense_of(op);
    return kt_stream_multiply(run.call, dense.store, dense.record, dense.place, &dense.shape, run.floats(op.in[0]), KT_F32,
                              run.rows(op), op.bias, op.arithmetic, run.floats(op.out[0]));
}

// ---- experts ----

bool experts_fit(const Draft &d, int64_t hidden) {
    const int32_t *in = d.in(), out = d.out()[0];
    const int64_t slots = d.op.n[0];
    return d.floats(in[0], hidden) && d.floats(out, hidden) && d.numbers(in[1], slots) && d.floats(in[2], slots) &&
           d.apart(in[0], out) && d.apart(in[1], out) && d.apart(in[2], out);
}

bool fits_experts(const Draft &d) { return d.op.what && experts_fit(d, static_cast<const kt_bank *>(d.op.what)->hidden); }

int32_t run_experts(const Run &run, const kt_op &op) {
    return kt_run_experts(run.call, static_cast<const kt_bank *>(op.what), run.floats(op.in[0]), KT_F32, run.rows(op),
                          run.numbers(op.in[1]), op.n[0], run.floats(op.in[2]), op.arithmetic, run.floats(op.out[0]));
}

bool fits_stream_experts(const Draft &d) {
    return d.op.what && experts_fit(d, static_cast<const kt_stream_bank *>(d.op.what)->hidden);
}

int32_t run_stream_experts(const Run &run, const kt_op &op) {
    return kt_stream_run_experts(run.call, static_cast<const kt_stream_bank *>(op.what), run.floats(op.in[0]), KT_F32,
                                 run.rows(op), run.numbers(op.in[1]), op.n[0], run.floats(op.in[2]), op.arithmetic,
                                 run.floats(op.out[0]));
}

// ---- looking ahead ----

const kt_foresee *foresee_of(const kt_op &op) { return static_cast<const kt_foresee *>(op.what); }

bool fits_foresee(const Draft &d) {
    return d.op.what && foresee_of(d.op)->predictor && d.floats(d.in()[0], foresee_of(d.op)->predictor->hidden) &&
           !d.at(d.in()[0])->by_sequence;
}

// What is not foreseen changes no result.
int32_t run_foresee(const Run &run, const kt_op &op) {
    const kt_foresee &what = *foresee_of(op);
    kt_look_ahead(run.call, what.store, what.predictor, run.floats(op.in[0]), KT_F32, run.step.total);
    return KT_OK;
}

}  // namespace

Operation kt_product_operation(int32_t kind) {
    switch (kind) {
    case KT_OP_ROWS: return {fits_rows, run_rows};
    case KT_OP_STREAM_ROWS: return {fits_stream_rows, run_stream_rows};
    case KT_OP_LINEAR: return {fits_linear, run_linear};
    case KT_OP_STREAM_LINEAR: return {fits_stream_linear, run_stream_linear};
    case KT_OP_EXPERTS: return {fits_experts, run_experts};
    case KT_OP_STREAM_EXPERTS: return {fits_stream_experts, run_stream_experts};
    case KT_OP_FORESEE: return {fits_foresee, run_foresee};
    default: return {nullptr, nullptr};
    }
}
