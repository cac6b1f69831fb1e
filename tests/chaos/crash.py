"""Kills a run before and after each call that changes something and each write of a file.

A child process makes the run; when it has come to the point that is asked for, it hands the node
over as it is then and gets the signal. Points are counted in the order in which they come, which
differs a little from run to run where GPUs are worked on side by side.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gpu_bootstate.cli.apply import Run, ending_on_signals
from gpu_bootstate.config import parse
from gpu_bootstate.lock import acquire
from gpu_bootstate.progress import Silent
from gpu_bootstate.simulator.faults import CHANGES
from gpu_bootstate.simulator.node import SimNode
from gpu_bootstate.simulator.state import from_json, to_json
from tests.chaos.matrix import Situation, before, scratch
from tests.support.node import Node, Watched
from tests.support.situations import Wish, assert_is

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FILE_EVENTS = frozenset({"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"})


@dataclass(frozen=True)
class Ended:
    """How the child ended; the node is handed over into the one that was given."""

    points: int  # that it came by
    killed: bool
    exit_code: int | None
    under_an_open_gate: int  # changes that were made while the node's gate was open


def run_until(node: Node, text: str, at: int | None, number: int = signal.SIGKILL) -> Ended:
    """One run in a child, which gets the signal at that point (None: at no point)."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            _child(node, text, at, number, writing)
        except BaseException as err:  # nothing of the child may come back
            os.write(2, f"{type(err).__name__}: {err}\n".encode())
        os._exit(70)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.WEXITSTATUS(status) == 0, "the run ended by an error of its own"
    if killed and not data:  # before there was a handler, and before anything was done
        return Ended(0, killed=True, exit_code=None, under_an_open_gate=0)
    told = json.loads(data)
    node.sim = SimNode(from_json(told.pop("state")))
    return Ended(killed=killed, **told)


def _child(node: Node, text: str, at: int | None, number: int, writing: int) -> None:
    hw = Watched(node.sim, node.paths, {})
    lock = threading.RLock()
    points = 0
    root = str(node.paths.root)

    def tell(exit_code: int | None) -> None:
        node.sim.state.clock_s = max(node.sim.state.clock_s, hw.now())
        told = {
            "points": points,
            "exit_code": exit_code,
            "under_an_open_gate": len(hw.under_an_open_gate),
            "state": to_json(node.sim.state),
        }
        data = json.dumps(told).encode()
        while data:
            data = data[os.write(writing, data) :]

    def point() -> None:
        nonlocal points
        with lock:
            points += 1
            if points != at:
                return
            if number == signal.SIGKILL:
                with hw._lock:  # nobody is in the middle of a change
                    tell(None)
                    os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    def with_points(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **named: Any) -> Any:
            point()
            try:
                return call(*arguments, **named)
            finally:
                point()

        return wrapper

    for verb in CHANGES:
        setattr(hw, verb, with_points(getattr(hw, verb)))

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITES and str(path).startswith(root):
                point()
        elif event in _FILE_EVENTS and str(arguments[0]).startswith(root):
            point()

    sys.addaudithook(audit)
    with acquire(node.paths, wait_s=0):
        run = Run(node.paths, hw, parse(text, "config.yaml"), Silent())
        with ending_on_signals(run):
            result = run.whole()
    if number == signal.SIGKILL:
        point()
    tell(result["exit_code"])
    hw.close()
    os._exit(0)


def assert_harmless(node: Node, text: str, before: dict[str, Any], wishes: dict[str, Wish]) -> None:
    """What must hold of a node whose run was stopped somewhere."""
    view = node.look(text)
    steps = {str(gpu.pf): gpu.steps for gpu in view.plan.gpus}
    assert not node.ready or not any(steps.values()), f"the gate is open, and left is {steps}"
    for pf in wishes:
        assert not node.gpu_ready(pf) or not steps[pf], f"the gate of {pf} is open on what is not"
    for gpu in node.gpus():
        if gpu.bdf not in wishes:
            assert asdict(gpu) == before[gpu.bdf], f"{gpu.bdf} is not named and was touched"


def assert_continued(
    node: Node, text: str, before: dict[str, Any], wishes: dict[str, Wish]
) -> None:
    """The next run brings everything to where it should be, with nothing left of the last one."""
    with acquire(node.paths, wait_s=0):  # nobody holds it any more
        result = node.apply(text)
    assert result["exit_code"] == 0, (result["summary"], result["gpus"])
    assert node.ready
    for pf, wish in wishes.items():
        assert_is(node, pf, wish)
        was_on = before[pf]["persistence"]
        assert node.gpu(pf).persistence == was_on, f"persistence mode of {pf} is not put back"
    left = [str(path) for path in node.paths.root.rglob(".*") if path.is_file()]
    assert left == [], "half-written files are left"
    assert not node.paths.owed.exists()


def crash(situation: Situation, at: int | None, number: int = signal.SIGKILL) -> Ended:
    """One run that is stopped at that point, what must hold then, and the run after it."""
    with scratch() as directory:
        node = situation.node(directory)
        was = before(node)
        units = unit_states(node)
        ended = run_until(node, situation.text, at, number)
        assert ended.under_an_open_gate == 0
        assert_harmless(node, situation.text, was, situation.wishes)
        if at is not None and not ended.killed and number != signal.SIGKILL:
            assert_told(node, ended)
        assert_continued(node, situation.text, was, situation.wishes)
        assert unit_states(node) == units
        return ended


def unit_states(node: Node) -> dict[str, str]:
    """What each unit is, or is on its way to."""
    return {
        name: unit.changes[-1].active_state if unit.changes else unit.active_state
        for name, unit in node.sim.state.units.items()
    }


def assert_told(node: Node, ended: Ended) -> None:
    """A run that was asked to stop says so, and how far it got; or it was done already."""
    status = json.loads(node.paths.status.read_text(encoding="utf-8"))
    assert status["progress"] == "done"
    assert status["exit_code"] == ended.exit_code
    reasons = {gpu["reason"] for gpu in status["gpus"]} | {f["reason"] for f in status["findings"]}
    assert ended.exit_code == 0 or "interrupted" in reasons, reasons
