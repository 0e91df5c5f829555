// Memory for slots: ranges of addresses in one anonymous mapping, of which the beginning of each is in use, on 2 MB pages where
// the kernel gives them. They double the speed of warm reads past the page cache, against 4 KB pages.
//
// What is not in use may not be touched (PROT_NONE) and counts nowhere, also where the kernel overcommits nothing.
#pragma once

#include <pthread.h>
#include <stdint.h>

class Memory {
public:
    // Addresses for ranges of at most `most[i]` bytes, each on a 2 MB page. False without.
    bool reserve(const int64_t *most, int32_t ranges);
    // Use the first `bytes` of a range: those behind go back to the kernel, those before keep what they hold, and new ones
    // are zeros. While no thread fills. False without memory, or above the most; then nothing has changed.
    bool resize(int32_t range, int64_t bytes);
    // Have the kernel give what is in use now, by a thread: a read into a page that is not there yet waits until it is cleared.
    void fill_in_background();
    void stop_filling();
    // Joins the thread; only in the process that took the memory.
    ~Memory();

    uint8_t *base() const { return memory; }
    // Where a range begins, from the base on.
    int64_t at(int32_t range) const { return ranges[range].at; }
    int64_t used(int32_t range) const { return ranges[range].used; }
    // Bytes that the thread has seen to.
    int64_t filled() const;

private:
    struct Range {
        int64_t at, most, used;
        int64_t there;  // bytes from its start on that are filled
    };

    static void *fill(void *self);
    bool grow(Range &range, int64_t bytes);
    void shrink(Range &range, int64_t bytes);
    void give_back_part(Range &range, int64_t bytes);

    uint8_t *memory = nullptr;
    Range *ranges = nullptr;
    int32_t count = 0;
    int64_t size = 0;
    pthread_t thread = {};
    bool runs = false, stop = false;
};
