// The store's side of looking ahead: what is foreseen of the next layer is read where that can hurt nobody: into spare slots,
// when nothing demanded is on its way, and not more than comes before the next demand.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store.h"

namespace {

// Candidates for each token, as a multiple of what it chooses.
constexpr int64_t CANDIDATES = 2;
constexpr int64_t FOLLOWS = 16;  // `right`: a sixteenth of the way at each layer
constexpr int64_t STEPS_FORETOLD = 2;

}  // namespace

int64_t Store::read_bytes() const {
    int64_t bytes = 0;
    for (int64_t i = 0; i < read_count; i++) bytes += reads[i].bytes;
    return bytes;
}

// ---- the life of a guess ----

// The first demand for it; `late`: it is on its way, from now on as if it had been demanded.
void Store::use_guess(int64_t record, bool late) {
    counters.guesses_used++;
    counters.guesses_late += late;
    guesses.foreseen.used += guesses.scores;
    origin[record] = late ? GUESS_IN_USE : DEMAND;
    if (!late) return;
    guesses.flying--;
    flying++;
    kt_io_hasten(io, (uint64_t)record);
}

// Its read is done; true when there is nothing else to do. One that failed but is in use is read as a demand, which may fail.
bool Store::guess_came(int64_t record, bool failed) {
    if (!failed) counters.guess_bytes += records[record].slot_bytes;
    if (origin[record] == GUESS_IN_USE) {
        origin[record] = DEMAND;
        if (!failed) return false;
        collect(record, slot(record));
        start();
        return true;
    }
    if (!failed) return false;
    lost_guess(record);
    state[record] = ABSENT;
    kt_residency_failed(residency, record);
    return true;
}

// It is gone unused.
void Store::lost_guess(int64_t record) {
    counters.guesses_wasted += origin[record] == GUESS;
    origin[record] = DEMAND;
}

// Ask for a record if the time allows; false when it does not, or no slot can be had.
bool Store::guess(int64_t record, int64_t *room_ns) {
    const int64_t read_ns = guesses.idle.read_ns(records[record].slot_bytes);
    if (read_ns == 0 || !kt_guess_fits(*room_ns, read_ns, guesses.right)) return false;
    const int32_t answer = place_guess(record);
    if (answer == KT_MISS) *room_ns -= read_ns;
    return answer != KT_FULL;
}

// Give a guess a slot and collect its reads: KT_MISS; KT_HIT where it is there, KT_FULL without a slot.
int32_t Store::place_guess(int64_t record) {
    kt_placed placed;
    const int32_t answer = kt_residency_guess(residency, record, &placed);
    if (placed.victim >= 0) {  // a guest that lingered
        counters.evictions++;
        lost_guess(placed.victim);
        state[placed.victim] = ABSENT;
    }
    if (placed.displaced >= 0) {
        lost_guess(placed.displaced);
        state[placed.displaced] = ABSENT;
    }
    if (answer == KT_MISS) begin_guess(record);
    return answer;
}

void Store::begin_guess(int64_t record) {
    lost_guess(record);
    origin[record] = GUESS;
    counters.guesses++;
    collect(record, slot(record));
}

// Of these, best first, those that are absent; how many were asked for.
int64_t Store::guess_some(const int64_t *some, int64_t count, int64_t most, int64_t *room_ns) {
    int64_t made = 0;
    for (int64_t i = 0; i < count && made < most; i++) {
        if (has(some[i])) continue;
        if (!guess(some[i], room_ns)) break;
        made++;
    }
    return made;
}

void Store::start_guesses() {
    const bool taken = read_count == 0 || kt_io_submit_behind(io, reads, read_count);
    for (int64_t i = 0; i < read_count && !taken; i++) note({reads[i].tag, ENOMEM, reads[i].file, reads[i].offset});
    read_count = 0;
}

void Store::at_rest() {
    const int64_t began = kt_now_ns(), level = kt_controller_level(guesses.controller);
    if (last_first < 0) return;
    guesses.idle.begins(last_first, began);
    if (level == 0 || reading() || read_count > 0) return;
    int64_t room = guesses.idle.left(began) - guesses.flying * guesses.idle.read_ns(records[last_first].slot_bytes);
    const Foretold &known = guesses.foretold;
    Foreseen &seen = guesses.foreseen;
    const int64_t exact = guess_some(known.records, known.count, level, &room);
    seen.made += guess_some(seen.records, seen.count, level - exact, &room);
    start_guesses();
    guesses.overhead_ns += kt_now_ns() - began;
}

// ---- a prompt ----

// Into a slot of its domain that is free, else a spare one, but not in the place of another record of its layer.
bool Store::place_ahead(int64_t record) {
    if (kt_residency_has_room(residency, record)) {
        kt_placed placed;
        kt_residency_acquire(residency, record, 0, &placed);  // of no token
        kt_residency_release(residency, record);
        begin_guess(record);
        return true;
    }
    const int64_t leaves = kt_residency_leaves_for_guess(residency, record);
    if (leaves == -2 || (leaves >= 0 && records[leaves].layer == records[record].layer)) return false;
    return place_guess(record) == KT_MISS;
}

void Store::read_on(int64_t first_record) {
    int64_t r = first_record;
    while (r < record_count && records[r].pool < 0) r++;
    const int64_t layer = r < record_count ? records[r].layer : -1;
    for (; r < record_count && records[r].layer == layer; r++) {
        if (!has(r) && !place_ahead(r)) break;
    }
    if (read_count == 0) return;
    start_guesses();
    kt_io_start_behind(io);
}

// ---- what is foreseen ----

void Store::foresee(const kt_predictor &predictor, const void *hidden, int32_t dtype, int64_t tokens) {
    end_score();
    Foreseen &seen = guesses.foreseen;
    seen.first_record = -1;
    seen.count = 0;
    const int64_t most = predictor.chosen * CANDIDATES < predictor.experts ? predictor.chosen * CANDIDATES : predictor.experts;
    const bool layer = known(predictor.first_record, true) && known(predictor.first_record + predictor.experts - 1, true);
    if (kt_controller_level(guesses.controller) == 0 || tokens < 1 || tokens > MOST_DECODED || most < 1 || !layer) return;
    const int64_t began = kt_now_ns();
    if (tokens * most > guesses.best_room) {
        auto *const grown = static_cast<int64_t *>(realloc(guesses.best, (size_t)(tokens * most) * sizeof(int64_t)));
        if (grown == nullptr) return;
        guesses.best = grown;
        guesses.best_room = tokens * most;
    }
    const int32_t status = guesses.router.predict(predictor, hidden, dtype, tokens, most, guesses.best);
    if (status == KT_OK && seen.reserve(tokens * most, predictor.experts)) note_candidates(predictor, tokens, most);
    const int64_t took = kt_now_ns() - began;
    counters.predict_ns += took;
    guesses.overhead_ns += took;
}

// All tokens' first choices, then their second ones, and so on.
void Store::note_candidates(const kt_predictor &predictor, int64_t tokens, int64_t most) {
    Foreseen &seen = guesses.foreseen;
    seen.first_record = predictor.first_record;
    seen.experts = predictor.experts;
    memset(seen.marks, 0, (size_t)predictor.experts);
    for (int64_t e = 0; e < predictor.experts; e++) {
        if (!has(predictor.first_record + e)) seen.marks[e] |= Foreseen::ABSENT;
    }
    for (int64_t n = 0; n < most; n++) {
        for (int64_t t = 0; t < tokens; t++) {
            const int64_t expert = guesses.best[t * most + n];
            if (expert < 0) continue;
            uint8_t &mark = seen.marks[expert];
            if (!(mark & Foreseen::LISTED)) seen.records[seen.count++] = predictor.first_record + expert;
            mark |= n < predictor.chosen ? Foreseen::LISTED | Foreseen::CHOSEN : Foreseen::LISTED;
        }
    }
}

void Store::foretell(const int64_t *some, int64_t count) {
    Foretold &known_ones = guesses.foretold;
    known_ones.ever = true;
    known_ones.count = known_ones.age = 0;
    for (int64_t i = 0; i < count && known_ones.count < Foretold::MOST; i++) {
        if (known(some[i], true)) known_ones.records[known_ones.count++] = some[i];
    }
    at_rest();
}

// A demand of a layer that was foreseen.
void Store::score(int64_t record) {
    const Foreseen &seen = guesses.foreseen;
    if (!guesses.scores || record >= seen.first_record + seen.experts) return;
    const uint8_t mark = seen.marks[record - seen.first_record];
    const bool right = mark & Foreseen::CHOSEN, absent = mark & Foreseen::ABSENT;
    counters.predicted++;
    counters.predicted_right += right;
    counters.predicted_absent += absent;
    counters.predicted_absent_right += right && absent;
}

// All demands of the layer were scored.
void Store::end_score() {
    Foreseen &seen = guesses.foreseen;
    if (guesses.scores && seen.made > 0) {
        const int64_t used = seen.used < seen.made ? seen.used : seen.made;
        guesses.right += (1024 * used / seen.made - guesses.right) / FOLLOWS;
    }
    if (guesses.scores) seen.first_record = -1;
    guesses.scores = false;
    seen.made = seen.used = 0;
}

// The step before is over.
void Store::next_step(int64_t tokens) {
    const int64_t now = kt_now_ns(), before = kt_controller_level(guesses.controller);
    const kt_guess_step step = {now - guesses.began, counters.stall_ns - guesses.stall_before, guesses.overhead_ns,
                                guesses.idle_ns, guesses.tokens};
    const int64_t level = guesses.tokens > 0 ? kt_controller_step(guesses.controller, &step) : before;
    counters.guess_changes += (level > 0) != (before > 0);
    counters.guess_steps += level > 0;
    guesses.idle_ns = guesses.overhead_ns = 0;
    guesses.began = now;
    guesses.stall_before = counters.stall_ns;
    guesses.tokens = tokens;
    if (++guesses.foretold.age == STEPS_FORETOLD) guesses.foretold.count = 0;
}
