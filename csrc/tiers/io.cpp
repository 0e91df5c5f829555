#include "io.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "io_state.h"

namespace {

constexpr int32_t MOST_DEPTH = 256;
constexpr int64_t MOST_PIECE_BYTES = 1 << 30;  // of one read of the kernel: below 2 GiB

// A process that was forked has its own ring or threads.
void own(kt_io *io) {
    if (io->owner != getpid()) backend_forked(io);
}

int32_t wrong(const kt_io *io, const kt_read *read) {
    if (read->file < 0 || read->file >= io->file_count || read->offset < 0 || read->bytes < 0) return EINVAL;
    if (read->offset > INT64_MAX - 2 * KT_PAGE - read->bytes) return EINVAL;
    if (read->bytes && (!read->target || ((uintptr_t)read->target - (uint64_t)read->offset) % KT_PAGE)) return EINVAL;
    return 0;
}

bool reserve(kt_io *io, const kt_read *reads, int64_t count) {
    const int64_t least = drive_least_piece(io);
    int64_t pieces = 0;
    for (int64_t i = 0; i < count; i++)
        if (!wrong(io, &reads[i])) pieces += reads[i].bytes / least + 2;
    return io->requests.reserve(count) && io->pieces.reserve(pieces);
}

void take(kt_io *io, const kt_read *read, bool behind) {
    Request *const request = io->requests.take();
    *request = {};
    request->tag = read->tag;
    request->file = read->file;
    io->pending++;
    int32_t fault = wrong(io, read);
    if (!fault && read->bytes) {
        io->counters.wanted_bytes += read->bytes;
        fault = file_ready(io, read->file);
        if (!fault && !cut(io, read, request, behind)) fault = ENOMEM;
    }
    if (fault) request_failed(request, fault, read->offset);
    if (!request->pieces) request_done(io, request);
}

int64_t hand_out(kt_io *io, kt_done *done, int64_t most) {
    int64_t count = 0;
    while (count < most && io->done_first) {
        Request *const request = io->done_first;
        io->done_first = request->next;
        done[count++] = {request->tag, request->error, request->file, request->offset};
        io->requests.give(request);
        io->pending--;
    }
    return count;
}

bool submit(kt_io *io, const kt_read *reads, int64_t count, bool behind) {
    own(io);
    if (!reserve(io, reads, count)) return false;
    io->submits++;
    for (int64_t i = 0; i < count; i++) take(io, &reads[i], behind);
    backend_pump(io, false);
    return true;
}

int32_t negative(int32_t fault) { return fault > 0 ? -fault : fault - 1000; }

}  // namespace

kt_io *kt_io_create(int32_t mode, int32_t direct, int32_t depth, int64_t piece_bytes) {
    auto *const io = static_cast<kt_io *>(calloc(1, sizeof(kt_io)));
    if (!io) return nullptr;
    io->owner = getpid();
    io->mode = mode;
    io->direct = direct != 0;
    io->depth = depth < 0 ? 0 : (depth > MOST_DEPTH ? MOST_DEPTH : depth);
    const int64_t whole = (piece_bytes + KT_PAGE - 1) & ~(KT_PAGE - 1);
    io->piece_bytes = piece_bytes <= 0 ? 0 : (whole > MOST_PIECE_BYTES ? MOST_PIECE_BYTES : whole);
    backend_open(io);
    return io;
}

void kt_io_destroy(kt_io *io) {
    if (!io) return;
    if (io->owner == getpid()) {
        for (int32_t i = 0; i < io->drive_count; i++) io->drives[i].depth = 0;  // nothing new starts
        while (io->in_flight) {
            io->done_first = nullptr;
            backend_pump(io, true);
            backend_collect(io);
        }
    } else if (!io->ring.is_open()) {
        io->workers.forget();
    }
    backend_close(io);
    for (int32_t i = 0; i < io->file_count; i++) {
        file_close(&io->files[i]);
        free(io->files[i].path);
    }
    free(io->files);
    free(io->drives);
    io->requests.clear();
    io->pieces.clear();
    free(io);
}

int32_t kt_io_add(kt_io *io, const char *path, const kt_stamp *stamp) {
    own(io);
    if (io->file_count == io->file_room) {
        const int32_t room = io->file_room * 2 + 8;
        void *const grown = realloc(io->files, sizeof(File) * (size_t)room);
        if (!grown) return -ENOMEM;
        io->files = static_cast<File *>(grown);
        io->file_room = room;
    }
    File *const file = &io->files[io->file_count];
    *file = {};
    file->checked = io->submits;
    file->descriptor = -1;
    if (stamp) file->stamp = *stamp;
    file->stamped = stamp != nullptr;
    file->path = strdup(path);
    const int32_t fault = file->path ? file_open(io, file) : ENOMEM;
    if (fault) {
        free(file->path);
        return negative(fault);
    }
    return io->file_count++;
}

void kt_io_register(kt_io *io, uint8_t *memory, int64_t bytes, int64_t piece_bytes) {
    own(io);
    constexpr int64_t most = 1 << 30;  // of one buffer, io_uring_register(2)
    if (io->region_count == MOST_REGIONS || bytes <= 0 || piece_bytes <= 0 || piece_bytes > most) return;
    io->regions[io->region_count++] = {memory, bytes, most / piece_bytes * piece_bytes, 0};
    if (backend_register(io)) return;
    io->region_count--;
    backend_register(io);
}

void kt_io_unregister(kt_io *io) {
    own(io);
    if (io->region_count == 0) return;
    io->region_count = 0;
    io->counters.registered = 0;
    if (io->ring.is_open()) io->ring.register_buffers(nullptr, 0);
}

bool kt_io_submit(kt_io *io, const kt_read *reads, int64_t count) { return submit(io, reads, count, false); }

bool kt_io_submit_behind(kt_io *io, const kt_read *reads, int64_t count) { return submit(io, reads, count, true); }

void kt_io_start_behind(kt_io *io) {
    own(io);
    io->all_behind = true;
    backend_pump(io, false);
    io->all_behind = false;
}

void kt_io_hasten(kt_io *io, uint64_t tag) {
    for (int32_t i = 0; i < io->drive_count; i++) {
        Drive &drive = io->drives[i];
        TransferQueue others = {};
        while (auto *const piece = static_cast<Piece *>(drive.behind.take())) {
            (piece->request->tag == tag ? drive.queue : others).append(piece);
        }
        drive.behind = others;
    }
    backend_pump(io, false);
}

void kt_io_cancel_behind(kt_io *io) {
    for (int32_t i = 0; i < io->drive_count; i++) {
        while (auto *const piece = static_cast<Piece *>(io->drives[i].behind.take())) {
            request_failed(piece->request, ECANCELED, piece->offset);
            piece_dropped(io, piece);
        }
    }
}

int64_t kt_io_reap(kt_io *io, kt_done *done, int64_t most, bool wait) {
    own(io);
    backend_collect(io);
    backend_pump(io, false);
    if (wait && !io->done_first && io->in_flight) {
        const int64_t start = monotonic_ns();
        io->waiting = true;
        do {
            backend_pump(io, true);
            backend_collect(io);
        } while (!io->done_first && io->pending);
        io->waiting = false;
        backend_pump(io, false);
        io->counters.wait_ns += monotonic_ns() - start;
    }
    return hand_out(io, done, most);
}

int64_t kt_io_pending(const kt_io *io) { return io->pending; }

void kt_io_count(const kt_io *io, kt_io_counters *counters) {
    *counters = io->counters;
    counters->files = io->file_count;
    for (int32_t i = 0; i < io->file_count; i++) counters->direct_files += io->files[i].direct;
    if (io->in_flight) counters->busy_ns += monotonic_ns() - io->busy_since;
}
