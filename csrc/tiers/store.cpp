#include "store.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

namespace {

// Tag of a read for a row; others carry the number of a record.
constexpr uint64_t ROW_TAG = ~(uint64_t)0;
constexpr int64_t DONE_AT_ONCE = 64;
// To begin with: about what a token chooses.
constexpr int64_t GUESSES_OF_A_CALL = 8;

// Of what a prompt's call needs, so much is asked for at once: twice what a drive is given (io_drives.cpp), since some of it is
// computed meanwhile. Half of the layer's slots at most: the others are for those that the policy wants to stay.
constexpr int64_t BYTES_AT_ONCE = 32 << 20, LEAST_MISSES = 4;

int64_t whole_pages(int64_t bytes) { return (bytes + KT_PAGE - 1) / KT_PAGE * KT_PAGE; }

template <class T> T *take(int64_t count) {
    return static_cast<T *>(calloc((size_t)(count > 0 ? count : 1), sizeof(T)));
}

}  // namespace

int64_t kt_now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int32_t Store::open(const kt_store_spec &spec) {
    fault.record = -1;
    for (int64_t r = 0; r < spec.record_count; r++) {
        const kt_record &record = spec.records[r];
        if (record.pool >= spec.pools || record.slot_bytes <= 0 || record.slot_bytes % KT_PAGE != 0) return KT_WRONG_SIZE;
        if (record.pool >= 0 && record.slot_bytes > spec.pool_slot_bytes[record.pool]) return KT_WRONG_SIZE;
    }
    prefetch = spec.prefetch;
    guesses.controller = kt_controller_create(spec.prefetch, GUESSES_OF_A_CALL);
    if (!copy(spec) || !guesses.controller || !guesses.idle.open(spec.record_count)) return KT_NO_MEMORY;
    if (!chooser.open(spec, records)) return KT_NO_MEMORY;
    if (!check_pools(spec) || !make_residency(spec) || !make_cycle(spec)) return KT_WRONG_SIZE;
    if (!take_memory(*spec.sizes)) return KT_NO_MEMORY;
    io = kt_io_create(spec.mode, spec.direct, spec.depth, 0);
    if (io == nullptr) return KT_NO_MEMORY;
    register_buffers();
    arena.fill_in_background();
    return KT_OK;
}

Store::~Store() {
    // Waits for the reads, which write into the memory.
    if (io != nullptr) kt_io_destroy(io);
    if (residency != nullptr) kt_residency_destroy(residency);
    if (cycle != nullptr) kt_cycle_destroy(cycle);
    free(records);
    free(extents);
    free(state);
    free(origin);
    free(missing);
    free(cycle_number);
    free(cycle_record);
    free(pool_at);
    free(pool_slot);
    free(pool_slots);
    free(reads);
}

bool Store::copy(const kt_store_spec &spec) {
    record_count = spec.record_count;
    pools = spec.pools;
    chunk = spec.chunk_tokens > 0 ? spec.chunk_tokens : 1;
    int64_t extent_count = 0, most_extents = 1;
    for (int64_t r = 0; r < record_count; r++) {
        extent_count += spec.records[r].extents;
        if (spec.records[r].extents > most_extents) most_extents = spec.records[r].extents;
    }
    records = take<kt_record>(record_count);
    extents = take<kt_extent>(extent_count);
    state = take<State>(record_count);
    origin = take<Origin>(record_count);
    missing = take<int32_t>(record_count);
    cycle_number = take<int64_t>(record_count);
    cycle_record = take<int64_t>(record_count);
    pool_at = take<int64_t>(spec.pools);
    pool_slot = take<int64_t>(spec.pools);
    pool_slots = take<int64_t>(spec.pools);
    read_room = most_extents + 64;
    reads = take<kt_read>(read_room);
    if (!records || !extents || !state || !origin || !missing || !cycle_number || !cycle_record) return false;
    if (!pool_at || !pool_slot || !pool_slots || !reads) return false;
    memcpy(records, spec.records, (size_t)record_count * sizeof *records);
    memcpy(extents, spec.extents, (size_t)extent_count * sizeof *extents);
    return true;
}

bool Store::check_pools(const kt_store_spec &spec) {
    for (int32_t pool = 0; pool < spec.pools; pool++) {
        pool_slot[pool] = spec.pool_slot_bytes[pool];
        if (pool_slot[pool] <= 0 || pool_slot[pool] % KT_PAGE != 0 || spec.sizes->pool_slots[pool] < 1) return false;
    }
    return true;
}

bool Store::make_residency(const kt_store_spec &spec) {
    int32_t *pool_of = take<int32_t>(record_count), *domain_of = take<int32_t>(record_count);
    bool pooled = false;
    for (int64_t r = 0; r < record_count && pool_of != nullptr && domain_of != nullptr; r++) {
        pooled = pooled || records[r].pool >= 0;
        pool_of[r] = records[r].pool;
        domain_of[r] = records[r].domain;
    }
    kt_residency_spec what = {};
    what.pool_slots = spec.sizes->pool_slots;
    what.pool_spares = spec.sizes->pool_spares;
    what.domain_slots = spec.sizes->domain_slots;
    what.record_pool = pool_of;
    what.record_domain = domain_of;
    what.records = record_count;
    what.pools = spec.pools;
    what.domains = spec.domains;
    what.policy = spec.policy == KT_POLICY_AUTO ? (int32_t)KT_LRU : spec.policy;
    what.growth = spec.growth;
    if (pooled) residency = kt_residency_create(&what);
    counters.policy = what.policy;
    free(pool_of);
    free(domain_of);
    return !pooled || residency != nullptr;
}

bool Store::make_cycle(const kt_store_spec &spec) {
    int64_t count = 0;
    int64_t *bytes = take<int64_t>(record_count);
    if (bytes == nullptr) return false;
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool >= 0) continue;
        cycle_number[r] = count;
        cycle_record[count] = r;
        bytes[count++] = records[r].slot_bytes;
    }
    if (count > 0) cycle = kt_cycle_create(bytes, count, spec.sizes->cycle_bytes);
    free(bytes);
    rows_bytes = whole_pages(spec.row_bytes);
    return count == 0 || cycle != nullptr;
}

// What every token passes through. The slots are left out: registering pins and clears them at once (seconds for a few
// GiB, before the first token), and saves some 2 ms of a core for each GiB read.
void Store::register_buffers() {
    if (cycle != nullptr) {
        const int64_t ring = kt_cycle_ring_bytes(cycle);
        int64_t stays = 0;
        for (int64_t n = 0; n < kt_cycle_pinned(cycle); n++) stays += records[cycle_record[n]].slot_bytes;
        if (ring > 0) kt_io_register(io, memory + cycle_at + stays, ring, ring);
    }
    if (rows_bytes > 0) kt_io_register(io, memory + rows_at, rows_bytes, rows_bytes);
}

void Store::count(kt_store_counters *to) const {
    *to = counters;
    to->guess_level = kt_controller_level(guesses.controller);
    to->guess_gain_ns = kt_controller_gain(guesses.controller);
    to->filled_bytes = arena.filled() < counters.arena_bytes ? arena.filled() : counters.arena_bytes;
    for (int32_t pool = 0; pool < pools && residency != nullptr; pool++) {
        to->resident_bytes += pool_slot[pool] * kt_residency_used(residency, pool);
    }
    if (cycle != nullptr) {
        for (int64_t n = 0; n < kt_cycle_pinned(cycle); n++) {
            if (state[cycle_record[n]] == READY) to->resident_bytes += records[cycle_record[n]].slot_bytes;
        }
        to->resident_bytes += kt_cycle_ring_bytes(cycle);
    }
    kt_io_count(io, &to->io);
}

void Store::drop() {
    while (kt_io_pending(io) > 0) progress(true);
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool < 0 || !kt_residency_evict(residency, r)) continue;
        lost_guess(r);
        state[r] = ABSENT;
    }
    if (cycle == nullptr) return;
    kt_cycle_drop(cycle);
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool < 0) state[r] = ABSENT;
    }
}

uint8_t *Store::slot(int64_t record) const {
    const int32_t pool = records[record].pool;
    return memory + pool_at[pool] + kt_residency_slot(residency, record) * pool_slot[pool];
}

void Store::begin(int64_t first_record, int64_t tokens) {
    const bool first = first_record <= last_first || last_first < 0;
    guesses.idle_ns += guesses.idle.ends(kt_now_ns());
    end_score();
    guesses.scores = tokens <= MOST_DECODED && first_record == guesses.foreseen.first_record;
    progress(false);
    last_first = first_record;
    choose_policy();
    if (!first) return;
    next_step(tokens);
    const bool prompt = tokens > MOST_DECODED;
    if (prompt && !in_prompt) {
        counters.sequences++;
        kt_residency_sequence(residency);
        chooser.sequence();
    }
    in_prompt = prompt;
    counters.steps++;
    counters.tokens += tokens;
    kt_residency_step(residency, tokens);
    chooser.step(tokens);
}

// Between two calls: the policy that does best by the demands so far. The first one that is chosen is no change.
void Store::choose_policy() {
    const bool began = chooser.policy() >= 0;
    chooser.end_call(residency);
    const int32_t policy = chooser.policy();
    if (policy < 0 || policy == counters.policy) return;
    kt_residency_set_policy(residency, policy);
    counters.policy = policy;
    counters.policy_changes += began;
}

void Store::release(int64_t record) {
    kt_residency_release(residency, record);
    if (!has(record)) state[record] = ABSENT;  // it was a guest
}

int64_t Store::misses_at_once(int64_t record) const {
    if (!in_prompt) return INT64_MAX;
    const int64_t deep = BYTES_AT_ONCE / records[record].slot_bytes, half = kt_residency_members(residency, record) / 2;
    const int64_t both = deep < half ? deep : half;
    return both > LEAST_MISSES ? both : LEAST_MISSES;
}

int32_t Store::want(int64_t record, int64_t tokens) {
    kt_placed placed;
    const int32_t answer = kt_residency_acquire(residency, record, tokens, &placed);
    if (answer == KT_FULL) return answer;
    chooser.note(record, tokens);
    counters.demands++;
    counters.passed += placed.guest;
    if (placed.victim >= 0) {
        counters.evictions++;
        lost_guess(placed.victim);
        state[placed.victim] = ABSENT;
    }
    if (placed.displaced >= 0) {
        lost_guess(placed.displaced);
        state[placed.displaced] = ABSENT;
    }
    score(record);
    if (answer != KT_MISS && origin[record] == GUESS) use_guess(record, answer == KT_LOADING);
    if (answer != KT_MISS) {
        counters.hits++;
        return answer;
    }
    counters.misses++;
    lost_guess(record);
    collect(record, slot(record));
    return answer;
}

bool Store::push(const kt_read &read) {
    if (read_count == read_room) {
        kt_read *grown = static_cast<kt_read *>(realloc(reads, (size_t)(2 * read_room) * sizeof *reads));
        if (grown == nullptr) return false;
        reads = grown;
        read_room *= 2;
    }
    reads[read_count++] = read;
    return true;
}

// Put the reads that bring a record to `base` beside those that wait for `start`.
void Store::collect(int64_t record, uint8_t *base) {
    const kt_record &what = records[record];
    state[record] = READING;
    missing[record] = what.extents;
    (origin[record] == GUESS ? guesses.flying : flying)++;
    for (int32_t e = 0; e < what.extents; e++) {
        const kt_extent &extent = extents[what.first_extent + e];
        const kt_read read = {extent.file, extent.offset, extent.bytes, base + extent.at, (uint64_t)record};
        if (!push(read)) note({read.tag, ENOMEM, read.file, read.offset});
    }
}

bool Store::start() {
    if (read_count == 0) return true;
    // Guesses whose time has passed without a use.
    kt_io_cancel_behind(io);
    const int64_t bytes = read_bytes();
    kt_io_pending(io) == 0 ? guesses.idle.reads_start(kt_now_ns(), bytes) : guesses.idle.reads_more(bytes);
    const bool taken = kt_io_submit(io, reads, read_count);
    for (int64_t i = 0; i < read_count && !taken; i++) note({reads[i].tag, ENOMEM, reads[i].file, reads[i].offset});
    read_count = 0;
    return taken;
}

void Store::progress(bool wait) {
    kt_done done[DONE_AT_ONCE];
    const bool was_reading = reading();
    int64_t some = kt_io_reap(io, done, DONE_AT_ONCE, wait);
    while (some > 0) {
        for (int64_t i = 0; i < some; i++) note(done[i]);
        some = some == DONE_AT_ONCE ? kt_io_reap(io, done, DONE_AT_ONCE, false) : 0;
    }
    if (was_reading && !reading()) guesses.idle.reads_end(kt_now_ns(), wait);
}

void Store::note(const kt_done &done) {
    const bool is_row = done.tag == ROW_TAG;
    const int64_t record = is_row ? -1 : (int64_t)done.tag;
    if (done.error != 0 && (is_row || origin[record] == DEMAND)) fault = {done.error, done.file, done.offset, record};
    if (is_row) {
        rows_missing--;
        flying--;
        rows_failed = rows_failed || done.error != 0;
        return;
    }
    if (done.error != 0) state[record] = FAILED;
    if (--missing[record] == 0) finish(record);
}

// All reads of a record are done, one way or the other.
void Store::finish(int64_t record) {
    const bool failed = state[record] == FAILED, pooled = records[record].pool >= 0;
    (origin[record] == GUESS ? guesses.flying : flying)--;
    if (!failed) state[record] = READY;
    if (origin[record] != DEMAND && guess_came(record, failed)) return;
    if (pooled && failed) {
        kt_residency_failed(residency, record);
    } else if (pooled) {
        kt_residency_loaded(residency, record);
    } else if (failed) {
        kt_cycle_failed(cycle, cycle_number[record]);
    } else {
        kt_cycle_loaded(cycle, cycle_number[record]);
    }
}

// ---- dense records ----

uint8_t *Store::demand(int64_t record) {
    const int64_t number = cycle_number[record];
    // What passes through the ring comes from the drive at each use, however early it was read.
    const bool stays = number < kt_cycle_pinned(cycle) && state[record] == READY;
    counters.demands++;
    stays ? counters.hits++ : counters.misses++;
    const int64_t began = kt_now_ns();
    bool asked = false;
    for (;;) {
        int64_t at = 0;
        const int32_t answer = kt_cycle_demand(cycle, number, &at);
        if (answer == KT_CYCLE_HIT) {
            counters.stall_ns += kt_now_ns() - began;
            read_ahead();
            return memory + cycle_at + at;
        }
        if (asked && state[record] == FAILED) return nullptr;
        if (answer == KT_CYCLE_MISS) {
            asked = true;
            collect(record, memory + cycle_at + at);
            start();
        } else if (kt_io_pending(io) == 0) {
            fault = {EIO, -1, 0, record};  // nothing is on its way, so nothing will change
            return nullptr;
        }
        if (kt_io_pending(io) > 0) progress(true);
    }
}

void Store::consumed(int64_t record) {
    kt_cycle_release(cycle, cycle_number[record]);
    progress(false);
    read_ahead();
}

void Store::read_ahead() {
    int64_t number = 0, at = 0;
    while (kt_cycle_ahead(cycle, &number, &at)) {
        collect(cycle_record[number], memory + cycle_at + at);
        if (state[cycle_record[number]] == FAILED) break;  // no memory; it would come again
    }
    start();
}

// ---- rows ----

int64_t Store::row_capacity(int64_t row_bytes) const { return rows_bytes / (whole_pages(row_bytes) + KT_PAGE); }

uint8_t *Store::read_row(int64_t number, int32_t file, int64_t offset, int64_t bytes) {
    uint8_t *buffer = memory + rows_at + number * (whole_pages(bytes) + KT_PAGE);
    uint8_t *target = buffer + offset % KT_PAGE;
    const kt_read read = {file, offset, bytes, target, ROW_TAG};
    rows_missing++;
    flying++;
    counters.row_reads++;
    if (!push(read)) note({read.tag, ENOMEM, read.file, read.offset});
    return target;
}

bool Store::rows_read() {
    start();
    const int64_t began = kt_now_ns();
    while (rows_missing > 0) progress(true);
    counters.stall_ns += kt_now_ns() - began;
    const bool good = !rows_failed;
    rows_failed = false;
    return good;
}
