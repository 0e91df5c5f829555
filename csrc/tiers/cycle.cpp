#include "cycle.h"

#include <stdlib.h>

#include "io.h"

namespace {

constexpr int64_t NONE = -1;
// A ring above this keeps no drive busier.
constexpr int64_t MOST_RING = 256 << 20;
// Otherwise the ring has this part of the memory.
constexpr int64_t RING_SHARE = 8;

enum State : uint8_t { ABSENT, LOADING, THERE };

struct Record {
    int64_t bytes;
    int64_t at;
    int64_t next;    // what followed it the last time
    int64_t stamp;   // of its place in the ring; later places have higher ones
    int64_t before;  // neighbours in the ring, in the order of the stamps
    int64_t after;
    State state;
};

}  // namespace

struct kt_cycle {
    Record *records;
    int64_t *bytes;  // of each record
    int64_t count;
    int64_t pinned;
    int64_t ring_at;
    int64_t ring_bytes;
    int64_t oldest;  // first and last record of the ring
    int64_t newest;
    int64_t stamps;   // the next stamp
    int64_t floor;    // records of the ring with a stamp below may make room
    int64_t current;  // demanded last
    int64_t front;    // reading ahead has come to here
    int64_t held;
    bool asked;    // `current` is not answered yet
    bool resting;  // nothing to read ahead until the next demand
};

namespace {

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The two largest neighbours among the records from `first` on; the last one's neighbour is `first`. `inner` is the largest
// sum of neighbours without that pair.
int64_t neighbours(const int64_t *bytes, int64_t records, int64_t first, int64_t inner) {
    if (first >= records) return 0;
    return first == records - 1 ? bytes[first] : larger(inner, bytes[records - 1] + bytes[first]);
}

// How many records stay: as many as leave room for a ring.
int64_t count_pinned(const int64_t *bytes, int64_t records, int64_t capacity) {
    int64_t left = capacity;
    for (int64_t i = 0; i < records; i++) left -= bytes[i];
    if (left >= 0) return records;
    const int64_t wanted = smaller(capacity / RING_SHARE, MOST_RING);
    int64_t inner = 0;
    for (int64_t first = records - 1; first > 0; first--) {
        left += bytes[first];  // of the memory, when those before `first` stay
        if (left >= larger(wanted, neighbours(bytes, records, first, inner))) return first;
        inner = larger(inner, bytes[first - 1] + bytes[first]);
    }
    return 0;
}

bool is_pinned(const kt_cycle *cycle, int64_t id) { return id < cycle->pinned; }

void unlink(kt_cycle *cycle, int64_t id) {
    const Record &record = cycle->records[id];
    (record.before == NONE ? cycle->oldest : cycle->records[record.before].after) = record.after;
    (record.after == NONE ? cycle->newest : cycle->records[record.after].before) = record.before;
}

void forget(kt_cycle *cycle, int64_t id) {
    if (!is_pinned(cycle, id)) unlink(cycle, id);
    cycle->records[id].state = ABSENT;
}

// Where `bytes` fit behind the newest record of the ring, without a gap inside, or NONE.
int64_t room_behind(const kt_cycle *cycle, int64_t bytes) {
    if (cycle->newest == NONE) return cycle->ring_at;
    const Record &newest = cycle->records[cycle->newest];
    const int64_t from = newest.at + newest.bytes, oldest_at = cycle->records[cycle->oldest].at;
    if (newest.at < oldest_at) return from + bytes <= oldest_at ? from : NONE;
    if (from + bytes <= cycle->ring_at + cycle->ring_bytes) return from;
    return cycle->ring_at + bytes <= oldest_at ? cycle->ring_at : NONE;
}

// Give record `id` a place in the ring; what may make room does, the oldest first. False when that is not enough.
bool place(kt_cycle *cycle, int64_t id) {
    Record &record = cycle->records[id];
    int64_t at;
    while ((at = room_behind(cycle, record.bytes)) == NONE) {
        const Record &oldest = cycle->records[cycle->oldest];
        if (oldest.state == LOADING || oldest.stamp >= cycle->floor) return false;
        forget(cycle, cycle->oldest);
    }
    record.at = at;
    record.stamp = cycle->stamps++;
    record.before = cycle->newest;
    record.after = NONE;
    (cycle->newest == NONE ? cycle->oldest : cycle->records[cycle->newest].after) = id;
    cycle->newest = id;
    return true;
}

// A new demand: learn what follows what, and where reading ahead goes on.
void begin(kt_cycle *cycle, int64_t id) {
    const Record &record = cycle->records[id];
    const int64_t last = cycle->current < 0 ? cycle->count - 1 : cycle->current;
    const bool expected = cycle->records[last].next == id || cycle->current == id;
    if (!expected && cycle->current >= 0) cycle->records[last].next = id;
    const bool in_ring = !is_pinned(cycle, id) && record.state != ABSENT;
    const bool went_back = in_ring && record.stamp < cycle->floor;
    // What was skipped, or read for another way, may make room.
    if (in_ring) cycle->floor = record.stamp;
    else if (!expected) cycle->floor = cycle->stamps;
    if (!expected || went_back || cycle->front == last) cycle->front = id;
    cycle->current = id;
    cycle->asked = true;
    cycle->resting = false;
}

// The next record on the way that is not there, or NONE.
int64_t find_next(kt_cycle *cycle) {
    for (int64_t steps = 0; steps < cycle->count; steps++) {
        const int64_t id = cycle->records[cycle->front].next;
        const Record &record = cycle->records[id];
        if (id == cycle->current) return NONE;
        if (record.state == ABSENT) return id;
        // Used already and not gone yet: what is read now would go over it.
        if (!is_pinned(cycle, id) && record.stamp < cycle->floor) return NONE;
        cycle->front = id;
    }
    return NONE;
}

// Reading ahead begins anew behind what was demanded last.
void start_over(kt_cycle *cycle) {
    cycle->front = cycle->current < 0 ? cycle->count - 1 : cycle->current;
    cycle->resting = false;
}

// Place `pinned` records one after another and the ring behind them.
void lay_out(kt_cycle *cycle, int64_t pinned, int64_t capacity) {
    cycle->pinned = pinned;
    cycle->ring_at = 0;
    for (int64_t id = 0; id < cycle->count; id++) {
        cycle->records[id].at = cycle->ring_at;
        if (id < pinned) cycle->ring_at += cycle->records[id].bytes;
    }
    cycle->ring_bytes = pinned == cycle->count ? 0 : (capacity - cycle->ring_at) / KT_PAGE * KT_PAGE;
}

bool all_right(const int64_t *bytes, int64_t records, int64_t capacity) {
    if (records < 0) return false;
    for (int64_t i = 0; i < records; i++) {
        if (bytes[i] <= 0 || bytes[i] % KT_PAGE) return false;
    }
    return capacity >= kt_cycle_least(bytes, records);
}

}  // namespace

int64_t kt_cycle_least(const int64_t *bytes, int64_t records) {
    int64_t inner = 0;
    for (int64_t i = 1; i < records; i++) inner = larger(inner, bytes[i - 1] + bytes[i]);
    return neighbours(bytes, records, 0, inner);
}

kt_cycle *kt_cycle_create(const int64_t *bytes, int64_t records, int64_t capacity) {
    if (!all_right(bytes, records, capacity)) return nullptr;
    kt_cycle *made = static_cast<kt_cycle *>(calloc(1, sizeof(kt_cycle)));
    if (!made) return nullptr;
    made->records = static_cast<Record *>(calloc((size_t)records + 1, sizeof(Record)));
    made->bytes = static_cast<int64_t *>(calloc((size_t)records + 1, sizeof(int64_t)));
    if (!made->records || !made->bytes) {
        kt_cycle_destroy(made);
        return nullptr;
    }
    made->count = records;
    for (int64_t i = 0; i < records; i++) {
        made->bytes[i] = bytes[i];
        made->records[i] = {bytes[i], 0, (i + 1) % records, 0, NONE, NONE, ABSENT};
    }
    lay_out(made, count_pinned(bytes, records, capacity), capacity);
    made->oldest = made->newest = made->current = made->held = NONE;
    made->front = records - 1;
    return made;
}

void kt_cycle_destroy(kt_cycle *cycle) {
    if (!cycle) return;
    free(cycle->records);
    free(cycle->bytes);
    free(cycle);
}

int64_t kt_cycle_needs(const kt_cycle *cycle) { return kt_cycle_least(cycle->bytes, cycle->count); }

int64_t kt_cycle_pinned(const kt_cycle *cycle) { return cycle->pinned; }

int64_t kt_cycle_ring_bytes(const kt_cycle *cycle) { return cycle->ring_bytes; }

int32_t kt_cycle_demand(kt_cycle *cycle, int64_t id, int64_t *at) {
    *at = NONE;
    if (cycle->held != NONE) return KT_CYCLE_BUSY;
    if (id != cycle->current || !cycle->asked) begin(cycle, id);
    Record &record = cycle->records[id];
    if (record.state == ABSENT) {
        if (!is_pinned(cycle, id)) {
            cycle->floor = cycle->stamps;  // everything may make room
            if (!place(cycle, id)) return KT_CYCLE_BUSY;
            cycle->floor = record.stamp;
        }
        record.state = LOADING;
        cycle->front = id;
        *at = record.at;
        return KT_CYCLE_MISS;
    }
    *at = record.at;
    if (record.state == LOADING) return KT_CYCLE_LOADING;
    cycle->held = id;
    cycle->asked = false;
    return KT_CYCLE_HIT;
}

void kt_cycle_release(kt_cycle *cycle, int64_t id) {
    if (cycle->held != id) return;
    cycle->held = NONE;
    if (!is_pinned(cycle, id)) cycle->floor = cycle->records[id].stamp + 1;
}

bool kt_cycle_ahead(kt_cycle *cycle, int64_t *id, int64_t *at) {
    *id = *at = NONE;
    // A record that is waited for has the first place.
    const bool waited_for = cycle->asked && cycle->records[cycle->current].state == ABSENT;
    if (cycle->resting || cycle->count == 0 || waited_for) return false;
    const int64_t next = find_next(cycle);
    if (next == NONE) {
        cycle->resting = true;
        return false;
    }
    if (!is_pinned(cycle, next) && !place(cycle, next)) return false;
    Record &record = cycle->records[next];
    record.state = LOADING;
    cycle->front = next;
    *id = next;
    *at = record.at;
    return true;
}

void kt_cycle_loaded(kt_cycle *cycle, int64_t id) {
    if (cycle->records[id].state == LOADING) cycle->records[id].state = THERE;
}

void kt_cycle_failed(kt_cycle *cycle, int64_t id) {
    if (cycle->records[id].state != LOADING) return;
    forget(cycle, id);
    // Not again before somebody wants something.
    cycle->resting = true;
}

void kt_cycle_drop(kt_cycle *cycle) {
    for (int64_t id = 0; id < cycle->count; id++) {
        if (cycle->records[id].state == THERE && cycle->held != id) forget(cycle, id);
    }
    start_over(cycle);
}

bool kt_cycle_has(const kt_cycle *cycle, int64_t id) { return cycle->records[id].state == THERE; }

bool kt_cycle_resize(kt_cycle *cycle, int64_t capacity) {
    if (cycle->held != NONE || !all_right(cycle->bytes, cycle->count, capacity)) return false;
    for (int64_t id = 0; id < cycle->count; id++) {
        if (cycle->records[id].state == LOADING) return false;
    }
    const int64_t pinned = count_pinned(cycle->bytes, cycle->count, capacity);
    for (int64_t id = smaller(pinned, cycle->pinned); id < cycle->count; id++) {
        if (cycle->records[id].state == THERE) forget(cycle, id);
    }
    lay_out(cycle, pinned, capacity);
    start_over(cycle);
    return true;
}
