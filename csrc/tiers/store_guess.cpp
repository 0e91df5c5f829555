// The store's side of looking ahead: what is foreseen of the next layer is read where that can hurt nobody: into spare slots,
// when nothing demanded is on its way, and not more than comes before the next demand.
#include <stdlib.h>

#include "predict.h"
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
    kt_placed placed;
    const int32_t answer = kt_residency_guess(residency, record, &placed);
    if (placed.displaced >= 0) {
        lost_guess(placed.displaced);
        state[placed.displaced] = ABSENT;
    }
    if (answer != KT_MISS) return answer == KT_HIT;
    lost_guess(record);
    origin[record] = GUESS;
    counters.guesses++;
    *room_ns -= read_ns;
    collect(record, slot(record));
    return true;
}

void Store::at_rest() {
    const int64_t began = kt_now_ns();
    guesses.idle.begins(last_first, began);
    int64_t left = kt_controller_level(guesses.controller);
    if (left == 0 || reading()) return;
    int64_t room = guesses.idle.left(began) - guesses.idle.read_ns(guess_flying * records[last_first].slot_bytes);
    const Foretold &known = guesses.foretold;
    for (int64_t i = 0; i < known.count && left > 0; i++) {
        if (has(known.records[i])) continue;
        if (!guess(known.records[i], &room)) left = 0;
        left--;
    }
    Foreseen &seen = guesses.foreseen;
    for (int64_t i = 0; i < seen.count && left > 0; i++) {
        if (has(seen.records[i])) continue;
        if (!guess(seen.records[i], &room)) left = 0;
        if (left-- > 0) seen.made++;
    }
    start_guesses();
    guesses.overhead_ns += kt_now_ns() - began;
}

void Store::start_guesses() {
    const bool taken = read_count == 0 || kt_io_submit_behind(io, reads, read_count);
    for (int64_t i = 0; i < read_count && !taken; i++) note({reads[i].tag, ENOMEM, reads[i].file, reads[i].offset});
    read_count = 0;
}
