// Files: opened past the page cache where that is possible, checked against what they were, opened again after a failure.
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "io_state.h"

namespace {

// fstat has a new symbol since glibc 2.33; on x86-64 the kernel fills struct stat itself.
int stat_of(int descriptor, struct stat *found) { return (int)syscall(SYS_fstat, descriptor, found); }

bool same(const kt_stamp &stamp, const struct stat &found) {
    const int64_t modified = (int64_t)found.st_mtim.tv_sec * 1000000000 + found.st_mtim.tv_nsec;
    return stamp.device == found.st_dev && stamp.inode == found.st_ino && stamp.bytes == found.st_size &&
           stamp.modified_ns == modified;
}

int32_t check(const File *file, struct stat *found) {
    if (stat_of(file->descriptor, found)) return errno;
    if (!S_ISREG(found->st_mode)) return S_ISDIR(found->st_mode) ? EISDIR : EINVAL;
    return file->stamped && !same(file->stamp, *found) ? (int32_t)KT_IO_CHANGED : 0;
}

// Where descriptors are short, a file without reads gives its own back.
bool close_an_idle_file(kt_io *io) {
    File *oldest = nullptr;
    for (int32_t i = 0; i < io->file_count; i++) {
        File *const file = &io->files[i];
        if (file->descriptor >= 0 && !file->pieces && (!oldest || file->checked < oldest->checked)) oldest = file;
    }
    if (!oldest) return false;
    file_close(oldest);
    return true;
}

// A file that is in memory: such systems take O_DIRECT since Linux 6.6, and copy.
bool in_memory(int descriptor) {
    constexpr long tmpfs = 0x01021994, ramfs = 0x858458f6;  // linux/magic.h
    struct statfs system;
    return fstatfs(descriptor, &system) == 0 && (system.f_type == tmpfs || system.f_type == ramfs);
}

int open_past_cache(File *file, bool direct) {
    // A pipe must not keep the opener for ever.
    const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;
    file->direct = direct;
    if (direct) {
        const int descriptor = open(file->path, flags | O_DIRECT);
        if (descriptor >= 0 || errno != EINVAL) return descriptor;
        file->direct = false;
    }
    return open(file->path, flags);
}

}  // namespace

int32_t file_open(kt_io *io, File *file) {
    do {
        file->descriptor = open_past_cache(file, io->direct);
    } while (file->descriptor < 0 && (errno == EINTR || (errno == EMFILE && close_an_idle_file(io))));
    if (file->descriptor < 0) return errno;
    struct stat found;
    int32_t fault = check(file, &found);
    if (!fault) {
        file->drive = drive_of(io, found.st_dev);
        if (file->drive < 0) fault = ENOMEM;
    }
    if (fault) {
        file_close(file);
        return fault;
    }
    file->direct = file->direct && !in_memory(file->descriptor);
    // Without O_NONBLOCK: io_uring would answer EAGAIN instead of waiting.
    fcntl(file->descriptor, F_SETFL, file->direct ? O_DIRECT : 0);
    if (!file->direct) posix_fadvise(file->descriptor, 0, 0, POSIX_FADV_RANDOM);  // no bytes that nobody asked for
    file->suspect = false;
    return 0;
}

int32_t file_ready(kt_io *io, int32_t number) {
    File *const file = &io->files[number];
    if (file->checked == io->submits) return file->fault;
    file->checked = io->submits;
    // A read in flight may need the descriptor, so a failed file waits until all of its reads came back.
    if (file->suspect && !file->pieces) file_close(file);
    if (file->descriptor < 0) return file->fault = file_open(io, file);
    struct stat found;
    file->fault = check(file, &found);
    if (file->fault > 0) file->suspect = true;
    return file->fault;
}

void file_close(File *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

// Direct reads were refused, e.g. because this drive wants them aligned to more than a page.
void file_make_buffered(File *file) {
    file->direct = false;
    fcntl(file->descriptor, F_SETFL, 0);
    posix_fadvise(file->descriptor, 0, 0, POSIX_FADV_RANDOM);
}

bool file_ends_before(const File *file, int64_t end) {
    struct stat found;
    return stat_of(file->descriptor, &found) == 0 && found.st_size < end;
}
