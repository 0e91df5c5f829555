// The C interface of what stands between matrix products: norms, rotation, attention over pages, routing, and programs,
// which are the operations of one pass of a model in a row.
//
// All numbers are float32 unless a struct says otherwise; rows lie one after another. Results are functions of their
// inputs only, as in csrc/cpu/README.md. Every struct belongs to the caller and stays as it is while it is in use.
#pragma once

#include "../cpu/ktitan_cpu.h"

// ---- KV pool: pages of 64 tokens, counted by reference, copied on write (ktitan/context.py has the contract) ----
// Any thread may call, calls into one pool run one at a time; who closes a pool is its last user.

enum kt_kv_format { KT_KV_F32 = 0, KT_KV_BF16 = 1, KT_KV_Q8 = 2, KT_KV_FORMATS = 3 };

// What a layer stores of a token. Page i of a sequence holds its positions 64 i to 64 i + 63, keys [key_heads, 64, key_dim],
// then values [value_heads, 64, value_dim]; q8 is Q8_0 along a head's numbers (widths are multiples of 32 then).
struct kt_kv_layer {
    int64_t key_heads, key_dim, value_heads, value_dim;
    int32_t format;
};

struct kt_pool_counts {
    int64_t pages, free_pages;           // of all layers alike
    int64_t page_bytes;                  // one page in all declared layers
    int64_t allocated_bytes, used_bytes;
    int64_t missing_bytes;               // what the last refused call would have needed above the limit
};

// Further values of enum kt_status.
enum { KT_POOL_FULL = 16, KT_NO_SEQUENCE = 17, KT_NO_LAYER = 18, KT_UNSURE = -1, KT_NOT_READY = -2 };

typedef struct kt_pool kt_pool;

KT_API kt_pool *kt_pool_open(void);  // null: no memory
KT_API void kt_pool_close(kt_pool *pool);
KT_API kt_pool *kt_pool_copy(kt_pool *pool);  // sequences keep their ids and share what they shared; null: no memory
KT_API void kt_pool_count(kt_pool *pool, kt_pool_counts *out);
// `limit_bytes` below 0: no limit; it holds for all of the pool's memory. A null `what` undeclares a layer without tokens.
KT_API int32_t kt_pool_declare(kt_pool *pool, int64_t layer, const kt_kv_layer *what, int64_t limit_bytes);
KT_API int64_t kt_pool_sequence(kt_pool *pool);                    // a new one; -1: no memory
KT_API int64_t kt_pool_fork(kt_pool *pool, int64_t sequence);      // a new one that shares all pages; -1: no such sequence
KT_API int32_t kt_pool_free(kt_pool *pool, int64_t sequence);
KT_API int32_t kt_pool_crop(kt_pool *pool, int64_t sequence, int64_t length);
KT_API int64_t kt_pool_length(kt_pool *pool, int64_t layer, int64_t sequence);            // -1: no such sequence
KT_API int64_t kt_pool_table(kt_pool *pool, int64_t sequence, int64_t *pages, int64_t room);  // how many there are
// Own pages for the next tokens[i] tokens of sequences[i], or nothing is changed and KT_POOL_FULL.
KT_API int32_t kt_pool_reserve(kt_pool *pool, const int64_t *sequences, const int64_t *tokens, int64_t count,
                               int64_t limit_bytes);
// Write the next tokens of a layer, packed in one row: keys [T, key_heads, key_dim], values [T, value_heads, value_dim].
KT_API int32_t kt_pool_append(kt_pool *pool, int64_t layer, const int64_t *sequences, const int64_t *tokens, int64_t count,
                              const float *keys, const float *values, int64_t limit_bytes);
// Tokens [first, first + count) of a sequence, as kt_pool_append takes them.
KT_API int32_t kt_pool_read(kt_pool *pool, int64_t layer, int64_t sequence, int64_t first, int64_t count, float *keys,
                            float *values);
// All `length` tokens of sequences of one length: keys [count, key_heads, length, key_dim], values alike.
KT_API int32_t kt_pool_gather(kt_pool *pool, int64_t layer, const int64_t *sequences, int64_t count, int64_t length,
                              float *keys, float *values);
// Give free pages back to the system until the pool has at most `limit_bytes`; what it has afterwards.
KT_API int64_t kt_pool_trim(kt_pool *pool, int64_t limit_bytes);

// ---- Norms, rotation, activation ----

// out [count, width] = x / sqrt(mean(x^2) + eps) * w, or * (1 + w).
struct kt_norm {
    const float *weight;  // [width]; null: none
    int64_t width;
    float eps;
    int32_t unit_offset;
};
KT_API int32_t kt_rms_norm(const kt_norm *norm, const float *x, int64_t count, float *out);

// How the numbers of a head pair up, and where they go: number i of the turned part with i + half, or 2 i with 2 i + 1.
enum kt_pairing { KT_HALVES = 0, KT_NEIGHBOURS = 1 };
// The first `turned` of `width` numbers of each head (or those from `first` on) are turned by position; the others stay.
struct kt_rotation {
    int64_t width, first, turned;
    int32_t in, out;  // enum kt_pairing, of what is read and of what is written
};
// x [tokens, heads, width] in place; table [tokens, turned]: turned / 2 cosines, then as many sines.
KT_API int32_t kt_rotate(const kt_rotation *rotation, float *x, int64_t tokens, int64_t heads, const float *table);

// out = act(gate) * up, or act(gate) where up is null; out may be gate.
KT_API int32_t kt_activate(int32_t activation, const float *gate, const float *up, int64_t count, float *out);

// ---- Attention ----

// Grouped: query [T, heads, key_dim] on keys [S, key_heads, key_dim] and values [S, key_heads, value_dim].
// Latent (absorbed): query [T, heads, key_dim + value_dim] on latents [S, key_dim] and rotated parts [S, value_dim], which
// take the place of keys and values; out [T, heads, key_dim] is the weighted sum of latents.
struct kt_attention {
    int64_t heads, key_heads, key_dim, value_dim;
    float scaling;
    float softcap;       // 0: none
    const float *sinks;  // [heads], or null: a logit that takes part in the softmax and has no value
    int64_t window;      // 0: none; a token sees itself and window - 1 before it
    int32_t latent;
};

// Which keys a token sees beside causality and window: null data sees all. Additive float or bool (1 byte, 1 sees), numbers
// `*_stride` apart: [rows, heads (or 1), tokens, keys].
struct kt_mask {
    const void *data;
    int32_t is_bool;
    int64_t row_stride, head_stride, token_stride;
};

// Tensors [rows, tokens or keys, heads, width] of any strides (in numbers); the last dimension is dense.
struct kt_view {
    const float *data;
    int64_t row_stride, head_stride, token_stride;
};

// The next tokens[i] tokens of sequences[i], whose keys and values the layer holds already: query and out are packed rows.
KT_API int32_t kt_attend_pool(kt_pool *pool, int64_t layer, const kt_attention *what, const int64_t *sequences,
                              const int64_t *tokens, int64_t count, const float *query, const kt_mask *mask, float *out);
// The same over tensors: `tokens` queries a row, which are the last of `keys` keys; `causal` 0: only the mask tells.
KT_API int32_t kt_attend(const kt_attention *what, int64_t rows, int64_t tokens, int64_t keys, const kt_view *query,
                         const kt_view *key, const kt_view *value, const kt_mask *mask, int32_t causal, float *out);

// out [T, heads, rows] = for each head its own matrix: weights [heads * rows, columns], x [T, heads, columns].
KT_API int32_t kt_heads_product(const kt_matrix *weights, int64_t heads, const float *x, int64_t tokens, float *out);

// ---- Routing ----

enum kt_scores { KT_SOFTMAX_ALL = 0, KT_SOFTMAX_CHOSEN = 1, KT_SIGMOID = 2 };
// scores = act(W x + bias); chosen by scores + correction, of the best groups only; weights are the scores of the chosen,
// divided by their sum (+ 1e-20 with sigmoid) if `normalise`, times scaling. Of equal ones the lower number is chosen.
struct kt_router {
    kt_matrix weights;        // [experts, hidden], plain floats
    const float *bias;        // [experts], or null
    const float *correction;  // [experts], or null
    int64_t chosen;
    int32_t scores;           // enum kt_scores
    int32_t groups, groups_kept, group_best;  // groups 1: none; a group counts for the sum of its best `group_best`
    int32_t normalise;
    float scaling;
};
// index, weights [tokens, chosen], best first; logits [tokens, experts] where it is not null.
KT_API int32_t kt_route(const kt_router *router, const float *hidden, int64_t tokens, int64_t *index, float *weights,
                        float *logits);
// out [tokens, width] = x * sigmoid(scores [tokens]); out may be x.
KT_API int32_t kt_gate(const float *x, const float *scores, int64_t tokens, int64_t width, float *out);

// ---- Programs ----

enum kt_op_kind {
    KT_OP_ROWS = 0,      // out = rows `ids` of a table (what: kt_matrix) times factor
    KT_OP_STREAM_ROWS,   // the same from a store (what: kt_stream_table)
    KT_OP_NORM,          // out = norm(in0); in0 may be several groups of `width` (heads) a token
    KT_OP_LINEAR,        // out = W in0 + bias (what: kt_matrix)
    KT_OP_STREAM_LINEAR, // what: kt_stream_dense
    KT_OP_HEADS,         // kt_heads_product; n0 = heads
    KT_OP_ROTATE,        // in place on out; n0 = heads, n1 = number of the table of positions
    KT_OP_COPY,          // out columns [n1, n1 + n2) a group = in0 columns [n0, n0 + n2); n3 = groups (heads) a token
    KT_OP_APPEND,        // keys in0 and values in1 to layer n0 of the pool
    KT_OP_ATTEND,        // out = attention of query in0 on layer n0 (what: kt_attention)
    KT_OP_ACTIVATE,      // out = act(in0) * in1; n0 = activation; in1 -1: none
    KT_OP_ADD,           // out = in0 + in1
    KT_OP_SCALE,         // out = in0 * factor
    KT_OP_GATE,          // out = in0 * sigmoid(in1), in1 one number a token
    KT_OP_ROUTE,         // out = index, out1 = weights (what: kt_router)
    KT_OP_EXPERTS,       // out = experts of in0 by index in1, weights in2 (what: kt_bank); n0 = slots
    KT_OP_STREAM_EXPERTS,// what: kt_stream_bank
    KT_OP_FORESEE,       // what: kt_foresee, in0 its input
    KT_OP_LAST,          // out = the last token of each sequence of in0: rows of a buffer of `by sequence` size
    KT_OP_ORDER,         // out column i = in0 column order[i] (what: int64_t [width])
    KT_OP_KINDS
};

struct kt_store;
struct kt_extent;
struct kt_predictor;

// Arguments of kt_stream_linear: shape.data is null, `place` is where the weights begin in the record.
struct kt_stream_dense {
    kt_store *store;
    int64_t record, place;
    kt_matrix shape;
};

// Arguments of kt_stream_rows.
struct kt_stream_table {
    kt_store *store;
    const kt_extent *extents;
    int64_t extent_count;
    kt_matrix shape;
};

// Arguments of kt_store_foresee.
struct kt_foresee {
    kt_store *store;
    const kt_predictor *predictor;
};

// Operands are numbers of buffers; -1: none. All of an operation have as many rows, but for KT_OP_LAST.
struct kt_op {
    int32_t kind;
    int32_t in[3];
    int32_t out[2];
    int32_t arithmetic;  // enum kt_arithmetic
    float factor;
    int64_t n[4];
    const void *what;
    const float *bias;
};

// A buffer has `width` numbers of `bytes` each a token, or a sequence.
struct kt_buffer {
    int64_t width;
    int32_t bytes;
    int32_t by_sequence;
};

struct kt_program {
    const kt_op *ops;
    const kt_buffer *buffers;
    const int64_t *table_widths;  // of the tables of positions
    int64_t op_count, buffer_count, table_count;
};

// One pass: tokens[i] tokens of sequences[i], packed in one row.
struct kt_step {
    const int64_t *ids;        // [total]
    const int64_t *sequences;  // [count]
    const int64_t *tokens;     // [count]
    int64_t count, total;
    kt_pool *pool;
    const float *const *tables;  // of positions, by number: [total, width] as kt_rotate takes them
    void *const *buffers;        // [buffer_count], each with room for total (or count) rows
};

// Whether every operation names buffers that are there, of widths that fit what it does with them: KT_OK, or KT_WRONG_SIZE
// or KT_NO_KERNEL with the number of the first wrong operation. Once, before the first run; runs rely on it.
KT_API int32_t kt_program_check(const kt_program *program, int64_t *failed);

// Run ops [first, last) of a checked program. The pool has room for the step already. KT_OK, or the status of the op that failed,
// whose number is written to *failed: the buffers are void then, and what was appended is for the caller to crop.
KT_API int32_t kt_program_run(const kt_program *program, const kt_step *step, int64_t first, int64_t last, int64_t *failed);

// ---- Choosing tokens, and steps of one token each ----

// temperature > 0, then top_k, then top_p, as transformers' warpers cut; top_k 0: always the likeliest token.
struct kt_choice {
    float temperature;
    int64_t top_k;
    double top_p;  // in (0, 1]; 1: off
};

// The token of logits [count] whose part of the cumulative probabilities, in the order of tokens, holds `uniform` in [0, 1).
// KT_UNSURE where that depends on how sums are rounded, where a logit is NaN, or where too many tokens can be chosen:
// the plain way decides then.
KT_API int32_t kt_choose(const kt_choice *choice, const float *logits, int64_t count, double uniform, int64_t *token);

// What stays the same between the steps of a sequence. All belongs to the caller.
struct kt_decoding {
    const kt_program *program;
    kt_pool *pool;
    int64_t sequence;
    const float *const *tables;  // of positions, from position 0 on
    int64_t positions;           // that every table has
    void *const *buffers;        // for one token, the logits among them
    const float *logits;
    int64_t vocabulary;
    const kt_choice *choice;     // null: the caller chooses
};

// Run the whole program for `token` at position `seen`, and choose the next. KT_OK; KT_UNSURE: the logits are there, no token was
// chosen; KT_NOT_READY, with nothing done: the sequence does not hold `seen` tokens, or the step needs a page or rows of a
// table; or the status of an operation that failed, as kt_program_run.
KT_API int32_t kt_program_next(const kt_decoding *decoding, int64_t token, int64_t seen, double uniform, int64_t *chosen);
