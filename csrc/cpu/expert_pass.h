// The routed experts of one layer over a few hundred tokens, group after group, in any order of the groups.
//
// In a pass the (token, slot) pairs are sorted by expert, so that each expert's weights are read once for all of its
// tokens; every pair keeps its result in its own place, and a token adds its results up in the order of its slots. So
// nothing depends on which tokens share a pass, nor on which expert comes first.
#pragma once

#include "ktitan_cpu.h"
#include "product.h"

// Where the matrices of one expert begin; gate is null where there is none.
struct ExpertData {
    const uint8_t *gate, *up, *down;
};

// The pairs of one expert: [start, start + count) in sorted order.
struct Group {
    int64_t expert, start, count;
    ExpertData data;  // to be set before the group is computed
};

// A call's arguments, and what they fix for all passes. The matrices of `gate`, `up` and `down` give one expert's shape; their
// data is not used. `gated` without gate: the activation acts on up.
struct ExpertLayer {
    const kt_unit *unit;
    Weights gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;
    int64_t experts, wide, inner;
    int32_t activation;
    Plain hidden;
    const int64_t *index;
    int64_t slots;
    const float *weights;
    uint8_t *out;
    int threads;

    bool gated() const { return gate.matrix != nullptr; }
    // KT_OK, or what is wrong with the sizes and types for `tokens` tokens.
    int32_t check(int64_t tokens) const;
    // Tokens of one pass, where another pass costs nothing but reading weights from RAM.
    int64_t pass_tokens(int64_t tokens) const;
    // Pairs whose inner numbers are in memory at once, of a pass with `pairs`.
    int64_t batch_pairs(int64_t pairs) const;
};

// Pairs [from, from + count) of a group in a batch; `at`: where their inner numbers are.
struct Part {
    int64_t group, from, count, at;
};

Weights kt_weights_of(const kt_unit *unit, const kt_matrix *matrix, int32_t arithmetic);

// prepare once, then for each pass: begin, compute all groups in any batches, finish.
class ExpertPass {
public:
    explicit ExpertPass(const ExpertLayer &of) : layer(of) {}

    // Lay out the temporaries for passes of at most `tokens` tokens, and `extra_bytes` for the caller; false when there is
    // no memory.
    bool prepare(int64_t tokens, int64_t extra_bytes = 0);
    void *extra() const { return callers; }
    // Sort the pairs of tokens [first, first + count) and quantise their rows.
    void begin(int64_t first, int64_t count);
    // Compute the groups with these numbers, or all of them.
    void compute(const int64_t *numbers, int64_t some);
    void compute_all();
    void finish();

    Group *groups = nullptr;
    int64_t group_count = 0;

private:
    void sort_pairs();
    void pick_rows();
    void fill_token(int64_t token, int thread);
    void first_products(const Part &part, int64_t row, int64_t rows, int thread);
    void second_product(const Part &part, int64_t row, int64_t rows, int thread);
    void add_up(int64_t token, int thread);
    void add_to_batch(int64_t group);
    void compute_batch();
    Picked picked(Form form, const Part &part) const;

    // Steps as jobs of the thread pool.
    typedef void (*Task)(void *context, int64_t item, int thread);
    static void fill_tokens_item(void *context, int64_t item, int thread);
    static void first_products_item(void *context, int64_t item, int thread);
    static void fill_inner_item(void *context, int64_t item, int thread);
    static void second_product_item(void *context, int64_t item, int thread);
    static void add_up_item(void *context, int64_t item, int thread);
    template <class Step> void each_row(int64_t item, int64_t rows, Step step) const;
    void run_rows(Task task, int64_t rows, int64_t width);
    void run_products(Task task, int64_t rows, int64_t row_bytes);

    ExpertLayer layer;
    int64_t first = 0, count = 0, pairs = 0;
    void *callers = nullptr;
    Operands tokens;  // hidden, by token
    Operands inner;   // act(gate) * up, by place in the batch
    // Arrays by pair are in sorted order.
    int64_t *order = nullptr;     // by pair: token * slots + slot
    int64_t *position = nullptr;  // by token * slots + slot: its pair, -1 for one that is left out
    int64_t *starts = nullptr;    // by expert
    Part *batch = nullptr;
    int64_t batch_count = 0, batch_room = 0, batch_fill = 0;  // parts; pairs that fit, and that are there
    kt_row *picked_rows[FORMS] = {};  // by pair: the token's row
    const float **picked_wide = nullptr;
    float *gates = nullptr, *ups = nullptr;  // [pairs of a batch, I]
    float *results = nullptr;                // [pairs, H]
    float *rooms = nullptr, *scratches = nullptr;  // for each thread: a row of H numbers, scratch of the products
    int64_t scratch = 0;
    int64_t per_item = 0, piece = 0, pieces = 0;  // rows of an item of a row-wise step; weight rows of an item of a product
};
