// The memory of pages: in each layer slabs of 16 pages, which never move. What is not written takes no memory, and what is
// given back takes none again.
//
// Ranges of one mapping (csrc/tiers/memory.h) do not fit here: free pages lie between used ones, and nobody knows the most.
#pragma once

#include "growable.h"
#include "pool_format.h"
#include "pool_ledger.h"

constexpr int64_t KV_SLAB_PAGES = 16;
constexpr int64_t KV_MOST_LAYERS = 1 << 16;

class PageStore {
public:
    const KvLayout *layout(int64_t layer) const {
        return layer >= 0 && layer < layers.count && layers[layer].is_declared ? &layers[layer].layout : nullptr;
    }
    int64_t page_bytes() const { return bytes; }
    int64_t layer_count() const { return declared; }
    // The layer is declared, and the page present.
    uint8_t *page(int64_t layer, int64_t page) const {
        const Layer &of = layers[layer];
        return of.slabs[page / KV_SLAB_PAGES] + page % KV_SLAB_PAGES * of.layout.page_bytes;
    }

    // A new layer, with memory for all present pages; false without memory, and nothing has changed.
    bool declare(int64_t layer, const KvLayout &layout, const Ledger &ledger);
    void forget(int64_t layer);
    // Addresses for a page in all layers; false without memory.
    bool provide(int64_t page);
    void copy_page(int64_t from, int64_t to);
    // Give back the memory of all absent pages in the slab of `page`.
    void give_back(int64_t page, const Ledger &ledger);

    // The same layers, and what the pages in use hold.
    bool copy_to(PageStore &other, const Ledger &ledger) const;
    void clear();

private:
    struct Layer {
        KvLayout layout;
        Growable<uint8_t *> slabs;  // null: no page of it was ever wanted
        bool is_declared;
    };

    bool provide_slab(Layer &layer, int64_t slab);
    static void drop_slab(Layer &layer, int64_t slab);
    static void drop_layer(Layer &layer);

    Growable<Layer> layers;
    int64_t bytes = 0, declared = 0;
};
