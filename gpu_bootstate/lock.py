"""One run at a time. The lock is a flock: it ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_bootstate.paths import Paths

_POLL_S = 0.1


class Busy(Exception):
    """Another run holds the lock; ``pid`` is 0 where it has not said who it is."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"another run is at work (pid {pid})")
        self.pid = pid


@contextmanager
def acquire(paths: Paths, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold the lock. Raises Busy when it is still taken after ``wait_s`` seconds, OSError when
    there can be no lock file.
    """
    paths.run_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # A blocking flock could be ended only by a signal.
                if time.monotonic() >= until:
                    raise Busy(_pid_in(descriptor)) from None
                time.sleep(_POLL_S)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder_pid(paths: Paths) -> int | None:
    """The process that holds the lock now; None when nobody does; 0 when it is not known who."""
    try:
        descriptor = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
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
    with contextlib.suppress(OSError, ValueError):
        return int(os.pread(descriptor, 32, 0).split()[0])
    return 0
