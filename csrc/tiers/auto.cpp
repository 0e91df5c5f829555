#include "auto.h"

#include <stdlib.h>

namespace {

// Plain frequency is no candidate: it is the decayed one without an end, and does not follow a change of subject.
constexpr int32_t CANDIDATES[] = {KT_LRU, KT_SLRU, KT_DECAYED_LFU, KT_SEQUENCE_LFU, KT_ADMITTING, KT_PINNED};
constexpr int COUNT = sizeof CANDIDATES / sizeof *CANDIDATES;
// Policies are compared after so many demands, ...
constexpr int64_t WINDOW = 1024;
// ... by the hits of this window and of the ones before, which count 1/32 less with each window. Another one is taken when the
// square of its lead is above the demands: two standard deviations of what equal policies differ by, where a fifth of the
// demands is hit by one alone.
constexpr int64_t FADING = 32;

template <class T> T *zeros(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

}  // namespace

struct kt_auto {
    kt_residency *shadows[COUNT];
    int64_t hits[COUNT], past_hits[COUNT];  // of this window, and of those before
    int64_t demands, past_demands;
    int64_t *firsts;  // record of expert 0 of each layer; at the end the number of records
    int64_t *held, *absent;  // while a demand is looked at: records, and numbers of those that were not there
    kt_move *moves;
    int64_t layers, pins;
    int32_t policy;

    bool is_candidate(int which) const { return CANDIDATES[which] != KT_PINNED || pins > 0; }
};

namespace {

// Below a third of a token's demand no policy works, up to it frequency does with admission, above it alone
// (as measured by colibri, JustVugg/colibri issue 223).
int32_t first_policy(int64_t slots, int64_t demand) {
    if (3 * slots < demand) return KT_LRU;
    return slots <= demand ? KT_ADMITTING : KT_DECAYED_LFU;
}

int64_t sum_of(const int64_t *numbers, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = 0; i < count; i++) sum += numbers[i];
    return sum;
}

bool make_shadows(kt_auto *made, const kt_auto_spec *spec) {
    const int64_t records = made->firsts[spec->layers], slots = sum_of(spec->layer_slots, spec->layers) + spec->spares;
    int32_t *pools = zeros<int32_t>(records), *domains = zeros<int32_t>(records);
    bool good = pools && domains;
    for (int64_t layer = 0; layer < spec->layers && good; layer++) {
        for (int64_t id = made->firsts[layer]; id < made->firsts[layer + 1]; id++) domains[id] = (int32_t)layer;
    }
    kt_residency_spec what = {};
    what.pool_slots = &slots;
    what.pool_spares = &spec->spares;
    what.record_pool = pools;
    what.record_domain = domains;
    what.domain_slots = spec->layer_slots;
    what.records = records;
    what.pools = 1;
    what.domains = (int32_t)spec->layers;
    what.growth = spec->growth;
    for (int i = 0; i < COUNT && good; i++) {
        what.policy = CANDIDATES[i];
        made->shadows[i] = kt_residency_create(&what);
        good = made->shadows[i] != nullptr;
    }
    free(pools);
    free(domains);
    return good;
}

void forget(kt_auto *choice) {
    for (int i = 0; i < COUNT; i++) choice->hits[i] = choice->past_hits[i] = 0;
    choice->demands = choice->past_demands = 0;
}

// What is there is held first, then what is not, as far as there is room; the one held longest makes room for the next one.
int64_t hits_of(kt_auto *choice, kt_residency *shadow, int64_t first, const int64_t *experts, const int64_t *tokens,
                int64_t count) {
    int64_t absent = 0, released = 0, queued = 0;
    kt_placed placed;
    for (int64_t i = 0; i < count; i++) {
        if (!kt_residency_has(shadow, first + experts[i])) {
            choice->absent[absent++] = i;
            continue;
        }
        kt_residency_acquire(shadow, first + experts[i], tokens[i], &placed);
        choice->held[queued++] = first + experts[i];
    }
    const int64_t hits = queued;
    for (int64_t k = 0; k < absent; k++) {
        const int64_t i = choice->absent[k], id = first + experts[i];
        while (kt_residency_acquire(shadow, id, tokens[i], &placed) == KT_FULL) {
            kt_residency_release(shadow, choice->held[released++]);
        }
        kt_residency_loaded(shadow, id);
        choice->held[queued++] = id;
    }
    for (; released < queued; released++) kt_residency_release(shadow, choice->held[released]);
    return hits;
}

void compare(kt_auto *choice) {
    int best = 0, now = 0;
    for (int i = 0; i < COUNT; i++) {
        choice->past_hits[i] += choice->hits[i] - choice->past_hits[i] / FADING;
        choice->hits[i] = 0;
        if (CANDIDATES[i] == choice->policy) now = i;
    }
    choice->past_demands += choice->demands - choice->past_demands / FADING;
    choice->demands = 0;
    for (int i = 0; i < COUNT; i++) {
        if (choice->is_candidate(i) && choice->past_hits[i] > choice->past_hits[best]) best = i;
    }
    const int64_t lead = choice->past_hits[best] - choice->past_hits[now];
    if (lead * lead > choice->past_demands) choice->policy = CANDIDATES[best];
}

}  // namespace

kt_auto *kt_auto_create(const kt_auto_spec *spec) {
    if (spec->layers < 1 || spec->layers > INT32_MAX || spec->chosen < 1 || spec->spares < 0) return nullptr;
    for (int64_t layer = 0; layer < spec->layers; layer++) {
        if (spec->layer_records[layer] < 1 || spec->layer_slots[layer] < 1) return nullptr;
    }
    kt_auto *made = zeros<kt_auto>(1);
    if (!made) return nullptr;
    made->layers = spec->layers;
    made->firsts = zeros<int64_t>(spec->layers);
    bool good = made->firsts != nullptr;
    for (int64_t layer = 0; layer < spec->layers && good; layer++) {
        made->firsts[layer + 1] = made->firsts[layer] + spec->layer_records[layer];
    }
    made->held = good ? zeros<int64_t>(made->firsts[spec->layers]) : nullptr;
    made->absent = good ? zeros<int64_t>(made->firsts[spec->layers]) : nullptr;
    made->moves = good ? zeros<kt_move>(made->firsts[spec->layers]) : nullptr;
    if (!made->held || !made->absent || !made->moves || !make_shadows(made, spec)) {
        kt_auto_destroy(made);
        return nullptr;
    }
    const int64_t slots = sum_of(spec->layer_slots, spec->layers) + spec->spares;
    made->policy = first_policy(slots, spec->layers * spec->chosen);
    return made;
}

void kt_auto_destroy(kt_auto *choice) {
    if (!choice) return;
    for (kt_residency *shadow : choice->shadows) kt_residency_destroy(shadow);
    free(choice->firsts);
    free(choice->held);
    free(choice->absent);
    free(choice->moves);
    free(choice);
}

void kt_auto_step(kt_auto *choice, int64_t tokens) {
    for (kt_residency *shadow : choice->shadows) kt_residency_step(shadow, tokens);
}

void kt_auto_sequence(kt_auto *choice) {
    for (kt_residency *shadow : choice->shadows) kt_residency_sequence(shadow);
}

void kt_auto_demand(kt_auto *choice, int64_t layer, const int64_t *experts, const int64_t *tokens, int64_t count) {
    const int64_t first = choice->firsts[layer];
    for (int i = 0; i < COUNT; i++) {
        if (!choice->is_candidate(i)) continue;
        choice->hits[i] += hits_of(choice, choice->shadows[i], first, experts, tokens, count);
    }
    choice->demands += count;
    if (choice->demands >= WINDOW) compare(choice);
}

void kt_auto_seed(kt_auto *choice, int64_t layer, int64_t expert, double tokens, bool pinned) {
    const int64_t id = choice->firsts[layer] + expert;
    const bool before = kt_residency_pinned(choice->shadows[0], id);
    for (kt_residency *shadow : choice->shadows) {
        kt_residency_seed(shadow, id, tokens);
        kt_residency_pin(shadow, id, pinned);
    }
    choice->pins += kt_residency_pinned(choice->shadows[0], id) - before;
    forget(choice);
}

bool kt_auto_resize(kt_auto *choice, const int64_t *layer_slots, int64_t spares) {
    const int64_t slots = sum_of(layer_slots, choice->layers) + spares;
    for (kt_residency *shadow : choice->shadows) {
        if (kt_residency_resize(shadow, &slots, &spares, layer_slots, choice->moves) < 0) return false;
    }
    choice->pins = 0;
    if (choice->policy == KT_PINNED) choice->policy = KT_ADMITTING;
    forget(choice);
    return true;
}

int32_t kt_auto_policy(const kt_auto *choice) { return choice->policy; }

void kt_auto_rates(const kt_auto *choice, double *rates) {
    for (int32_t policy = 0; policy < KT_POLICIES; policy++) rates[policy] = -1;
    for (int i = 0; i < COUNT && choice->past_demands > 0; i++) {
        if (choice->is_candidate(i)) rates[CANDIDATES[i]] = (double)choice->past_hits[i] / (double)choice->past_demands;
    }
}
