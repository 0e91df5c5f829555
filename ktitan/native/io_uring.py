"""Whether this process may use io_uring: a probe that makes the smallest ring and closes it again."""

from __future__ import annotations

import ctypes
import errno
import os
import platform

__all__ = ["io_uring_fault"]

# __NR_io_uring_setup has this number on every architecture (asm-generic/unistd.h); struct io_uring_params is 120 bytes
# (linux/io_uring.h).
_SETUP = 425
_PARAMS_BYTES = 120


def io_uring_fault() -> int | None:
    """None when a ring can be made, else the error number.

    ENOSYS: the kernel has none. EPERM: it is switched off (`kernel.io_uring_disabled`) or a container's seccomp profile
    refuses it. ENOMEM: RLIMIT_MEMLOCK is too small (kernels before 5.12).
    """
    if platform.system() != "Linux":
        return errno.ENOSYS
    libc = ctypes.CDLL(None, use_errno=True)
    params = (ctypes.c_char * _PARAMS_BYTES)()
    descriptor = libc.syscall(ctypes.c_long(_SETUP), ctypes.c_uint(1), params)
    if descriptor < 0:
        return ctypes.get_errno()
    os.close(descriptor)
    return None
