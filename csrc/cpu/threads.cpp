// A pool of threads for jobs of many equal items.
//
// One 64-bit word, `claim`, holds the number of the present job and how many of its items nobody has taken. Taking an
// item is a compare-and-swap on that word, so a late thread can never take an item of a job that is over, and the job's
// other fields, which the caller writes only between jobs, are read only by threads that hold an item of it.
//
// Threads without work spin, then yield, then sleep on a futex; an idle pool uses no processor time.
#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "ktitan_cpu.h"
#include "old_glibc.h"

namespace {

constexpr int MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 1 << 20;
constexpr unsigned int DEFAULT_MXCSR = 0x1f80;

// Between the layers of a model the interpreter runs for some tenths of a millisecond; a thread that yields through
// that time starts the next job at once, and gives its processor to anybody who wants it.
constexpr int64_t SPIN_NS = 20 * 1000;
constexpr int64_t YIELD_NS = 1000 * 1000;
constexpr int64_t CALLER_YIELD_NS = 200 * 1000;

struct Pool {
    // The job; written between jobs.
    kt_task task = nullptr;
    void *context = nullptr;
    uint32_t items = 0;

    alignas(64) uint64_t claim = 0;   // number of the job << 32 | items not yet taken
    alignas(64) uint32_t done = 0;    // items finished; a futex of the caller
    alignas(64) uint32_t wakeups = 0;  // counts jobs and stops; a futex of sleeping threads
    uint32_t sleepers = 0;
    uint32_t caller_sleeps = 0;
    uint32_t stop = 0;

    int count = 1;    // threads wanted, the caller's included
    int started = 0;  // threads of the pool that run
    pthread_t threads[MOST_THREADS] = {};
};

Pool pool;
pthread_mutex_t one_call = PTHREAD_MUTEX_INITIALIZER;

int64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void futex_wait(uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void futex_wake(uint32_t *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }
void add(uint32_t *word, uint32_t value) { __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST); }
uint32_t untaken() { return (uint32_t)__atomic_load_n(&pool.claim, __ATOMIC_SEQ_CST); }

// Wait without sleeping until `ready()`, at most SPIN_NS spinning and `yield_ns` yielding; false when that was not enough.
template <class Ready> bool wait_awake(int64_t yield_ns, Ready ready) {
    const int64_t start = now_ns();
    for (;;) {
        for (int i = 0; i < 16; i++) {
            if (ready()) return true;
            _mm_pause();
        }
        const int64_t waited = now_ns() - start;
        if (waited > SPIN_NS + yield_ns) return false;
        if (waited > SPIN_NS) sched_yield();
    }
}

// Take items of the present job and do them until none is left.
void work(int thread) {
    uint64_t seen = __atomic_load_n(&pool.claim, __ATOMIC_ACQUIRE);
    while ((uint32_t)seen != 0) {
        if (!__atomic_compare_exchange_n(&pool.claim, &seen, seen - 1, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) continue;
        const uint32_t items = pool.items;
        pool.task(pool.context, (int64_t)items - (uint32_t)seen, thread);
        const uint32_t finished = __atomic_add_fetch(&pool.done, 1, __ATOMIC_SEQ_CST);
        // The caller may be at its next job by now; a wake-up too many does no harm.
        if (finished == items && load(&pool.caller_sleeps)) futex_wake(&pool.done, 1);
        seen = __atomic_load_n(&pool.claim, __ATOMIC_ACQUIRE);
    }
}

void sleep_until_job() {
    const uint32_t seen = load(&pool.wakeups);
    add(&pool.sleepers, 1);
    // kt_run publishes items before it reads `sleepers`, so one of the two sees the other.
    if (untaken() == 0 && !load(&pool.stop)) futex_wait(&pool.wakeups, seen);
    add(&pool.sleepers, (uint32_t)-1);
}

void *thread_main(void *number) {
    _mm_setcsr(DEFAULT_MXCSR);
    while (!load(&pool.stop)) {
        work((int)(intptr_t)number);
        if (!wait_awake(YIELD_NS, [] { return untaken() != 0 || load(&pool.stop); })) sleep_until_job();
    }
    return nullptr;
}

// Start the threads that are missing; with fewer than wanted (a limit on processes) the pool goes on with those it has.
void start_threads() {
    if (pool.started >= pool.count - 1) return;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    // Signals are for the program's own threads.
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    while (pool.started < pool.count - 1) {
        void *number = (void *)(intptr_t)(pool.started + 1);
        if (pthread_create(&pool.threads[pool.started], &attributes, thread_main, number) != 0) break;
        pool.started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    pool.count = pool.started + 1;
}

void stop_threads() {
    __atomic_store_n(&pool.stop, 1, __ATOMIC_SEQ_CST);
    add(&pool.wakeups, 1);
    futex_wake(&pool.wakeups, MOST_THREADS);
    for (int i = 0; i < pool.started; i++) pthread_join(pool.threads[i], nullptr);
    pool.started = 0;
    __atomic_store_n(&pool.stop, 0, __ATOMIC_SEQ_CST);
}

// Publish a job and wake as many sleepers as can help.
void publish(kt_task task, void *context, uint32_t items) {
    pool.task = task;
    pool.context = context;
    pool.items = items;
    __atomic_store_n(&pool.done, 0, __ATOMIC_RELAXED);
    const uint64_t job = (__atomic_load_n(&pool.claim, __ATOMIC_RELAXED) >> 32) + 1;
    __atomic_store_n(&pool.claim, job << 32 | items, __ATOMIC_SEQ_CST);
    add(&pool.wakeups, 1);
    if (load(&pool.sleepers)) futex_wake(&pool.wakeups, (int)(items - 1));
}

void wait_for_others(uint32_t items) {
    const auto finished = [items] { return __atomic_load_n(&pool.done, __ATOMIC_ACQUIRE) == items; };
    if (wait_awake(CALLER_YIELD_NS, finished)) return;
    __atomic_store_n(&pool.caller_sleeps, 1, __ATOMIC_SEQ_CST);
    for (uint32_t done = load(&pool.done); done != items; done = load(&pool.done)) futex_wait(&pool.done, done);
    __atomic_store_n(&pool.caller_sleeps, 0, __ATOMIC_SEQ_CST);
}

// A fork waits for the call that is under way. The child has no threads but the one that forked; it starts its own.
void before_fork() { pthread_mutex_lock(&one_call); }
void after_fork_in_parent() { pthread_mutex_unlock(&one_call); }
void after_fork_in_child() {
    pool.started = 0;
    pool.sleepers = 0;
    pthread_mutex_unlock(&one_call);
}

__attribute__((constructor)) void register_fork_handlers() {
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace

void kt_run(kt_task task, void *context, int64_t items) {
    if (items > 1 && pool.count > 1) start_threads();
    if (items <= 1 || pool.count == 1 || items > INT32_MAX) {
        for (int64_t item = 0; item < items; item++) task(context, item, 0);
        return;
    }
    publish(task, context, (uint32_t)items);
    work(0);
    wait_for_others((uint32_t)items);
}

Call::Call() {
    pthread_mutex_lock(&one_call);
    mode = _mm_getcsr();
    _mm_setcsr(DEFAULT_MXCSR);
}

Call::~Call() {
    _mm_setcsr(mode);
    pthread_mutex_unlock(&one_call);
}

int Call::threads() const { return pool.count; }

int32_t kt_threads(void) {
    const Call call;
    return call.threads();
}

void kt_set_threads(int32_t count) {
    const Call call;
    const int wanted = count < 1 ? 1 : (count > MOST_THREADS ? MOST_THREADS : count);
    if (wanted < pool.started + 1) stop_threads();
    pool.count = wanted;
}
