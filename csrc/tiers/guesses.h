// What is foreseen of the layers ahead, and what is known of the time to read it in; part of the store (store_guess.cpp).
#pragma once

#include "controller.h"
#include "ktitan_tiers.h"
#include "predict.h"

// The experts of a layer as one prediction foresaw them.
struct Foreseen {
    int64_t first_record = -1;  // of the layer; -1: none
    int64_t experts = 0;
    int64_t *records = nullptr;  // candidates, best first
    int64_t count = 0, room = 0;
    uint8_t *marks = nullptr;  // by expert
    int64_t mark_room = 0;
    int64_t made = 0, used = 0;  // guesses made for the layer, and used by it

    static constexpr uint8_t CHOSEN = 1;  // among as many as a token chooses
    static constexpr uint8_t ABSENT = 2;  // not resident when foreseen
    static constexpr uint8_t LISTED = 4;  // a candidate

    bool reserve(int64_t candidates, int64_t of_experts);
    ~Foreseen();
};

// Records that are known to be demanded, at most MOST, until the second step from there on.
struct Foretold {
    static constexpr int64_t MOST = 64;
    int64_t records[MOST] = {}, count = 0, age = 0;
    bool ever = false;
};

// How fast the drive is, and how long it has nothing to do.
class IdleTime {
public:
    bool open(int64_t record_count);
    ~IdleTime();

    // Demanded reads were started, with nothing else in flight; they ended, seen at once (`awaited`) or later.
    void reads_start(int64_t now, int64_t bytes);
    void reads_more(int64_t bytes) { read_bytes += bytes; }
    void reads_end(int64_t now, bool awaited);
    // In the layer with this first record, nothing demanded is on its way from here on.
    void begins(int64_t layer, int64_t now);
    // The next demand: how long it was, 0 where it had not begun.
    int64_t ends(int64_t now);

    // Expected from now on.
    int64_t left(int64_t now) const;
    // Expected for a read; 0: not known yet.
    int64_t read_ns(int64_t bytes) const { return (int64_t)((double)ns_per_mb * (double)bytes / (1 << 20)); }

private:
    int64_t *gaps = nullptr;  // by the layer's first record
    int64_t layer = -1, since = 0;
    int64_t ns_per_mb = 0, read_since = 0, read_bytes = 0;
};

struct Guesses {
    kt_controller *controller = nullptr;
    Foresight router;
    Foreseen foreseen;
    Foretold foretold;
    IdleTime idle;
    int64_t *best = nullptr, best_room = 0;  // of kt_predict
    int64_t right = 512;                     // of 1024 guesses, those that the layer used
    int64_t flying = 0;                      // on their way
    bool scores = false;                     // the layer that is called was foreseen
    // The step so far.
    int64_t idle_ns = 0, overhead_ns = 0, began = 0, stall_before = 0, tokens = 0;

    ~Guesses();
};
