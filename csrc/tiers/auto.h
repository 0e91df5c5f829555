// Which policy would do best: each one decides for shadow caches of the same size, which see the same demands and hold
// nothing, and the one with most hits decides for the store. Decisions only; ktitan/tiers/reference/auto.py takes the same ones.
//
// Of many layers, a few are looked at (set sampling: Qureshi et al. 2006). A shadow is their share of the slots: each layer
// its own members, and one stock of spare slots for all, as in the store; so every policy is measured with all of them.
#pragma once

#include "residency.h"

struct kt_auto;

struct kt_auto_spec {
    const int64_t *layer_records;  // experts of each layer that is looked at
    const int64_t *layer_slots;    // its members: 1 or more
    int64_t layers;
    int64_t spares;  // spare slots of these layers together
    int64_t chosen;  // experts of a token
    double growth;   // kt_residency_spec
};

// Null without memory or where the sizes contradict each other. The first policy follows from slots / chosen.
KT_API kt_auto *kt_auto_create(const kt_auto_spec *spec);
KT_API void kt_auto_destroy(kt_auto *choice);
KT_API void kt_auto_step(kt_auto *choice, int64_t tokens);
KT_API void kt_auto_sequence(kt_auto *choice);
// The demands of a call: distinct experts of a layer, and how many tokens chose each.
KT_API void kt_auto_demand(kt_auto *choice, int64_t layer, const int64_t *experts, const int64_t *tokens, int64_t count);
// kt_residency_seed and kt_residency_pin of all shadows. KT_PINNED is a candidate while something is pinned.
KT_API void kt_auto_seed(kt_auto *choice, int64_t layer, int64_t expert, double tokens, bool pinned);
// The slots have changed: pins and measurements are forgotten. False where the sizes contradict each other: nothing changed.
KT_API bool kt_auto_resize(kt_auto *choice, const int64_t *layer_slots, int64_t spares);
// enum kt_policy that should decide now.
KT_API int32_t kt_auto_policy(const kt_auto *choice);
// Measured hit rate of each policy of late, KT_POLICIES numbers; -1: no candidate, or nothing measured.
KT_API void kt_auto_rates(const kt_auto *choice, double *rates);
