// The memory of a store: who has which part of it, from the start and after kt_store_resize.
#include <stdlib.h>
#include <string.h>

#include "../cpu/threads.h"
#include "store.h"

namespace {

constexpr int64_t MOST_BYTES = INT64_MAX / 4;

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

}  // namespace

// Ranges are the pools, then the cycle, then the buffers for rows. -1: no such size.
int64_t Store::range_bytes(const kt_store_sizes &sizes, int32_t range) const {
    if (range > pools) return rows_bytes;
    if (range == pools) {
        // What is more than all dense records is of no use.
        return smaller((larger(sizes.cycle_bytes, 0) + KT_PAGE - 1) / KT_PAGE * KT_PAGE, most_bytes(range));
    }
    return sizes.pool_slots[range] > MOST_BYTES / pool_slot[range] ? -1 : sizes.pool_slots[range] * pool_slot[range];
}

// With every record in a place of its own.
int64_t Store::most_bytes(int32_t range) const {
    if (range > pools) return rows_bytes;
    int64_t sum = 0;
    for (int64_t r = 0; r < record_count; r++) {
        if (range == pools && records[r].pool < 0) sum += records[r].slot_bytes;
        if (range < pools && records[r].pool == range) sum += pool_slot[range];
    }
    return sum;
}

// Addresses for the most that can ever be of use, or, where a process may not have so many, for what is asked for now.
bool Store::take_memory(const kt_store_sizes &sizes) {
    const int32_t all = pools + 2;
    int64_t *most = static_cast<int64_t *>(calloc((size_t)all, sizeof(int64_t)));
    if (most == nullptr) return false;
    for (int32_t r = 0; r < all; r++) most[r] = larger(most_bytes(r), range_bytes(sizes, r));
    bool good = arena.reserve(most, all);
    for (int32_t r = 0; r < all; r++) most[r] = range_bytes(sizes, r);
    good = good || arena.reserve(most, all);
    free(most);
    if (!good || !grow(sizes)) return false;
    memory = arena.base();
    for (int32_t pool = 0; pool < pools; pool++) pool_at[pool] = arena.at(pool);
    cycle_at = arena.at(pools);
    rows_at = arena.at(pools + 1);
    shrink(sizes);
    return true;
}

// Use more of the ranges that grow; false without memory, with nothing changed.
bool Store::grow(const kt_store_sizes &sizes) {
    for (int32_t r = 0; r < pools + 2; r++) {
        const int64_t bytes = range_bytes(sizes, r);
        if (bytes >= 0 && (bytes <= arena.used(r) || arena.resize(r, bytes))) continue;
        shrink({pool_slots, nullptr, nullptr, cycle_bytes});
        return false;
    }
    return true;
}

// Give back what these sizes do not need; they hold from now on.
void Store::shrink(const kt_store_sizes &sizes) {
    int64_t sum = 0;
    for (int32_t r = 0; r < pools + 2; r++) {
        const int64_t bytes = range_bytes(sizes, r);
        if (bytes < arena.used(r)) arena.resize(r, bytes);
        sum += arena.used(r);
    }
    counters.arena_bytes = sum;
    for (int32_t pool = 0; pool < pools; pool++) pool_slots[pool] = sizes.pool_slots[pool];
    cycle_bytes = sizes.cycle_bytes;
}

bool Store::sound(const kt_store_sizes &sizes) const {
    for (int32_t pool = 0; pool < pools; pool++) {
        if (sizes.pool_slots[pool] < 1) return false;
    }
    return cycle == nullptr || sizes.cycle_bytes >= kt_cycle_needs(cycle);
}

int32_t Store::resize(const kt_store_sizes &sizes) {
    if (!sound(sizes)) return KT_WRONG_SIZE;
    kt_move *moves = static_cast<kt_move *>(calloc((size_t)record_count + 1, sizeof(kt_move)));
    if (moves == nullptr) return KT_NO_MEMORY;
    while (kt_io_pending(io) > 0) progress(true);
    arena.stop_filling();
    const int32_t status = change(sizes, moves);
    arena.fill_in_background();
    free(moves);
    return status;
}

int32_t Store::change(const kt_store_sizes &sizes, kt_move *moves) {
    if (!grow(sizes)) return KT_NO_MEMORY;
    int64_t count = 0;
    if (residency != nullptr) {
        count = kt_residency_resize(residency, sizes.pool_slots, sizes.pool_spares, sizes.domain_slots, moves);
    }
    if (count < 0) {
        shrink({pool_slots, nullptr, nullptr, cycle_bytes});
        return KT_WRONG_SIZE;
    }
    move_experts(moves, count);
    chooser.share_out(sizes);
    const bool moves_ring = cycle != nullptr && sizes.cycle_bytes != cycle_bytes;
    if (moves_ring) change_cycle(sizes.cycle_bytes);
    shrink(sizes);
    if (moves_ring) register_buffers();
    return KT_OK;
}

void Store::move_experts(const kt_move *moves, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const kt_record &record = records[moves[i].record];
        uint8_t *pool = memory + pool_at[record.pool];
        const int64_t slot = pool_slot[record.pool];
        memcpy(pool + moves[i].to * slot, pool + moves[i].from * slot, (size_t)record.slot_bytes);
    }
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool < 0 || kt_residency_has(residency, r)) continue;
        lost_guess(r);
        state[r] = ABSENT;
    }
}

// Registered memory stays where it is in memory, so it is let go first.
void Store::change_cycle(int64_t bytes) {
    kt_io_unregister(io);
    kt_cycle_resize(cycle, bytes);
    for (int64_t r = 0; r < record_count; r++) {
        if (records[r].pool < 0 && !kt_cycle_has(cycle, cycle_number[r])) state[r] = ABSENT;
    }
}

int32_t kt_store_resize(kt_store *store, const kt_store_sizes *sizes) {
    const Call call;
    return store->store.resize(*sizes);
}
