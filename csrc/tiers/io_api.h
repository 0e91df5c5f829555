// The I/O engine by itself, for ktitan/native/io.py: measuring drives, and tests.
#pragma once

#include "../cpu/ktitan_cpu.h"
#include "io.h"

// io.h's functions under names of their own; one thread at a time may call.
KT_API kt_io *kt_engine_open(int32_t mode, int32_t direct, int32_t depth, int64_t piece_bytes);
KT_API void kt_engine_close(kt_io *io);
KT_API int32_t kt_engine_add(kt_io *io, const char *path, const kt_stamp *stamp);
KT_API void kt_engine_register(kt_io *io, uint8_t *memory, int64_t bytes, int64_t piece_bytes);
KT_API int32_t kt_engine_submit(kt_io *io, const kt_read *reads, int64_t count);  // KT_OK, KT_NO_MEMORY
KT_API int64_t kt_engine_reap(kt_io *io, kt_done *done, int64_t most, int32_t wait);
KT_API int64_t kt_engine_pending(kt_io *io);
KT_API void kt_engine_count(kt_io *io, kt_io_counters *counters);
