// What a store is told before the first token, of earlier sessions: what records count for, and which to read at once.
#include <string.h>

#include "../cpu/threads.h"
#include "store.h"

namespace {

// Records on their way at a time: enough for any drive, and their slots are held no longer than needed.
constexpr int64_t AT_ONCE = 64;

}  // namespace

void Store::seed(int64_t record, double tokens, bool pinned) {
    kt_residency_seed(residency, record, tokens);
    kt_residency_pin(residency, record, pinned);
}

// Reads of records that find a free slot; they count as demands of nobody.
int32_t Store::warm(const int64_t *wanted, int64_t count) {
    int64_t held[AT_ONCE], holds = 0;
    bool good = true;
    for (int64_t i = 0; i <= count && good; i++) {
        kt_placed placed;
        if (i < count && !has(wanted[i]) && kt_residency_has_room(residency, wanted[i]) &&
            kt_residency_acquire(residency, wanted[i], 0, &placed) == KT_MISS) {
            collect(wanted[i], slot(wanted[i]));
            held[holds++] = wanted[i];
        }
        if (holds < AT_ONCE && i < count) continue;
        start();
        for (; holds > 0; holds--) {
            const int64_t record = held[holds - 1];
            while (!is_ready(record) && !has_failed(record)) progress(true);
            good = good && is_ready(record);
            // A failed record lost its hold with its slot.
            if (is_ready(record)) release(record);
        }
    }
    return good ? KT_OK : KT_IO_FAILED;
}

void Store::tokens(int64_t *each) const {
    memset(each, 0, (size_t)record_count * sizeof *each);
    if (residency != nullptr) kt_residency_tokens(residency, each);
}

void kt_store_seed(kt_store *store, int64_t record, double tokens, int32_t pinned) {
    const Call call;
    if (store->store.known(record, true)) store->store.seed(record, tokens, pinned != 0);
}

int32_t kt_store_warm(kt_store *store, const int64_t *records, int64_t count) {
    const Call call;
    for (int64_t i = 0; i < count; i++) {
        if (!store->store.known(records[i], true)) return KT_WRONG_SIZE;
    }
    return store->store.warm(records, count);
}

// Without a Call, as kt_store_count: a server that leaves must not wait for a prompt.
void kt_store_tokens(kt_store *store, int64_t *tokens) { store->store.tokens(tokens); }
