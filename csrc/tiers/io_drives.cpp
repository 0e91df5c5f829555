// How many reads are in flight on a drive, and how long they are: tried out while real reads are under way, so that nothing
// is read for it alone (README.md has the measurements).
//
// A try lasts for a span of time in which the drive always has a read in flight and whose ends the caller saw at once,
// because it waited. The choices take turns, so that all meet the same mix of reads.
#include "io_state.h"

namespace {

struct Choice {
    int32_t depth;
    int64_t piece_bytes;
};

constexpr int64_t MB = 1 << 20;
// The first is used before and unless another one is clearly better.
constexpr Choice WITH_RING[DRIVE_CHOICES] = {{16, MB}, {16, 4 * MB}, {8, 4 * MB}, {32, MB}};
constexpr Choice WITH_WORKERS[DRIVE_CHOICES] = {{8, MB}, {8, 4 * MB}, {4, 4 * MB}, {16, MB}};
constexpr double CLEARLY = 1.05;

constexpr int64_t LEAST_SPAN_BYTES = 8 * MB;  // less says nothing about many reads in flight
constexpr int64_t SPAN_BYTES = 64 * MB, ENOUGH_BYTES = 256 * MB;

void use(const kt_io *io, Drive *drive, int32_t number) {
    const Choice &choice = (io->ring.is_open() ? WITH_RING : WITH_WORKERS)[number];
    drive->trial.choice = number;
    drive->depth = io->depth ? io->depth : choice.depth;
    drive->piece_bytes = io->piece_bytes ? io->piece_bytes : choice.piece_bytes;
}

double rate(const Trial &trial, int32_t number) { return (double)trial.bytes[number] / (double)(trial.ns[number] + 1); }

// Every choice has been tried enough: keep the best.
void decide(const kt_io *io, Drive *drive) {
    int32_t best = 0;
    for (int32_t i = 1; i < DRIVE_CHOICES; i++)
        if (rate(drive->trial, i) > rate(drive->trial, best) * (best ? 1.0 : CLEARLY)) best = i;
    drive->trial.over = true;
    use(io, drive, best);
}

void end_span(const kt_io *io, Drive *drive, int64_t now) {
    Trial &trial = drive->trial;
    if (trial.span_bytes >= LEAST_SPAN_BYTES) {
        trial.bytes[trial.choice] += trial.span_bytes;
        trial.ns[trial.choice] += now - trial.span_start;
        const int32_t next = (trial.choice + 1) % DRIVE_CHOICES;
        if (trial.bytes[next] >= ENOUGH_BYTES) return decide(io, drive);
        use(io, drive, next);
    }
    trial.span_start = now;
    trial.span_bytes = 0;
}

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
    Drive &drive = io->drives[io->drive_count];
    drive = {};
    drive.device = device;
    drive.trial.over = io->depth && io->piece_bytes;
    use(io, &drive, 0);
    return io->drive_count++;
}

int64_t drive_least_piece(const kt_io *io) { return io->piece_bytes ? io->piece_bytes : MB; }

void drive_started(Drive *drive) {
    if (drive->in_flight++ || drive->trial.over) return;
    drive->trial.span_start = monotonic_ns();
    drive->trial.span_bytes = 0;
}

void drive_finished(kt_io *io, Drive *drive, int64_t bytes) {
    drive->in_flight--;
    Trial &trial = drive->trial;
    if (trial.over) return;
    if (bytes > 0) trial.span_bytes += bytes;
    if (io->waiting && (!drive->in_flight || trial.span_bytes >= SPAN_BYTES)) end_span(io, drive, monotonic_ns());
}
