// The tier above RAM: which record is in which VRAM slot, and when a device may see it. Decisions and the calls that move
// bytes; the device itself is two functions. ktitan/tiers/reference/vram.py takes the same decisions in Python.
//
// A device reads the published table while a step runs, so what it names stays as it is until the next publish: a record
// is promoted into a slot that the table does not name, and a victim gives its slot back when the table no longer has it.
// A pool keeps `spares` slots free between two steps for that: as many records can be promoted in each step.
#pragma once

#include "residency.h"

// The copies between a VRAM slot and a RAM slot of one pool; done when they return. False: it failed.
struct kt_vram_device {
    void *context;
    bool (*copy_in)(void *context, int32_t pool, int64_t vram_slot, int64_t ram_slot);
    bool (*copy_out)(void *context, int32_t pool, int64_t vram_slot, int64_t ram_slot);
};

struct kt_vram_spec {
    kt_residency *ram;           // outlives the tier; its records and pools are those of the tier
    const int64_t *pool_slots;   // VRAM slots of each pool; 0: none
    const int64_t *pool_spares;  // of them, kept free for promotions
    const int32_t *record_pool;
    const uint8_t *on_drive;  // of each record: 1 where its bytes are on a drive, too, so that it may be dropped
    int64_t records;
    int32_t pools;
    int32_t inclusive;  // 1: a promoted record keeps its RAM slot
};

enum kt_vram_answer {
    KT_VRAM_PROMOTED = 0,  // copied in; visible after the next publish
    KT_VRAM_THERE = 1,     // is, or was promoted before; if it was to leave, it stays
    KT_VRAM_ABSENT = 2,    // not in RAM, or not filled yet
    KT_VRAM_FULL = 3,      // no free slot before the next publish
    KT_VRAM_FAILED = 4     // the device did not copy; nothing changed
};

struct kt_vram_counters {
    int64_t promotions;
    int64_t demotions;  // records copied out to RAM
    int64_t drops;      // records that left without a copy: RAM has one, or RAM is full and the drive has one
    int64_t kept;       // victims that stayed, because there was no place for the only copy
};

struct kt_vram;

// Null without memory, or where spares are below 0 or not below the slots.
KT_API kt_vram *kt_vram_create(const kt_vram_spec *spec, const kt_vram_device *device);
KT_API void kt_vram_destroy(kt_vram *vram);

// Copy a record in from RAM, where it is held until the next publish. The least recently used record of its pool is to
// leave at the next publish where too few slots would be free.
KT_API int32_t kt_vram_promote(kt_vram *vram, int64_t record);
// Slot by the published table, or -1; the record is the most recently used one now.
KT_API int64_t kt_vram_use(kt_vram *vram, int64_t record);
// A step boundary: no device reads. Promotions become visible and leave RAM, if nobody else holds them there; a victim goes
// to the RAM slot that came free so, or is dropped. The number of entries of the table that changed.
KT_API int64_t kt_vram_publish(kt_vram *vram);
// [records] VRAM slot or -1: what a device may read until the next publish.
KT_API const int64_t *kt_vram_table(const kt_vram *vram);
// Slots of a pool that are free now.
KT_API int64_t kt_vram_free(const kt_vram *vram, int32_t pool);
KT_API void kt_vram_count(const kt_vram *vram, kt_vram_counters *counters);
