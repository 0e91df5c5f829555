// Reads cut into pieces, and what becomes of a piece that comes back.
#include <errno.h>

#include "io_state.h"

namespace {

constexpr int32_t MOST_TRIES = 8;

int64_t page_below(int64_t at) { return at & ~(KT_PAGE - 1); }

void queue_again(kt_io *io, Piece *piece) { io->drives[io->files[piece->file].drive].queue.put_back(piece); }

// Go on behind the bytes that came.
void advance(Piece *piece, int64_t bytes) {
    piece->target += bytes;
    piece->offset += bytes;
    piece->bytes -= bytes;
    piece->tries = 0;
}

// True when the piece goes on; else its request knows what is wrong.
bool went_on(File *file, Piece *piece, int64_t bytes) {
    const int64_t end = piece->offset + bytes;
    if (bytes == 0 || file_ends_before(file, piece->wanted_end)) {
        request_failed(piece->request, KT_IO_SHORT, end);
        return false;
    }
    if (file->direct && end % KT_PAGE) file_make_buffered(file);  // so that the rest can be read at all
    advance(piece, bytes);
    return true;
}

// The same for a read that failed.
bool tried_again(File *file, Piece *piece, int32_t error) {
    if (error == EINVAL && file->direct) {
        file_make_buffered(file);
        return true;
    }
    // Pieces that were in flight when another one found out.
    if (error == EINVAL && piece->tries++ == 0) return true;
    // ECANCELED: the thread that submitted it has ended.
    const bool passing = error == EAGAIN || error == EINTR || error == ECANCELED;
    if (passing && piece->tries++ < MOST_TRIES) {
        piece->blocking = true;
        return true;
    }
    file->suspect = true;
    request_failed(piece->request, error, piece->offset);
    return false;
}

}  // namespace

void request_done(kt_io *io, Request *request) {
    request->next = nullptr;
    (io->done_first ? io->done_last->next : io->done_first) = request;
    io->done_last = request;
}

void request_failed(Request *request, int32_t error, int64_t offset) {
    if (request->error) return;
    request->error = error;
    request->offset = offset;
}

bool cut(kt_io *io, const kt_read *read, Request *request, bool behind) {
    File *const file = &io->files[read->file];
    Drive *const drive = &io->drives[file->drive];
    const int64_t start = page_below(read->offset), end = read->offset + read->bytes;
    uint8_t *const target = read->target - (read->offset - start);
    for (int64_t at = start; at < end; at += drive->piece_bytes) {
        Piece *const piece = io->pieces.take();
        if (!piece) return false;
        const int64_t rest = page_below(end - at + KT_PAGE - 1);
        *piece = {};
        piece->target = target + (at - start);
        piece->offset = at;
        piece->bytes = rest < drive->piece_bytes ? rest : drive->piece_bytes;
        piece->wanted_end = at + piece->bytes < end ? at + piece->bytes : end;
        piece->request = request;
        piece->file = read->file;
        request->pieces++;
        file->pieces++;
        (behind ? drive->behind : drive->queue).append(piece);
    }
    return true;
}

void piece_dropped(kt_io *io, Piece *piece) {
    Request *const request = piece->request;
    io->files[piece->file].pieces--;
    io->pieces.give(piece);
    if (--request->pieces == 0) request_done(io, request);
}

void piece_done(kt_io *io, Piece *piece) {
    File *const file = &io->files[piece->file];
    const int64_t result = piece->result;
    drive_finished(io, &io->drives[file->drive], result);
    piece->in_flight = false;
    bool again = false;
    if (result < 0) {
        again = tried_again(file, piece, (int32_t)-result);
    } else {
        io->counters.read_bytes += result;
        if (piece->offset + result < piece->wanted_end) again = went_on(file, piece, result);
    }
    again ? queue_again(io, piece) : piece_dropped(io, piece);
}
