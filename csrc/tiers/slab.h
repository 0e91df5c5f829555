// Things of one size that come and go: memory in chunks that is kept until clear(). T has a member `next`.
#pragma once

#include <stdlib.h>

template <class T> class Slab {
public:
    // So that `count` things can be taken; false without memory.
    bool reserve(int64_t count) {
        if (free_count >= count) return true;
        int64_t more = count - free_count;
        if (more < 64) more = 64;
        auto *const chunk = static_cast<Chunk *>(calloc(1, sizeof(Chunk) + sizeof(T) * (size_t)more));
        if (!chunk) return false;
        chunk->before = chunks;
        chunk->count = more;
        chunks = chunk;
        for (int64_t i = 0; i < more; i++) give(chunk->things() + i);
        return true;
    }
    // Undefined contents; null when nothing is left of what was reserved.
    T *take() {
        T *const taken = unused;
        if (taken) {
            unused = static_cast<T *>(taken->next);
            free_count--;
        }
        return taken;
    }
    void give(T *thing) {
        thing->next = unused;
        unused = thing;
        free_count++;
    }
    // Every thing, also those that are free.
    template <class Visit> void each(Visit visit) {
        for (Chunk *chunk = chunks; chunk; chunk = chunk->before)
            for (int64_t i = 0; i < chunk->count; i++) visit(chunk->things() + i);
    }
    void clear() {
        while (chunks) {
            Chunk *const before = chunks->before;
            free(chunks);
            chunks = before;
        }
        unused = nullptr;
        free_count = 0;
    }

private:
    struct alignas(16) Chunk {
        Chunk *before;
        int64_t count;
        T *things() { return reinterpret_cast<T *>(this + 1); }
    };

    Chunk *chunks;
    T *unused;
    int64_t free_count;
};
