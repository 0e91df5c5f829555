#include "memory.h"

#include <sys/mman.h>

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;

int64_t whole(int64_t bytes) { return (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

}  // namespace

uint8_t *kt_memory_take(int64_t bytes) {
    if (bytes <= 0 || bytes > INT64_MAX / 2) return nullptr;
    // A mapping starts on any page: take one huge page more, and give back what lies before and behind the aligned part.
    const int64_t size = whole(bytes), all = size + HUGE_PAGE;
    void *mapped = mmap(nullptr, (size_t)all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    uint8_t *start = static_cast<uint8_t *>(mapped);
    uint8_t *base = reinterpret_cast<uint8_t *>(whole((int64_t)start));
    if (base > start) munmap(start, (size_t)(base - start));
    const int64_t behind = start + all - (base + size);
    if (behind > 0) munmap(base + size, (size_t)behind);
    madvise(base, (size_t)size, MADV_HUGEPAGE);  // small pages otherwise
    madvise(base, (size_t)size, MADV_DONTFORK);  // a child must not copy what the drive writes to
    return base;
}

void kt_memory_give(uint8_t *memory, int64_t bytes) {
    if (memory != nullptr) munmap(memory, (size_t)whole(bytes));
}
