#include "memory.h"

#include <signal.h>
#include <sys/mman.h>

#include "../cpu/old_glibc.h"

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;
constexpr int64_t SMALL_PAGE = 4096;
constexpr size_t STACK_BYTES = 64 << 10;

// Make the kernel give a page and leave its bytes as they are, whoever writes there at the time: a zero becomes a zero.
// Not by MADV_POPULATE_WRITE: that holds the lock of the process's memory, and where the thread has to wait for a processor
// every mmap of the program waits with it (2 busy cores: 45 to 281 ms, against 19 ms at most this way).
void touch(uint8_t *page) {
    uint8_t zero = 0;
    __atomic_compare_exchange_n(page, &zero, 0, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

int64_t whole(int64_t bytes) { return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

}  // namespace

bool Memory::take(int64_t bytes) {
    if (bytes <= 0 || bytes > INT64_MAX / 2) return false;
    // A mapping starts on any page: take one huge page more, and give back what lies before and behind the aligned part.
    const int64_t wanted = whole(bytes), all = wanted + HUGE_PAGE;
    void *mapped = mmap(nullptr, (size_t)all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    uint8_t *start = static_cast<uint8_t *>(mapped);
    memory = reinterpret_cast<uint8_t *>(whole((int64_t)start));
    size = wanted;
    if (memory > start) munmap(start, (size_t)(memory - start));
    const int64_t behind = start + all - (memory + size);
    if (behind > 0) munmap(memory + size, (size_t)behind);
    // Small pages where the kernel has no others, and at the end, so that not a huge page more is taken than was asked for.
    const int64_t huge = bytes / HUGE_PAGE * HUGE_PAGE;
    if (huge > 0) madvise(memory, (size_t)huge, MADV_HUGEPAGE);
    if (huge < size) madvise(memory + huge, (size_t)(size - huge), MADV_NOHUGEPAGE);
    used = bytes;
    madvise(memory, (size_t)size, MADV_DONTFORK);  // a child must not copy what the drive writes to
    return true;
}

void Memory::fill_in_background() {
    pthread_attr_t attributes;
    if (memory == nullptr || pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);  // signals are for the program's own threads
    runs = pthread_create(&thread, &attributes, fill, this) == 0;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
}

void *Memory::fill(void *self) {
    Memory &my = *static_cast<Memory *>(self);
    for (int64_t at = 0; at < my.used && !__atomic_load_n(&my.stop, __ATOMIC_RELAXED); at += SMALL_PAGE) {
        touch(my.memory + at);
        __atomic_store_n(&my.there, at + SMALL_PAGE, __ATOMIC_RELAXED);
    }
    return nullptr;
}

Memory::~Memory() {
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    if (runs) pthread_join(thread, nullptr);
    if (memory != nullptr) munmap(memory, (size_t)size);
}
