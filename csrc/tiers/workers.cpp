#include "workers.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "../cpu/old_glibc.h"

namespace {

// The C library keeps the thread-local variables of all loaded libraries on the stack, too.
constexpr size_t STACK_BYTES = 256 << 10;

void read_once(Transfer *transfer) {
    ssize_t result;
    do {
        result = pread(transfer->descriptor, transfer->target, (size_t)transfer->bytes, transfer->offset);
    } while (result < 0 && errno == EINTR);
    transfer->result = result < 0 ? -errno : result;
}

}  // namespace

void Workers::open() { forget(); }

void Workers::forget() {
    pthread_mutex_init(&lock, nullptr);
    pthread_cond_init(&queued, nullptr);
    pthread_cond_init(&finished, nullptr);
    todo = done = {};
    started = asleep = 0;
    stop = false;
}

void Workers::close() {
    pthread_mutex_lock(&lock);
    stop = true;
    pthread_cond_broadcast(&queued);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < started; i++) pthread_join(threads[i], nullptr);
    pthread_cond_destroy(&finished);
    pthread_cond_destroy(&queued);
    pthread_mutex_destroy(&lock);
}

void *Workers::main(void *self) {
    static_cast<Workers *>(self)->work();
    return nullptr;
}

void Workers::work() {
    pthread_mutex_lock(&lock);
    while (!stop) {
        Transfer *const transfer = todo.take();
        if (!transfer) {
            asleep++;
            pthread_cond_wait(&queued, &lock);
            asleep--;
            continue;
        }
        pthread_mutex_unlock(&lock);
        read_once(transfer);
        pthread_mutex_lock(&lock);
        done.append(transfer);
        pthread_cond_signal(&finished);
    }
    pthread_mutex_unlock(&lock);
}

// Fewer than wanted (a limit on processes) are enough, as long as there is one.
void Workers::start(int wanted) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    // Signals are for the program's own threads.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    while (wanted-- > 0 && started < MOST && pthread_create(&threads[started], &attributes, main, this) == 0) started++;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
}

void Workers::put(TransferQueue *transfers) {
    if (!transfers->first) return;
    pthread_mutex_lock(&lock);
    while (Transfer *transfer = transfers->take()) todo.append(transfer);
    int waiting = 0;
    for (const Transfer *transfer = todo.first; transfer; transfer = transfer->next) waiting++;
    for (int i = 0; i < waiting && i < asleep; i++) pthread_cond_signal(&queued);
    if (waiting > asleep) start(waiting - asleep);
    pthread_mutex_unlock(&lock);
}

Transfer *Workers::collect(bool wait) {
    pthread_mutex_lock(&lock);
    while (!done.first && wait) {
        if (started) {
            pthread_cond_wait(&finished, &lock);
        } else if (Transfer *const transfer = todo.take()) {  // no thread could be started: the caller reads
            read_once(transfer);
            done.append(transfer);
        } else {
            break;
        }
    }
    Transfer *const chain = done.first;
    done = {};
    pthread_mutex_unlock(&lock);
    return chain;
}
