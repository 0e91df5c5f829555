#include "replay.h"

#include <stdlib.h>

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
    what.policy = spec->policy;
    what.growth = spec->growth;
    kt_residency *made = pools ? kt_residency_create(&what) : nullptr;
    free(pools);
    return made;
}

}  // namespace

int64_t kt_replay(const kt_replay_spec *spec, uint8_t *hit, int8_t *policies) {
    kt_residency *residency = residency_of(spec);
    int64_t *room = static_cast<int64_t *>(calloc((size_t)spec->chosen + 1, sizeof(int64_t)));
    int64_t passed = residency && room ? 0 : -1, row = 0;
    Demand demand(residency, spec->chosen, room);
    for (int64_t token = 0; token < spec->tokens && passed >= 0; token++) {
        if (row < spec->rows && spec->row_starts[row] == token) {
            kt_residency_sequence(residency);
            row++;
        }
        kt_residency_step(residency, 1);
        policies[token] = (int8_t)spec->policy;
        for (int64_t layer = 0; layer < spec->layers; layer++) {
            const int64_t at = (layer * spec->tokens + token) * spec->chosen;
            passed += demand.run(spec->topk + at, layer * spec->experts, hit + at);
        }
    }
    if (residency) kt_residency_destroy(residency);
    free(room);
    return passed;
}
