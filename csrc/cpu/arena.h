// Memory for the temporaries of a call: one block that the library keeps, so that calls do not allocate.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Under AddressSanitizer a gap that may not be touched lies after each array.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t ARENA_GAP = 64;
#else
constexpr size_t ARENA_GAP = 0;
#endif

// Lays out arrays one after another, each on its own cache lines. First add every array, then take the block, then ask
// for the addresses.
class Arena {
public:
    // A place for `count` things of type T.
    template <class T> size_t add(int64_t count) {
        const size_t place = size, bytes = sizeof(T) * (size_t)count;
        size += (bytes + 63) / 64 * 64 + ARENA_GAP;
        if (ARENA_GAP) note_gap(place + bytes);
        return place;
    }

    // False when there is no memory. Only inside a Call; the contents are undefined.
    bool take();

    template <class T> T *at(size_t place) const { return reinterpret_cast<T *>(base + place); }

private:
    static constexpr int MOST_GAPS = ARENA_GAP ? 64 : 1;

    // From `from` to the array that is added next.
    void note_gap(size_t from) {
        if (gaps == MOST_GAPS) return;
        gap_from[gaps] = from;
        gap_to[gaps++] = size;
    }

    size_t size = 0;
    uint8_t *base = nullptr;
    int gaps = 0;
    size_t gap_from[MOST_GAPS], gap_to[MOST_GAPS];
};
