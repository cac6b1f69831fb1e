"""What a run says while it works: who listens, and in which words.

The executor tells a Listener what happens, from any of its threads. Failures are worded in
`reasons`; here are only the words for what goes well and for what is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from gpu_bootstate.model import Bdf, GpuOutcome, Phase, Step, StepOutcome, StepStatus
from gpu_bootstate.notify import Journal, Notifier
from gpu_bootstate.reasons import Condition, Finding

_REPEAT_S = 10.0  # a wait is told again in the journal at most this often


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


class Silent:
    """Listens to nothing: reading commands, and the middle of nothing."""

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


class JournalListener(Silent):
    """One line a step in plain words, with structured fields where the journal takes them."""

    def __init__(self, journal: Journal, now: Callable[[], float]) -> None:
        self._journal = journal
        self._now = now
        self._told: dict[tuple[Bdf | None, str], float] = {}
        self._lock = threading.Lock()

    def step_finished(self, outcome: StepOutcome) -> None:
        step = outcome.step
        if outcome.status is StepStatus.FAILED:
            return  # `said` has the failure with its remedy
        done = "done" if outcome.status is StepStatus.DONE else "not needed"
        again = f", attempt {outcome.attempts}" if outcome.attempts > 1 else ""
        self._journal.send(
            f"{step.pf}: {step.phase.value}: {step.summary}: {done} "
            f"({outcome.duration_s:.1f} s{again})",
            event="step",
            GPU_BDF=str(step.pf),
            PHASE=step.phase.value,
            STEP=type(step).__name__,
            DURATION_USEC=str(int(outcome.duration_s * 1e6)),
        )

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        now = self._now()
        with self._lock:
            last = self._told.get((pf, what))
            if last is not None and now - last < _REPEAT_S:
                return
            self._told[pf, what] = now
        where = f"{pf}: " if pf else ""
        self._journal.send(
            f"{where}waiting for {what}, at most {max(0.0, until_s - now):.0f} s more",
            event="waiting",
            GPU_BDF=str(pf or ""),
        )

    def said(self, finding: Finding) -> None:
        bad = finding.condition is not Condition.CONVERGED
        text = f"{finding.message} {finding.remedy}" if bad else finding.message
        self._journal.send(
            text,
            event=finding.code.value,
            priority=3 if bad else 5,
            REASON=finding.code.value,
            GPU_BDF=finding.fact("pf") or "",
        )

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        count = f"{len(pfs)} GPU{'s' if len(pfs) != 1 else ''}"
        self._journal.send(f"phase {phase.value}: {count}", event="phase", PHASE=phase.value)


class NotifyListener(Silent):
    """STATUS= for `systemctl status`, and more time from systemd while something is awaited."""

    # Each extension covers only the stated time (systemd-facts.md 8.1), so ask ahead.
    _AHEAD_S = 30.0

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        self._notifier.status(f"Phase {phase.value} on {len(pfs)} GPUs")
        self._notifier.extend(self._AHEAD_S)

    def step_started(self, step: Step) -> None:
        self._notifier.status(f"{step.pf}: {step.summary}")
        self._notifier.extend(self._AHEAD_S)

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        where = f"{pf}: " if pf else ""
        self._notifier.status(f"{where}waiting for {what}")
        self._notifier.extend(self._AHEAD_S)
