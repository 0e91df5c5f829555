// Operations of attention and routing, which stand in files of their own.
#include "ops.h"
#include "parts.h"
#include "pool.h"
#include "router.h"

namespace {

// ---- norms, rotation, activation ----

const kt_norm *norm_of(const kt_op &op) { return static_cast<const kt_norm *>(op.what); }

bool fits_norm(const Draft &d) {
    const int64_t width = d.width(d.out()[0]), group = d.op.what ? norm_of(d.op)->width : 0;
    return group > 0 && width % group == 0 && d.floats(d.out()[0]) && d.floats(d.in()[0], width);
}

int32_t run_norm(const Run &run, const kt_op &op) {
    const kt_norm *norm = norm_of(op);
    const int64_t groups = run.width(op.out[0]) / norm->width;
    return kt_norm_rows(run.call, norm, run.floats(op.in[0]), run.rows(op) * groups, run.floats(op.out[0]));
}

bool fits_rotate(const Draft &d) {
    const kt_rotation *rotation = static_cast<const kt_rotation *>(d.op.what);
    const int64_t heads = d.op.n[0], table = d.op.n[1];
    return rotation && d.floats(d.out()[0]) && !d.at(d.out()[0])->by_sequence && heads > 0 && rotation->width > 0 &&
           d.width(d.out()[0]) % heads == 0 && d.width(d.out()[0]) / heads == rotation->width && rotation->first >= 0 &&
           rotation->turned > 0 && rotation->turned % 2 == 0 && rotation->first <= rotation->width &&
           rotation->turned <= rotation->width - rotation->first && table >= 0 && table < d.program.table_count &&
           d.program.table_widths[table] == rotation->turned;
}

int32_t run_rotate(const Run &run, const kt_op &op) {
    return kt_turn(run.call, static_cast<const kt_rotation *>(op.what), run.floats(op.out[0]), run.step.total, op.n[0],
                   run.step.tables[op.n[1]]);
}

bool fits_activate(const Draft &d) {
    const int64_t width = d.width(d.out()[0]);
    const bool gated = d.in()[1] >= 0;
    return d.floats(d.out()[0]) && d.floats(d.in()[0], width) && d.op.n[0] >= 0 && d.op.n[0] < KT_ACTIVATIONS &&
           (!gated || (d.floats(d.in()[1], width) && d.apart(d.in()[1], d.out()[0])));
}

int32_t run_activate(const Run &run, const kt_op &op) {
    const float *up = op.in[1] < 0 ? nullptr : run.floats(op.in[1]);
    return kt_act(run.call, (int32_t)op.n[0], run.floats(op.in[0]), up, run.rows(op) * run.width(op.out[0]),
                  run.floats(op.out[0]));
}

// ---- attention ----

bool fits_append(const Draft &d) {
    const kt_buffer *keys = d.at(d.in()[0]), *values = d.at(d.in()[1]);
    return keys && values && d.floats(d.in()[0]) && d.floats(d.in()[1]) && !keys->by_sequence && !values->by_sequence &&
           d.op.n[0] >= 0;
}

int32_t run_append(const Run &run, const kt_op &op) {
    const kt_step &step = run.step;
    KvPages pages;
    const int32_t status = kv_pages(step.pool, op.n[0], step.sequences[0], &pages, nullptr, 0);
    if (status != KT_OK) return status;
    const kt_kv_layer &what = pages.layout.what;
    if (what.key_heads * what.key_dim != run.width(op.in[0]) || what.value_heads * what.value_dim != run.width(op.in[1])) {
        return KT_WRONG_SIZE;
    }
    return kv_append(step.pool, op.n[0], step.sequences, step.tokens, step.count, run.floats(op.in[0]),
                     run.floats(op.in[1]), -1);
}

bool fits_attend(const Draft &d) {
    const kt_attention *what = static_cast<const kt_attention *>(d.op.what);
    const int32_t in = d.in()[0], out = d.out()[0];
    if (what == nullptr || !kt_counts(what->heads) || !kt_counts(what->key_dim) || !kt_counts(what->value_dim)) return false;
    const int64_t wide = what->latent ? what->key_dim + what->value_dim : what->key_dim;
    const int64_t result = what->latent ? what->key_dim : what->value_dim;
    return d.apart(in, out) && d.floats(in, what->heads * wide) && d.floats(out, what->heads * result) &&
           !d.at(out)->by_sequence && d.op.n[0] >= 0;
}

int32_t run_attend(const Run &run, const kt_op &op) {
    const kt_step &step = run.step;
    return kt_attend_pages(run.call, step.pool, op.n[0], static_cast<const kt_attention *>(op.what), step.sequences,
                           step.tokens, step.count, run.floats(op.in[0]), nullptr, run.floats(op.out[0]));
}

bool fits_heads(const Draft &d) {
    const kt_matrix *weights = static_cast<const kt_matrix *>(d.op.what);
    const int64_t heads = d.op.n[0];
    return kt_usable(weights) && kt_counts(heads) && heads > 0 && weights->rows % heads == 0 &&
           d.apart(d.in()[0], d.out()[0]) && d.floats(d.in()[0], heads * weights->columns) &&
           d.floats(d.out()[0], weights->rows);
}

int32_t run_heads(const Run &run, const kt_op &op) {
    return kt_multiply_heads(run.call, static_cast<const kt_matrix *>(op.what), op.n[0], run.floats(op.in[0]), run.rows(op),
                             run.floats(op.out[0]));
}

// ---- routing ----

bool fits_route(const Draft &d) {
    const kt_router *router = static_cast<const kt_router *>(d.op.what);
    return router && kt_usable(&router->weights) && d.floats(d.in()[0], router->weights.columns) &&
           d.numbers(d.out()[0], router->chosen) && d.floats(d.out()[1], router->chosen) &&
           d.apart(d.in()[0], d.out()[1]);
}

int32_t run_route(const Run &run, const kt_op &op) {
    return kt_route_rows(run.call, *static_cast<const kt_router *>(op.what), run.floats(op.in[0]), run.rows(op),
                         run.numbers(op.out[0]), run.floats(op.out[1]), nullptr);
}

bool fits_gate(const Draft &d) {
    return d.floats(d.out()[0]) && d.floats(d.in()[0], d.width(d.out()[0])) && d.floats(d.in()[1], 1) &&
           d.apart(d.in()[1], d.out()[0]);
}

int32_t run_gate(const Run &run, const kt_op &op) {
    return kt_gate_rows(run.call, run.floats(op.in[0]), run.floats(op.in[1]), run.rows(op), run.width(op.out[0]),
                        run.floats(op.out[0]));
}

}  // namespace

Operation kt_model_operation(int32_t kind) {
    switch (kind) {
    case KT_OP_NORM: return {fits_norm, run_norm};
    case KT_OP_ROTATE: return {fits_rotate, run_rotate};
    case KT_OP_ACTIVATE: return {fits_activate, run_activate};
    case KT_OP_APPEND: return {fits_append, run_append};
    case KT_OP_ATTEND: return {fits_attend, run_attend};
    case KT_OP_HEADS: return {fits_heads, run_heads};
    case KT_OP_ROUTE: return {fits_route, run_route};
    case KT_OP_GATE: return {fits_gate, run_gate};
    default: return {nullptr, nullptr};
    }
}
