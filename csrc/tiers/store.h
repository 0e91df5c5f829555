// The store: the one owner of what is resident. Joins the decisions (residency.h, cycle.h), the memory and the reads.
//
// Only inside a Call: one thread at a time.
#pragma once

#include "chooser.h"
#include "cycle.h"
#include "guesses.h"
#include "ktitan_tiers.h"
#include "memory.h"
#include "residency.h"

// Steps of more tokens than that read a prompt; assisted decoding checks a few tokens at a time.
constexpr int64_t MOST_DECODED = 8;

class Store {
public:
    // KT_OK, KT_NO_MEMORY or KT_WRONG_SIZE.
    int32_t open(const kt_store_spec &spec);
    ~Store();

    int32_t add_file(const char *path, const kt_stamp *stamp) { return kt_io_add(io, path, stamp); }
    void count(kt_store_counters *counters) const;
    void drop();
    // kt_store_resize.
    int32_t resize(const kt_store_sizes &sizes);

    // ---- experts ----
    // A call for a layer's experts begins; the first layer begins a step.
    void begin(int64_t first_record, int64_t tokens);
    // Hold a record that so many tokens chose: KT_HIT, KT_LOADING, KT_MISS (its reads are collected until `start`), KT_FULL.
    int32_t want(int64_t record, int64_t tokens);
    bool has(int64_t record) const { return kt_residency_has(residency, record); }
    void release(int64_t record);
    uint8_t *slot(int64_t record) const;

    // ---- guesses (store_guess.cpp) ----
    // Whether a read is on its way that is no guess.
    bool reading() const { return flying > 0; }
    // Whether a call may look ahead at all.
    bool looks_ahead(bool foresees, int64_t tokens) const {
        return prefetch != KT_PREFETCH_OFF && tokens <= MOST_DECODED && (foresees || guesses.foretold.ever);
    }
    // Foresee a layer from `tokens` rows; whatever goes wrong, nothing is foreseen.
    void foresee(const kt_predictor &predictor, const void *hidden, int32_t dtype, int64_t tokens);
    // The same with known records, best first.
    void foretell(const int64_t *records, int64_t count);
    // Nothing demanded is on its way in the present layer, and its successor is foreseen: read guesses as far as time allows.
    void at_rest();
    // Whether a call for `needed` of a layer's experts tells what the next layer needs: a prompt's needs nearly all.
    bool reads_on(int64_t needed, int64_t experts) const {
        return in_prompt && prefetch != KT_PREFETCH_OFF && 8 * needed >= 7 * experts;
    }
    // All of a call was asked for: read records of the layer that begins here behind it, as guesses into free and spare slots.
    void read_on(int64_t first_record);
    // ---- at the start (store_profile.cpp) ----
    void seed(int64_t record, double tokens, bool pinned);
    int32_t warm(const int64_t *wanted, int64_t count);
    void tokens(int64_t *each) const;

    // ---- dense records ----
    // Hold the record and say where it is; null when it cannot be read. Reads the next ones ahead.
    uint8_t *demand(int64_t record);
    void consumed(int64_t record);

    // ---- rows ----
    // Read pages around [offset, offset + bytes) of a file into row buffer `number`; its first byte's place.
    uint8_t *read_row(int64_t number, int32_t file, int64_t offset, int64_t bytes);
    int64_t row_capacity(int64_t row_bytes) const;
    // Wait for all rows; false when one cannot be read.
    bool rows_read();

    // Start the collected reads; false without memory for them, and then none was.
    bool start();
    // Note what is done; where `wait`, at least one read.
    void progress(bool wait);
    // Whether the record's bytes are there, or its read has failed since `want` or `demand`.
    bool is_ready(int64_t record) const { return state[record] == READY; }
    bool has_failed(int64_t record) const { return state[record] == FAILED; }
    int64_t chunk_tokens() const { return chunk; }
    // Whether the step reads a prompt; how many records of the record's layer that are not there a call asks for at once.
    bool in_a_prompt() const { return in_prompt; }
    int64_t misses_at_once(int64_t record) const;
    bool known(int64_t record, bool pooled) const {
        return record >= 0 && record < record_count && (records[record].pool >= 0) == pooled;
    }

    kt_store_fault fault = {};
    kt_store_counters counters = {};

private:
    enum State : uint8_t { ABSENT, READING, READY, FAILED };
    // Why a record was read: a guess is a demand from its first use on, which may be before it is there.
    enum Origin : uint8_t { DEMAND, GUESS, GUESS_IN_USE };

    bool copy(const kt_store_spec &spec);
    bool check_pools(const kt_store_spec &spec);
    bool make_residency(const kt_store_spec &spec);
    bool make_cycle(const kt_store_spec &spec);
    void register_buffers();
    // store_resize.cpp
    int64_t range_bytes(const kt_store_sizes &sizes, int32_t range) const;
    int64_t most_bytes(int32_t range) const;
    bool take_memory(const kt_store_sizes &sizes);
    bool sound(const kt_store_sizes &sizes) const;
    bool grow(const kt_store_sizes &sizes);
    void shrink(const kt_store_sizes &sizes);
    int32_t change(const kt_store_sizes &sizes, kt_move *moves);
    void move_experts(const kt_move *moves, int64_t count);
    void change_cycle(int64_t bytes);
    bool push(const kt_read &read);
    void collect(int64_t record, uint8_t *base);
    void read_ahead();
    void finish(int64_t record);
    void note(const kt_done &done);
    int64_t read_bytes() const;

    void use_guess(int64_t record, bool late);
    bool guess_came(int64_t record, bool failed);
    void lost_guess(int64_t record);

    void next_step(int64_t tokens);
    void score(int64_t record);
    void end_score();
    void note_candidates(const kt_predictor &predictor, int64_t tokens, int64_t most);
    bool guess(int64_t record, int64_t *room_ns);
    int32_t place_guess(int64_t record);
    bool place_ahead(int64_t record);
    void begin_guess(int64_t record);
    int64_t guess_some(const int64_t *some, int64_t count, int64_t most, int64_t *room_ns);
    void start_guesses();
    void choose_policy();

    kt_record *records = nullptr;
    kt_extent *extents = nullptr;
    int64_t record_count = 0;
    int32_t pools = 0;
    int64_t chunk = 1;
    State *state = nullptr;
    Origin *origin = nullptr;
    int64_t flying = 0;  // records and rows on their way that are no guesses
    int32_t *missing = nullptr;  // reads of the record that are not done
    int64_t *cycle_number = nullptr, *cycle_record = nullptr;  // record <-> number in the cycle

    int64_t last_first = -1;  // record of the last call for experts
    bool in_prompt = false;

    Guesses guesses;
    int32_t prefetch = KT_PREFETCH_OFF;
    Chooser chooser;
    kt_residency *residency = nullptr;
    kt_cycle *cycle = nullptr;
    kt_io *io = nullptr;

    Memory arena;  // a range for each pool, for the cycle, and for rows
    uint8_t *memory = nullptr;  // of the arena
    int64_t *pool_at = nullptr, *pool_slot = nullptr;  // where a pool begins; bytes of its slots
    int64_t *pool_slots = nullptr;                     // of each pool, now
    int64_t cycle_at = 0, cycle_bytes = 0, rows_at = 0, rows_bytes = 0;

    kt_read *reads = nullptr;  // collected
    int64_t read_count = 0, read_room = 0;
    int64_t rows_missing = 0;
    bool rows_failed = false;
};

struct kt_store {
    Store store;
};

int64_t kt_now_ns();
