// What the parts of the I/O engine share: io.cpp (the interface), io_pieces.cpp (reads cut and put together), io_files.cpp
// (files and drives), io_backend.cpp (the kernel's side).
#pragma once

#include <sys/types.h>

#include "io.h"
#include "slab.h"
#include "uring.h"
#include "workers.h"

// A read as the caller asked for it.
struct Request {
    uint64_t tag;
    int64_t offset;  // of the failure
    Request *next;
    int64_t pieces;  // not done yet
    int32_t file;
    int32_t error;  // the first one
};

// A part of it that the kernel does at once.
struct Piece : Transfer {
    Request *request;
    int64_t wanted_end;  // offset in the file after the last byte that is wanted; the rest is there for whole pages
    int32_t file;
    int32_t tries;
    bool in_flight;
    bool blocking;  // by a thread of the kernel: it copies, or the kernel asked for another try
};

constexpr int32_t DRIVE_CHOICES = 4;

// Which depth and length of reads suit a drive (io_drives.cpp).
struct Trial {
    int64_t bytes[DRIVE_CHOICES], ns[DRIVE_CHOICES];
    int64_t span_start, span_bytes;
    int32_t choice;
    bool over;
};

// A file system: its files share a queue, so that one drive does not wait for another.
struct Drive {
    uint64_t device;
    int64_t piece_bytes;
    TransferQueue queue;
    TransferQueue behind;  // kt_io_submit_behind
    Trial trial;
    int32_t depth;
    int32_t in_flight;
};

struct File {
    char *path;
    kt_stamp stamp;
    int64_t checked;  // number of the submit that checked it last
    int64_t pieces;   // queued or in flight
    int32_t drive;
    int32_t fault;    // of that check
    int descriptor;   // -1: closed
    bool stamped;
    bool direct;
    bool suspect;  // a read failed: open it again before the next one
};

struct Region {
    uint8_t *memory;
    int64_t bytes;
    int64_t buffer_bytes;
    int32_t first_buffer;
};

constexpr int MOST_REGIONS = 64;

struct kt_io {
    pid_t owner;
    int32_t mode, depth;
    int64_t piece_bytes;
    bool direct;
    bool waiting;  // what comes back now comes back at this moment
    bool all_behind;  // kt_io_start_behind

    Ring ring;
    Workers workers;
    TransferQueue handed;  // to the workers with the next flush
    Region regions[MOST_REGIONS];
    int32_t region_count;

    File *files;
    Drive *drives;
    int32_t file_count, file_room, drive_count, drive_room;

    Slab<Request> requests;
    Slab<Piece> pieces;
    Request *done_first, *done_last;

    int64_t submits, pending, in_flight, busy_since;
    kt_io_counters counters;
};

// io_files.cpp. Both answer 0, an errno or a kt_io_fault.
int32_t file_open(kt_io *io, File *file);
int32_t file_ready(kt_io *io, int32_t number);  // once a submit: opened again where needed, and unchanged
void file_close(File *file);
void file_make_buffered(File *file);
bool file_ends_before(const File *file, int64_t end);

// io_pieces.cpp
void request_done(kt_io *io, Request *request);
void request_failed(Request *request, int32_t error, int64_t offset);
bool cut(kt_io *io, const kt_read *read, Request *request, bool behind);
void piece_done(kt_io *io, Piece *piece);
void piece_dropped(kt_io *io, Piece *piece);

// io_backend.cpp
void backend_open(kt_io *io);
void backend_close(kt_io *io);
void backend_forked(kt_io *io);  // what was in flight starts anew in this process
bool backend_register(kt_io *io);  // all regions, or none
void backend_pump(kt_io *io, bool wait);  // start what the depths allow; where `wait`, until something is done
void backend_collect(kt_io *io);

// io_drives.cpp: the drive of a device, made where it is new; -1 without memory.
int32_t drive_of(kt_io *io, uint64_t device);
int64_t drive_least_piece(const kt_io *io);
void drive_started(Drive *drive);
void drive_finished(kt_io *io, Drive *drive, int64_t bytes);  // or a negative errno
