"""A table on the terminal while a run works: a row a GPU, a column a phase."""

from __future__ import annotations

import threading
from typing import TextIO

from gpu_bootstate.model import Bdf, GpuOutcome, Phase, Step, StepOutcome, StepStatus
from gpu_bootstate.progress import Silent
from gpu_bootstate.reasons import Condition, Finding

_PHASES = tuple(phase for phase in Phase if phase is not Phase.GATE)
_CLEAR_LINE = "\x1b[2K"


class LiveListener(Silent):
    """Redraws in place with plain ANSI; what is said goes above the table and stays."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._cells: dict[Bdf, dict[Phase, str]] = {}
        self._doing: dict[Bdf, str] = {}
        self._drawn = 0

    def phase_started(self, phase: Phase, pfs: tuple[Bdf, ...]) -> None:
        with self._lock:
            for pf in pfs:
                self._cells.setdefault(pf, {})[phase] = "."
            self._draw()

    def step_started(self, step: Step) -> None:
        with self._lock:
            self._cells.setdefault(step.pf, {})[step.phase] = "..."
            self._doing[step.pf] = step.summary
            self._draw()

    def step_finished(self, outcome: StepOutcome) -> None:
        with self._lock:
            step = outcome.step
            failed = outcome.status is StepStatus.FAILED
            self._cells.setdefault(step.pf, {})[step.phase] = "FAILED" if failed else "ok"
            self._doing.pop(step.pf, None)
            self._draw()

    def waiting(self, what: str, until_s: float, *, pf: Bdf | None = None) -> None:
        if pf is not None:
            with self._lock:
                self._doing[pf] = f"waiting for {what}"
                self._draw()

    def said(self, finding: Finding) -> None:
        with self._lock:
            self._erase()
            self._stream.write(f"{finding.message}\n")
            if finding.condition is not Condition.CONVERGED:
                self._stream.write(f"  {finding.remedy}\n")
            self._draw()

    def gpu_finished(self, outcome: GpuOutcome) -> None:
        with self._lock:
            self._doing[outcome.pf] = outcome.condition.value
            self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self._stream.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _draw(self) -> None:
        if not self._cells:
            return
        self._erase()
        lines = ["GPU           " + "".join(f"{phase.value:<14}" for phase in _PHASES)]
        for pf in sorted(self._cells):
            cells = "".join(f"{self._cells[pf].get(phase, ''):<14}" for phase in _PHASES)
            lines.append(f"{pf}  {cells}{self._doing.get(pf, '')[:60]}")
        self._stream.write("".join(f"{_CLEAR_LINE}{line}\n" for line in lines))
        self._stream.flush()
        self._drawn = len(lines)
