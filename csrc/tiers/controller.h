// Whether reading ahead pays, and how much of it: decisions only; ktitan/tiers/reference/controller.py takes the same ones.
//
// Steps with guesses and without take turns in windows, and their times are compared: all of it, since reading also takes cores
// and memory from what computes. Whole numbers only, so that both sides agree to the bit.
#pragma once

#include "../cpu/ktitan_cpu.h"

struct kt_controller;

// A step of the model, as measured.
struct kt_guess_step {
    int64_t wall_ns;
    int64_t stall_ns;     // with nothing to compute until a read came back
    int64_t overhead_ns;  // in predictions and in asking for guesses
    int64_t idle_ns;      // from where nothing demanded was on its way to the next demand, where guesses could be read
    int64_t tokens;
};

// `mode`: enum kt_prefetch; `full`: guesses in a call to begin with. Null without memory.
KT_API kt_controller *kt_controller_create(int32_t mode, int64_t full);
KT_API void kt_controller_destroy(kt_controller *controller);
// Note a step; how many guesses a call may make in the next one, 0: off.
KT_API int64_t kt_controller_step(kt_controller *controller, const kt_guess_step *step);
KT_API int64_t kt_controller_level(const kt_controller *controller);
// Of the last comparison of on with off: what guesses saved in a step, in ns.
KT_API int64_t kt_controller_gain(const kt_controller *controller);

// Whether a guess whose read takes `read_ns` is worth its place in `room_ns` of idle time, when `right` of 1024 guesses are
// used: what a right one saves is the part of its read that fits, what a wrong one costs is the rest.
KT_API bool kt_guess_fits(int64_t room_ns, int64_t read_ns, int64_t right);
