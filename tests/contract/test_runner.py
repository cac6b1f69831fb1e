"""The runner, with real programs."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.hardware.runner import Runner


def _script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_exit_code_and_both_outputs_come_back_whole(tmp_path: Path) -> None:
    tool = _script(tmp_path / "tool", "#!/bin/sh\necho out $1; echo err >&2; exit 7\n")
    done = Runner().run([tool, "a b;c"], timeout_s=10)
    assert (done.exit_code, done.stdout, done.stderr) == (7, "out a b;c\n", "err\n")
    assert (done.timed_out, done.text) == (False, "err out a b;c")


def test_the_locale_is_fixed(tmp_path: Path) -> None:
    tool = _script(tmp_path / "tool", "#!/bin/sh\necho $LC_ALL\n")
    assert Runner().run([tool], timeout_s=10).stdout == "C\n"


def test_a_tool_over_its_limit_is_ended_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"#!/bin/sh\nsleep 600 & echo $! >> {pids}; echo $$ >> {pids}\necho begun\nwait\n"
    done = Runner().run([_script(tmp_path / "tool", text)], timeout_s=4)
    assert (done.timed_out, done.stdout) == (True, "begun\n")
    assert done.exit_code != 0
    assert not any(_is_alive(int(pid)) for pid in pids.read_text().split())


def test_one_that_ignores_the_polite_signal_is_killed(tmp_path: Path) -> None:
    tool = _script(tmp_path / "tool", "#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 0.1; done\n")
    assert Runner().run([tool], timeout_s=0.3).timed_out


def test_a_grandchild_that_keeps_the_output_open_does_not_hold_us(tmp_path: Path) -> None:
    tool = _script(tmp_path / "tool", "#!/bin/sh\nsetsid sleep 30 &\necho done\n")
    done = Runner().run([tool], timeout_s=20)
    assert (done.exit_code, done.stdout, done.timed_out) == (0, "done\n", False)


@pytest.mark.parametrize("case", ["missing", "not executable", "interpreter missing"])
def test_a_tool_that_cannot_be_started_is_named_R5(tmp_path: Path, case: str) -> None:
    path = tmp_path / "sriov-manage"
    if case == "not executable":
        if os.geteuid() == 0:
            path.mkdir()  # root may execute any file that anybody may; a directory nobody can
        else:
            _script(path, "#!/bin/sh\n", mode=0o644)
    if case == "interpreter missing":
        _script(path, "#!/no/such/bash -e\n")
    with pytest.raises(HardwareError) as caught:
        Runner().run([str(path), "-e"], timeout_s=10)
    assert caught.value.kind is ErrorKind.TOOL_MISSING
    assert str(path) in caught.value.detail
    if case == "interpreter missing":
        assert "/no/such/bash" in caught.value.detail


def test_cancel_ends_what_runs(tmp_path: Path) -> None:
    runner = Runner()
    begun = tmp_path / "begun"
    tool = _script(tmp_path / "tool", f"#!/bin/sh\ntouch {begun}\nexec sleep 600\n")

    def cancel() -> None:
        while not begun.exists():
            time.sleep(0.01)
        runner.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    done = runner.run([tool], timeout_s=60)
    thread.join()
    assert (done.timed_out, done.exit_code) == (False, -15)


def test_what_runs_is_known_by_its_pid(tmp_path: Path) -> None:
    runner = Runner()
    pid = tmp_path / "pid"
    text = f"#!/bin/sh\necho $$ > {pid}.new; mv {pid}.new {pid}\nsleep 600\n"
    tool = _script(tmp_path / "tool", text)
    seen: list[bool] = []

    def look() -> None:
        while not pid.exists():
            time.sleep(0.01)
        seen.append(int(pid.read_text()) in runner.pids)
        runner.cancel()

    thread = threading.Thread(target=look)
    thread.start()
    runner.run([tool], timeout_s=60)
    thread.join()
    assert seen == [True]
    assert runner.pids == frozenset()
