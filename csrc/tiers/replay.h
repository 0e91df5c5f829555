// A trace of routing against caches that hold nothing: what the store would hit (replay.cpp), and what nobody could do better
// (optimal.cpp). ktitan/tiers/replay.py makes tables of it.
//
// A step is a token; of each layer in turn, the experts that it chose are demanded, held together and released, as a call of
// kt_stream_experts does. A sequence begins at each row.
#pragma once

#include "residency.h"

struct kt_replay_spec {
    const uint16_t *topk;          // [layers, tokens, chosen], ascending for a token
    const int64_t *row_starts;     // [rows], from 0 up
    const int32_t *record_domain;  // [layers * experts]
    const int64_t *domain_slots;
    int64_t layers, tokens, chosen, experts, rows, domains;
    int64_t spares;  // slots for guests, beside those of the domains
    int32_t policy;  // enum kt_policy, or -1: the one that measures best
    double growth;   // kt_residency_spec
};

// hit [layers, tokens, chosen]: 1 where the expert was there. policies [tokens]: enum kt_policy that decided. Returns the
// demands that were not admitted, or -1 without memory or where the sizes contradict each other.
KT_API int64_t kt_replay(const kt_replay_spec *spec, uint8_t *hit, int8_t *policies);

// The same where the future is known: a token's experts are held together, and what is demanded last makes room (Belady 1966).
// Where a token demands more than there are slots its experts come one after another, and the result is not always the best.
// With `bypass` what is demanded later than all that is there need not stay: that is the best for these domains in any
// case. (Spare slots are shared by domains, so a cache with them could in principle pass it.) Spares and policy mean nothing. Returns KT_OK, KT_NO_MEMORY or KT_WRONG_SIZE.
KT_API int32_t kt_replay_optimal(const kt_replay_spec *spec, bool bypass, uint8_t *hit);
