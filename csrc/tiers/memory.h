// Memory for slots: one anonymous mapping on 2 MB pages where the kernel gives them. They double the speed of warm reads past
// the page cache, against 4 KB pages.
#pragma once

#include <pthread.h>
#include <stdint.h>

class Memory {
public:
    // False without memory. The kernel gives pages when they are first written.
    bool take(int64_t bytes);
    // Have the kernel give them now, by a thread: a read into a page that is not there yet waits until it is cleared.
    void fill_in_background();
    // Joins the thread; only in the process that took the memory.
    ~Memory();

    uint8_t *base() const { return memory; }
    // Bytes from the start on that are there.
    int64_t filled() const { return __atomic_load_n(&there, __ATOMIC_RELAXED); }

private:
    static void *fill(void *self);

    uint8_t *memory = nullptr;
    int64_t size = 0, used = 0, there = 0;
    pthread_t thread = {};
    bool runs = false, stop = false;
};
