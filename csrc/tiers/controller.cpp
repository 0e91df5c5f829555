#include "controller.h"

#include <stdlib.h>

#include "ktitan_tiers.h"

namespace {

// Steps of more tokens than that read a prompt, and say nothing.
constexpr int64_t MOST_DECODED = 8;
// A window of a comparison: steps that still feel the one before, then those that count.
constexpr int64_t SETTLING = 2, COUNTED = 4, WINDOW = SETTLING + COUNTED;
// Pairs of windows in a comparison, an even number; from CLEAR_PAIRS on it may end when the difference is more than 1/10 of the time.
constexpr int64_t PAIRS = 6, CLEAR_PAIRS = 4, CLEAR = 10;
constexpr int64_t SAMPLES = PAIRS * COUNTED;

// What a change must save, as a part of the time of a step: to begin, to go on, for another level.
constexpr int64_t BEGIN = 50, GO_ON = 200, OTHER_LEVEL = 100;

// A drive that is idle for less than 1/BUSY of a step in BUSY_OF_RECENT of the RECENT steps has no time for guesses.
constexpr int64_t BUSY = 25, RECENT = 8, BUSY_OF_RECENT = 6;

// Steps between comparisons: twice as many after each that changes nothing, and so many that what the worse side lost is
// 1/LOST of the time.
constexpr int64_t COLD_WAIT = 16, FIRST_WAIT = 64, MOST_WAIT = 1024, LOST = 200;
// Steps of a stretch; it is another regime than at the last comparison when cost or idle time differ by so much of the time.
constexpr int64_t STRETCH = 16, OTHER_COST = 10, OTHER_IDLE = 8;
constexpr int64_t FIRST_RESTART = 32;

// The mean of the middle half.
int64_t middle(const int64_t *values, int64_t count) {
    int64_t sorted[SAMPLES];
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--) sorted[at] = sorted[at - 1];
        sorted[at] = values[i];
    }
    const int64_t cut = count / 4;
    int64_t sum = 0;
    for (int64_t i = cut; i < count - cut; i++) sum += sorted[i];
    return sum / (count - 2 * cut);
}

// Windows go A B B A A B B A ..., so that what drifts, as a cache that fills, counts for neither.
bool of_rival(int64_t window) { return (window + 1) / 2 % 2 == 1; }

int64_t absolute(int64_t value) { return value < 0 ? -value : value; }
int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

struct Side {
    int64_t costs[SAMPLES], count;
    int64_t cost() const { return middle(costs, count); }
};

}  // namespace

struct kt_controller {
    int32_t mode;
    int64_t full, level, last_level, gain;

    // The last steps: whether the drive was busy in them.
    bool was_busy[RECENT], saturated;
    int64_t seen;

    // The comparison that runs: `level` against `rival`.
    bool comparing, by_regime;
    int64_t rival, window, at, opponent;
    Side mine, its;

    // Until the next one.
    int64_t wait, spacing, since, restart;
    // The regime at the last comparison, and the stretch that is compared with it.
    int64_t base_cost, base_wall, base_idle;
    int64_t stretch_costs[STRETCH], stretch_idles[STRETCH], stretch_walls[STRETCH], stretch;

    int64_t acting() const {
        if (saturated) return 0;
        return comparing && of_rival(window) ? rival : level;
    }
    void note_busy(const kt_guess_step &step);
    void compare(bool for_regime);
    void compare_step(const kt_guess_step &step);
    void window_again();
    void finish();
    bool rival_wins(int64_t saved, int64_t wall);
    void steady_step(const kt_guess_step &step);
    bool other_regime();
};

// Hysteresis: nearly all of the last steps must say so, either way.
void kt_controller::note_busy(const kt_guess_step &step) {
    was_busy[seen++ % RECENT] = step.idle_ns * BUSY < step.wall_ns;
    if (seen < RECENT) return;
    int64_t busy = 0;
    for (bool one : was_busy) busy += one;
    if (!saturated && busy >= BUSY_OF_RECENT) {
        saturated = true;
        comparing = false;
        if (level > 0) last_level = level;
        level = 0;
    } else if (saturated && busy <= RECENT - BUSY_OF_RECENT) {
        saturated = false;
        spacing = FIRST_WAIT;
        restart = FIRST_RESTART;
        compare(false);
    }
}

void kt_controller::compare(bool for_regime) {
    comparing = true;
    by_regime = for_regime;
    if (level == 0) {
        rival = last_level;
    } else {
        // Off comes first, and whenever the regime may have changed.
        const int64_t which = for_regime ? 0 : opponent++ % 3;
        rival = which == 0 ? 0 : which == 1 ? least(2 * level, 2 * full) : most(level / 2, 1);
        if (rival == level) rival = 0;
    }
    window = at = 0;
    mine.count = its.count = 0;
}

void kt_controller::compare_step(const kt_guess_step &step) {
    if (at++ >= SETTLING) {
        const bool others = of_rival(window);
        Side &side = others ? its : mine;
        side.costs[side.count++] = step.wall_ns;
    }
    if (at < WINDOW) return;
    at = 0;
    window++;
    if (window % 2 == 1) return;
    const int64_t pairs = window / 2;
    const bool clear = absolute(mine.cost() - its.cost()) * CLEAR > mine.cost();
    if (pairs == PAIRS || (pairs >= CLEAR_PAIRS && clear)) finish();
}

// Behind a prompt the window begins anew.
void kt_controller::window_again() {
    const int64_t counted = most(at - SETTLING, 0);
    (of_rival(window) ? its : mine).count -= counted;
    at = 0;
}

bool kt_controller::rival_wins(int64_t saved, int64_t wall) {
    if (level == 0) return saved * BEGIN > wall;
    if (rival == 0) return saved * GO_ON > -wall;
    return saved * OTHER_LEVEL > wall;
}

void kt_controller::finish() {
    const int64_t own = mine.cost(), other = its.cost(), wall = own;
    if (level == 0 || rival == 0) gain = level == 0 ? own - other : other - own;
    const bool changes = rival_wins(own - other, wall);
    // The side that is given up took `its.count` steps and their settling, or as many.
    const int64_t lost = changes ? own - other : other - own, steps = its.count / COUNTED * WINDOW;
    if (changes) {
        if (rival == 0) last_level = level;
        level = rival;
        opponent = 0;
    }
    spacing = changes ? FIRST_WAIT : least(2 * spacing, MOST_WAIT);
    restart = changes ? FIRST_RESTART : by_regime ? least(2 * restart, MOST_WAIT) : restart;
    wait = lost > 0 ? most(spacing, steps * LOST * lost / (wall + 1)) : spacing;
    if (changes || by_regime) base_wall = -1;
    since = stretch = 0;
    comparing = false;
}

// The first stretch after a change, or after a comparison for this reason, is the regime that later ones are compared with.
bool kt_controller::other_regime() {
    const int64_t cost = middle(stretch_costs, STRETCH), idle = middle(stretch_idles, STRETCH);
    if (base_wall < 0) {
        base_cost = cost;
        base_idle = idle;
        base_wall = middle(stretch_walls, STRETCH);
        return false;
    }
    return absolute(cost - base_cost) * OTHER_COST > base_wall || absolute(idle - base_idle) * OTHER_IDLE > base_wall;
}

void kt_controller::steady_step(const kt_guess_step &step) {
    since++;
    if (--wait <= 0) return compare(false);
    stretch_costs[stretch] = step.stall_ns + step.overhead_ns;
    stretch_idles[stretch] = step.idle_ns;
    stretch_walls[stretch] = step.wall_ns;
    if (++stretch < STRETCH) return;
    stretch = 0;
    if (other_regime() && since >= restart) compare(true);
}

kt_controller *kt_controller_create(int32_t mode, int64_t full) {
    auto *const made = static_cast<kt_controller *>(calloc(1, sizeof(kt_controller)));
    if (!made) return nullptr;
    made->mode = mode;
    made->full = made->last_level = most(full, 1);
    made->level = mode == KT_PREFETCH_ON ? made->full : 0;
    made->wait = COLD_WAIT;
    made->spacing = FIRST_WAIT;
    made->restart = FIRST_RESTART;
    made->base_wall = -1;
    return made;
}

void kt_controller_destroy(kt_controller *controller) { free(controller); }

int64_t kt_controller_step(kt_controller *controller, const kt_guess_step *step) {
    if (controller->mode != KT_PREFETCH_AUTO) return controller->level;
    if (step->tokens > MOST_DECODED || step->wall_ns <= 0) {
        if (controller->comparing) controller->window_again();
        return controller->acting();
    }
    const bool compared = controller->comparing;
    controller->note_busy(*step);
    if (!controller->saturated && compared && controller->comparing) {
        controller->compare_step(*step);
    } else if (!controller->saturated && !controller->comparing) {
        controller->steady_step(*step);
    }
    return controller->acting();
}

int64_t kt_controller_level(const kt_controller *controller) { return controller->acting(); }
int64_t kt_controller_gain(const kt_controller *controller) { return controller->gain; }

bool kt_guess_fits(int64_t room_ns, int64_t read_ns, int64_t right) { return room_ns * 1024 >= read_ns * (1024 - right); }
