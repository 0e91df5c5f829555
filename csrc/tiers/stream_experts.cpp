// kt_stream_experts: the experts of a layer out of a store. What is resident is computed while the drive brings the rest, and
// each expert as soon as it is there; the order changes no bit (csrc/cpu/expert_pass.h).
#include "stream.h"

#include "../cpu/detect.h"
#include "../cpu/expert_pass.h"
#include "store.h"

namespace {

// What the next layer is foreseen from, the rows of the call; nothing where it reads a prompt.
struct Ahead {
    const kt_predictor *next;  // or null
    const void *hidden;
    int32_t dtype;
    int64_t tokens;
    bool looks;
};

enum Step : uint8_t { WAITING, HELD, DONE };

// Pairs that are computed at once while others wait for the drive: it gets new work in between.
constexpr int64_t PAIRS_AT_ONCE = 64;

// One pass of a call, from the demand for its experts to their release.
//
// Experts are computed in the order in which they come, and released in the order in which they were held: so what makes
// room for what, and every counter, is a function of the demands alone (ktitan/tiers/reference/store.py does the same).
// A prompt needs more experts than have slots. It holds the ones that are there, those that fewest tokens chose first, and few
// of the others at a time: so the policy finds enough that make room, and what stays is not what was read last.
class Streamed {
public:
    // `room` for two numbers and a step of each group.
    Streamed(const kt_stream_bank &of, ExpertPass &its, const Ahead &what, int64_t *room)
        : bank(of), store(of.store->store), pass(its), ahead(what), ready(room), queue(room + its.group_count),
          steps(reinterpret_cast<Step *>(room + 2 * its.group_count)), most_misses(store.misses_at_once(of.first_record)) {}

    // Compute every group; false when a record cannot be read. Nothing is held afterwards.
    bool run();

private:
    int64_t record(int64_t group) const { return bank.first_record + pass.groups[group].expert; }
    void hold(int64_t group);
    void hold_hits();
    void hold_misses();
    void order_hits();
    int64_t find_ready();
    void compute_ready(int64_t some);
    void release_computed();
    void look_ahead(bool nothing_ready);
    void read_on();
    void place(Group &group) const;
    bool settle();

    const kt_stream_bank &bank;
    Store &store;
    ExpertPass &pass;
    const Ahead &ahead;
    bool foreseen = false, rested = false;
    int64_t *ready;  // groups to compute next
    int64_t *queue;  // groups that are or were held, in that order
    Step *steps;     // by group
    int64_t queued = 0, released = 0;
    int64_t next = 0;               // of the groups, to be asked for
    int64_t most_misses, hits = 0;  // held at once; hits come first in the queue
};

bool Streamed::run() {
    for (int64_t g = 0; g < pass.group_count; g++) steps[g] = WAITING;
    // What is there is held before anything makes room for what is not.
    hold_hits();
    hold_misses();
    store.start();
    while (released < pass.group_count) {
        const int64_t some = find_ready();
        if (some < 0) return settle();
        look_ahead(some == 0);
        if (some > 0) {
            compute_ready(some);
            release_computed();
            read_on();
            store.progress(false);
        } else {
            const int64_t began = kt_now_ns();
            store.progress(true);
            store.counters.stall_ns += kt_now_ns() - began;
        }
    }
    return true;
}

void Streamed::hold(int64_t group) {
    steps[group] = HELD;
    queue[queued++] = group;
}

void Streamed::hold_hits() {
    for (int64_t g = 0; g < pass.group_count; g++) {
        if (!store.has(record(g))) continue;
        hold(g);
    }
    hits = queued;
    if (store.in_a_prompt()) order_hits();
    for (int64_t i = 0; i < hits; i++) store.want(record(queue[i]), pass.groups[queue[i]].count);
}

// Insertion sort: few, and often in order.
void Streamed::order_hits() {
    for (int64_t i = 1; i < hits; i++) {
        const int64_t moved = queue[i];
        int64_t at = i;
        for (; at > 0 && pass.groups[queue[at - 1]].count > pass.groups[moved].count; at--) queue[at] = queue[at - 1];
        queue[at] = moved;
    }
}

void Streamed::hold_misses() {
    for (; next < pass.group_count; next++) {
        if (steps[next] != WAITING) continue;
        if (queued - most(hits, released) >= most_misses) break;
        if (store.want(record(next), pass.groups[next].count) == KT_FULL) break;
        hold(next);
    }
}

// List held groups whose bytes are there, a few of them where more are to come; -1 when the read of one has failed.
int64_t Streamed::find_ready() {
    int64_t some = 0, pairs = 0;
    const int64_t most_pairs = queued < pass.group_count || store.reading() ? PAIRS_AT_ONCE : INT64_MAX;
    for (int64_t i = released; i < queued; i++) {
        const int64_t g = queue[i];
        if (steps[g] != HELD) continue;
        if (store.has_failed(record(g))) return -1;
        if (!store.is_ready(record(g)) || pairs >= most_pairs) continue;
        ready[some++] = g;
        pairs += pass.groups[g].count;
    }
    return some;
}

void Streamed::compute_ready(int64_t some) {
    const int64_t began = kt_now_ns();
    for (int64_t i = 0; i < some; i++) place(pass.groups[ready[i]]);
    pass.compute(ready, some);
    for (int64_t i = 0; i < some; i++) steps[ready[i]] = DONE;
    store.counters.compute_ns += kt_now_ns() - began;
}

// Let go of the oldest ones that are computed; each makes room for one that waits.
void Streamed::release_computed() {
    while (released < queued && steps[queue[released]] == DONE) {
        store.release(record(queue[released++]));
        if (queued == pass.group_count) continue;
        const int64_t before = queued;
        hold_misses();
        store.counters.waves += queued > before;
    }
    store.start();
}

// Once all is asked for: read on in the next layer, which needs nearly all of its experts, too. Attention runs before it.
void Streamed::read_on() {
    if (queued < pass.group_count || !store.reads_on(pass.group_count, bank.experts)) return;
    store.read_on(bank.first_record + bank.experts);
}

// Once all is asked for: foresee the next layer while there is nothing else to do, or when the drive has nothing to do; then
// it reads guesses while the rest is computed.
void Streamed::look_ahead(bool nothing_ready) {
    if (!ahead.looks || rested || queued < pass.group_count) return;
    const bool rests = !store.reading();
    if (!foreseen && ahead.next != nullptr && (rests || nothing_ready)) {
        store.foresee(*ahead.next, ahead.hidden, ahead.dtype, ahead.tokens);
        foreseen = true;
    }
    if (rests) store.at_rest();
    rested = rests;
}

void Streamed::place(Group &group) const {
    const uint8_t *slot = store.slot(bank.first_record + group.expert);
    const int64_t *at = bank.places + 3 * group.expert;
    group.data = {bank.gate.rows > 0 ? slot + at[0] : nullptr, slot + at[1], slot + at[2]};
}

// After a failure: wait for what is still being read, and let go of everything. Always false.
bool Streamed::settle() {
    for (; released < queued; released++) {
        const int64_t held = record(queue[released]);
        while (!store.is_ready(held) && !store.has_failed(held)) store.progress(true);
        // A failed record lost its hold with its slot.
        if (store.is_ready(held)) store.release(held);
    }
    return false;
}

ExpertLayer layer_of(const kt_stream_bank &bank, const kt_unit *unit, int32_t arithmetic) {
    ExpertLayer layer = {};
    layer.unit = unit;
    layer.gate = kt_weights_of(unit, bank.gate.rows > 0 ? &bank.gate : nullptr, arithmetic);
    layer.up = kt_weights_of(unit, &bank.up, arithmetic);
    layer.down = kt_weights_of(unit, &bank.down, arithmetic);
    layer.gate_bias = bank.gate_bias;
    layer.up_bias = bank.up_bias;
    layer.down_bias = bank.down_bias;
    layer.experts = bank.experts;
    layer.wide = bank.hidden;
    layer.inner = bank.intermediate;
    layer.activation = bank.activation;
    return layer;
}

}  // namespace

int32_t kt_stream_run_experts(const Call &call, const kt_stream_bank *bank, const void *hidden, int32_t dtype,
                              int64_t tokens, const int64_t *index, int64_t slots, const float *weights,
                              int32_t arithmetic, void *out) {
    ExpertLayer layer = layer_of(*bank, kt_active_unit(), arithmetic);
    layer.hidden = {hidden, dtype, bank->hidden};
    layer.index = index;
    layer.slots = slots;
    layer.weights = weights;
    layer.out = static_cast<uint8_t *>(out);
    layer.threads = call.threads();
    const int32_t status = layer.check(tokens);
    if (status != KT_OK || tokens == 0) return status;
    Store &store = bank->store->store;
    if (!store.known(bank->first_record, true) || !store.known(bank->first_record + bank->experts - 1, true)) {
        return KT_WRONG_SIZE;
    }

    const Ahead ahead = {bank->next, hidden, dtype, tokens, store.looks_ahead(bank->next != nullptr, tokens)};
    ExpertPass pass(layer);
    // A chunk of a prompt is one pass: another one would read the experts again.
    const int64_t step = least(tokens, store.chunk_tokens());
    const int64_t groups = least(layer.experts, step * slots);
    if (!pass.prepare(step, groups * (int64_t)(2 * sizeof(int64_t) + sizeof(Step)))) return KT_NO_MEMORY;
    for (int64_t first = 0; first < tokens; first += step) {
        store.begin(bank->first_record, least(step, tokens - first));
        pass.begin(first, least(step, tokens - first));
        if (!Streamed(*bank, pass, ahead, static_cast<int64_t *>(pass.extra())).run()) return KT_IO_FAILED;
        pass.finish();
    }
    return KT_OK;
}

int32_t kt_stream_experts(const kt_stream_bank *bank, const void *hidden, int32_t dtype, int64_t tokens,
                          const int64_t *index, int64_t slots, const float *weights, int32_t arithmetic, void *out) {
    const Call call;
    return kt_stream_run_experts(call, bank, hidden, dtype, tokens, index, slots, weights, arithmetic, out);
}
