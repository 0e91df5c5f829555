// Between the queues of the drives and the kernel: the ring, or threads where there is none.
#include <errno.h>
#include <unistd.h>

#include "io_state.h"

namespace {

constexpr unsigned int RING_ENTRIES = 256;
// No more registered buffers before Linux 5.13 (UIO_MAXIOV).
constexpr int32_t MOST_BUFFERS = 1024;

int buffer_of(const kt_io *io, const Piece *piece) {
    if (!io->counters.registered) return -1;
    for (int32_t i = 0; i < io->region_count; i++) {
        const Region &region = io->regions[i];
        if (piece->target < region.memory || piece->target + piece->bytes > region.memory + region.bytes) continue;
        const int64_t from = piece->target - region.memory, last = from + piece->bytes - 1;
        if (from / region.buffer_bytes != last / region.buffer_bytes) return -1;
        return region.first_buffer + (int)(from / region.buffer_bytes);
    }
    return -1;
}

bool start(kt_io *io, Piece *piece) {
    const File &file = io->files[piece->file];
    piece->descriptor = file.descriptor;
    if (!io->ring.is_open()) {
        io->handed.append(piece);
    } else if (!io->ring.put(piece, buffer_of(io, piece), piece->blocking || !file.direct)) {
        // A copy out of the page cache would be done inside of submit().
        return false;
    }
    piece->in_flight = true;
    io->counters.reads++;
    if (io->in_flight++ == 0) io->busy_since = monotonic_ns();
    return true;
}

// Start one read of the drive; false when there is none, or no room for it.
bool start_one(kt_io *io, Drive *drive) {
    const bool deeper = io->all_behind && !drive->queue.first;
    while ((drive->in_flight < drive->depth || deeper) && io->in_flight < RING_ENTRIES) {
        TransferQueue &queue = drive->queue.first ? drive->queue : drive->behind;
        auto *const piece = static_cast<Piece *>(queue.take());
        if (!piece) return false;
        if (piece->request->error) {  // nobody needs it any more
            piece_dropped(io, piece);
            continue;
        }
        if (!start(io, piece)) {
            queue.put_back(piece);
            return false;
        }
        drive_started(drive);
        return true;
    }
    return false;
}

void take_back(kt_io *io, Transfer *transfer) {
    if (--io->in_flight == 0) io->counters.busy_ns += monotonic_ns() - io->busy_since;
    piece_done(io, static_cast<Piece *>(transfer));
}

// Nothing is taken at the moment, or (a filter that came later) never again: then threads go on.
void ring_refused(kt_io *io, int error, bool wait) {
    if (error == EAGAIN || error == EBUSY || error == ENOMEM) {
        if (wait) usleep(1000);
        return;
    }
    while (Transfer *const untaken = io->ring.take_back()) {
        untaken->result = -EAGAIN;
        take_back(io, untaken);
    }
    while (io->in_flight) {
        usleep(1000);
        backend_collect(io);
    }
    io->ring.close();
    io->workers.open();
    io->counters.uring = io->counters.registered = 0;
}

}  // namespace

void backend_open(kt_io *io) {
    const int refused = io->mode == KT_IO_WORKERS ? ENOSYS : io->ring.open(RING_ENTRIES);
    if (refused) io->workers.open();
    io->counters.uring = !refused;
}

void backend_close(kt_io *io) {
    if (io->ring.is_open()) {
        io->ring.close();
    } else {
        io->workers.close();
    }
}

void backend_forked(kt_io *io) {
    io->owner = getpid();
    if (io->ring.is_open()) {
        io->ring.close();
        backend_open(io);
        backend_register(io);
    } else {
        io->workers.forget();
    }
    io->handed = {};
    io->in_flight = 0;
    for (int32_t i = 0; i < io->drive_count; i++) io->drives[i].in_flight = 0;
    io->pieces.each([io](Piece *piece) {
        if (!piece->in_flight) return;
        piece->in_flight = false;
        io->drives[io->files[piece->file].drive].queue.put_back(piece);
    });
}

bool backend_register(kt_io *io) {
    io->counters.registered = 0;
    if (!io->ring.is_open() || !io->region_count) return false;
    auto *const buffers = static_cast<iovec *>(malloc(sizeof(iovec) * MOST_BUFFERS));
    int32_t count = 0;
    bool fit = buffers != nullptr;
    for (int32_t i = 0; fit && i < io->region_count; i++) {
        Region &region = io->regions[i];
        region.first_buffer = count;
        for (int64_t at = 0; fit && at < region.bytes; at += region.buffer_bytes) {
            const int64_t rest = region.bytes - at;
            fit = count < MOST_BUFFERS;
            if (fit) buffers[count++] = {region.memory + at, (size_t)(rest < region.buffer_bytes ? rest : region.buffer_bytes)};
        }
    }
    if (fit) io->counters.registered = io->ring.register_buffers(buffers, (unsigned int)count) == 0;
    free(buffers);
    return io->counters.registered;
}

void backend_pump(kt_io *io, bool wait) {
    for (bool more = true; more;) {
        more = false;
        for (int32_t i = 0; i < io->drive_count; i++) more |= start_one(io, &io->drives[i]);
    }
    wait = wait && !io->done_first && io->in_flight;
    if (io->ring.is_open()) {
        const int error = io->ring.submit(wait);
        if (error) ring_refused(io, error, wait);
        return;
    }
    io->workers.put(&io->handed);
    if (!wait) return;
    for (Transfer *done = io->workers.collect(true); done;) {
        Transfer *const next = done->next;
        take_back(io, done);
        done = next;
    }
}

void backend_collect(kt_io *io) {
    if (io->ring.is_open()) {
        while (Transfer *const done = io->ring.next()) take_back(io, done);
        return;
    }
    for (Transfer *done = io->workers.collect(false); done;) {
        Transfer *const next = done->next;
        take_back(io, done);
        done = next;
    }
}
