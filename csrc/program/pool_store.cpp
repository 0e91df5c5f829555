#include "pool_store.h"

#include <sys/mman.h>

namespace {

constexpr int64_t SYSTEM_PAGE = 4096;

size_t slab_bytes(const KvLayout &layout) { return (size_t)(KV_SLAB_PAGES * layout.page_bytes); }

// Give the system's pages that lie in [from, to) of a slab back. Those on the edges hold numbers of neighbours, too.
void discard(uint8_t *slab, int64_t from, int64_t to, int64_t end) {
    const int64_t first = (from + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE;
    const int64_t last = to == end ? (to + SYSTEM_PAGE - 1) / SYSTEM_PAGE * SYSTEM_PAGE : to / SYSTEM_PAGE * SYSTEM_PAGE;
    if (last > first) madvise(slab + first, (size_t)(last - first), MADV_DONTNEED);
}

}  // namespace

bool PageStore::declare(int64_t number, const KvLayout &layout, const Ledger &ledger) {
    if (!layers.reserve(number + 1)) return false;
    layers.fill_up_to(number + 1, Layer{{}, {}, false});
    Layer &layer = layers[number];
    layer.layout = layout;
    for (int64_t page = 0; page < ledger.numbers(); page++) {
        if (ledger.is_absent(page) || provide_slab(layer, page / KV_SLAB_PAGES)) continue;
        drop_layer(layer);
        return false;
    }
    layer.is_declared = true;
    bytes += layout.page_bytes;
    declared++;
    return true;
}

void PageStore::forget(int64_t number) {
    Layer &layer = layers[number];
    bytes -= layer.layout.page_bytes;
    declared--;
    layer.is_declared = false;
    drop_layer(layer);
}

bool PageStore::provide(int64_t page) {
    for (int64_t i = 0; i < layers.count; i++) {
        if (layers[i].is_declared && !provide_slab(layers[i], page / KV_SLAB_PAGES)) return false;
    }
    return true;
}

bool PageStore::provide_slab(Layer &layer, int64_t slab) {
    if (!layer.slabs.reserve(slab + 1)) return false;
    layer.slabs.fill_up_to(slab + 1, nullptr);
    if (layer.slabs[slab] != nullptr) return true;
    const size_t size = slab_bytes(layer.layout);
    void *mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) return false;
    // On huge pages the first token of a layer would take 2 MB, and a free page between used ones could not go back.
    madvise(mapped, size, MADV_NOHUGEPAGE);
    layer.slabs[slab] = static_cast<uint8_t *>(mapped);
    return true;
}

void PageStore::copy_page(int64_t from, int64_t to) {
    for (int64_t i = 0; i < layers.count; i++) {
        if (layers[i].is_declared) memcpy(page(i, to), page(i, from), (size_t)layers[i].layout.page_bytes);
    }
}

void PageStore::give_back(int64_t page, const Ledger &ledger) {
    const int64_t slab = page / KV_SLAB_PAGES, first = slab * KV_SLAB_PAGES, end = first + KV_SLAB_PAGES;
    for (int64_t from = first; from < end; from++) {
        if (!ledger.is_absent(from)) continue;
        int64_t to = from;
        while (to < end && ledger.is_absent(to)) to++;
        for (int64_t i = 0; i < layers.count; i++) {
            Layer &layer = layers[i];
            if (!layer.is_declared || slab >= layer.slabs.count || layer.slabs[slab] == nullptr) continue;
            const int64_t size = layer.layout.page_bytes;
            if (to - from == KV_SLAB_PAGES) drop_slab(layer, slab);
            else discard(layer.slabs[slab], (from - first) * size, (to - first) * size, KV_SLAB_PAGES * size);
        }
        from = to;
    }
}

void PageStore::drop_slab(Layer &layer, int64_t slab) {
    if (layer.slabs[slab] != nullptr) munmap(layer.slabs[slab], slab_bytes(layer.layout));
    layer.slabs[slab] = nullptr;
}

void PageStore::drop_layer(Layer &layer) {
    for (int64_t slab = 0; slab < layer.slabs.count; slab++) drop_slab(layer, slab);
    layer.slabs.clear();
}

bool PageStore::copy_to(PageStore &other, const Ledger &ledger) const {
    for (int64_t i = 0; i < layers.count; i++) {
        if (!layers[i].is_declared) continue;
        if (!other.declare(i, layers[i].layout, ledger)) return false;
        for (int64_t number = 0; number < ledger.numbers(); number++) {
            if (ledger.references(number) == 0) continue;
            memcpy(other.page(i, number), page(i, number), (size_t)layers[i].layout.page_bytes);
        }
    }
    return true;
}

void PageStore::clear() {
    for (int64_t i = 0; i < layers.count; i++) drop_layer(layers[i]);
    layers.clear();
    bytes = declared = 0;
}
