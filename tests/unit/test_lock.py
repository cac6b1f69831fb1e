"""One run at a time, on a real lock file."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpu_bootstate.lock import Busy, acquire, holder_pid
from gpu_bootstate.paths import Paths

_HOLD = """
import sys
from pathlib import Path
from gpu_bootstate.lock import acquire
from gpu_bootstate.paths import Paths
with acquire(Paths(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def test_second_run_is_told_who_has_the_lock(paths: Paths) -> None:
    with acquire(paths), pytest.raises(Busy) as busy, acquire(paths):
        pass

    assert busy.value.pid == os.getpid()
    assert str(busy.value) == f"another run is at work (pid {os.getpid()})"


def test_lock_is_free_again_after_the_run_also_when_it_failed(paths: Paths) -> None:
    with pytest.raises(ZeroDivisionError), acquire(paths):
        raise ZeroDivisionError

    with acquire(paths):
        assert holder_pid(paths) == os.getpid()


def test_holder_is_known_only_while_a_run_is_alive(paths: Paths) -> None:
    assert holder_pid(paths) is None
    with acquire(paths):
        assert holder_pid(paths) == os.getpid()
    assert paths.lock.exists()
    assert holder_pid(paths) is None


def test_killed_run_leaves_no_lock(paths: Paths) -> None:
    command = [sys.executable, "-c", _HOLD, str(paths.root)]
    with subprocess.Popen(  # noqa: S603
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "held\n"
        assert holder_pid(paths) == run.pid
        with pytest.raises(Busy) as busy, acquire(paths):
            pass
        assert busy.value.pid == run.pid
        run.kill()
        run.wait()

    assert holder_pid(paths) is None
    with acquire(paths):
        pass


@pytest.mark.parametrize("wait_s", [30.0, None])
def test_waiting_run_starts_when_the_other_ends(paths: Paths, wait_s: float | None) -> None:
    held, waits = threading.Event(), threading.Event()

    def other() -> None:
        with acquire(paths):
            held.set()
            waits.wait()

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    waits.set()
    with acquire(paths, wait_s=wait_s):
        assert holder_pid(paths) == os.getpid()
    thread.join()


def test_looking_for_a_holder_never_turns_a_run_away(paths: Paths) -> None:
    with acquire(paths):
        pass
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for _ in range(10):
                holder_pid(paths)
            time.sleep(0.002)  # a loop without would have the lock more often than not

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(2000):
            with acquire(paths):
                pass
    finally:
        stop.set()
        thread.join()


def test_only_its_owner_may_open_the_lock_since_readers_could_hold_it(paths: Paths) -> None:
    with acquire(paths):
        assert stat.S_IMODE(paths.lock.stat().st_mode) == 0o600


def test_lock_is_that_of_the_run_directory_that_is_there_now(paths: Paths) -> None:
    with acquire(paths):
        paths.run_dir.rename(paths.root / "removed")
        assert holder_pid(paths) is None
        with acquire(paths):
            assert holder_pid(paths) == os.getpid()


@contextmanager
def another_user(paths: Paths) -> Iterator[None]:
    """Somebody who may read the run directory and may not open the lock."""
    if os.geteuid() != 0:
        paths.lock.chmod(0)
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("progress", "pid", "expected"),
    [("running", os.getpid(), os.getpid()), ("done", os.getpid(), None), ("running", None, None)],
    ids=["running", "done", "no pid"],
)
def test_who_may_not_open_the_lock_learns_from_the_status_file(
    progress: str, pid: int | None, expected: int | None
) -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are closed to others
        Path(directory).chmod(0o755)
        paths = Paths(Path(directory))
        with acquire(paths):
            paths.status.write_text(json.dumps({"progress": progress, "pid": pid}))
            with another_user(paths):
                assert holder_pid(paths) == expected


def test_lock_content_that_is_no_pid_is_told_as_unknown(paths: Paths) -> None:
    with acquire(paths):
        paths.lock.write_text("")
        assert holder_pid(paths) == 0
