// An array that grows. For plain data only: it moves bytes, and nobody frees it but clear().
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

template <class T> struct Growable {
    T *items = nullptr;
    int64_t count = 0, room = 0;

    T &operator[](int64_t i) { return items[i]; }
    const T &operator[](int64_t i) const { return items[i]; }
    T &last() { return items[count - 1]; }

    // Room for `wanted` in all; false without memory, and nothing has changed.
    bool reserve(int64_t wanted) {
        if (wanted <= room) return true;
        int64_t more = room + room / 2;
        if (more < wanted) more = wanted;
        if (more < 8) more = 8;
        void *moved = realloc(static_cast<void *>(items), sizeof(T) * (size_t)more);
        if (moved == nullptr) return false;
        items = static_cast<T *>(moved);
        room = more;
        return true;
    }
    // There is room.
    void push(const T &item) { items[count++] = item; }
    // There is room.
    void fill_up_to(int64_t wanted, const T &item) {
        while (count < wanted) push(item);
    }
    void remove(int64_t at) {
        count--;
        memmove(static_cast<void *>(items + at), static_cast<const void *>(items + at + 1), sizeof(T) * (size_t)(count - at));
    }
    bool copy_to(Growable &other) const {
        if (!other.reserve(count)) return false;
        if (count > 0) memcpy(static_cast<void *>(other.items), static_cast<const void *>(items), sizeof(T) * (size_t)count);
        other.count = count;
        return true;
    }
    void clear() {
        free(static_cast<void *>(items));
        items = nullptr;
        count = room = 0;
    }
};
