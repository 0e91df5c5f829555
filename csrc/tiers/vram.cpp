#include "vram.h"

#include <stdlib.h>

namespace {

constexpr int64_t NONE = -1;

// PROMOTED and LEAVING wait for the next publish.
enum State : uint8_t { ABSENT, PROMOTED, VISIBLE, LEAVING };

struct Record {
    int64_t slot;
    int64_t older;  // neighbours in the order of use, of VISIBLE records of a pool
    int64_t newer;
    int32_t pool;
    State state;
    bool on_drive;
};

struct Pool {
    int64_t *free_slots;  // a stack
    int64_t free_count;
    int64_t spares;
    int64_t leaving;
    int64_t oldest;
    int64_t newest;
};

// Records in the order in which they were noted.
struct List {
    int64_t *ids;
    int64_t count;
};

template <class T> T *array_of(int64_t count) { return static_cast<T *>(calloc((size_t)count + 1, sizeof(T))); }

}  // namespace

struct kt_vram {
    kt_residency *ram;
    kt_vram_device device;
    Record *records;
    Pool *pools;
    int64_t *slots;  // `free_slots` of all pools
    int64_t *table;
    List promoted;
    List leaving;
    List lingering;  // were to leave RAM, but are held there
    bool inclusive;
    kt_vram_counters counters;
};

namespace {

void unlink(kt_vram *vram, Pool &pool, const Record &record) {
    (record.older == NONE ? pool.oldest : vram->records[record.older].newer) = record.newer;
    (record.newer == NONE ? pool.newest : vram->records[record.newer].older) = record.older;
}

void link_newest(kt_vram *vram, Pool &pool, int64_t id) {
    Record &record = vram->records[id];
    record.older = pool.newest;
    record.newer = NONE;
    (pool.newest == NONE ? pool.oldest : vram->records[pool.newest].newer) = id;
    pool.newest = id;
}

void remove(List &list, int64_t id) {
    int64_t kept = 0;
    for (int64_t i = 0; i < list.count; i++) {
        if (list.ids[i] != id) list.ids[kept++] = list.ids[i];
    }
    list.count = kept;
}

// The least recently used record is to leave, where the spare slots would not be free after the next publish.
void choose_victim(kt_vram *vram, Pool &pool) {
    const int64_t wanted = pool.spares > 0 ? pool.spares : 1;
    if (pool.free_count + pool.leaving >= wanted || pool.oldest == NONE) return;
    const int64_t id = pool.oldest;
    unlink(vram, pool, vram->records[id]);
    vram->records[id].state = LEAVING;
    pool.leaving++;
    vram->leaving.ids[vram->leaving.count++] = id;
}

void stay(kt_vram *vram, int64_t id) {
    Record &record = vram->records[id];
    Pool &pool = vram->pools[record.pool];
    record.state = VISIBLE;
    pool.leaving--;
    link_newest(vram, pool, id);
}

// Hold `id` in RAM, where it is there and filled.
int64_t hold_in_ram(kt_vram *vram, int64_t id) {
    kt_placed placed;
    if (!kt_residency_has(vram->ram, id)) return NONE;
    if (kt_residency_acquire(vram->ram, id, 0, &placed) == KT_HIT) return placed.slot;
    kt_residency_release(vram->ram, id);
    return NONE;
}

void leave_ram(kt_vram *vram, int64_t id) {
    const bool stays = kt_residency_has(vram->ram, id) && !kt_residency_evict(vram->ram, id);
    if (stays) vram->lingering.ids[vram->lingering.count++] = id;
}

// Those that could not leave RAM the last time.
void leave_ram_again(kt_vram *vram) {
    const int64_t count = vram->lingering.count;
    vram->lingering.count = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = vram->lingering.ids[i];
        if (vram->records[id].state == VISIBLE) leave_ram(vram, id);
    }
}

void show(kt_vram *vram, int64_t id) {
    Record &record = vram->records[id];
    record.state = VISIBLE;
    vram->table[id] = record.slot;
    link_newest(vram, vram->pools[record.pool], id);
    kt_residency_release(vram->ram, id);
    if (!vram->inclusive) leave_ram(vram, id);
}

// Copy a record that is not in RAM to a free slot there.
bool demote(kt_vram *vram, int64_t id) {
    const Record &record = vram->records[id];
    kt_placed placed;
    if (kt_residency_free(vram->ram, record.pool) == 0) return false;
    if (kt_residency_acquire(vram->ram, id, 0, &placed) != KT_MISS) return false;
    if (!vram->device.copy_out(vram->device.context, record.pool, record.slot, placed.slot)) {
        kt_residency_failed(vram->ram, id);
        return false;
    }
    kt_residency_loaded(vram->ram, id);
    kt_residency_release(vram->ram, id);
    return true;
}

// A victim leaves, unless it would be lost. True when it did.
bool leave(kt_vram *vram, int64_t id) {
    Record &record = vram->records[id];
    Pool &pool = vram->pools[record.pool];
    if (kt_residency_has(vram->ram, id)) {
        vram->counters.drops++;
    } else if (demote(vram, id)) {
        vram->counters.demotions++;
    } else if (record.on_drive) {
        vram->counters.drops++;
    } else {
        vram->counters.kept++;
        stay(vram, id);
        return false;
    }
    pool.free_slots[pool.free_count++] = record.slot;
    pool.leaving--;
    record.state = ABSENT;
    vram->table[id] = record.slot = NONE;
    return true;
}

bool all_right(const kt_vram_spec &spec) {
    if (!spec.ram || spec.pools < 0 || spec.records < 0) return false;
    for (int32_t i = 0; i < spec.pools; i++) {
        const int64_t slots = spec.pool_slots[i], spares = spec.pool_spares[i];
        if (slots < 0 || slots > INT32_MAX || spares < 0 || (spares >= slots && spares > 0)) return false;
    }
    for (int64_t i = 0; i < spec.records; i++) {
        if (spec.record_pool[i] < 0 || spec.record_pool[i] >= spec.pools) return false;
    }
    return true;
}

bool allocate(kt_vram *vram, const kt_vram_spec &spec) {
    int64_t slots = 0;
    for (int32_t i = 0; i < spec.pools; i++) slots += spec.pool_slots[i];
    vram->records = array_of<Record>(spec.records);
    vram->pools = array_of<Pool>(spec.pools);
    vram->slots = array_of<int64_t>(slots);
    vram->table = array_of<int64_t>(spec.records);
    vram->promoted.ids = array_of<int64_t>(spec.records);
    vram->leaving.ids = array_of<int64_t>(spec.records);
    vram->lingering.ids = array_of<int64_t>(spec.records);
    return vram->records && vram->pools && vram->slots && vram->table && vram->promoted.ids && vram->leaving.ids &&
           vram->lingering.ids;
}

}  // namespace

kt_vram *kt_vram_create(const kt_vram_spec *spec, const kt_vram_device *device) {
    if (!all_right(*spec)) return nullptr;
    kt_vram *made = array_of<kt_vram>(1);
    if (!made) return nullptr;
    if (!allocate(made, *spec)) {
        kt_vram_destroy(made);
        return nullptr;
    }
    made->ram = spec->ram;
    made->device = *device;
    made->inclusive = spec->inclusive;
    int64_t *stack = made->slots;
    for (int32_t i = 0; i < spec->pools; i++) {
        const int64_t count = spec->pool_slots[i];
        made->pools[i] = {stack, count, spec->pool_spares[i], 0, NONE, NONE};
        for (int64_t slot = 0; slot < count; slot++) stack[slot] = count - 1 - slot;
        stack += count;
    }
    for (int64_t i = 0; i < spec->records; i++) {
        made->records[i] = {NONE, NONE, NONE, spec->record_pool[i], ABSENT, spec->on_drive[i] != 0};
        made->table[i] = NONE;
    }
    return made;
}

void kt_vram_destroy(kt_vram *vram) {
    if (!vram) return;
    free(vram->records);
    free(vram->pools);
    free(vram->slots);
    free(vram->table);
    free(vram->promoted.ids);
    free(vram->leaving.ids);
    free(vram->lingering.ids);
    free(vram);
}

int32_t kt_vram_promote(kt_vram *vram, int64_t id) {
    Record &record = vram->records[id];
    Pool &pool = vram->pools[record.pool];
    if (record.state == LEAVING) {
        remove(vram->leaving, id);
        stay(vram, id);
    }
    if (record.state != ABSENT) return KT_VRAM_THERE;
    const int64_t ram_slot = hold_in_ram(vram, id);
    if (ram_slot == NONE) return KT_VRAM_ABSENT;
    if (pool.free_count == 0) {
        kt_residency_release(vram->ram, id);
        choose_victim(vram, pool);
        return KT_VRAM_FULL;
    }
    const int64_t slot = pool.free_slots[pool.free_count - 1];
    if (!vram->device.copy_in(vram->device.context, record.pool, slot, ram_slot)) {
        kt_residency_release(vram->ram, id);
        return KT_VRAM_FAILED;
    }
    pool.free_count--;
    record.slot = slot;
    record.state = PROMOTED;
    vram->promoted.ids[vram->promoted.count++] = id;
    vram->counters.promotions++;
    if (pool.spares > 0) choose_victim(vram, pool);
    return KT_VRAM_PROMOTED;
}

int64_t kt_vram_use(kt_vram *vram, int64_t id) {
    const Record &record = vram->records[id];
    if (record.state == VISIBLE) {
        Pool &pool = vram->pools[record.pool];
        unlink(vram, pool, record);
        link_newest(vram, pool, id);
    }
    return vram->table[id];
}

int64_t kt_vram_publish(kt_vram *vram) {
    const List promoted = vram->promoted, leaving = vram->leaving;
    vram->promoted.count = vram->leaving.count = 0;
    leave_ram_again(vram);
    int64_t changed = promoted.count;
    // In turn, so that a victim gets the RAM slot of the record that took its place.
    for (int64_t i = 0; i < promoted.count || i < leaving.count; i++) {
        if (i < promoted.count) show(vram, promoted.ids[i]);
        if (i < leaving.count) changed += leave(vram, leaving.ids[i]);
    }
    return changed;
}

const int64_t *kt_vram_table(const kt_vram *vram) { return vram->table; }

int64_t kt_vram_free(const kt_vram *vram, int32_t pool) { return vram->pools[pool].free_count; }

void kt_vram_count(const kt_vram *vram, kt_vram_counters *counters) { *counters = vram->counters; }
