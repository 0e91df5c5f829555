#include "arena.h"

#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace {

// A block above this is given back before the next call that needs less.
constexpr size_t KEPT_BYTES = 64u << 20;

void *block = nullptr;
size_t block_bytes = 0;

}  // namespace

bool Arena::take() {
    const bool too_small = block_bytes < size;
    const bool too_large = block_bytes > KEPT_BYTES && size <= KEPT_BYTES;
    if (too_small || too_large) {
        free(block);
        block = nullptr;
        block_bytes = 0;
        if (posix_memalign(&block, 64, size) != 0) {
            block = nullptr;
            return false;
        }
        block_bytes = size;
    }
    base = static_cast<uint8_t *>(block);
    ASAN_UNPOISON_MEMORY_REGION(base, block_bytes);
    for (int gap = 0; gap < gaps; gap++) ASAN_POISON_MEMORY_REGION(base + gap_from[gap], gap_to[gap] - gap_from[gap]);
    return true;
}
