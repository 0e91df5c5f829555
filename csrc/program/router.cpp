// kt_route and kt_gate: which experts compute a token, with which weights, and how much of a shared one counts.
//
// Products and the parts of a softmax are the units'; what is behind them is compiled once. A token is computed at a time, so
// that nothing depends on the instruction set, the threads or the other rows. csrc/cpu/README.md has the order of sums.
#include "router.h"

#include <stdlib.h>

#include "../cpu/contract.h"
#include "../cpu/detect.h"
#include "../cpu/linear.h"
#include "../cpu/product.h"

namespace {

// Tokens whose scores are in memory at once, and tokens that one thread takes at a time.
constexpr int64_t PASS_TOKENS = 256;
constexpr int64_t ITEM_TOKENS = 8;
// Added to the sum that sigmoid scores are divided by, as DeepSeek-V3 does.
constexpr float LEAST_SUM = 1e-20f;

// Temporaries, by token.
struct Room {
    float *scores, *ranks;  // [E]: act(logits), and what experts are compared by
    float *groups;          // [G]
    uint8_t *closed;        // [E]: not to be chosen (any more)
    uint8_t *closed_groups; // [G]
};

struct Pass {
    const kt_unit *unit;
    const kt_router *router;
    int64_t count;
    float *logits;
    Room room;
    int64_t *index;
    float *weights;

    int64_t experts() const { return router->weights.rows; }
    Room at(int64_t token) const {
        const int64_t e = token * experts(), g = token * router->groups;
        return {room.scores + e, room.ranks + e, room.groups + g, room.closed + e, room.closed_groups + g};
    }
};

// Number i goes to lane i mod 16, ascending; then the lanes as a tree, as at the end of a dot of floats.
float sum_of(const float *x, int64_t count) {
    float lane[16] = {};
    for (int64_t i = 0; i < count; i++) lane[i % 16] += x[i];
    return sum_lanes(lane);
}

void softmax(const kt_unit &unit, float *x, int64_t count) {
    const float sum = unit.exponentials(x, count, unit.largest(x, count));
    for (int64_t i = 0; i < count; i++) x[i] /= sum;
}

// A NaN is worse than all numbers, so that there always is a best one.
bool better(float a, float b) { return a > b || (b != b && a == a); }

// The best one that is not closed, the first among equals; -1 when all are closed.
int64_t best_of(const float *ranks, const uint8_t *closed, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (!closed[i] && (best < 0 || better(ranks[i], ranks[best]))) best = i;
    }
    return best;
}

// The sum of the best `some` ranks of a group, best first.
float group_rank(const float *ranks, uint8_t *closed, int64_t size, int64_t some) {
    float sum = 0.0f;
    for (int64_t n = 0; n < some; n++) {
        const int64_t best = best_of(ranks, closed, size);
        sum += ranks[best];
        closed[best] = 1;
    }
    memset(closed, 0, (size_t)size);
    return sum;
}

// Close the experts of all groups but the best ones.
void keep_groups(const kt_router &router, const Room &room) {
    const int64_t size = router.weights.rows / router.groups;
    for (int64_t g = 0; g < router.groups; g++) {
        room.groups[g] = group_rank(room.ranks + g * size, room.closed + g * size, size, router.group_best);
    }
    memset(room.closed, 1, (size_t)router.weights.rows);
    for (int32_t n = 0; n < router.groups_kept; n++) {
        const int64_t best = best_of(room.groups, room.closed_groups, router.groups);
        room.closed_groups[best] = 1;
        memset(room.closed + best * size, 0, (size_t)size);
    }
}

void score(const kt_unit &unit, const kt_router &router, const float *logits, const Room &room) {
    const int64_t experts = router.weights.rows;
    memcpy(room.scores, logits, (size_t)experts * sizeof *logits);
    if (router.scores == KT_SOFTMAX_ALL) softmax(unit, room.scores, experts);
    if (router.scores == KT_SIGMOID) unit.logistic(room.scores, experts);
    for (int64_t e = 0; e < experts; e++) {
        room.ranks[e] = router.correction ? room.scores[e] + router.correction[e] : room.scores[e];
    }
}

void choose(const Pass &pass, int64_t token) {
    const kt_router &router = *pass.router;
    const Room room = pass.at(token);
    int64_t *index = pass.index + token * router.chosen;
    float *weights = pass.weights + token * router.chosen;
    score(*pass.unit, router, pass.logits + token * pass.experts(), room);
    memset(room.closed, 0, (size_t)pass.experts());
    memset(room.closed_groups, 0, (size_t)router.groups);
    if (router.groups > 1) keep_groups(router, room);
    for (int64_t k = 0; k < router.chosen; k++) {
        index[k] = best_of(room.ranks, room.closed, pass.experts());
        room.closed[index[k]] = 1;
        weights[k] = room.scores[index[k]];
    }
    if (router.scores == KT_SOFTMAX_CHOSEN) softmax(*pass.unit, weights, router.chosen);
    float sum = router.normalise ? sum_of(weights, router.chosen) : 1.0f;
    if (router.normalise && router.scores == KT_SIGMOID) sum += LEAST_SUM;
    for (int64_t k = 0; k < router.chosen; k++) weights[k] = weights[k] / sum * router.scaling;
}

void choose_item(void *context, int64_t item, int) {
    const Pass &pass = *static_cast<const Pass *>(context);
    const int64_t end = least((item + 1) * ITEM_TOKENS, pass.count);
    for (int64_t token = item * ITEM_TOKENS; token < end; token++) choose(pass, token);
}

int32_t check(const kt_router &router, int64_t tokens) {
    const kt_matrix &matrix = router.weights;
    const bool plain = matrix.type == KT_F32 || matrix.type == KT_F16 || matrix.type == KT_BF16;
    if (!plain || router.scores < KT_SOFTMAX_ALL || router.scores > KT_SIGMOID) return KT_NO_KERNEL;
    const bool grouped = router.groups >= 1 && matrix.rows % router.groups == 0 && router.groups_kept >= 1 &&
                         router.groups_kept <= router.groups && router.group_best >= 1;
    if (!kt_sound(matrix) || !kt_counts(tokens) || matrix.rows < 1 || !grouped) return KT_WRONG_SIZE;
    const int64_t size = matrix.rows / router.groups, open = router.groups > 1 ? router.groups_kept * size : matrix.rows;
    const bool fits = router.chosen >= 1 && router.chosen <= open && router.group_best <= size;
    return fits ? KT_OK : KT_WRONG_SIZE;
}

struct Gate {
    const kt_unit *unit;
    const float *x, *scores;
    int64_t width;
    float *out;
};

void gate_item(void *context, int64_t token, int) {
    const Gate &gate = *static_cast<const Gate *>(context);
    const float *x = gate.x + token * gate.width;
    float share = gate.scores[token];
    gate.unit->logistic(&share, 1);
    float *out = gate.out + token * gate.width;
    for (int64_t i = 0; i < gate.width; i++) out[i] = x[i] * share;
}

}  // namespace

int32_t kt_route_rows(const Call &call, const kt_router &router, const float *hidden, int64_t tokens, int64_t *index,
                      float *weights, float *logits) {
    const int32_t status = check(router, tokens);
    if (status != KT_OK || tokens == 0) return status;
    const int64_t experts = router.weights.rows, groups = router.groups, most_tokens = least(tokens, PASS_TOKENS);
    const int64_t floats = most_tokens * (3 * experts + groups), bytes = most_tokens * (experts + groups);
    float *memory = static_cast<float *>(malloc((size_t)floats * sizeof(float) + (size_t)bytes));
    if (memory == nullptr) return KT_NO_MEMORY;
    float *own = memory, *scores = own + most_tokens * experts, *ranks = scores + most_tokens * experts;
    float *ranked_groups = ranks + most_tokens * experts;
    uint8_t *closed = reinterpret_cast<uint8_t *>(memory + floats);
    const Room room = {scores, ranks, ranked_groups, closed, closed + most_tokens * experts};
    Pass pass = {kt_active_unit(), &router, 0, own, room, index, weights};

    int32_t done = KT_OK;
    for (int64_t first = 0; first < tokens && done == KT_OK; first += most_tokens) {
        pass.count = least(most_tokens, tokens - first);
        if (logits != nullptr) pass.logits = logits + first * experts;
        pass.index = index + first * router.chosen;
        pass.weights = weights + first * router.chosen;
        done = kt_multiply(call, &router.weights, hidden + first * router.weights.columns, KT_F32, pass.count, router.bias,
                           KT_FLOAT32, pass.logits);
        if (done == KT_OK) kt_run(choose_item, &pass, ceil_div(pass.count, ITEM_TOKENS));
    }
    free(memory);
    return done;
}

int32_t kt_gate_rows(const Call &, const float *x, const float *scores, int64_t tokens, int64_t width, float *out) {
    if (!kt_counts(tokens) || !kt_counts(width)) return KT_WRONG_SIZE;
    Gate gate = {kt_active_unit(), x, scores, width, out};
    kt_run(gate_item, &gate, tokens);
    return KT_OK;
}

int32_t kt_route(const kt_router *router, const float *hidden, int64_t tokens, int64_t *index, float *weights,
                 float *logits) {
    const Call call;
    return kt_route_rows(call, *router, hidden, tokens, index, weights, logits);
}

int32_t kt_gate(const float *x, const float *scores, int64_t tokens, int64_t width, float *out) {
    const Call call;
    return kt_gate_rows(call, x, scores, tokens, width, out);
}
