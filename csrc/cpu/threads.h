// The pool of threads that share the work of a call.
#pragma once

#include <stdint.h>

// One item of a job. `thread` is below kt_threads(); items of one thread run one after another, the caller's is 0.
typedef void (*kt_task)(void *context, int64_t item, int thread);

// Run task(context, item, thread) for all items, in any order, on the caller's thread and the pool's; returns when all
// are done. Only inside a Call.
void kt_run(kt_task task, void *context, int64_t items);

// One call into the library: one at a time, with the default floating-point mode (subnormals kept, rounding to nearest,
// no traps), which the caller gets back as it was.
class Call {
public:
    Call();
    ~Call();
    Call(const Call &) = delete;
    Call &operator=(const Call &) = delete;

    // Threads that may run items; kt_run passes numbers below this.
    int threads() const;

private:
    unsigned int mode;
};
