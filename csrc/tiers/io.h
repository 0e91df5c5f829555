// Reads of byte ranges of files into memory, many at a time: io_uring where it may be used, else threads that call preadv.
//
// One thread at a time may call. Nothing here knows what the bytes mean.
#pragma once

#include <stdint.h>

// Offsets, lengths and addresses of reads past the page cache are multiples of this.
constexpr int64_t KT_PAGE = 4096;

// Errors that are no errno.
enum kt_io_fault { KT_IO_SHORT = -1, KT_IO_CHANGED = -2 };

// How files are read; 0 leaves the choice to a probe.
enum kt_io_mode { KT_IO_AUTO = 0, KT_IO_URING = 1, KT_IO_WORKERS = 2 };

// What a file was when its header was read (ktitan.weights.files.FileStamp); a file that differs is refused.
struct kt_stamp {
    uint64_t device;
    uint64_t inode;
    int64_t bytes;
    int64_t modified_ns;
};

struct kt_read {
    int32_t file;     // of kt_io_add
    int64_t offset;   // first byte wanted
    int64_t bytes;
    uint8_t *target;  // where it goes; target % KT_PAGE == offset % KT_PAGE
    uint64_t tag;     // comes back when it is done
};
// The whole pages around [target, target + bytes) belong to the read: it is widened to them.

struct kt_done {
    uint64_t tag;
    int32_t error;   // 0, an errno, or a kt_io_fault
    int32_t file;
    int64_t offset;  // of the part that failed
};

struct kt_io_counters {
    int64_t reads;         // that went to the kernel
    int64_t read_bytes;    // widened
    int64_t wanted_bytes;  // as asked for
    int64_t busy_ns;       // time with a read in flight
    int64_t wait_ns;       // time that callers waited in kt_io_reap
    int32_t uring;         // 1: io_uring, 0: threads
    int32_t registered;    // buffers are registered with the ring
    int32_t direct_files;  // files that are read past the page cache
    int32_t files;
};

struct kt_io;

// Null without memory. `depth`: reads in flight on each drive, 0: probed; `piece_bytes`: longer reads are cut, 0: probed.
// `direct` 0 reads through the page cache.
kt_io *kt_io_create(int32_t mode, int32_t direct, int32_t depth, int64_t piece_bytes);
void kt_io_destroy(kt_io *io);  // waits for what is in flight

// Number of the file, from 0 on; a negative errno, or a kt_io_fault - 1000, when it cannot be opened or is another one.
int32_t kt_io_add(kt_io *io, const char *path, const kt_stamp *stamp);
// Register memory in pieces of `piece_bytes`; no read may straddle two pieces. Without the right to, reads do without.
void kt_io_register(kt_io *io, uint8_t *memory, int64_t bytes, int64_t piece_bytes);

// Forget all registered memory, which may go then.
void kt_io_unregister(kt_io *io);

// Take reads over; never waits. False without memory, with nothing taken.
bool kt_io_submit(kt_io *io, const kt_read *reads, int64_t count);
// The same for reads that may be of no use: those of kt_io_submit go first, also those that come later.
bool kt_io_submit_behind(kt_io *io, const kt_read *reads, int64_t count);
// Where nothing but such reads waits: start them all, however many are in flight, since nobody will come by for a while.
void kt_io_start_behind(kt_io *io);
// Reads with this tag that wait behind the others go with them.
void kt_io_hasten(kt_io *io, uint64_t tag);
// Those that still wait there fail with ECANCELED; what the kernel has of them comes back first.
void kt_io_cancel_behind(kt_io *io);
// What is done, at most `most`; where `wait`, until there is something, unless nothing is in flight.
int64_t kt_io_reap(kt_io *io, kt_done *done, int64_t most, bool wait);
// Reads taken and not yet reaped.
int64_t kt_io_pending(const kt_io *io);
void kt_io_count(const kt_io *io, kt_io_counters *counters);
