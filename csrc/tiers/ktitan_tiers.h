// The C interface of the store, as ktitan/native/{store,streams}.py call it. Rules of csrc/cpu/ktitan_cpu.h hold here, too.
#pragma once

#include "../cpu/ktitan_cpu.h"
#include "io.h"

// A stored byte range of a record, and where it goes in the record's slot; at % KT_PAGE == offset % KT_PAGE.
struct kt_extent {
    int64_t offset;
    int64_t bytes;
    int64_t at;
    int32_t file;
};

// What moves between tiers as one. `pool` -1: a dense record, part of the cycle, in the order of the records.
struct kt_record {
    int64_t first_extent;
    int64_t slot_bytes;  // a multiple of KT_PAGE
    int32_t extents;
    int32_t pool;
};

struct kt_store_spec {
    const kt_record *records;
    int64_t record_count;
    const kt_extent *extents;
    const int64_t *pool_slot_bytes;
    const int64_t *pool_slots;
    int64_t cycle_bytes;  // for the dense records; 0 where there are none
    int64_t row_bytes;    // buffers for single rows of tables
    int32_t pools;
    int32_t mode;    // enum kt_io_mode
    int32_t direct;  // 0: through the page cache
    int32_t depth;   // reads in flight on a drive; 0: probed
};

struct kt_store_counters {
    int64_t demands;  // records that calls asked for; hits + misses
    int64_t hits;
    int64_t misses;
    int64_t evictions;
    int64_t waves;           // releases that made room for records of the same call, which had no place at once
    int64_t resident_bytes;  // slots in use; of the dense records, those that stay and the ring
    int64_t arena_bytes;
    int64_t filled_bytes;  // of the arena, that the kernel has given so far (in the background)
    int64_t stall_ns;    // time in calls with nothing to compute until a read came back
    int64_t compute_ns;  // time in products
    int64_t row_reads;   // rows of tables
    kt_io_counters io;
};

// The last failed read, for the message.
struct kt_store_fault {
    int32_t error;  // an errno or enum kt_io_fault
    int32_t file;
    int64_t offset;
    int64_t record;  // -1: a row of a table
};

struct kt_store;

// A further value of enum kt_status.
enum kt_store_status { KT_IO_FAILED = 16 };

KT_API int32_t kt_store_open(const kt_store_spec *spec, kt_store **store);  // KT_OK, KT_NO_MEMORY, KT_WRONG_SIZE
KT_API void kt_store_close(kt_store *store);
// Number of the file, or negative: -errno, or kt_io_fault - 1000. All files come before the first call that reads.
KT_API int32_t kt_store_add_file(kt_store *store, const char *path, const kt_stamp *stamp);
// From any thread, while a call runs, too: the numbers are those of some moment each.
KT_API void kt_store_count(kt_store *store, kt_store_counters *counters);
KT_API void kt_store_last_fault(kt_store *store, kt_store_fault *fault);
// Forget what is resident and nobody uses.
KT_API void kt_store_drop(kt_store *store);

// The experts of a layer: expert e is record first_record + e.
struct kt_stream_bank {
    kt_store *store;
    const int64_t *places;  // [experts, 3]: where gate, up and down begin in the slot
    kt_matrix gate;         // of one expert; data is null. rows 0 where there is no gate
    kt_matrix up;
    kt_matrix down;
    const float *gate_bias;
    const float *up_bias;
    const float *down_bias;
    int64_t first_record;
    int64_t experts;
    int64_t hidden;
    int64_t intermediate;
    int32_t activation;
};

// kt_experts with weights that come from the store: the same bits. KT_IO_FAILED: `out` may be written in part.
KT_API int32_t kt_stream_experts(const kt_stream_bank *bank, const void *hidden, int32_t dtype, int64_t tokens,
                                 const int64_t *index, int64_t slots, const float *weights, int32_t arithmetic, void *out);
// kt_linear with the weights of a dense record; `place` is where they begin in it, shape->data is null.
KT_API int32_t kt_stream_linear(kt_store *store, int64_t record, int64_t place, const kt_matrix *shape, const void *x,
                                int32_t dtype, int64_t count, const float *bias, int32_t arithmetic, void *out);
// kt_rows with rows that are read one by one. The extents say where the matrix is stored, in order; `at` is the position of
// their first byte in the matrix.
KT_API int32_t kt_stream_rows(kt_store *store, const kt_extent *extents, int64_t extent_count, const kt_matrix *shape,
                              const int64_t *ids, int64_t count, float *out);

// CRC-32C (Castagnoli) of `bytes` bytes, continuing `crc`; 0 at the start (RFC 3720, appendix B.4).
KT_API uint32_t kt_crc32c(uint32_t crc, const void *data, int64_t bytes);
// The same without the processor's instruction, for comparison.
KT_API uint32_t kt_crc32c_tables(uint32_t crc, const void *data, int64_t bytes);
