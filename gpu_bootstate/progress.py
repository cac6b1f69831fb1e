"""What a run says while it works: who listens, and in which words.

The executor tells a Listener what happens, from any of its threads. Failures are worded in
`reasons`; here are only the words for what goes well and for what is waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TextIO

from gpu_bootstate.model import Bdf, GpuOutcome, Phase, Policy, Step, StepOutcome, StepStatus
from gpu_bootstate.notify import Journal, Notifier
from gpu_bootstate.reasons import Condition, Finding

_REPEAT_S = 10.0  # a wait is told again in the journal at most this often

_PRIORITIES = {Condition.CONVERGED: 5, Condition.REFUSED: 4}  # as in syslog; the others are errors


class Listener(Protocol):
    """All calls may come from any thread. Times are seconds on Hardware.now()."""

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None: ...

    def step_started(self, step: Step) -> None: ...

    def step_finished(self, outcome: StepOutcome) -> None: ...

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        """Something is waited for, at the longest until then; told again and again."""

    def said(self, finding: Finding) -> None:
        """A notice or a failure, once."""

    def phase_finished(self, phase: Phase, wall_s: float) -> None: ...

    def gpu_finished(self, outcome: GpuOutcome) -> None: ...

    def gate_moved(self, *, is_open: bool, why: str) -> None:
        """The node's gate was opened or closed."""


class Silent:
    """Says nothing; others override what they tell."""

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        pass

    def step_started(self, step: Step) -> None:
        pass

    def step_finished(self, outcome: StepOutcome) -> None:
        pass

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        pass

    def said(self, finding: Finding) -> None:
        pass

    def phase_finished(self, phase: Phase, wall_s: float) -> None:
        pass

    def gpu_finished(self, outcome: GpuOutcome) -> None:
        pass

    def gate_moved(self, *, is_open: bool, why: str) -> None:
        pass


class Several:
    """Passes everything on to each of several listeners."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = tuple(listeners)

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        for listener in self._listeners:
            listener.phase_started(phase, pfs)

    def step_started(self, step: Step) -> None:
        for listener in self._listeners:
            listener.step_started(step)

    def step_finished(self, outcome: StepOutcome) -> None:
        for listener in self._listeners:
            listener.step_finished(outcome)

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        for listener in self._listeners:
            listener.waiting(what, until_s, pf=pf)

    def said(self, finding: Finding) -> None:
        for listener in self._listeners:
            listener.said(finding)

    def phase_finished(self, phase: Phase, wall_s: float) -> None:
        for listener in self._listeners:
            listener.phase_finished(phase, wall_s)

    def gpu_finished(self, outcome: GpuOutcome) -> None:
        for listener in self._listeners:
            listener.gpu_finished(outcome)

    def gate_moved(self, *, is_open: bool, why: str) -> None:
        for listener in self._listeners:
            listener.gate_moved(is_open=is_open, why=why)


class JournalListener(Silent):
    """One line a step in plain words, with structured fields where the journal takes them."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        """``now`` is Hardware.now()."""
        self._journal = journal
        self._now = now
        self._lock = threading.Lock()
        self._waits_told: dict[tuple[Bdf | None, str], float] = {}
        self._said: set[Finding] = set()

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        self._journal.send(
            f"phase {phase.value}: {_gpus(len(pfs))}", event="phase-started", PHASE=phase.value
        )

    def step_finished(self, outcome: StepOutcome) -> None:
        step = outcome.step
        if outcome.status is StepStatus.FAILED:
            return  # `said` has the failure, with its remedy
        done = "done" if outcome.status is StepStatus.DONE else "not needed any more"
        again = f", attempt {outcome.attempts}" if outcome.attempts > 1 else ""
        self._journal.send(
            f"{step.pf}: {step.phase.value}: {step.summary}: {done} "
            f"({outcome.duration_s:.1f} s{again})",
            event="step-finished",
            GPU_BDF=str(step.pf),
            PHASE=step.phase.value,
            STEP=step.action,
            DURATION_USEC=_usec(outcome.duration_s),
        )

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        now = self._now()
        with self._lock:
            last = self._waits_told.get((pf, what))
            if last is not None and now - last < _REPEAT_S:
                return
            self._waits_told[pf, what] = now
        where = f"{pf}: " if pf else ""
        self._journal.send(
            f"{where}waiting for {what}, at most {max(0.0, until_s - now):.0f} s more",
            event="waiting",
            priority=6,
            **({"GPU_BDF": str(pf)} if pf else {}),
        )

    def said(self, finding: Finding) -> None:
        with self._lock:
            if finding in self._said:
                return
            self._said.add(finding)
        bad = finding.condition is not Condition.CONVERGED
        self._journal.send(
            f"{finding.message} {finding.remedy}" if bad else finding.message,
            event=finding.code.value,
            priority=_PRIORITIES.get(finding.condition, 3),
            REASON=finding.code.value,
            **({"GPU_BDF": pf} if (pf := finding.fact("pf")) else {}),
        )

    def phase_finished(self, phase: Phase, wall_s: float) -> None:
        self._journal.send(
            f"phase {phase.value}: over after {wall_s:.1f} s",
            event="phase-finished",
            PHASE=phase.value,
            DURATION_USEC=_usec(wall_s),
        )

    def gpu_finished(self, outcome: GpuOutcome) -> None:
        cause = _cause(outcome)
        self._journal.send(
            f"{outcome.pf}: {outcome.profile_name}: {_result(outcome)}",
            event="gpu-finished",
            priority=5,
            GPU_BDF=str(outcome.pf),
            **({"REASON": cause.code.value} if cause else {}),
        )

    def gate_moved(self, *, is_open: bool, why: str) -> None:
        how = "opened" if is_open else "closed"
        self._journal.send(f"phase gate: {how}, {why}", event=f"gate-{how}", PHASE=Phase.GATE.value)


class NotifyListener(Silent):
    """STATUS= for `systemctl status`, and more time from systemd while something is awaited.

    An extension covers only the time it states (systemd-facts.md section 8.1), so it is asked for
    ahead: until the wait is over, or for as long as a vendor tool may be silent.
    """

    _MARGIN_S = 30.0
    _AGAIN_S = 5.0  # extensions that would gain less than this are not worth a message
    _STATUS_S = 1.0  # waits of several GPUs take turns in the one line, not faster than this

    def __init__(
        self,
        notifier: Notifier,
        now: Callable[[], float] = time.monotonic,
        policy: Policy | None = None,
    ) -> None:
        """``now`` is Hardware.now(). After the policy's deadline, and what may follow it, no more
        time is asked for: then the unit's own limit ends a run that hangs.
        """
        policy = policy or Policy()
        self._notifier = notifier
        self._now = now
        self._silence_s = policy.tool_s + self._MARGIN_S
        self._end_s = now() + policy.deadline_s + self._silence_s
        self._lock = threading.Lock()
        self._covered_s = now()
        self._wait_told_s = now() - self._STATUS_S

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        self._notifier.status(f"Phase {phase.value}: {_gpus(len(pfs))}")
        self._extend()

    def step_started(self, step: Step) -> None:
        self._notifier.status(f"{step.pf}: {step.summary}")
        self._extend()

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        self._extend(until_s)
        now = self._now()
        with self._lock:
            if now - self._wait_told_s < self._STATUS_S:
                return
            self._wait_told_s = now
        where = f"{pf}: " if pf else ""
        self._notifier.status(f"{where}waiting for {what}")

    def _extend(self, until_s: float = 0.0) -> None:
        now = self._now()
        with self._lock:
            wanted = min(max(until_s, now) + self._silence_s, self._end_s)
            if wanted < self._covered_s + self._AGAIN_S:
                return
            self._covered_s = wanted
        self._notifier.extend(wanted - now)


class TerminalListener(Silent):
    """A table that is redrawn in place with plain ANSI: a row a GPU, a column a phase.

    What is said goes above it and stays. A terminal that is gone is no reason to stop.
    """

    def __init__(self, stream: TextIO, now: Callable[[], float]) -> None:
        """``now`` is Hardware.now()."""
        self._stream = stream
        self._now = now
        self._lock = threading.Lock()
        self._phases: list[Phase] = []
        self._cells: dict[Bdf, dict[Phase, str]] = {}
        self._spent_s: dict[tuple[Bdf, Phase], float] = {}
        self._doing: dict[Bdf, str] = {}
        self._node_waits_for = ""
        self._said: set[Finding] = set()
        self._drawn: list[str] = []

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        with self._lock:
            self._node_waits_for = ""
            for pf in pfs:
                self._cell(pf, phase, "-")
            self._draw()

    def step_started(self, step: Step) -> None:
        with self._lock:
            self._cell(step.pf, step.phase, "...")
            self._doing[step.pf] = step.summary
            self._draw()

    def step_finished(self, outcome: StepOutcome) -> None:
        pf, phase = outcome.step.pf, outcome.step.phase
        with self._lock:
            spent = self._spent_s.get((pf, phase), 0.0) + outcome.duration_s
            self._spent_s[pf, phase] = spent
            failed = outcome.status is StepStatus.FAILED
            self._cell(pf, phase, "FAILED" if failed else f"{spent:.1f} s")
            self._doing[pf] = ""
            self._draw()

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        left = max(0.0, until_s - self._now())
        text = f"waiting for {what} (at most {left:.0f} s more)"
        with self._lock:
            if pf is None:
                self._node_waits_for = text
            else:
                self._cells.setdefault(pf, {})
                self._doing[pf] = text
            self._draw()

    def said(self, finding: Finding) -> None:
        with self._lock:
            if finding in self._said:
                return
            self._said.add(finding)
            above = f"{finding.message}\n"
            if finding.condition is not Condition.CONVERGED:
                above += f"  {finding.remedy}\n"
            self._draw(above)

    def gpu_finished(self, outcome: GpuOutcome) -> None:
        with self._lock:
            self._node_waits_for = ""
            self._cells.setdefault(outcome.pf, {})
            self._doing[outcome.pf] = _result(outcome)
            self._draw()

    def _cell(self, pf: Bdf, phase: Phase, text: str) -> None:
        if phase not in self._phases:
            self._phases.append(phase)
        self._cells.setdefault(pf, {})[phase] = text

    def _draw(self, above: str = "") -> None:
        lines = self._lines()
        if lines == self._drawn and not above:
            return
        erase = f"\x1b[{len(self._drawn)}A\r\x1b[J" if self._drawn else ""
        self._drawn = lines
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(erase + above + "".join(f"{line}\n" for line in lines))
            self._stream.flush()

    def _lines(self) -> list[str]:
        """No line that the terminal would wrap, no more of them than it has: else going back up
        to the first would not get there.
        """
        width, height = _size(self._stream)
        order = list(Phase)
        phases = sorted(self._phases, key=order.index)
        columns = [(phase, max(len(phase.value), 8)) for phase in phases]
        lines = []
        if self._cells:
            heads = (phase.value.ljust(wide) for phase, wide in columns)
            lines.append("  ".join(("GPU".ljust(12), *heads)))
        for pf in sorted(self._cells):
            cells = (self._cells[pf].get(phase, "").ljust(wide) for phase, wide in columns)
            lines.append("  ".join((str(pf), *cells, self._doing.get(pf, ""))))
        if self._node_waits_for:
            lines.append(self._node_waits_for)
        if len(lines) >= height:
            hidden = len(lines) - height + 2
            lines = [*lines[: height - 2], f"({hidden} more lines than this terminal shows)"]
        return [line[: width - 1].rstrip() for line in lines]


def listener_on(stream: TextIO, now: Callable[[], float]) -> Listener:
    """The table where there is a terminal that can show it, else lines."""
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return TerminalListener(stream, now)
    return JournalListener(Journal(stream), now)


def _size(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of the terminal."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return (size.columns, size.lines) if size.columns and size.lines else (80, 24)


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"


def _usec(seconds: float) -> str:
    return str(round(seconds * 1e6))


def _cause(outcome: GpuOutcome) -> Finding | None:
    if outcome.condition is Condition.CONVERGED or not outcome.findings:
        return None
    return outcome.findings[0]


def _result(outcome: GpuOutcome) -> str:
    cause = _cause(outcome)
    if cause is not None:
        where = f" in phase {outcome.stopped_in.value}" if outcome.stopped_in else ""
        return f"{outcome.condition.value}{where} ({cause.code.value})"
    done = sum(step.status is StepStatus.DONE for step in outcome.steps)
    if outcome.condition is Condition.CONVERGED and not done:
        return "converged, nothing to do"
    return f"{outcome.condition.value} after {done} step{'' if done == 1 else 's'}"
