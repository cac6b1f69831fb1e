#!/usr/bin/env python3
"""Runs a command under two of the unit's limits where there is no systemd to set them.

    tests/device/like-the-unit.py COMMAND...

MemoryDenyWriteExecute=yes and SystemCallFilter=~@resources, as systemd.exec describes them: calls
that would make memory both writable and executable, or change priorities, affinities and limits,
fail with EPERM. Shows that the real NVML can do without. x86-64 only.
"""

import ctypes
import errno
import os
import struct
import sys

# linux/filter.h, linux/seccomp.h, linux/audit.h
LOAD, JUMP_EQUAL, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | errno.EPERM
NUMBER, ARCH, THIRD_ARGUMENT = 0, 4, 16 + 2 * 8
X86_64 = 0xC000003E
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
PROT_WRITE, PROT_EXEC = 2, 4

# asm/unistd_64.h
MMAP, MPROTECT, PKEY_MPROTECT = 9, 10, 329
RESOURCES = {
    "ioprio_set": 251,
    "mbind": 237,
    "migrate_pages": 256,
    "move_pages": 279,
    "sched_setaffinity": 203,
    "sched_setattr": 314,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "set_mempolicy": 238,
    "set_mempolicy_home_node": 450,
    "setpriority": 141,
    "setrlimit": 160,
}


def program() -> bytes:
    """The filter: one block for each rule, each of which falls through to the next."""
    code = [(LOAD, 0, 0, ARCH), (JUMP_EQUAL, 1, 0, X86_64), (RETURN, 0, 0, FAIL)]
    for number in RESOURCES.values():
        code += [(LOAD, 0, 0, NUMBER), (JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL)]
    for number in (MPROTECT, PKEY_MPROTECT):
        code += [
            (LOAD, 0, 0, NUMBER),
            (JUMP_EQUAL, 0, 3, number),
            (LOAD, 0, 0, THIRD_ARGUMENT),
            (JUMP_SET, 0, 1, PROT_EXEC),
            (RETURN, 0, 0, FAIL),
        ]
    code += [
        (LOAD, 0, 0, NUMBER),
        (JUMP_EQUAL, 0, 4, MMAP),
        (LOAD, 0, 0, THIRD_ARGUMENT),
        (JUMP_SET, 0, 2, PROT_EXEC),
        (JUMP_SET, 0, 1, PROT_WRITE),
        (RETURN, 0, 0, FAIL),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(program())
    header = struct.pack("@HP", (len(code) - 1) // 8, ctypes.addressof(code))
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    # The limits hold, or what is shown is worth nothing.
    try:
        os.sched_setaffinity(0, os.sched_getaffinity(0))
    except PermissionError:
        pass
    else:
        sys.exit("the filter does not hold: sched_setaffinity")
    libc.mmap.restype = ctypes.c_void_p
    arguments = (None, ctypes.c_size_t(4096), PROT_WRITE | PROT_EXEC, 0x22, -1, ctypes.c_long(0))
    if libc.mmap(*arguments) != ctypes.c_void_p(-1).value:
        sys.exit("the filter does not hold: mmap")
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606


if __name__ == "__main__":
    main()
