#include "io_api.h"

kt_io *kt_engine_open(int32_t mode, int32_t direct, int32_t depth, int64_t piece_bytes) {
    return kt_io_create(mode, direct, depth, piece_bytes);
}

void kt_engine_close(kt_io *io) { kt_io_destroy(io); }

int32_t kt_engine_add(kt_io *io, const char *path, const kt_stamp *stamp) { return kt_io_add(io, path, stamp); }

void kt_engine_register(kt_io *io, uint8_t *memory, int64_t bytes, int64_t piece_bytes) {
    kt_io_register(io, memory, bytes, piece_bytes);
}

int32_t kt_engine_submit(kt_io *io, const kt_read *reads, int64_t count) {
    return kt_io_submit(io, reads, count) ? KT_OK : KT_NO_MEMORY;
}

int64_t kt_engine_reap(kt_io *io, kt_done *done, int64_t most, int32_t wait) { return kt_io_reap(io, done, most, wait != 0); }

int64_t kt_engine_pending(kt_io *io) { return kt_io_pending(io); }

void kt_engine_count(kt_io *io, kt_io_counters *counters) { kt_io_count(io, counters); }
