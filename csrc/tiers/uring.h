// A ring of reads: io_uring by its system calls, without liburing (man 7 io_uring; the layout is <linux/io_uring.h>'s).
//
// Where that header is missing or older than Linux 5.6, open() answers ENOSYS, as an old kernel does.
#pragma once

#include <stdint.h>
#include <sys/uio.h>

#include "transfer.h"

class Ring {
public:
    // 0, or the errno that says why there is no ring: EPERM under seccomp, ENOSYS, ENOMEM for RLIMIT_MEMLOCK, EMFILE.
    int open(unsigned int entries);
    // What is in flight must have been collected, except in the child of a fork, where it is the parent's.
    void close();
    bool is_open() const { return rings != nullptr; }

    // 0 when reads into these buffers need not pin their pages each time; else an errno.
    int register_buffers(const iovec *buffers, unsigned int count);

    // Put a read into the queue; `buffer` is the number of the registered buffer that holds its target, or -1. False when
    // the queue is full. `blocking`: it is done by a thread of the kernel, so that submit() does not do it itself.
    bool put(Transfer *transfer, int buffer, bool blocking);
    // Hand the queue to the kernel; where `wait`, until something is done. 0 or an errno; what was not taken stays queued.
    int submit(bool wait);
    // A read that is done, or null.
    Transfer *next();
    // The read that was put last, when the kernel has not taken it yet, or null.
    Transfer *take_back();

private:
    int map(const void *parameters);
    int probe();

    int descriptor;
    uint8_t *rings;  // both rings in one mapping
    size_t rings_bytes;
    void *entries;  // of the submission queue
    size_t entries_bytes;
    uint32_t *submit_head, *submit_tail, submit_mask, submit_count;
    uint32_t *done_head, *done_tail, done_mask;
    void *done;
};
