// Memory for the temporaries of a call: one block that the library keeps, so that calls do not allocate.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Lays out arrays one after another, each on its own cache lines. First add every array, then take the block, then ask
// for the addresses.
class Arena {
public:
    // A place for `count` things of type T.
    template <class T> size_t add(int64_t count) {
        const size_t place = size;
        size += (sizeof(T) * (size_t)count + 63) / 64 * 64;
        return place;
    }

    // False when there is no memory. Only inside a Call; the contents are undefined.
    bool take();

    template <class T> T *at(size_t place) const { return reinterpret_cast<T *>(base + place); }

private:
    size_t size = 0;
    uint8_t *base = nullptr;
};
