#include "guesses.h"

#include <stdlib.h>

namespace {

// Averages follow a sixteenth or an eighth of the way; one pause of the user must not count for a hundred gaps.
constexpr int64_t FOLLOWS = 8, MOST_GROWTH = 4;

}  // namespace

Foreseen::~Foreseen() {
    free(records);
    free(marks);
}

bool Foreseen::reserve(int64_t candidates, int64_t of_experts) {
    if (candidates > room) {
        auto *const grown = static_cast<int64_t *>(realloc(records, (size_t)candidates * sizeof *records));
        if (!grown) return false;
        records = grown;
        room = candidates;
    }
    if (of_experts > mark_room) {
        auto *const grown = static_cast<uint8_t *>(realloc(marks, (size_t)of_experts));
        if (!grown) return false;
        marks = grown;
        mark_room = of_experts;
    }
    return true;
}

bool IdleTime::open(int64_t record_count) {
    gaps = static_cast<int64_t *>(calloc((size_t)record_count + 1, sizeof *gaps));
    return gaps != nullptr;
}

IdleTime::~IdleTime() { free(gaps); }

void IdleTime::reads_start(int64_t now, int64_t bytes) {
    read_since = now;
    read_bytes = bytes;
}

void IdleTime::reads_end(int64_t now, bool awaited) {
    if (read_since == 0) return;
    const int64_t per_mb = (int64_t)((double)(now - read_since) / (double)(read_bytes + 1) * (1 << 20));
    // What was seen late says only that the drive is no slower.
    if (ns_per_mb == 0 || (!awaited && per_mb < ns_per_mb)) {
        ns_per_mb = per_mb;
    } else if (awaited) {
        ns_per_mb += (per_mb - ns_per_mb) / FOLLOWS;
    }
    read_since = 0;
}

void IdleTime::begins(int64_t of_layer, int64_t now) {
    if (layer >= 0) return;
    layer = of_layer;
    since = now;
}

int64_t IdleTime::ends(int64_t now) {
    if (layer < 0) return 0;
    const int64_t gap = now - since;
    int64_t &known = gaps[layer];
    const int64_t most = MOST_GROWTH * known;
    known = known == 0 ? gap : known + ((gap < most ? gap : most) - known) / FOLLOWS;
    layer = -1;
    return gap;
}

int64_t IdleTime::left(int64_t now) const { return layer < 0 ? 0 : gaps[layer] - (now - since); }

Guesses::~Guesses() {
    if (controller) kt_controller_destroy(controller);
    free(best);
}
