// One read that the kernel does: what Ring and Workers pass on.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

struct Transfer {
    uint8_t *target;
    int64_t offset;
    int64_t bytes;
    int64_t result;  // bytes read, or a negative errno
    Transfer *next;
    int descriptor;
};

// First in, first out.
struct TransferQueue {
    Transfer *first;
    Transfer *last;

    void append(Transfer *transfer) {
        transfer->next = nullptr;
        (first ? last->next : first) = transfer;
        last = transfer;
    }
    void put_back(Transfer *transfer) {
        transfer->next = first;
        if (!first) last = transfer;
        first = transfer;
    }
    Transfer *take() {
        Transfer *const taken = first;
        if (taken) first = taken->next;
        return taken;
    }
};

inline int64_t monotonic_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}
