// The C interface of the store (ktitan_tiers.h), but for the products.
#include <stdlib.h>

#include <new>

#include "../cpu/threads.h"
#include "store.h"
#include "stream.h"

int32_t kt_store_open(const kt_store_spec *spec, kt_store **made) {
    const Call call;
    *made = nullptr;
    void *room = calloc(1, sizeof(kt_store));
    if (room == nullptr) return KT_NO_MEMORY;
    kt_store *store = new (room) kt_store();
    const int32_t status = store->store.open(*spec);
    if (status != KT_OK) {
        store->~kt_store();
        free(room);
        return status;
    }
    *made = store;
    return KT_OK;
}

void kt_store_close(kt_store *store) {
    if (store == nullptr) return;
    const Call call;
    store->~kt_store();
    free(store);
}

int32_t kt_store_add_file(kt_store *store, const char *path, const kt_stamp *stamp) {
    const Call call;
    return store->store.add_file(path, stamp);
}

// Without a Call: who asks must not wait for a prompt. Aligned words are read whole.
void kt_store_count(kt_store *store, kt_store_counters *counters) { store->store.count(counters); }

void kt_store_last_fault(kt_store *store, kt_store_fault *fault) {
    const Call call;
    *fault = store->store.fault;
}

void kt_store_drop(kt_store *store) {
    const Call call;
    store->store.drop();
}

void kt_look_ahead(const Call &, kt_store *store, const kt_predictor *predictor, const void *hidden, int32_t dtype,
                   int64_t tokens) {
    if (!store->store.looks_ahead(true, tokens)) return;
    store->store.progress(false);
    store->store.foresee(*predictor, hidden, dtype, tokens);
    store->store.at_rest();
}

int32_t kt_store_foresee(kt_store *store, const kt_predictor *predictor, const void *hidden, int32_t dtype, int64_t tokens) {
    const Call call;
    kt_look_ahead(call, store, predictor, hidden, dtype, tokens);
    return KT_OK;
}

int32_t kt_store_foretell(kt_store *store, const int64_t *records, int64_t count) {
    const Call call;
    store->store.progress(false);
    store->store.foretell(records, count);
    return KT_OK;
}
