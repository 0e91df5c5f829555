// kt_heads_product: each head's own matrix.
#include "../cpu/arena.h"
#include "../cpu/detect.h"
#include "../cpu/product.h"
#include "parts.h"

namespace {

// Rows of x of one item, so that pointers to them are few.
constexpr int64_t BAND = 256;

struct HeadsJob {
    Weights weights;
    int64_t heads, rows, tokens, piece, pieces, bands;  // rows of one head's matrix, and of one item
    const float *x;
    float *out;
    const float **picked;  // [threads, BAND]
    float *scratches;
};

void heads_item(void *context, int64_t item, int thread) {
    const HeadsJob &job = *static_cast<const HeadsJob *>(context);
    const int64_t columns = job.weights.matrix->columns;
    const int64_t piece = item % job.pieces, head = item / job.pieces % job.heads, band = item / job.pieces / job.heads;
    const int64_t first = piece * job.piece, begin = band * BAND, some = least(BAND, job.tokens - begin);
    const float **picked = job.picked + thread * BAND;
    for (int64_t t = 0; t < some; t++) picked[t] = job.x + ((begin + t) * job.heads + head) * columns;
    float *out = job.out + (begin * job.heads + head) * job.rows + first;
    job.weights.multiply(head * job.rows + first, least(job.piece, job.rows - first), {nullptr, picked, some}, nullptr,
                         out, job.heads * job.rows, job.scratches + thread * job.weights.scratch());
}

}  // namespace

int32_t kt_multiply_heads(const Call &call, const kt_matrix *weights, int64_t heads, const float *x, int64_t tokens,
                          float *out) {
    const kt_unit *unit = kt_active_unit();
    HeadsJob job = {};
    job.weights = {unit, weights, kt_form(*unit, weights->type, KT_FLOAT32)};
    if (job.weights.form == FORMS) return KT_NO_KERNEL;
    if (!kt_sound(*weights) || !kt_counts(tokens) || !kt_counts(heads) || heads == 0 || weights->rows % heads != 0) {
        return KT_WRONG_SIZE;
    }
    job.heads = heads;
    job.rows = weights->rows / heads;
    if (tokens == 0 || job.rows == 0) return KT_OK;
    job.tokens = tokens;
    job.piece = heads < 2 * call.threads() ? kt_piece(job.rows, weights->row_bytes, tokens, call.threads()) : job.rows;
    job.pieces = ceil_div(job.rows, job.piece);
    job.bands = ceil_div(tokens, BAND);
    job.x = x;
    job.out = out;
    Arena arena;
    const size_t picked = arena.add<const float *>(call.threads() * BAND);
    const size_t scratches = arena.add<float>(call.threads() * job.weights.scratch());
    if (!arena.take()) return KT_NO_MEMORY;
    job.picked = arena.at<const float *>(picked);
    job.scratches = arena.at<float>(scratches);
    kt_run(heads_item, &job, job.bands * heads * job.pieces);
    return KT_OK;
}

int32_t kt_heads_product(const kt_matrix *weights, int64_t heads, const float *x, int64_t tokens, float *out) {
    const Call call;
    return kt_multiply_heads(call, weights, heads, x, tokens, out);
}
