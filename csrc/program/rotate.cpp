// kt_rotate: pairs of numbers turned by an angle, (a, b) to (a cos - b sin, b cos + a sin).
//
// Each product and each sum is rounded, as in torch's x * cos + rotate_half(x) * sin, so that the bits are those of stock
// models; there is nothing to fuse and no need for a unit.
#include <string.h>

#include "../cpu/product.h"
#include "parts.h"

namespace {

// The widest turned part of a head.
constexpr int64_t MOST_TURNED = 1024;

struct TurnJob {
    const kt_rotation *rotation;
    float *x;
    int64_t tokens, heads, per_item;
    const float *table;
};

void turn_halves(float *__restrict first, float *__restrict second, int64_t half, const float *__restrict cosine,
                 const float *__restrict sine) {
    for (int64_t i = 0; i < half; i++) {
        const float a = first[i], b = second[i];
        first[i] = a * cosine[i] - b * sine[i];
        second[i] = b * cosine[i] + a * sine[i];
    }
}

void turn_neighbours(float *x, int64_t half, const float *cosine, const float *sine) {
    for (int64_t i = 0; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
}

// Number i of each half goes where a pair's numbers lie, or comes from there.
void gather_halves(const float *x, int64_t half, float *out) {
    for (int64_t i = 0; i < half; i++) {
        out[i] = x[2 * i];
        out[half + i] = x[2 * i + 1];
    }
}

void gather_neighbours(const float *x, int64_t half, float *out) {
    for (int64_t i = 0; i < half; i++) {
        out[2 * i] = x[i];
        out[2 * i + 1] = x[half + i];
    }
}

void turn_head(const kt_rotation &rotation, float *x, const float *table) {
    const int64_t half = rotation.turned / 2;
    float moved[MOST_TURNED];
    if (rotation.in == KT_NEIGHBOURS && rotation.out == KT_NEIGHBOURS) {
        turn_neighbours(x, half, table, table + half);
        return;
    }
    if (rotation.in == KT_NEIGHBOURS) {
        gather_halves(x, half, moved);
        memcpy(x, moved, (size_t)rotation.turned * sizeof *x);
    }
    turn_halves(x, x + half, half, table, table + half);
    if (rotation.out == KT_NEIGHBOURS) {
        gather_neighbours(x, half, moved);
        memcpy(x, moved, (size_t)rotation.turned * sizeof *x);
    }
}

void turn_item(void *context, int64_t item, int) {
    const TurnJob &job = *static_cast<const TurnJob *>(context);
    const kt_rotation &rotation = *job.rotation;
    const int64_t end = least((item + 1) * job.per_item, job.tokens * job.heads);
    for (int64_t m = item * job.per_item; m < end; m++) {
        const float *row = job.table + m / job.heads * rotation.turned;
        turn_head(rotation, job.x + m * rotation.width + rotation.first, row);
    }
}

bool sound(const kt_rotation &rotation) {
    const int64_t turned = rotation.turned;
    const bool paired = (rotation.in == KT_HALVES || rotation.in == KT_NEIGHBOURS) &&
                        (rotation.out == KT_HALVES || rotation.out == KT_NEIGHBOURS);
    return paired && kt_counts(rotation.width) && turned >= 0 && turned <= MOST_TURNED && turned % 2 == 0 &&
           rotation.first >= 0 && rotation.first <= rotation.width - turned;
}

}  // namespace

int32_t kt_turn(const Call &, const kt_rotation *rotation, float *x, int64_t tokens, int64_t heads,
                const float *table) {
    if (!sound(*rotation) || !kt_counts(tokens) || !kt_counts(heads)) return KT_WRONG_SIZE;
    if (rotation->turned == 0) return KT_OK;
    TurnJob job = {rotation, x, tokens, heads, most(1, KT_EASY_NUMBERS / rotation->turned), table};
    kt_run(turn_item, &job, ceil_div(tokens * heads, job.per_item));
    return KT_OK;
}

int32_t kt_rotate(const kt_rotation *rotation, float *x, int64_t tokens, int64_t heads, const float *table) {
    const Call call;
    return kt_turn(call, rotation, x, tokens, heads, table);
}
