#include "memory.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../cpu/old_glibc.h"

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;
constexpr int64_t SMALL_PAGE = 4096;
constexpr size_t STACK_BYTES = 64 << 10;
// NORESERVE: where the kernel overcommits at all, slots count when they are written.
constexpr int UNUSED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

// Make the kernel give a page and leave its bytes as they are, whoever writes there at the time: a zero becomes a zero.
// Not by MADV_POPULATE_WRITE: that holds the lock of the process's memory, and where the thread has to wait for a processor
// every mmap of the program waits with it (2 busy cores: 45 to 281 ms, against 19 ms at most this way).
void touch(uint8_t *page) {
    uint8_t zero = 0;
    __atomic_compare_exchange_n(page, &zero, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int64_t whole(int64_t bytes, int64_t page) { return (bytes + page - 1) / page * page; }

int64_t huge_part(int64_t bytes) { return bytes / HUGE_PAGE * HUGE_PAGE; }

void store(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

}  // namespace

bool Memory::reserve(const int64_t *most, int32_t some) {
    int64_t wanted = 0;
    for (int32_t i = 0; i < some; i++) {
        if (most[i] < 0 || most[i] > INT64_MAX / 4 - wanted) return false;
        wanted += whole(most[i], HUGE_PAGE);
    }
    ranges = static_cast<Range *>(calloc((size_t)some + 1, sizeof(Range)));
    if (ranges == nullptr) return false;
    // A mapping starts on any page: take one huge page more, and give back what lies before and behind the aligned part.
    const int64_t all = wanted + HUGE_PAGE;
    void *mapped = mmap(nullptr, (size_t)all, PROT_NONE, UNUSED, -1, 0);
    if (mapped == MAP_FAILED) {
        free(ranges);
        ranges = nullptr;
        return false;
    }
    uint8_t *start = static_cast<uint8_t *>(mapped);
    memory = reinterpret_cast<uint8_t *>(whole((int64_t)start, HUGE_PAGE));
    size = wanted;
    if (memory > start) munmap(start, (size_t)(memory - start));
    const int64_t behind = start + all - (memory + size);
    if (behind > 0) munmap(memory + size, (size_t)behind);
    for (int64_t at = 0; count < some; at += whole(most[count++], HUGE_PAGE)) ranges[count] = {at, most[count], 0, 0};
    return true;
}

bool Memory::resize(int32_t number, int64_t bytes) {
    Range &range = ranges[number];
    if (bytes < 0 || bytes > range.most) return false;
    if (bytes > range.used) return grow(range, bytes);
    if (bytes < range.used) shrink(range, bytes);
    return true;
}

bool Memory::grow(Range &range, int64_t bytes) {
    uint8_t *start = memory + range.at;
    const int64_t from = whole(range.used, SMALL_PAGE), to = whole(bytes, SMALL_PAGE);
    if (to > from && mprotect(start + from, (size_t)(to - from), PROT_READ | PROT_WRITE) != 0) return false;
    // Small pages where the kernel has no others, and at the end, so that not a huge page more is taken than was asked for.
    const int64_t first = huge_part(range.used), huge = huge_part(bytes);
    if (huge > first) madvise(start + first, (size_t)(huge - first), MADV_HUGEPAGE);
    if (huge < to) madvise(start + huge, (size_t)(to - huge), MADV_NOHUGEPAGE);
    // A child must not copy what the drive writes to.
    if (to > from) madvise(start + from, (size_t)(to - from), MADV_DONTFORK);
    range.used = bytes;
    return true;
}

void Memory::shrink(Range &range, int64_t bytes) {
    uint8_t *start = memory + range.at;
    int64_t from = whole(bytes, SMALL_PAGE);
    const int64_t to = whole(range.used, SMALL_PAGE), huge = huge_part(bytes);
    if (from > huge && huge_part(range.used) > huge) give_back_part(range, bytes);
    // A new mapping in place of the old one, because pages that were once writable stay accounted for. Where the kernel can
    // have no more mappings the pages alone go back.
    if (to > from && mmap(start + from, (size_t)(to - from), PROT_NONE, UNUSED | MAP_FIXED, -1, 0) == MAP_FAILED) {
        madvise(start + from, (size_t)(to - from), MADV_DONTNEED);
    }
    range.used = bytes;
    if (range.there > bytes) store(&range.there, bytes);
}

// The range will end inside of a huge page, of which the kernel would keep the other part until it runs short of memory: take
// small pages instead.
void Memory::give_back_part(Range &range, int64_t bytes) {
    const int64_t huge = huge_part(bytes), kept = bytes - huge, pages = whole(kept, SMALL_PAGE);
    uint8_t *page = memory + range.at + huge;
    uint8_t *copy = static_cast<uint8_t *>(malloc((size_t)kept));
    if (copy == nullptr) return;
    memcpy(copy, page, (size_t)kept);
    if (madvise(page, (size_t)pages, MADV_NOHUGEPAGE) == 0 && madvise(page, (size_t)HUGE_PAGE, MADV_DONTNEED) == 0) {
        memcpy(page, copy, (size_t)kept);
    }
    free(copy);
}

void Memory::fill_in_background() {
    pthread_attr_t attributes;
    if (memory == nullptr || runs || pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are for the program's own threads
    stop = false;
    runs = pthread_create(&thread, &attributes, fill, this) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
}

void *Memory::fill(void *self) {
    Memory &my = *static_cast<Memory *>(self);
    for (int32_t i = 0; i < my.count; i++) {
        Range &range = my.ranges[i];
        for (int64_t at = range.there / SMALL_PAGE * SMALL_PAGE; at < range.used; at += SMALL_PAGE) {
            if (__atomic_load_n(&my.stop, __ATOMIC_RELAXED)) return nullptr;
            touch(my.memory + range.at + at);
            store(&range.there, at + SMALL_PAGE < range.used ? at + SMALL_PAGE : range.used);
        }
    }
    return nullptr;
}

void Memory::stop_filling() {
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    if (runs) pthread_join(thread, nullptr);
    runs = false;
}

int64_t Memory::filled() const {
    int64_t sum = 0;
    for (int32_t i = 0; i < count; i++) sum += __atomic_load_n(&ranges[i].there, __ATOMIC_RELAXED);
    return sum;
}

Memory::~Memory() {
    stop_filling();
    if (memory != nullptr) munmap(memory, (size_t)size);
    free(ranges);
}
