#include <stdlib.h>

#include "heap.h"
#include "replay.h"

namespace {

template <class T> T *array_of(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

// Caches of all domains, each with a heap of what may leave, the record that is demanded last on top.
class Optimal {
public:
    explicit Optimal(const kt_replay_spec &of) : spec(of) {}
    ~Optimal() {
        free(again);
        free(next);
        free(places);
        free(ids);
        free(heaps);
        free(used);
    }

    bool prepare();
    void run(bool bypass, uint8_t *hit);

private:
    int64_t position(int64_t layer, int64_t token) const { return (layer * spec.tokens + token) * spec.chosen; }
    void demand(int64_t layer, int64_t at, bool bypass, uint8_t *hit);
    void make_room(int64_t domain, const uint16_t *experts, int64_t first);
    void let_go(const uint16_t *experts, int64_t first);
    void leave(int64_t domain);
    void push(int64_t record) {
        heaps[spec.record_domain[record]].push(record, places, [this](int64_t a, int64_t b) { return next[a] > next[b]; });
    }
    void remove(int64_t record) {
        heaps[spec.record_domain[record]].remove(record, places, [this](int64_t a, int64_t b) { return next[a] > next[b]; });
    }

    const kt_replay_spec &spec;
    int64_t *again = nullptr;   // by position: when the record is demanded again
    int64_t *next = nullptr;    // the same of each record, now
    int64_t *places = nullptr;  // in its heap
    int64_t *ids = nullptr;     // memory of the heaps
    Heap *heaps = nullptr;
    int64_t *used = nullptr;    // slots of each domain in use
    bool in_waves = false;      // the present call
};

bool Optimal::prepare() {
    const int64_t records = spec.layers * spec.experts, never = spec.tokens * spec.layers;
    again = array_of<int64_t>(spec.layers * spec.tokens * spec.chosen);
    next = array_of<int64_t>(records);
    places = array_of<int64_t>(records);
    ids = array_of<int64_t>(records);
    heaps = array_of<Heap>(spec.domains);
    used = array_of<int64_t>(spec.domains);
    if (!again || !next || !places || !ids || !heaps || !used) return false;
    int64_t *sizes = array_of<int64_t>(spec.domains);
    if (!sizes) return false;
    for (int64_t r = 0; r < records; r++) {
        next[r] = never;
        places[r] = -1;
        sizes[spec.record_domain[r]]++;
    }
    int64_t *memory = ids;
    for (int64_t d = 0; d < spec.domains; d++) {
        heaps[d] = Heap();
        heaps[d].use(memory);
        memory += sizes[d];
    }
    free(sizes);
    for (int64_t token = spec.tokens - 1; token >= 0; token--) {
        for (int64_t layer = spec.layers - 1; layer >= 0; layer--) {
            const int64_t at = position(layer, token);
            for (int64_t k = at; k < at + spec.chosen; k++) {
                const int64_t record = layer * spec.experts + spec.topk[k];
                again[k] = next[record];
                next[record] = token * spec.layers + layer;
            }
        }
    }
    for (int64_t r = 0; r < records; r++) next[r] = -1;  // not there
    return true;
}

// What of this call is there may leave from here on.
void Optimal::let_go(const uint16_t *experts, int64_t first) {
    for (int64_t k = 0; k < spec.chosen; k++) {
        const int64_t record = first + experts[k];
        if (next[record] >= 0 && places[record] < 0) push(record);
    }
}

// A slot for a miss: what is demanded last leaves. Once all slots are held, each one is used before the next miss (waves).
void Optimal::make_room(int64_t domain, const uint16_t *experts, int64_t first) {
    if (used[domain] < spec.domain_slots[domain]) {
        used[domain]++;
        return;
    }
    in_waves = in_waves || heaps[domain].empty();
    if (in_waves) let_go(experts, first);
    leave(domain);
}

void Optimal::leave(int64_t domain) {
    const int64_t victim = heaps[domain].top();
    remove(victim);
    next[victim] = -1;
}

void Optimal::demand(int64_t layer, int64_t at, bool bypass, uint8_t *hit) {
    const int64_t first = layer * spec.experts;
    const uint16_t *experts = spec.topk + at;
    const int64_t domain = spec.record_domain[first];
    for (int64_t k = 0; k < spec.chosen; k++) {
        const int64_t record = first + experts[k];
        hit[at + k] = next[record] >= 0;
        if (!hit[at + k]) continue;
        remove(record);
        next[record] = again[at + k];
    }
    in_waves = false;
    for (int64_t k = 0; k < spec.chosen; k++) {
        if (hit[at + k]) continue;
        bypass ? (void)used[domain]++ : make_room(domain, experts, first);
        next[first + experts[k]] = again[at + k];
    }
    let_go(experts, first);
    for (; used[domain] > spec.domain_slots[domain]; used[domain]--) leave(domain);
}

void Optimal::run(bool bypass, uint8_t *hit) {
    for (int64_t token = 0; token < spec.tokens; token++) {
        for (int64_t layer = 0; layer < spec.layers; layer++) demand(layer, position(layer, token), bypass, hit);
    }
}

bool all_right(const kt_replay_spec &spec) {
    for (int64_t layer = 0; layer < spec.layers; layer++) {
        const int32_t domain = spec.record_domain[layer * spec.experts];
        if (domain < 0 || domain >= spec.domains || spec.domain_slots[domain] < 1) return false;
        for (int64_t e = 1; e < spec.experts; e++) {
            if (spec.record_domain[layer * spec.experts + e] != domain) return false;
        }
    }
    return true;
}

}  // namespace

int32_t kt_replay_optimal(const kt_replay_spec *spec, bool bypass, uint8_t *hit) {
    if (!all_right(*spec)) return KT_WRONG_SIZE;
    Optimal optimal(*spec);
    if (!optimal.prepare()) return KT_NO_MEMORY;
    optimal.run(bypass, hit);
    return KT_OK;
}
