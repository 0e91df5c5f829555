// The store's side of choosing a policy (auto.h): which layers are looked at, their share of the slots, and their demands.
#pragma once

#include "auto.h"
#include "ktitan_tiers.h"

class Chooser {
public:
    ~Chooser();

    // `its_records`: the store's own. False without memory.
    bool open(const kt_store_spec &spec, const kt_record *its_records);
    // Other sizes than those at the start.
    void share_out(const kt_store_sizes &sizes);

    // A record that so many tokens of the call chose.
    void note(int64_t record, int64_t tokens) {
        if (!open_ || layer_of[record] < 0) return;
        noted_layer = layer_of[record];
        experts[noted] = expert_of[record];
        counts[noted++] = tokens;
    }
    // The call is over, and the next step has not begun. At first, what records count for is taken from `residency`.
    void end_call(const kt_residency *residency);
    void step(int64_t tokens);
    void sequence();
    // The policy that should decide, or -1: every record has a slot, or nothing is known yet.
    int32_t policy() const { return choice == nullptr || !is_short ? -1 : kt_auto_policy(choice); }

private:
    void look_at_layers();
    void make(const kt_residency *residency);
    int64_t share_of(int64_t layer, const kt_store_sizes &sizes, int64_t *domain_records, int64_t *here) const;

    kt_auto *choice = nullptr;
    const kt_record *records = nullptr;  // of the store
    int64_t record_count = 0;
    int32_t pools = 0, domains = 0;
    double growth = 1;
    bool open_ = false, is_short = false;
    int32_t *layer_of = nullptr;  // of each record, counted among those that are looked at; -1: not looked at
    int64_t *expert_of = nullptr;
    int64_t layers = 0, spares = 0, step_tokens = 1;
    int64_t *layer_records = nullptr, *layer_slots = nullptr;
    int64_t *experts = nullptr, *counts = nullptr;  // of the call
    int64_t noted = 0, noted_layer = 0;
};
