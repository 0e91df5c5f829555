// Threads that read, for where there is no ring. They are started when there is work for them, and asleep without.
#pragma once

#include <pthread.h>

#include "transfer.h"

class Workers {
public:
    static constexpr int MOST = 64;

    void open();
    // Ends the threads; what is in flight must have been collected.
    void close();
    // In the child of a fork, where the threads and what they were at do not exist.
    void forget();

    // Hand reads over.
    void put(TransferQueue *transfers);
    // What is done, chained by `next`, in the order in which it was; where `wait`, at least one.
    Transfer *collect(bool wait);

private:
    static void *main(void *self);
    void work();
    void start(int wanted);

    pthread_mutex_t lock;
    pthread_cond_t queued, finished;
    TransferQueue todo, done;
    pthread_t threads[MOST];
    int started, asleep;
    bool stop;
};
