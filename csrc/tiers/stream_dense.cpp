// kt_stream_linear and kt_stream_rows: dense layers and tables out of a store.
#include "stream.h"

#include "../cpu/detect.h"
#include "../cpu/linear.h"
#include "../cpu/product.h"
#include "store.h"

namespace {

// The extent that holds bytes [from, from + bytes) of a matrix, or null.
const kt_extent *extent_of(const kt_extent *extents, int64_t count, int64_t from, int64_t bytes) {
    for (int64_t e = 0; e < count; e++) {
        if (from >= extents[e].at && from + bytes <= extents[e].at + extents[e].bytes) return &extents[e];
    }
    return nullptr;
}

// The first position of ids[i] in ids[0..i].
int64_t first_of(const int64_t *ids, int64_t i) {
    int64_t first = 0;
    while (ids[first] != ids[i]) first++;
    return first;
}

}  // namespace

int32_t kt_stream_multiply(const Call &call, kt_store *handle, int64_t record, int64_t place, const kt_matrix *shape,
                           const void *x, int32_t dtype, int64_t count, const float *bias, int32_t arithmetic,
                           void *out) {
    Store &store = handle->store;
    if (!store.known(record, false) || place < 0) return KT_WRONG_SIZE;
    const uint8_t *base = store.demand(record);
    if (base == nullptr) return KT_IO_FAILED;
    kt_matrix matrix = *shape;
    matrix.data = base + place;
    const int64_t began = kt_now_ns();
    const int32_t status = kt_multiply(call, &matrix, x, dtype, count, bias, arithmetic, out);
    store.counters.compute_ns += kt_now_ns() - began;
    store.consumed(record);
    return status;
}

int32_t kt_stream_look_up(const Call &, kt_store *handle, const kt_extent *extents, int64_t extent_count,
                          const kt_matrix *shape, const int64_t *ids, int64_t count, float *out) {
    Store &store = handle->store;
    const kt_unit *unit = kt_active_unit();
    if (kt_form(*unit, shape->type, KT_FLOAT32) == FORMS) return KT_NO_KERNEL;
    const int64_t at_once = kt_sound(*shape) ? store.row_capacity(shape->row_bytes) : 0;
    if (at_once < 1 || !kt_counts(count)) return KT_WRONG_SIZE;
    for (int64_t t = 0; t < count; t++) {
        if (ids[t] < 0 || ids[t] >= shape->rows) return KT_OUT_OF_RANGE;
        if (!extent_of(extents, extent_count, ids[t] * shape->row_bytes, shape->row_bytes)) return KT_WRONG_SIZE;
    }
    constexpr int64_t MOST = 256;
    const uint8_t *places[MOST];
    for (int64_t done = 0; done < count; done += MOST < at_once ? MOST : at_once) {
        const int64_t some = least(count - done, least(MOST, at_once));
        const int64_t *wanted = ids + done;
        for (int64_t t = 0; t < some; t++) {
            const int64_t first = first_of(wanted, t), from = wanted[t] * shape->row_bytes;
            const kt_extent *extent = extent_of(extents, extent_count, from, shape->row_bytes);
            places[t] = first < t ? places[first]
                                  : store.read_row(t, extent->file, extent->offset + from - extent->at, shape->row_bytes);
        }
        if (!store.rows_read()) return KT_IO_FAILED;
        for (int64_t t = 0; t < some; t++) {
            unit->dequantize[shape->type](places[t], shape->columns, out + (done + t) * shape->columns);
        }
    }
    return KT_OK;
}

int32_t kt_stream_linear(kt_store *store, int64_t record, int64_t place, const kt_matrix *shape, const void *x,
                         int32_t dtype, int64_t count, const float *bias, int32_t arithmetic, void *out) {
    const Call call;
    return kt_stream_multiply(call, store, record, place, shape, x, dtype, count, bias, arithmetic, out);
}

int32_t kt_stream_rows(kt_store *store, const kt_extent *extents, int64_t extent_count, const kt_matrix *shape,
                       const int64_t *ids, int64_t count, float *out) {
    const Call call;
    return kt_stream_look_up(call, store, extents, extent_count, shape, ids, count, out);
}
