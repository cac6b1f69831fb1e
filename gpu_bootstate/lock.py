"""One run at a time. The lock is a flock: it ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_bootstate.files import make_directory, read_json
from gpu_bootstate.paths import Paths

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25

# `holder_pid` has the lock for a moment when it is free; that is no run to give way to.
_PASSING_S = 0.2


class Busy(Exception):
    """Another run holds the lock; ``pid`` is 0 where it has not said who it is."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"another run is at work (pid {pid})")
        self.pid = pid


@contextmanager
def acquire(
    paths: Paths, *, wait_s: float | None = 0.0, file: Path | None = None
) -> Iterator[None]:
    """Hold the lock of runs, or that of ``file`` in the run directory. Raises Busy when it is still
    taken after ``wait_s`` seconds (None: as long as it takes), OSError when there can be no lock
    file.

    Children that are started by exec do not inherit it; a forked one would hold it on.
    """
    until = None if wait_s is None else time.monotonic() + max(wait_s, _PASSING_S)
    descriptor = _locked(paths, file or paths.lock, until)
    try:
        with contextlib.suppress(OSError):  # no room: the lock holds without a name, too
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(paths: Paths, file: Path, until_s: float | None) -> int:
    pause = _FIRST_PAUSE_S
    while True:
        # Made and opened for each attempt: the run directory may have been removed meanwhile.
        make_directory(paths.run_dir)
        # By root alone: whoever can read a file can also keep a flock on it.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(file, flags, 0o600)
        try:
            # A blocking flock could be ended only by a signal.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _pid_in(descriptor)
            os.close(descriptor)
        else:
            return descriptor
        if until_s is not None and time.monotonic() >= until_s:
            raise Busy(pid)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def holder_pid(paths: Paths) -> int | None:
    """The process that holds the lock now; None when nobody does; 0 when it is not known who.

    Users who may not open the lock learn it from the status file.
    """
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return _pid_of_status(paths)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid_in(descriptor)
    finally:
        os.close(descriptor)
    return None


def _pid_in(descriptor: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(os.pread(descriptor, 32, 0).split()[0])
    return 0


def _pid_of_status(paths: Paths) -> int | None:
    status = read_json(paths.status) or {}
    pid = status.get("pid")
    if status.get("progress") != "running" or not isinstance(pid, int):
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return pid  # it is there and another user's
    return pid
