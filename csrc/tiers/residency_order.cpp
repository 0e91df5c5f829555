// Who makes room first: ranks, and the clocks that they follow. Doubles are added, multiplied and divided one by one, so that
// Python gets the same bits.
#include "residency_state.h"

namespace {

// Of a domain's slots, for members that were acquired again (KT_SLRU).
constexpr int64_t PROTECTED_OF_5 = 4;
// What a token counts grows up to here; then everything is counted anew in smaller numbers.
constexpr double MOST_WORTH = 0x1p256;
// Beyond this a score in units of `worth` may overflow.
constexpr double MOST_UNIT = 0x1p900;
constexpr double MOST_SEED = 0x1p60;
// Of a domain's slots: pins of another workload leave this one room.
constexpr int64_t PINNED_OF = 2;

bool decays(int32_t policy) { return policy == KT_DECAYED_LFU || policy == KT_ADMITTING || policy == KT_PINNED; }

double power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result *= base;
        base *= base;
    }
    return result;
}

// What a token counts is 1 again, and scores are in its units.
void count_anew(kt_residency *residency) {
    const double unit = residency->worth;
    for (int64_t id = 0; id < residency->count; id++) {
        kt_residency::Record &record = residency->records[id];
        record.score = unit <= MOST_UNIT ? record.score / unit : 0;
    }
    residency->worth = 1;
    residency->settle_all();
}

}  // namespace

double kt_residency::recent_tokens(const Record &record) const {
    return record.sequence == sequence ? (double)record.recent : 0;
}

double kt_residency::score_after(const Record &record, int64_t tokens) const {
    return record.score + (double)tokens * mean * worth;
}

double kt_residency::rank(const Record &record) const {
    if (policy == KT_LFU) return (double)record.tokens;
    if (policy == KT_SEQUENCE_LFU) return recent_tokens(record);
    return decays(policy) ? record.score : 0;
}

bool kt_residency::before(int64_t a, int64_t b) const {
    const double rank_a = rank(records[a]), rank_b = rank(records[b]);
    return rank_a != rank_b ? rank_a < rank_b : records[a].stamp < records[b].stamp;
}

bool kt_residency::lingers_less(int64_t a, int64_t b) const {
    const Record &first = records[a], &second = records[b];
    return first.score != second.score ? first.score < second.score : first.stamp < second.stamp;
}

void kt_residency::settle(int64_t id) {
    const Record &record = records[id];
    if (places[id] != KT_NONE || record.slot == KT_NONE || record.busy() || record.guessed) return;
    if (record.guest) {
        pool_of(record).lingering.push(id, places, [this](int64_t a, int64_t b) { return lingers_less(a, b); });
    } else if (!(record.pinned && policy == KT_PINNED)) {
        Heap &heap = domain_of(record).heaps[record.is_protected];
        heap.push(id, places, [this](int64_t a, int64_t b) { return before(a, b); });
    }
}

void kt_residency::unsettle(int64_t id) {
    const Record &record = records[id];
    if (places[id] == KT_NONE) return;
    if (record.guest) {
        pool_of(record).lingering.remove(id, places, [this](int64_t a, int64_t b) { return lingers_less(a, b); });
    } else {
        Heap &heap = domain_of(record).heaps[record.is_protected];
        heap.remove(id, places, [this](int64_t a, int64_t b) { return before(a, b); });
    }
}

void kt_residency::settle_all() {
    for (int32_t p = 0; p < pool_count; p++) pools[p].lingering.clear();
    for (int32_t d = 0; d < domain_count; d++) {
        for (Heap &heap : domains[d].heaps) heap.clear();
    }
    for (int64_t id = 0; id < count; id++) places[id] = KT_NONE;
    for (int64_t id = 0; id < count; id++) settle(id);
}

int64_t kt_residency::victim_of(const Domain &domain) const {
    for (const Heap &heap : domain.heaps) {
        if (!heap.empty()) return heap.top();
    }
    return KT_NONE;
}

bool kt_residency::admits(const Record &record, int64_t tokens, int64_t victim) const {
    if (policy != KT_ADMITTING && policy != KT_PINNED) return true;
    if (policy == KT_PINNED && record.pinned) return true;
    return kt_is_worth(score_after(record, tokens), records[victim].score);
}

void kt_residency::note_use(Record &record, int64_t tokens) {
    record.recent = (record.sequence == sequence ? record.recent : 0) + tokens;
    record.sequence = sequence;
    record.score = score_after(record, tokens);
    record.tokens += tokens;
    record.stamp = ++stamp;
}

void kt_residency::protect(Record &record) {
    Domain &domain = domain_of(record);
    const int64_t most = domain.slots * PROTECTED_OF_5 / 5;
    if (policy != KT_SLRU || record.guest || record.is_protected || most == 0) return;
    record.is_protected = true;
    domain.protected_members++;
    while (domain.protected_members > most && !domain.heaps[1].empty()) {
        const int64_t last = domain.heaps[1].top();
        unsettle(last);
        records[last].is_protected = false;
        domain.protected_members--;
        settle(last);
    }
}

void kt_residency::forget_pins() {
    for (int32_t d = 0; d < domain_count; d++) domains[d].pins = 0;
    for (int64_t id = 0; id < count; id++) {
        records[id].pinned = false;
        settle(id);
    }
}

void kt_residency_step(kt_residency *residency, int64_t tokens) {
    const double growth = residency->growth;
    residency->mean = 1;
    if (growth == 1 || tokens < 1) return;
    const double grown = power(growth, tokens);
    residency->worth *= grown;
    // The mean of growth^-i, i from 0 to tokens - 1.
    if (tokens > 1) residency->mean = (1 - 1 / grown) / ((double)tokens * (1 - 1 / growth));
    if (residency->worth > MOST_WORTH) count_anew(residency);
}

void kt_residency_sequence(kt_residency *residency) {
    residency->sequence++;
    if (residency->policy == KT_SEQUENCE_LFU) residency->settle_all();
}

void kt_residency_set_policy(kt_residency *residency, int32_t policy) {
    if (policy < 0 || policy >= KT_POLICIES || policy == residency->policy) return;
    residency->policy = policy;
    for (int64_t id = 0; id < residency->count; id++) residency->records[id].is_protected = false;
    for (int32_t d = 0; d < residency->domain_count; d++) residency->domains[d].protected_members = 0;
    residency->settle_all();
}

bool kt_residency_pin(kt_residency *residency, int64_t id, bool pinned) {
    kt_residency::Record &record = residency->records[id];
    if (record.pool == KT_NONE) return false;
    if (record.pinned == pinned) return true;
    kt_residency::Domain &domain = residency->domain_of(record);
    if (pinned && domain.pins >= domain.slots / PINNED_OF) return false;
    residency->unsettle(id);
    record.pinned = pinned;
    domain.pins += pinned ? 1 : -1;
    residency->settle(id);
    return true;
}

void kt_residency_seed(kt_residency *residency, int64_t id, double tokens) {
    residency->unsettle(id);
    // Written so that no number is taken as 0.
    residency->records[id].score = (tokens > 0 ? tokens < MOST_SEED ? tokens : MOST_SEED : 0) * residency->worth;
    residency->settle(id);
}

void kt_residency_tokens(const kt_residency *residency, int64_t *tokens) {
    for (int64_t id = 0; id < residency->count; id++) tokens[id] = residency->records[id].tokens;
}

double kt_residency_score(const kt_residency *residency, int64_t id) {
    return residency->records[id].score / residency->worth;
}

bool kt_residency_pinned(const kt_residency *residency, int64_t id) { return residency->records[id].pinned; }
