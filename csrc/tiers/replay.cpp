#include "replay.h"

#include <stdlib.h>

#include "auto.h"

namespace {

// One layer's call for one token's experts, as Streamed in stream_experts.cpp makes it.
class Demand {
public:
    Demand(kt_residency *its, int64_t chosen, int64_t *room) : residency(its), held(room), count(chosen) {}

    // `first` is the record of expert 0; hit [chosen]. Returns demands that were not admitted.
    int64_t run(const uint16_t *experts, int64_t first, uint8_t *hit) {
        queued = next = passed = 0;
        for (int64_t k = 0; k < count; k++) hit[k] = kt_residency_has(residency, first + experts[k]);
        for (int64_t k = 0; k < count; k++) {
            if (hit[k]) hold(first + experts[k]);
        }
        hold_misses(experts, first, hit);
        for (int64_t released = 0; released < queued; released++) {
            kt_residency_loaded(residency, held[released]);
            kt_residency_release(residency, held[released]);
            hold_misses(experts, first, hit);
        }
        return passed;
    }

private:
    bool hold(int64_t record) {
        kt_placed placed;
        if (kt_residency_acquire(residency, record, 1, &placed) == KT_FULL) return false;
        held[queued++] = record;
        passed += placed.guest;
        return true;
    }

    void hold_misses(const uint16_t *experts, int64_t first, const uint8_t *hit) {
        for (; next < count; next++) {
            if (!hit[next] && !hold(first + experts[next])) return;
        }
    }

    kt_residency *residency;
    int64_t *held;  // records in the order of holding
    int64_t count, queued = 0, next = 0, passed = 0;
};

// Layers that the automatic choice looks at: these, spread over all of them.
constexpr int64_t MOST_LOOKED_AT = 8;

// kt_auto for a trace, as the store has it: a share of the slots for each layer that is looked at.
class Choice {
public:
    explicit Choice(const kt_replay_spec *of) : spec(of) {}
    ~Choice() {
        kt_auto_destroy(choice);
        free(room);
    }

    bool prepare() {
        const int64_t layers = looked_at();
        room = static_cast<int64_t *>(calloc((size_t)(2 * layers + 2 * spec->chosen + 1), sizeof(int64_t)));
        if (!room) return false;
        int64_t *records = room, *slots = room + layers;
        for (int64_t i = 0; i < layers; i++) {
            records[i] = spec->experts;
            slots[i] = share_of(i * spec->layers / layers);
        }
        const int64_t spares = spec->spares * layers / spec->layers;
        const kt_auto_spec what = {records, slots, layers, spares, spec->chosen, spec->growth};
        choice = kt_auto_create(&what);
        return choice != nullptr;
    }
    void step() { kt_auto_step(choice, 1); }
    void sequence() { kt_auto_sequence(choice); }
    int32_t policy() const { return kt_auto_policy(choice); }
    void demand(int64_t layer, const uint16_t *experts) {
        const int64_t layers = looked_at(), number = (layer * layers + spec->layers - 1) / spec->layers;
        if (number >= layers || number * spec->layers / layers != layer) return;
        int64_t *wanted = room + 2 * layers, *tokens = wanted + spec->chosen;
        for (int64_t k = 0; k < spec->chosen; k++) {
            wanted[k] = experts[k];
            tokens[k] = 1;
        }
        kt_auto_demand(choice, number, wanted, tokens, spec->chosen);
    }

private:
    int64_t looked_at() const { return spec->layers < MOST_LOOKED_AT ? spec->layers : MOST_LOOKED_AT; }
    // A layer's part of its domain's slots.
    int64_t share_of(int64_t layer) const {
        const int32_t domain = spec->record_domain[layer * spec->experts];
        int64_t sharing = 0;
        for (int64_t l = 0; l < spec->layers; l++) sharing += spec->record_domain[l * spec->experts] == domain;
        const int64_t share = spec->domain_slots[domain] / sharing;
        return share > 0 ? share : 1;
    }

    const kt_replay_spec *spec;
    kt_auto *choice = nullptr;
    int64_t *room = nullptr;
};

kt_residency *residency_of(const kt_replay_spec *spec) {
    const int64_t records = spec->layers * spec->experts;
    int32_t *pools = static_cast<int32_t *>(calloc((size_t)records + 1, sizeof(int32_t)));
    int64_t slots = spec->spares;
    for (int64_t d = 0; d < spec->domains; d++) slots += spec->domain_slots[d];
    kt_residency_spec what = {};
    what.pool_slots = &slots;
    what.pool_spares = &spec->spares;
    what.record_pool = pools;
    what.record_domain = spec->record_domain;
    what.domain_slots = spec->domain_slots;
    what.records = records;
    what.pools = 1;
    what.domains = (int32_t)spec->domains;
    what.policy = spec->policy < 0 ? (int32_t)KT_LRU : spec->policy;
    what.growth = spec->growth;
    kt_residency *made = pools ? kt_residency_create(&what) : nullptr;
    free(pools);
    return made;
}

}  // namespace

int64_t kt_replay(const kt_replay_spec *spec, uint8_t *hit, int8_t *policies) {
    kt_residency *residency = residency_of(spec);
    int64_t *room = static_cast<int64_t *>(calloc((size_t)spec->chosen + 1, sizeof(int64_t)));
    const bool chooses = spec->policy < 0;
    Choice choice(spec);
    int64_t passed = residency && room && (!chooses || choice.prepare()) ? 0 : -1, row = 0;
    Demand demand(residency, spec->chosen, room);
    for (int64_t token = 0; token < spec->tokens && passed >= 0; token++) {
        const bool begins = row < spec->rows && spec->row_starts[row] == token;
        row += begins;
        if (begins) kt_residency_sequence(residency);
        if (begins && chooses) choice.sequence();
        if (chooses) {
            kt_residency_set_policy(residency, choice.policy());
            choice.step();
        }
        kt_residency_step(residency, 1);
        policies[token] = (int8_t)(chooses ? choice.policy() : spec->policy);
        for (int64_t layer = 0; layer < spec->layers; layer++) {
            const int64_t at = (layer * spec->tokens + token) * spec->chosen;
            if (chooses) choice.demand(layer, spec->topk + at);
            passed += demand.run(spec->topk + at, layer * spec->experts, hit + at);
        }
    }
    if (residency) kt_residency_destroy(residency);
    free(room);
    return passed;
}
