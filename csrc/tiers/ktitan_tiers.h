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
    int32_t domain;  // the records that compete for slots (residency.h); of one pool
    int32_t layer;   // with experts, that it belongs to, from 0 up; -1: dense
};

// How the memory is shared out; kt_store_resize changes it.
struct kt_store_sizes {
    const int64_t *pool_slots;
    const int64_t *pool_spares;   // of them, for guesses and for records that are not admitted
    const int64_t *domain_slots;
    int64_t cycle_bytes;  // for the dense records; 0 where there are none
};

// Whether experts are read before the router asks for them.
enum kt_prefetch { KT_PREFETCH_OFF = 0, KT_PREFETCH_ON = 1, KT_PREFETCH_AUTO = 2 };

// A value of kt_store_spec.policy: the one that measures best, of enum kt_policy.
constexpr int32_t KT_POLICY_AUTO = -1;

struct kt_store_spec {
    const kt_record *records;
    int64_t record_count;
    const kt_extent *extents;
    const int64_t *pool_slot_bytes;
    const kt_store_sizes *sizes;
    int64_t row_bytes;    // buffers for single rows of tables
    double growth;        // kt_residency_spec
    int64_t chunk_tokens;  // most tokens of a pass of experts: memory for its results grows with them
    int32_t pools;
    int32_t domains;
    int32_t mode;      // enum kt_io_mode
    int32_t direct;    // 0: through the page cache
    int32_t depth;     // reads in flight on a drive; 0: probed
    int32_t policy;    // enum kt_policy, or KT_POLICY_AUTO
    int32_t prefetch;  // enum kt_prefetch
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
    int64_t steps;       // of the model: passes over its layers with experts
    int64_t tokens;      // of these steps
    int64_t sequences;   // that began
    int64_t passed;      // demands that the policy did not admit: read or foreseen, used, and let go
    int64_t policy;      // enum kt_policy that decides now
    int64_t policy_changes;
    // Predictions: of the demands of calls that were predicted, and of those among them that were not resident.
    int64_t predicted;             // demands in such calls
    int64_t predicted_right;       // foretold among as many as a token chooses
    int64_t predicted_absent;      // of `predicted`, not resident when predicted
    int64_t predicted_absent_right;
    int64_t predict_ns;            // time in predictions, on the calling thread
    // Guesses: reads of what was predicted and absent.
    int64_t guesses;
    int64_t guess_bytes;
    int64_t guesses_used;   // demanded while they were there or on their way; these demands are hits
    int64_t guesses_late;   // of these, on their way
    int64_t guesses_wasted; // made room for others unused, or failed
    int64_t guess_level;    // most guesses in a call, now; 0: off
    int64_t guess_steps;    // steps with guesses on
    int64_t guess_changes;  // on to off or off to on
    int64_t guess_gain_ns;  // by the last comparison: time that guesses saved in a step; negative: cost
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

// The router of a layer with experts as it can be foreseen from the input of the experts (or of the dense layer) before it:
// scores = act(router (x * scale) + bias) + correction, the best `chosen` of them; with groups only of the best groups.
struct kt_predictor {
    const void *router;       // [experts, hidden], rows one after another
    const float *scale;       // [hidden], or null: this layer's norm weight over that of the layer that is looked from
    const float *bias;        // [experts], or null
    const float *correction;  // [experts], or null
    int64_t first_record;     // of expert 0
    int64_t experts, hidden, chosen;
    int32_t dtype;            // of the router, enum kt_dtype
    int32_t sigmoid;          // act: 1 the logistic function, 0 none (softmax keeps the order)
    int32_t groups;           // 1: none
    int32_t groups_kept;
    int32_t group_best;       // a group counts for the sum of so many of its best scores
};

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
// Share the memory out anew, between two calls; what stays is kept. KT_OK, KT_WRONG_SIZE (nothing changed), KT_NO_MEMORY.
KT_API int32_t kt_store_resize(kt_store *store, const kt_store_sizes *sizes);
// The best `most` experts of each of `tokens` rows, best first: experts [tokens, most]. KT_OK, KT_NO_KERNEL, KT_WRONG_SIZE.
KT_API int32_t kt_predict(const kt_predictor *predictor, const void *hidden, int32_t dtype, int64_t tokens, int64_t most,
                          int64_t *experts);
// Foresee a layer from the input of a layer without experts: guesses are read where they may be.
KT_API int32_t kt_store_foresee(kt_store *store, const kt_predictor *predictor, const void *hidden, int32_t dtype,
                                int64_t tokens);
// The same with experts that are known (layers that route by token); records, best first.
KT_API int32_t kt_store_foretell(kt_store *store, const int64_t *records, int64_t count);
// What a record counts for at the start, in tokens, and whether the policy with pins keeps it (residency.h).
KT_API void kt_store_seed(kt_store *store, int64_t record, double tokens, int32_t pinned);
// Read records into free slots and wait for them: KT_OK, KT_IO_FAILED. Those without a free slot are left out.
KT_API int32_t kt_store_warm(kt_store *store, const int64_t *records, int64_t count);
// Tokens that chose each record since the store was opened.
KT_API void kt_store_tokens(kt_store *store, int64_t *tokens);

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
    const kt_predictor *next;  // of the next layer with experts; null: not foreseen
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
