#include "predict.h"

#include <stdlib.h>

#include "../cpu/detect.h"
#include "../cpu/product.h"
#include "../cpu/threads.h"

namespace {

// Weights that one thread takes at a time; fewer are not worth waking a second thread for.
constexpr int64_t ITEM_NUMBERS = 64 << 10;
constexpr float LEFT_OUT = -__builtin_inff();
// Below this a number is as good as this one for the logistic function.
constexpr float LEAST = 1e-6f;

struct Product {
    const kt_unit *unit;
    const kt_predictor *predictor;
    const float *x;
    float *scores;
    int64_t per_item;

    static void item(void *context, int64_t item, int) {
        const Product &my = *static_cast<Product *>(context);
        const kt_predictor &router = *my.predictor;
        const int64_t width = router.dtype == KT_F32 ? sizeof(float) : sizeof(uint16_t);
        const int64_t first = item * my.per_item, rows = least(my.per_item, router.experts - first);
        const uint8_t *weights = static_cast<const uint8_t *>(router.router) + first * router.hidden * width;
        my.unit->float_product[router.dtype](weights, (size_t)(router.hidden * width), rows, router.hidden, &my.x, 1,
                                             my.scores + first, router.experts);
    }
};

bool all_right(const kt_predictor &router, int64_t tokens, int64_t most) {
    const bool counts = kt_counts(router.experts) && kt_counts(router.hidden) && kt_counts(tokens) && router.experts > 0;
    const bool groups = router.groups >= 1 && router.experts % router.groups == 0 && router.groups_kept >= 1 &&
                        router.groups_kept <= router.groups && router.group_best >= 1 &&
                        router.group_best <= router.experts / router.groups;
    return counts && groups && most >= 1 && most <= router.experts && router.router != nullptr;
}

// The index of the best of `count` scores, the first among equals; -1 when all are left out.
int64_t best_of(const float *scores, int64_t count) {
    int64_t best = -1;
    for (int64_t i = 0; i < count; i++) {
        if (scores[i] > (best < 0 ? LEFT_OUT : scores[best])) best = i;
    }
    return best;
}

// Sum of the best scores of a group; `spare` has room for them.
float group_score(const float *scores, int64_t size, int32_t best, float *spare) {
    float sum = 0;
    for (int64_t i = 0; i < size; i++) spare[i] = scores[i];
    for (int32_t n = 0; n < best; n++) {
        const int64_t at = best_of(spare, size);
        if (at < 0) break;
        sum += spare[at];
        spare[at] = LEFT_OUT;
    }
    return sum;
}

// Leave out the experts of all groups but the best ones.
void keep_groups(const kt_predictor &router, float *scores, float *groups, float *spare) {
    const int64_t size = router.experts / router.groups;
    for (int32_t g = 0; g < router.groups; g++) groups[g] = group_score(scores + g * size, size, router.group_best, spare);
    for (int32_t left = router.groups - router.groups_kept; left > 0; left--) {
        int32_t worst = -1;
        // The last among equals, as the first one stays.
        for (int32_t g = 0; g < router.groups; g++) {
            if (groups[g] == groups[g] && (worst < 0 || groups[g] <= groups[worst])) worst = g;
        }
        if (worst < 0) return;
        groups[worst] = __builtin_nanf("");
        for (int64_t i = 0; i < size; i++) scores[worst * size + i] = LEFT_OUT;
    }
}

// The logistic function as silu(x) / x: the units have silu. `spare` has room for `count` numbers.
void logistic(const kt_unit &unit, float *x, int64_t count, float *spare) {
    for (int64_t i = 0; i < count; i++) {
        if (x[i] < LEAST && x[i] > -LEAST) x[i] = LEAST;
        spare[i] = 1 / x[i];
    }
    unit.activate(KT_SILU, x, spare, count);
}

void score(const kt_unit &unit, const kt_predictor &router, float *scores, float *spare) {
    for (int64_t e = 0; e < router.experts && router.bias; e++) scores[e] += router.bias[e];
    if (router.sigmoid) logistic(unit, scores, router.experts, spare);
    for (int64_t e = 0; e < router.experts && router.correction; e++) scores[e] += router.correction[e];
}

}  // namespace

Foresight::~Foresight() { free(memory); }

bool Foresight::reserve(int64_t numbers) {
    if (numbers <= room) return true;
    float *grown = static_cast<float *>(realloc(memory, (size_t)numbers * sizeof *grown));
    if (grown == nullptr) return false;
    memory = grown;
    room = numbers;
    return true;
}

int32_t Foresight::predict(const kt_predictor &router, const void *hidden, int32_t dtype, int64_t tokens, int64_t most,
                           int64_t *experts) {
    const kt_unit *unit = kt_active_unit();
    const Plain rows = {hidden, dtype, router.hidden};
    if (router.dtype < 0 || router.dtype >= KT_TYPES || !unit->float_product[router.dtype] || !rows.known()) return KT_NO_KERNEL;
    if (!all_right(router, tokens, most)) return KT_WRONG_SIZE;
    if (!reserve(2 * router.hidden + 2 * router.experts + router.groups)) return KT_NO_MEMORY;
    float *x = memory, *space = x + router.hidden, *scores = space + router.hidden;
    float *spare = scores + router.experts, *groups = spare + router.experts;
    const int64_t per_item = ceil_div(ITEM_NUMBERS, router.hidden + 1);
    for (int64_t t = 0; t < tokens; t++) {
        const float *row = kt_read_row(*unit, rows, t, space);
        for (int64_t i = 0; i < router.hidden; i++) x[i] = router.scale ? row[i] * router.scale[i] : row[i];
        Product product = {unit, &router, x, scores, per_item};
        kt_run(Product::item, &product, ceil_div(router.experts, per_item));
        score(*unit, router, scores, spare);
        if (router.groups > 1) keep_groups(router, scores, groups, spare);
        for (int64_t n = 0; n < most; n++) {
            const int64_t best = best_of(scores, router.experts);
            experts[t * most + n] = best;
            if (best >= 0) scores[best] = LEFT_OUT;
        }
    }
    return KT_OK;
}

int32_t kt_predict(const kt_predictor *predictor, const void *hidden, int32_t dtype, int64_t tokens, int64_t most,
                   int64_t *experts) {
    const Call call;
    Foresight foresight;
    return foresight.predict(*predictor, hidden, dtype, tokens, most, experts);
}
