// How many reads are in flight on a drive, and how long they are (README.md has the measurements).
#include "io_state.h"

namespace {

constexpr int64_t PIECE_BYTES = 1 << 20;
constexpr int32_t DEPTH = 16, WORKERS_DEPTH = 8;

}  // namespace

int32_t drive_of(kt_io *io, uint64_t device) {
    for (int32_t i = 0; i < io->drive_count; i++)
        if (io->drives[i].device == device) return i;
    if (io->drive_count == io->drive_room) {
        const int32_t room = io->drive_room * 2 + 4;
        void *const grown = realloc(io->drives, sizeof(Drive) * (size_t)room);
        if (!grown) return -1;
        io->drives = static_cast<Drive *>(grown);
        io->drive_room = room;
    }
    const int32_t usual = io->ring.is_open() ? DEPTH : WORKERS_DEPTH;
    Drive &drive = io->drives[io->drive_count];
    drive = {};
    drive.device = device;
    drive.depth = io->depth ? io->depth : usual;
    drive.piece_bytes = io->piece_bytes ? io->piece_bytes : PIECE_BYTES;
    return io->drive_count++;
}
