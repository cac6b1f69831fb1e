"""How long a run may still take, and whether it was asked to stop: both end a wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_bootstate.hardware.protocol import Hardware
from gpu_bootstate.reasons import Code, Finding


class RunEnded(Exception):
    """The deadline passed or somebody asked the run to stop; nothing more may be started."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


@dataclass(frozen=True, slots=True)
class Deadline:
    """``at_s`` is on Hardware.now(); ``stop_signal`` names the signal that asked us to stop."""

    hw: Hardware
    at_s: float
    limit_s: float
    stop_signal: Callable[[], str | None]

    @classmethod
    def after(cls, hw: Hardware, limit_s: float, stop_signal: Callable[[], str | None]) -> Deadline:
        return cls(hw, hw.now() + limit_s, limit_s, stop_signal)

    def check(self, doing: str) -> None:
        """Raises RunEnded when no more time is left or a stop was asked for."""
        signal = self.stop_signal()
        if signal is not None:
            raise RunEnded(Finding.of(Code.INTERRUPTED, signal=signal, phase=doing))
        if self.hw.now() >= self.at_s:
            limit = f"{self.limit_s:g}"
            raise RunEnded(Finding.of(Code.DEADLINE, limit_s=limit, waiting_for=doing))

    def remaining(self, at_most_s: float) -> float:
        """What a single call may take, in seconds; never below a tenth of a second."""
        return max(0.1, min(at_most_s, self.at_s - self.hw.now()))
