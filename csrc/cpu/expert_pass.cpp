#include "expert_pass.h"

#include <string.h>

#include "threads.h"

namespace {

// Limits of a pass: more tokens would not make kernels faster, and temporaries stay small.
constexpr int64_t PASS_TOKENS = 512;
constexpr int64_t PASS_BYTES = 64 << 20;
// Numbers that one thread quantises or adds up at a time.
constexpr int64_t ITEM_NUMBERS = 16 << 10;

bool has_shape(const kt_matrix &matrix, int64_t rows, int64_t columns) {
    return kt_sound(matrix) && matrix.rows == rows && matrix.columns == columns;
}

// The weights of one expert.
Weights at(const Weights &shape, kt_matrix &room, const uint8_t *data) {
    room = *shape.matrix;
    room.data = data;
    return {shape.unit, &room, shape.form};
}

}  // namespace

Weights kt_weights_of(const kt_unit *unit, const kt_matrix *matrix, int32_t arithmetic) {
    return {unit, matrix, matrix ? kt_form(*unit, matrix->type, arithmetic) : WIDE};
}

int32_t ExpertLayer::check(int64_t tokens) const {
    const bool kernels = up.form != FORMS && gate.form != FORMS && down.form != FORMS && hidden.known() &&
                         activation >= 0 && activation < KT_ACTIVATIONS;
    if (!kernels) return KT_NO_KERNEL;
    const bool sizes = kt_counts(experts) && kt_counts(wide) && kt_counts(inner) && kt_counts(tokens) && kt_counts(slots) &&
                       has_shape(*up.matrix, inner, wide) && has_shape(*down.matrix, wide, inner) &&
                       (!gated() || has_shape(*gate.matrix, inner, wide));
    if (!sizes) return KT_WRONG_SIZE;
    for (int64_t i = 0; i < tokens * slots; i++) {
        if (index[i] < 0 || index[i] > experts) return KT_OUT_OF_RANGE;
    }
    return KT_OK;
}

// What a token's pairs keep is mostly gate, up, and result.
int64_t ExpertLayer::pass_tokens(int64_t tokens) const {
    const int64_t pair_bytes = (2 * inner + wide) * (int64_t)sizeof(float);
    const int64_t fitting = most(1, PASS_BYTES / (pair_bytes * most(slots, 1)));
    return least(tokens, least(PASS_TOKENS, fitting));
}

int64_t ExpertLayer::batch_pairs(int64_t pairs) const {
    return least(pairs, most(1, PASS_BYTES / (2 * inner * (int64_t)sizeof(float))));
}

bool ExpertPass::prepare(int64_t tokens_at_once, int64_t extra_bytes) {
    const int64_t pairs_at_once = tokens_at_once * layer.slots;
    batch_room = layer.batch_pairs(pairs_at_once);
    Arena arena;
    tokens.need(layer.up.form);
    if (layer.gated()) tokens.need(layer.gate.form);
    inner.need(layer.down.form);
    tokens.reserve(arena, tokens_at_once, layer.wide, layer.hidden.dtype == KT_F32);
    inner.reserve(arena, batch_room, layer.inner, true);
    scratch = most(layer.up.scratch(), most(layer.gated() ? layer.gate.scratch() : 0, layer.down.scratch()));

    const int64_t most_groups = least(layer.experts, pairs_at_once);
    const size_t groups_at = arena.add<Group>(most_groups), batch_at = arena.add<Part>(most_groups);
    const size_t starts_at = arena.add<int64_t>(layer.experts + 1), order_at = arena.add<int64_t>(pairs_at_once);
    const size_t position_at = arena.add<int64_t>(pairs_at_once);
    size_t picked_at[FORMS];
    picked_at[WIDE] = arena.add<const float *>(pairs_at_once);
    picked_at[BLOCKS_32] = arena.add<kt_row>(pairs_at_once);
    picked_at[BLOCKS_256] = arena.add<kt_row>(pairs_at_once);
    const size_t gates_at = arena.add<float>(layer.gated() ? batch_room * layer.inner : 0);
    const size_t ups_at = arena.add<float>(batch_room * layer.inner);
    const size_t results_at = arena.add<float>(pairs_at_once * layer.wide);
    const size_t rooms_at = arena.add<float>(layer.threads * layer.wide);
    const size_t scratches_at = arena.add<float>(layer.threads * scratch);
    const size_t extra_at = arena.add<uint8_t>(extra_bytes);
    if (!arena.take()) return false;

    tokens.place(arena);
    inner.place(arena);
    callers = arena.at<uint8_t>(extra_at);
    groups = arena.at<Group>(groups_at);
    batch = arena.at<Part>(batch_at);
    starts = arena.at<int64_t>(starts_at);
    order = arena.at<int64_t>(order_at);
    position = arena.at<int64_t>(position_at);
    picked_wide = arena.at<const float *>(picked_at[WIDE]);
    picked_rows[BLOCKS_32] = arena.at<kt_row>(picked_at[BLOCKS_32]);
    picked_rows[BLOCKS_256] = arena.at<kt_row>(picked_at[BLOCKS_256]);
    gates = arena.at<float>(gates_at);
    ups = arena.at<float>(ups_at);
    results = arena.at<float>(results_at);
    rooms = arena.at<float>(rooms_at);
    scratches = arena.at<float>(scratches_at);
    return true;
}

void ExpertPass::begin(int64_t from, int64_t some) {
    first = from;
    count = some;
    sort_pairs();
    run_rows(fill_tokens_item, count, layer.wide);
    pick_rows();
}

void ExpertPass::compute(const int64_t *numbers, int64_t some) {
    for (int64_t i = 0; i < some; i++) add_to_batch(numbers[i]);
    compute_batch();
}

void ExpertPass::compute_all() {
    for (int64_t i = 0; i < group_count; i++) add_to_batch(i);
    compute_batch();
}

// A full batch is computed at once.
void ExpertPass::add_to_batch(int64_t number) {
    const Group &group = groups[number];
    for (int64_t from = 0; from < group.count;) {
        const int64_t some = least(group.count - from, batch_room - batch_fill);
        batch[batch_count++] = {number, group.start + from, some, batch_fill};
        batch_fill += some;
        from += some;
        if (batch_fill == batch_room) compute_batch();
    }
}

void ExpertPass::compute_batch() {
    if (batch_count == 0) return;
    const int64_t gate_bytes = layer.gated() ? layer.gate.matrix->row_bytes : 0;
    run_products(first_products_item, layer.inner, layer.up.matrix->row_bytes + gate_bytes);
    run_rows(fill_inner_item, batch_fill, layer.inner);
    run_products(second_product_item, layer.wide, layer.down.matrix->row_bytes);
    batch_count = batch_fill = 0;
}

void ExpertPass::finish() { run_rows(add_up_item, count, layer.wide * most(layer.slots, 1)); }

// Counting sort: pairs by expert, within an expert by token and slot.
void ExpertPass::sort_pairs() {
    const int64_t experts = layer.experts, all = count * layer.slots;
    const int64_t *index = layer.index + first * layer.slots;
    memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
    for (int64_t i = 0; i < all; i++) starts[index[i]]++;
    group_count = 0;
    pairs = 0;
    for (int64_t expert = 0; expert < experts; expert++) {
        const int64_t members = starts[expert];
        if (members > 0) groups[group_count++] = {expert, pairs, members, {nullptr, nullptr, nullptr}};
        starts[expert] = pairs;
        pairs += members;
    }
    for (int64_t i = 0; i < all; i++) {
        position[i] = index[i] == experts ? -1 : starts[index[i]]++;
        if (position[i] >= 0) order[position[i]] = i;
    }
}

void ExpertPass::pick_rows() {
    for (int form = BLOCKS_32; form < FORMS; form++) {
        if (!tokens.needs((Form)form)) continue;
        const kt_row *rows = tokens.quantised((Form)form);
        for (int64_t pair = 0; pair < pairs; pair++) picked_rows[form][pair] = rows[order[pair] / layer.slots];
    }
    if (!tokens.needs(WIDE)) return;
    for (int64_t pair = 0; pair < pairs; pair++) picked_wide[pair] = tokens.wide()[order[pair] / layer.slots];
}

Picked ExpertPass::picked(Form form, const Part &part) const {
    return {picked_rows[form] + part.from, picked_wide + part.from, part.count};
}

void ExpertPass::fill_token(int64_t token, int thread) {
    float *room = rooms + thread * layer.wide;
    tokens.fill(*layer.unit, token, kt_read_row(*layer.unit, layer.hidden, first + token, room));
}

// act(gate) * up for weight rows [row, row + rows) of one expert.
void ExpertPass::first_products(const Part &part, int64_t row, int64_t rows, int thread) {
    const Group &group = groups[part.group];
    const int64_t width = layer.inner, bias_at = group.expert * width + row;
    float *space = scratches + thread * scratch;
    float *gate = gates + part.at * width + row, *up = ups + part.at * width + row;
    kt_matrix room;
    const float *bias = layer.up_bias ? layer.up_bias + bias_at : nullptr;
    at(layer.up, room, group.data.up).multiply(row, rows, picked(layer.up.form, part), bias, up, width, space);
    if (layer.gated()) {
        bias = layer.gate_bias ? layer.gate_bias + bias_at : nullptr;
        at(layer.gate, room, group.data.gate).multiply(row, rows, picked(layer.gate.form, part), bias, gate, width, space);
    }
    for (int64_t m = 0; m < part.count; m++) {
        if (layer.gated()) {
            layer.unit->activate(layer.activation, gate + m * width, up + m * width, rows);
        } else {
            layer.unit->activate(layer.activation, up + m * width, nullptr, rows);
        }
    }
}

void ExpertPass::second_product(const Part &part, int64_t row, int64_t rows, int thread) {
    const Group &group = groups[part.group];
    const int64_t width = layer.wide;
    const Form form = layer.down.form;
    const Picked x = {inner.quantised(form) + part.at, inner.wide() + part.at, part.count};
    const float *bias = layer.down_bias ? layer.down_bias + group.expert * width + row : nullptr;
    float *out = results + part.from * width + row;
    kt_matrix room;
    at(layer.down, room, group.data.down).multiply(row, rows, x, bias, out, width, scratches + thread * scratch);
}

void ExpertPass::add_up(int64_t token, int thread) {
    const int64_t width = layer.wide;
    uint8_t *out = layer.out + (first + token) * width * (layer.hidden.dtype == KT_F32 ? 4 : 2);
    float *sum = layer.hidden.dtype == KT_F32 ? reinterpret_cast<float *>(out) : rooms + thread * width;
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t slot = 0; slot < layer.slots; slot++) {
        const int64_t pair = position[token * layer.slots + slot];
        if (pair < 0) continue;
        const float weight = layer.weights[(first + token) * layer.slots + slot];
        layer.unit->accumulate(weight, results + pair * width, width, sum);
    }
    if (layer.hidden.dtype != KT_F32) kt_write_row(*layer.unit, sum, width, layer.hidden.dtype, out);
}

// ---- the steps of a pass as jobs ----

// Call step(row) for the rows of one item.
template <class Step> void ExpertPass::each_row(int64_t item, int64_t rows, Step step) const {
    const int64_t end = least((item + 1) * per_item, rows);
    for (int64_t row = item * per_item; row < end; row++) step(row);
}

void ExpertPass::fill_tokens_item(void *context, int64_t item, int thread) {
    ExpertPass &pass = *static_cast<ExpertPass *>(context);
    pass.each_row(item, pass.count, [&](int64_t token) { pass.fill_token(token, thread); });
}

void ExpertPass::first_products_item(void *context, int64_t item, int thread) {
    ExpertPass &pass = *static_cast<ExpertPass *>(context);
    const int64_t row = item % pass.pieces * pass.piece;
    pass.first_products(pass.batch[item / pass.pieces], row, least(pass.piece, pass.layer.inner - row), thread);
}

void ExpertPass::fill_inner_item(void *context, int64_t item, int) {
    ExpertPass &pass = *static_cast<ExpertPass *>(context);
    const float *values = pass.layer.gated() ? pass.gates : pass.ups;
    pass.each_row(item, pass.batch_fill,
                  [&](int64_t row) { pass.inner.fill(*pass.layer.unit, row, values + row * pass.layer.inner); });
}

void ExpertPass::second_product_item(void *context, int64_t item, int thread) {
    ExpertPass &pass = *static_cast<ExpertPass *>(context);
    const int64_t row = item % pass.pieces * pass.piece;
    pass.second_product(pass.batch[item / pass.pieces], row, least(pass.piece, pass.layer.wide - row), thread);
}

void ExpertPass::add_up_item(void *context, int64_t item, int thread) {
    ExpertPass &pass = *static_cast<ExpertPass *>(context);
    pass.each_row(item, pass.count, [&](int64_t token) { pass.add_up(token, thread); });
}

// A step over `rows` rows of `width` numbers each; a small one stays on the caller's thread.
void ExpertPass::run_rows(Task task, int64_t rows, int64_t width) {
    const int64_t fitting = most(1, ITEM_NUMBERS / width);
    per_item = rows <= 2 * fitting ? most(rows, 1) : fitting;
    kt_run(task, this, ceil_div(rows, per_item));
}

// A step over the weight rows [0, rows) of every expert of the batch.
void ExpertPass::run_products(Task task, int64_t rows, int64_t row_bytes) {
    const int64_t each = ceil_div(batch_fill, batch_count);
    piece = least(kt_piece(rows * batch_count, row_bytes, each, layer.threads), rows);
    pieces = ceil_div(rows, piece);
    kt_run(task, this, batch_count * pieces);
}
