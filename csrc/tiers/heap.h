// The members of a domain that may make room, the first one on top: a binary heap of record numbers with the way back.
#pragma once

#include <stdint.h>

// `Before` tells whether one record makes room before another; `places` has the position of each record in its heap, -1 outside.
class Heap {
public:
    void use(int64_t *memory) { ids = memory; }
    bool empty() const { return count == 0; }
    int64_t top() const { return ids[0]; }

    template <class Before> void push(int64_t id, int64_t *places, Before before) {
        ids[count] = id;
        places[id] = count;
        up(count++, places, before);
    }
    template <class Before> void remove(int64_t id, int64_t *places, Before before) {
        const int64_t at = places[id];
        places[id] = -1;
        const int64_t last = ids[--count];
        if (at == count) return;
        ids[at] = last;
        places[last] = at;
        up(at, places, before);
        down(places[last], places, before);
    }
    void clear() { count = 0; }

private:
    template <class Before> void up(int64_t at, int64_t *places, Before before) {
        while (at > 0 && before(ids[at], ids[(at - 1) / 2])) {
            swap(at, (at - 1) / 2, places);
            at = (at - 1) / 2;
        }
    }
    template <class Before> void down(int64_t at, int64_t *places, Before before) {
        for (;;) {
            int64_t first = at;
            for (int64_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; child++) {
                if (before(ids[child], ids[first])) first = child;
            }
            if (first == at) return;
            swap(at, first, places);
            at = first;
        }
    }
    void swap(int64_t a, int64_t b, int64_t *places) {
        const int64_t id = ids[a];
        ids[a] = ids[b];
        ids[b] = id;
        places[ids[a]] = a;
        places[ids[b]] = b;
    }

    int64_t *ids = nullptr;
    int64_t count = 0;
};
