"""Helper processes: a call that hangs keeps nobody, and nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from gpu_bootstate.hardware.isolation import Worker
from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.model import Bdf

PF = Bdf.parse("0000:17:00.0")


class Served:
    """In the helper; every method is one kind of end."""

    def __init__(self) -> None:
        self.calls = 0

    def add(self, left: int, *, right: int) -> int:
        self.calls += 1
        return left + right

    def count(self) -> int:
        return self.calls

    def big(self) -> bytes:
        return b"x" * 3_000_000

    def hang(self) -> None:
        time.sleep(600)

    def fail(self) -> None:
        raise HardwareError(ErrorKind.IO, "write", target=PF, detail="EIO", errno=5, waited_s=1.5)

    def crash(self) -> None:
        raise RuntimeError("unexpected")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def descriptors(self) -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture
def worker() -> Worker:
    return Worker(PF, Served)


def test_calls_are_answered_by_one_object(worker: Worker) -> None:
    assert worker.call("add", 2, right=3, timeout_s=5) == 5
    assert worker.call("count", timeout_s=5) == 1
    assert len(worker.call("big", timeout_s=10)) == 3_000_000
    worker.close()


def test_a_hardware_error_crosses_whole(worker: Worker) -> None:
    with pytest.raises(HardwareError) as caught:
        worker.call("fail", timeout_s=5)
    err = caught.value
    assert (err.kind, err.operation, err.target) == (ErrorKind.IO, "write", PF)
    assert (err.detail, err.errno, err.waited_s) == ("EIO", 5, 1.5)
    worker.close()


def test_any_other_error_is_unknown_and_the_helper_goes_on(worker: Worker) -> None:
    with pytest.raises(HardwareError) as caught:
        worker.call("crash", timeout_s=5)
    assert caught.value.kind is ErrorKind.UNKNOWN
    assert "RuntimeError: unexpected" in caught.value.detail
    assert worker.call("add", 1, right=1, timeout_s=5) == 2
    worker.close()


def test_a_call_that_hangs_is_given_up_and_so_are_all_later_ones(worker: Worker) -> None:
    with pytest.raises(HardwareError) as caught:
        worker.call("hang", timeout_s=0.2)
    assert (caught.value.kind, caught.value.target) == (ErrorKind.HUNG, PF)
    assert caught.value.waited_s == 0.2
    with pytest.raises(HardwareError) as caught:
        worker.call("add", 1, right=1, timeout_s=60)
    assert caught.value.kind is ErrorKind.HUNG
    assert worker.is_hung
    worker.close()


def test_a_helper_that_dies_is_an_error_and_no_hang(worker: Worker) -> None:
    with pytest.raises(HardwareError) as caught:
        worker.call("die", timeout_s=60)
    assert caught.value.kind is ErrorKind.UNKNOWN
    worker.close()


def test_close_leaves_no_process(worker: Worker) -> None:
    worker.call("count", timeout_s=5)
    worker.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(worker.pid, 0)


def test_a_helper_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    worker = Worker(PF, Served)
    assert len(worker.call("descriptors", timeout_s=5)) <= 6
    os.close(lock)
    again = os.open(tmp_path / "lock", os.O_RDWR)
    fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(again)
    worker.close()


def test_helpers_end_with_a_parent_that_is_killed_even_in_a_hung_call(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import os, signal, threading, time
        from gpu_bootstate.hardware.isolation import Worker
        from gpu_bootstate.model import Bdf
        class Served:
            def hang(self): time.sleep(600)
        worker = Worker(Bdf.parse("0000:17:00.0"), Served)
        print(worker.pid, flush=True)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        worker.call("hang", timeout_s=60)
        """
    )
    parent = subprocess.Popen(  # noqa: S603  # ourselves
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    out, _ = parent.communicate()
    pid = int(out)
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the helper lives on")
