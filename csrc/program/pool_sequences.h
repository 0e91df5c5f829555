// The sequences of a pool: their pages in order, and the tokens that each layer holds.
#pragma once

#include "growable.h"
#include "pool.h"

inline int64_t kv_page_count(int64_t tokens) { return (tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS; }

struct Sequence {
    int64_t id;
    int64_t mark;               // of the last call that named it
    Growable<int64_t> table;    // pages
    Growable<int64_t> lengths;  // by layer; UNSEEN: the layer was never appended to

    static constexpr int64_t UNSEEN = -1;

    int64_t length(int64_t layer) const {
        return layer < lengths.count && lengths[layer] != UNSEEN ? lengths[layer] : 0;
    }
    int64_t longest() const {
        int64_t most = 0;
        for (int64_t i = 0; i < lengths.count; i++) most = lengths[i] > most ? lengths[i] : most;
        return most;
    }
    // Of the layers that have seen it.
    int64_t shortest() const {
        int64_t least = UNSEEN;
        for (int64_t i = 0; i < lengths.count; i++) {
            if (lengths[i] != UNSEEN && (least == UNSEEN || lengths[i] < least)) least = lengths[i];
        }
        return least == UNSEEN ? 0 : least;
    }
    bool copy_to(Sequence &other) const { return table.copy_to(other.table) && lengths.copy_to(other.lengths); }
    void clear() {
        table.clear();
        lengths.clear();
    }
};

// By ids, which ascend and are never used again.
class Sequences {
public:
    // Valid until one is added or removed; null: there is none.
    Sequence *find(int64_t id) {
        int64_t low = 0, high = all.count;
        while (low < high) {
            const int64_t middle = (low + high) / 2;
            if (all[middle].id < id) low = middle + 1;
            else high = middle;
        }
        return low < all.count && all[low].id == id ? &all[low] : nullptr;
    }
    // An empty one; null without memory.
    Sequence *add() {
        if (!all.reserve(all.count + 1)) return nullptr;
        all.push(Sequence{next++, 0, {}, {}});
        return &all.last();
    }
    void remove(Sequence *sequence) {
        sequence->clear();
        all.remove(sequence - all.items);
    }
    template <class Visit> void each(Visit visit) {
        for (int64_t i = 0; i < all.count; i++) visit(all[i]);
    }
    bool copy_to(Sequences &other) const {
        if (!other.all.reserve(all.count)) return false;
        for (int64_t i = 0; i < all.count; i++) {
            other.all.push(Sequence{all[i].id, 0, {}, {}});
            if (!all[i].copy_to(other.all.last())) return false;
        }
        other.next = next;
        return true;
    }
    void clear() {
        for (int64_t i = 0; i < all.count; i++) all[i].clear();
        all.clear();
    }

private:
    Growable<Sequence> all;
    int64_t next = 0;
};
