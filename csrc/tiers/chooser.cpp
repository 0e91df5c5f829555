#include "chooser.h"

#include <stdlib.h>
#include <string.h>

namespace {

// More layers would measure the same and cost more.
constexpr int64_t MOST_LOOKED_AT = 8;

template <class T> T *zeros(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

}  // namespace

Chooser::~Chooser() {
    kt_auto_destroy(choice);
    free(layer_of);
    free(expert_of);
    free(layer_records);
    free(layer_slots);
    free(experts);
    free(counts);
}

bool Chooser::open(const kt_store_spec &spec, const kt_record *its_records) {
    if (spec.policy != KT_POLICY_AUTO) return true;
    records = its_records;
    record_count = spec.record_count;
    pools = spec.pools;
    domains = spec.domains;
    growth = spec.growth;
    layer_of = zeros<int32_t>(record_count);
    expert_of = zeros<int64_t>(record_count);
    layer_records = zeros<int64_t>(MOST_LOOKED_AT);
    layer_slots = zeros<int64_t>(MOST_LOOKED_AT);
    experts = zeros<int64_t>(record_count);
    counts = zeros<int64_t>(record_count);
    if (!layer_of || !expert_of || !layer_records || !layer_slots || !experts || !counts) return false;
    look_at_layers();
    share_out(*spec.sizes);
    return true;
}

// Some of the layers with experts, evenly spread.
void Chooser::look_at_layers() {
    int64_t all = 0;
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool >= 0 && records[r].layer >= all) all = records[r].layer + 1;
    }
    layers = all < MOST_LOOKED_AT ? all : MOST_LOOKED_AT;
    for (int64_t r = 0; r < record_count; r++) {
        layer_of[r] = -1;
        for (int64_t n = 0; n < layers && records[r].pool >= 0; n++) {
            if (records[r].layer == n * all / layers) layer_of[r] = (int32_t)n;
        }
        if (layer_of[r] >= 0) expert_of[r] = layer_records[layer_of[r]]++;
    }
    for (int64_t n = 0; n < layers; n++) {
        if (layer_records[n] == 0) layers = 0;  // numbers with gaps are no layers
    }
    open_ = layers > 0;
}

void Chooser::share_out(const kt_store_sizes &sizes) {
    if (!open_) return;
    int64_t *domain_records = zeros<int64_t>(domains), *here = zeros<int64_t>(domains);
    int64_t pooled = 0, looked_at = 0, all_spares = 0, all_slots = 0;
    for (int64_t r = 0; r < record_count && domain_records; r++) {
        if (records[r].pool < 0) continue;
        pooled++;
        looked_at += layer_of[r] >= 0;
        domain_records[records[r].domain]++;
    }
    for (int32_t p = 0; p < pools; p++) {
        all_slots += sizes.pool_slots[p];
        all_spares += sizes.pool_spares[p];
    }
    for (int64_t n = 0; n < layers && domain_records && here; n++) {
        layer_slots[n] = share_of(n, sizes, domain_records, here);
    }
    free(domain_records);
    free(here);
    spares = pooled > 0 ? all_spares * looked_at / pooled : 0;
    if (spares == 0 && all_spares > 0) spares = 1;
    is_short = all_slots < pooled;
    if (choice == nullptr || kt_auto_resize(choice, layer_slots, spares)) return;
    kt_auto_destroy(choice);  // to be made anew
    choice = nullptr;
}

// Its part of the slots of the domains that its records are of.
int64_t Chooser::share_of(int64_t layer, const kt_store_sizes &sizes, int64_t *domain_records, int64_t *here) const {
    memset(here, 0, (size_t)domains * sizeof *here);
    for (int64_t r = 0; r < record_count; r++) here[layer_of[r] == layer ? records[r].domain : domains]++;
    int64_t share = 0;
    for (int32_t d = 0; d < domains; d++) {
        if (here[d] > 0) share += sizes.domain_slots[d] * here[d] / domain_records[d];
    }
    return share > 0 ? share : 1;
}

void Chooser::end_call(const kt_residency *residency) {
    if (noted > 0 && is_short) {
        choice != nullptr ? kt_auto_demand(choice, noted_layer, experts, counts, noted) : make(residency);
    }
    noted = 0;
}

// At the end of the first call, from which is known what a token chooses. What records count for includes profiles, which were
// read before, and this call.
void Chooser::make(const kt_residency *residency) {
    int64_t chosen = step_tokens - 1;
    for (int64_t i = 0; i < noted; i++) chosen += counts[i];
    chosen /= step_tokens;
    const kt_auto_spec spec = {layer_records, layer_slots, layers, spares, chosen > 0 ? chosen : 1, growth};
    choice = kt_auto_create(&spec);
    if (choice == nullptr) return;
    kt_auto_step(choice, step_tokens);
    for (int64_t r = 0; r < record_count; r++) {
        if (layer_of[r] < 0) continue;
        const double score = kt_residency_score(residency, r);
        if (score > 0 || kt_residency_pinned(residency, r)) {
            kt_auto_seed(choice, layer_of[r], expert_of[r], score, kt_residency_pinned(residency, r));
        }
    }
}

void Chooser::step(int64_t tokens) {
    step_tokens = tokens > 0 ? tokens : 1;
    if (choice != nullptr) kt_auto_step(choice, tokens);
}

void Chooser::sequence() {
    if (choice != nullptr) kt_auto_sequence(choice);
}
