#include "uring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#endif

// Linux 5.6: IORING_OP_READ is there, and both rings come in one mapping (5.4).
#ifdef IORING_FEAT_RW_CUR_POS

namespace {

// The same on every architecture (asm-generic/unistd.h); old C libraries do not know them.
constexpr long SETUP = 425, ENTER = 426, REGISTER = 427;
constexpr unsigned int NEEDED = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;

uint32_t acquire(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
void release(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

}  // namespace

int Ring::open(unsigned int count) {
    io_uring_params parameters;
    memset(&parameters, 0, sizeof parameters);
    rings = nullptr;
    entries = nullptr;
    const long made = syscall(SETUP, count, &parameters);
    if (made < 0) return errno;
    descriptor = (int)made;  // close-on-exec by itself
    int error = (parameters.features & NEEDED) == NEEDED ? map(&parameters) : ENOSYS;
    if (!error) error = probe();
    if (error) close();
    return error;
}

int Ring::map(const void *raw) {
    const auto &parameters = *static_cast<const io_uring_params *>(raw);
    const auto &sq = parameters.sq_off;
    const auto &cq = parameters.cq_off;
    const size_t submit_end = sq.array + parameters.sq_entries * sizeof(uint32_t);
    const size_t done_end = cq.cqes + parameters.cq_entries * sizeof(io_uring_cqe);
    rings_bytes = submit_end > done_end ? submit_end : done_end;
    entries_bytes = parameters.sq_entries * sizeof(io_uring_sqe);
    const int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    void *mapped = mmap(nullptr, rings_bytes, protection, flags, descriptor, IORING_OFF_SQ_RING);
    if (mapped == MAP_FAILED) return errno;
    rings = static_cast<uint8_t *>(mapped);
    mapped = mmap(nullptr, entries_bytes, protection, flags, descriptor, IORING_OFF_SQES);
    if (mapped == MAP_FAILED) return errno;
    entries = mapped;

    const auto word = [this](uint32_t place) { return reinterpret_cast<uint32_t *>(rings + place); };
    submit_head = word(sq.head);
    submit_tail = word(sq.tail);
    submit_mask = *word(sq.ring_mask);
    submit_count = parameters.sq_entries;
    done_head = word(cq.head);
    done_tail = word(cq.tail);
    done_mask = *word(cq.ring_mask);
    done = rings + cq.cqes;
    for (uint32_t i = 0; i < submit_count; i++) word(sq.array)[i] = i;
    return 0;
}

// Some filters let a ring be made and refuse its use.
int Ring::probe() {
    auto &entry = *static_cast<io_uring_sqe *>(entries);
    memset(&entry, 0, sizeof entry);
    entry.opcode = IORING_OP_NOP;
    release(submit_tail, 1);
    const int error = submit(true);
    if (error) return error;
    const uint32_t head = *done_head;
    if (acquire(done_tail) == head) return EIO;
    release(done_head, head + 1);
    return 0;
}

void Ring::close() {
    if (rings) munmap(rings, rings_bytes);
    if (entries) munmap(entries, entries_bytes);
    ::close(descriptor);
    rings = nullptr;
    entries = nullptr;
}

int Ring::register_buffers(const iovec *buffers, unsigned int count) {
    syscall(REGISTER, descriptor, IORING_UNREGISTER_BUFFERS, nullptr, 0);
    if (!count) return 0;
    return syscall(REGISTER, descriptor, IORING_REGISTER_BUFFERS, buffers, count) < 0 ? errno : 0;
}

bool Ring::put(Transfer *transfer, int buffer, bool blocking) {
    const uint32_t tail = *submit_tail;
    if (tail - acquire(submit_head) == submit_count) return false;
    auto &entry = static_cast<io_uring_sqe *>(entries)[tail & submit_mask];
    memset(&entry, 0, sizeof entry);
    entry.opcode = (uint8_t)(buffer < 0 ? IORING_OP_READ : IORING_OP_READ_FIXED);
    entry.flags = blocking ? IOSQE_ASYNC : 0;
    entry.fd = transfer->descriptor;
    entry.off = (uint64_t)transfer->offset;
    entry.addr = (uint64_t)(uintptr_t)transfer->target;
    entry.len = (uint32_t)transfer->bytes;
    entry.user_data = (uint64_t)(uintptr_t)transfer;
    entry.buf_index = (uint16_t)(buffer < 0 ? 0 : buffer);
    release(submit_tail, tail + 1);
    return true;
}

int Ring::submit(bool wait) {
    for (;;) {
        const uint32_t queued = *submit_tail - acquire(submit_head);
        if (!queued && !wait) return 0;
        const unsigned int flags = wait ? IORING_ENTER_GETEVENTS : 0;
        const long taken = syscall(ENTER, descriptor, queued, wait ? 1 : 0, flags, nullptr, 0);
        if (taken < 0 && errno == EINTR) continue;
        if (taken < 0) return errno;
        if ((uint32_t)taken == queued) return 0;
        // The kernel stops at an entry that it refuses, whose result it has then told; the rest is handed over again.
        if (taken == 0) return EAGAIN;
    }
}

Transfer *Ring::next() {
    const uint32_t head = *done_head;
    if (acquire(done_tail) == head) return nullptr;
    const auto &entry = static_cast<const io_uring_cqe *>(done)[head & done_mask];
    auto *const transfer = reinterpret_cast<Transfer *>((uintptr_t)entry.user_data);
    transfer->result = entry.res;
    release(done_head, head + 1);
    return transfer;
}

Transfer *Ring::take_back() {
    const uint32_t tail = *submit_tail;
    if (tail == acquire(submit_head)) return nullptr;
    release(submit_tail, tail - 1);
    return reinterpret_cast<Transfer *>((uintptr_t)static_cast<io_uring_sqe *>(entries)[(tail - 1) & submit_mask].user_data);
}

#else

int Ring::open(unsigned int) { return ENOSYS; }
void Ring::close() {}
int Ring::register_buffers(const iovec *, unsigned int) { return ENOSYS; }
bool Ring::put(Transfer *, int, bool) { return false; }
int Ring::submit(bool) { return ENOSYS; }
Transfer *Ring::next() { return nullptr; }
Transfer *Ring::take_back() { return nullptr; }

#endif
