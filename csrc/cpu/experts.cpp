// kt_experts: the routed experts of a layer.
//
// Tokens go in passes. In a pass the (token, slot) pairs are sorted by expert, so that each expert's weights are read
// once for all of its tokens; every pair keeps its result in its own place, and a token adds its results up in the order
// of its slots. So nothing depends on which tokens share a pass.
#include <string.h>

#include "detect.h"
#include "product.h"
#include "threads.h"

namespace {

// Limits of a pass: more tokens would not make kernels faster, and temporaries stay small.
constexpr int64_t PASS_TOKENS = 512;
constexpr int64_t PASS_BYTES = 64 << 20;
// Numbers that one thread quantises or adds up at a time.
constexpr int64_t ITEM_NUMBERS = 16 << 10;

// The pairs of one expert: [start, start + count) in sorted order.
struct Group {
    int64_t expert, start, count;
};

// The arguments, and what they fix for all passes.
struct Layer {
    const kt_bank *bank;
    const kt_unit *unit;
    Weights gate, up, down;  // gate.matrix is null where there is no gate
    Plain hidden;
    const int64_t *index;
    int64_t slots;
    const float *weights;
    uint8_t *out;
    int threads;

    int64_t wide() const { return bank->hidden; }
    int64_t inner() const { return bank->intermediate; }
    bool gated() const { return bank->gate != nullptr; }
};

// One pass: tokens [first, first + count). Arrays by pair are in sorted order.
struct Pass {
    Layer layer;
    int64_t first, count, pairs;

    Operands tokens;  // hidden, by token
    Operands inner;   // act(gate) * up, by pair
    Group *groups;
    int64_t group_count;
    int64_t *order;                 // by pair: token * slots + slot
    int64_t *position;              // by token * slots + slot: its pair, -1 for one that is left out
    int64_t *starts;                // by expert
    kt_row *picked_rows[FORMS];     // by pair: the token's row
    const float **picked_wide;
    float *gates, *ups, *results;   // [pairs, I], [pairs, I], [pairs, H]
    float *rooms, *scratches;       // for each thread: a row of H numbers, scratch of the products
    int64_t scratch;
    int64_t per_item, piece, pieces;  // rows of an item of a row-wise step; weight rows of an item of a product

    void sort_pairs();
    void pick_rows();
    void fill_token(int64_t token, int thread);
    void first_products(const Group &group, int64_t row, int64_t rows, int thread);
    void second_product(const Group &group, int64_t row, int64_t rows, int thread);
    void add_up(int64_t token, int thread);

    Picked picked(Form form, const Group &group) const {
        return {picked_rows[form] + group.start, picked_wide + group.start, group.count};
    }
};

// Counting sort: pairs by expert, within an expert by token and slot.
void Pass::sort_pairs() {
    const int64_t experts = layer.bank->experts, all = count * layer.slots;
    const int64_t *index = layer.index + first * layer.slots;
    memset(starts, 0, (size_t)(experts + 1) * sizeof *starts);
    for (int64_t i = 0; i < all; i++) starts[index[i]]++;
    group_count = 0;
    pairs = 0;
    for (int64_t expert = 0; expert < experts; expert++) {
        const int64_t members = starts[expert];
        if (members > 0) groups[group_count++] = {expert, pairs, members};
        starts[expert] = pairs;
        pairs += members;
    }
    for (int64_t i = 0; i < all; i++) {
        position[i] = index[i] == experts ? -1 : starts[index[i]]++;
        if (position[i] >= 0) order[position[i]] = i;
    }
}

void Pass::pick_rows() {
    for (int form = BLOCKS_32; form < FORMS; form++) {
        if (!tokens.needs((Form)form)) continue;
        const kt_row *rows = tokens.quantised((Form)form);
        for (int64_t pair = 0; pair < pairs; pair++) picked_rows[form][pair] = rows[order[pair] / layer.slots];
    }
    if (!tokens.needs(WIDE)) return;
    for (int64_t pair = 0; pair < pairs; pair++) picked_wide[pair] = tokens.wide()[order[pair] / layer.slots];
}

void Pass::fill_token(int64_t token, int thread) {
    float *room = rooms + thread * layer.wide();
    tokens.fill(*layer.unit, token, kt_read(*layer.unit, layer.hidden, first + token, room));
}

// act(gate) * up for weight rows [row, row + rows) of one expert.
void Pass::first_products(const Group &group, int64_t row, int64_t rows, int thread) {
    const int64_t width = layer.inner(), at = group.expert * width + row;
    const kt_bank &bank = *layer.bank;
    float *space = scratches + thread * scratch;
    float *gate = gates + group.start * width + row, *up = ups + group.start * width + row;
    layer.up.multiply(at, rows, picked(layer.up.form, group), bank.up_bias ? bank.up_bias + at : nullptr, up, width, space);
    if (layer.gated()) {
        const float *bias = bank.gate_bias ? bank.gate_bias + at : nullptr;
        layer.gate.multiply(at, rows, picked(layer.gate.form, group), bias, gate, width, space);
    }
    for (int64_t m = 0; m < group.count; m++) {
        if (layer.gated()) {
            layer.unit->activate(bank.activation, gate + m * width, up + m * width, rows);
        } else {
            layer.unit->activate(bank.activation, up + m * width, nullptr, rows);
        }
    }
}

void Pass::second_product(const Group &group, int64_t row, int64_t rows, int thread) {
    const int64_t width = layer.wide(), at = group.expert * width + row;
    const Form form = layer.down.form;
    const Picked x = {inner.quantised(form) + group.start, inner.wide() + group.start, group.count};
    const float *bias = layer.bank->down_bias ? layer.bank->down_bias + at : nullptr;
    layer.down.multiply(at, rows, x, bias, results + group.start * width + row, width, scratches + thread * scratch);
}

void Pass::add_up(int64_t token, int thread) {
    const int64_t width = layer.wide();
    uint8_t *out = layer.out + (first + token) * width * (layer.hidden.dtype == KT_F32 ? 4 : 2);
    float *sum = layer.hidden.dtype == KT_F32 ? reinterpret_cast<float *>(out) : rooms + thread * width;
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t slot = 0; slot < layer.slots; slot++) {
        const int64_t pair = position[token * layer.slots + slot];
        if (pair < 0) continue;
        const float weight = layer.weights[(first + token) * layer.slots + slot];
        layer.unit->accumulate(weight, results + pair * width, width, sum);
    }
    if (layer.hidden.dtype != KT_F32) kt_write(*layer.unit, sum, width, layer.hidden.dtype, out);
}

// ---- the steps of a pass as jobs ----

// Call step(row) for the rows of one item.
template <class Step> void each_row(const Pass &pass, int64_t item, int64_t rows, Step step) {
    const int64_t end = least((item + 1) * pass.per_item, rows);
    for (int64_t row = item * pass.per_item; row < end; row++) step(row);
}

void fill_tokens_item(void *context, int64_t item, int thread) {
    Pass &pass = *static_cast<Pass *>(context);
    each_row(pass, item, pass.count, [&](int64_t token) { pass.fill_token(token, thread); });
}

void first_products_item(void *context, int64_t item, int thread) {
    Pass &pass = *static_cast<Pass *>(context);
    const int64_t row = item % pass.pieces * pass.piece;
    pass.first_products(pass.groups[item / pass.pieces], row, least(pass.piece, pass.layer.inner() - row), thread);
}

void fill_inner_item(void *context, int64_t item, int) {
    Pass &pass = *static_cast<Pass *>(context);
    const float *values = pass.layer.gated() ? pass.gates : pass.ups;
    const int64_t width = pass.layer.inner();
    each_row(pass, item, pass.pairs, [&](int64_t pair) { pass.inner.fill(*pass.layer.unit, pair, values + pair * width); });
}

void second_product_item(void *context, int64_t item, int thread) {
    Pass &pass = *static_cast<Pass *>(context);
    const int64_t row = item % pass.pieces * pass.piece;
    pass.second_product(pass.groups[item / pass.pieces], row, least(pass.piece, pass.layer.wide() - row), thread);
}

void add_up_item(void *context, int64_t item, int thread) {
    Pass &pass = *static_cast<Pass *>(context);
    each_row(pass, item, pass.count, [&](int64_t token) { pass.add_up(token, thread); });
}

// A step over `rows` rows of `width` numbers each; a small one stays on the caller's thread.
void run_rows(Pass &pass, kt_task task, int64_t rows, int64_t width) {
    const int64_t fitting = most(1, ITEM_NUMBERS / width);
    pass.per_item = rows <= 2 * fitting ? most(rows, 1) : fitting;
    kt_run(task, &pass, ceil_div(rows, pass.per_item));
}

// A step over the weight rows [0, rows) of every expert that has tokens.
void run_products(Pass &pass, kt_task task, int64_t rows, int64_t row_bytes) {
    if (pass.group_count == 0) return;
    const int64_t each = ceil_div(pass.pairs, pass.group_count);
    pass.piece = least(kt_piece(rows * pass.group_count, row_bytes, each, pass.layer.threads), rows);
    pass.pieces = ceil_div(rows, pass.piece);
    kt_run(task, &pass, pass.group_count * pass.pieces);
}

void run_pass(Pass &pass) {
    const Layer &layer = pass.layer;
    pass.sort_pairs();
    run_rows(pass, fill_tokens_item, pass.count, layer.wide());
    pass.pick_rows();
    const int64_t gate_bytes = layer.gated() ? layer.bank->gate->row_bytes : 0;
    run_products(pass, first_products_item, layer.inner(), layer.bank->up->row_bytes + gate_bytes);
    run_rows(pass, fill_inner_item, pass.pairs, layer.inner());
    run_products(pass, second_product_item, layer.wide(), layer.bank->down->row_bytes);
    run_rows(pass, add_up_item, pass.count, layer.wide() * most(layer.slots, 1));
}

// ---- setting up ----

// Lay out the temporaries for passes of `tokens` tokens; false when there is no memory.
bool prepare(Pass &pass, int64_t tokens) {
    const Layer &layer = pass.layer;
    const int64_t pairs = tokens * layer.slots, experts = layer.bank->experts;
    Arena arena;
    pass.tokens.need(layer.up.form);
    if (layer.gated()) pass.tokens.need(layer.gate.form);
    pass.inner.need(layer.down.form);
    pass.tokens.reserve(arena, tokens, layer.wide(), layer.hidden.dtype == KT_F32);
    pass.inner.reserve(arena, pairs, layer.inner(), true);
    pass.scratch = most(layer.up.scratch(), most(layer.gated() ? layer.gate.scratch() : 0, layer.down.scratch()));

    const size_t groups = arena.add<Group>(least(experts, pairs)), starts = arena.add<int64_t>(experts + 1);
    const size_t order = arena.add<int64_t>(pairs), position = arena.add<int64_t>(pairs);
    size_t picked[FORMS];
    picked[WIDE] = arena.add<const float *>(pairs);
    picked[BLOCKS_32] = arena.add<kt_row>(pairs);
    picked[BLOCKS_256] = arena.add<kt_row>(pairs);
    const size_t gates = arena.add<float>(layer.gated() ? pairs * layer.inner() : 0);
    const size_t ups = arena.add<float>(pairs * layer.inner()), results = arena.add<float>(pairs * layer.wide());
    const size_t rooms = arena.add<float>(layer.threads * layer.wide());
    const size_t scratches = arena.add<float>(layer.threads * pass.scratch);
    if (!arena.take()) return false;

    pass.tokens.place(arena);
    pass.inner.place(arena);
    pass.groups = arena.at<Group>(groups);
    pass.starts = arena.at<int64_t>(starts);
    pass.order = arena.at<int64_t>(order);
    pass.position = arena.at<int64_t>(position);
    pass.picked_wide = arena.at<const float *>(picked[WIDE]);
    pass.picked_rows[BLOCKS_32] = arena.at<kt_row>(picked[BLOCKS_32]);
    pass.picked_rows[BLOCKS_256] = arena.at<kt_row>(picked[BLOCKS_256]);
    pass.gates = arena.at<float>(gates);
    pass.ups = arena.at<float>(ups);
    pass.results = arena.at<float>(results);
    pass.rooms = arena.at<float>(rooms);
    pass.scratches = arena.at<float>(scratches);
    return true;
}

Weights weights_of(const kt_unit *unit, const kt_matrix *matrix, int32_t arithmetic) {
    return {unit, matrix, matrix ? kt_form(*unit, matrix->type, arithmetic) : WIDE};
}

bool has_kernels(const Layer &layer) {
    return layer.up.form != FORMS && layer.gate.form != FORMS && layer.down.form != FORMS && layer.hidden.known() &&
           layer.bank->activation >= 0 && layer.bank->activation < KT_ACTIVATIONS;
}

bool has_shape(const kt_matrix &matrix, int64_t experts, int64_t rows, int64_t columns) {
    return kt_sound(matrix) && matrix.rows == experts * rows && matrix.columns == columns;
}

bool sizes_fit(const Layer &layer, int64_t tokens) {
    const int64_t experts = layer.bank->experts, wide = layer.wide(), inner = layer.inner();
    return kt_counts(experts) && kt_counts(wide) && kt_counts(inner) && kt_counts(tokens) && kt_counts(layer.slots) &&
           has_shape(*layer.bank->up, experts, inner, wide) && has_shape(*layer.bank->down, experts, wide, inner) &&
           (!layer.gated() || has_shape(*layer.bank->gate, experts, inner, wide));
}

// Tokens of a pass: what a token's pairs keep is mostly gate, up, and result.
int64_t pass_tokens(const Layer &layer, int64_t tokens) {
    const int64_t pair_bytes = (2 * layer.inner() + layer.wide()) * (int64_t)sizeof(float);
    const int64_t fitting = most(1, PASS_BYTES / (pair_bytes * most(layer.slots, 1)));
    return least(tokens, least(PASS_TOKENS, fitting));
}

}  // namespace

int32_t kt_experts(const kt_bank *bank, const void *hidden, int32_t dtype, int64_t tokens, const int64_t *index,
                   int64_t slots, const float *weights, int32_t arithmetic, void *out) {
    const Call call;
    const kt_unit *unit = kt_active_unit();
    Pass pass = {};
    Layer &layer = pass.layer;
    layer.bank = bank;
    layer.unit = unit;
    layer.gate = weights_of(unit, bank->gate, arithmetic);
    layer.up = weights_of(unit, bank->up, arithmetic);
    layer.down = weights_of(unit, bank->down, arithmetic);
    layer.hidden = {hidden, dtype, bank->hidden};
    layer.index = index;
    layer.slots = slots;
    layer.weights = weights;
    layer.out = static_cast<uint8_t *>(out);
    layer.threads = call.threads();
    if (!has_kernels(layer)) return KT_NO_KERNEL;
    if (!sizes_fit(layer, tokens)) return KT_WRONG_SIZE;
    for (int64_t i = 0; i < tokens * slots; i++) {
        if (index[i] < 0 || index[i] > bank->experts) return KT_OUT_OF_RANGE;
    }
    if (tokens == 0) return KT_OK;

    const int64_t step = pass_tokens(layer, tokens);
    if (!prepare(pass, step)) return KT_NO_MEMORY;
    for (pass.first = 0; pass.first < tokens; pass.first += step) {
        pass.count = least(step, tokens - pass.first);
        run_pass(pass);
    }
    return KT_OK;
}
