"""What every step needs: the hardware, its limits, another try, and who is on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpu_bootstate.deadline import Deadline
from gpu_bootstate.failures import is_of_the_gpu
from gpu_bootstate.hardware.protocol import (
    ErrorKind,
    Hardware,
    HardwareError,
    ToolResult,
)
from gpu_bootstate.in_use import blocking_clients, users
from gpu_bootstate.model import PF_DRIVER, Bdf, Holder, Policy, Step, StepStatus
from gpu_bootstate.progress import Listener
from gpu_bootstate.reasons import Code, Finding

_T = TypeVar("_T")

_POLL_S = 0.25


class StepFailed(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


class TryAgain(Exception):
    """This attempt failed for a reason that passes; ``finding`` is what it is if it does not."""

    def __init__(self, finding: Finding, detail: str) -> None:
        super().__init__(detail)
        self.finding = finding
        self.detail = detail


@dataclass(slots=True)
class StepContext:
    """Of one GPU, used by one thread. ``attempts`` and ``notes`` are of the step at hand."""

    hw: Hardware
    policy: Policy
    deadline: Deadline
    listener: Listener
    model_pfs: tuple[Bdf, ...]  # cards of the same model, this one included
    configured: frozenset[Bdf]
    commits_by_reset: bool = False  # a ResetGpu step follows the SetMigMode step
    attempts: int = 1
    notes: list[Finding] = field(default_factory=list)

    def begin(self) -> None:
        self.attempts = 1
        self.notes.clear()

    def note(self, finding: Finding) -> None:
        self.notes.append(finding)
        self.listener.said(finding)

    def wait(self, pf: Bdf, what: str, until_s: float) -> None:
        self.deadline.check(f"{pf}: {what}")
        self.listener.waiting(what, min(until_s, self.deadline.at_s), pf=pf)
        self.hw.wait_for_event(self.deadline.remaining(_POLL_S))

    def retrying(self, pf: Bdf, what: str, attempt: Callable[[], _T]) -> _T:
        pause = self.policy.backoff_s
        tries = 0
        while True:
            tries += 1
            try:
                return attempt()
            except TryAgain as again:
                if tries >= self.policy.attempts:
                    raise StepFailed(again.finding) from again
                self.attempts += 1
                self.note(
                    Finding.of(Code.RETRIED, pf=pf, step=what, attempt=tries, detail=again.detail)
                )
                self.deadline.check(f"{pf}: {what}")
                self.hw.sleep(self.deadline.remaining(pause))
                pause = min(2 * pause, self.policy.backoff_max_s)

    def tool_hung(self, pf: Bdf, result: ToolResult, limit_s: float) -> StepFailed:
        tool = " ".join(result.command)
        waited = f"{limit_s:.0f}"
        return StepFailed(Finding.of(Code.TOOL_HUNG, pf=pf, tool=tool, waited_s=waited))

    def log_since(self, time_s: float) -> list[str]:
        return [line.text for line in self.hw.kernel_log() if line.time_s >= time_s]

    def no_user(self, step: Step) -> None:
        self.refuse_users(step.pf, step.summary, self.hw.holders(step.pf))

    def refuse_users(self, pf: Bdf, what: str, holders: tuple[Holder, ...]) -> None:
        for user in users(holders):
            raise StepFailed(Finding.of(Code.IN_USE, pf=pf, holder=user, wanted=what))

    def alone(self, pf: Bdf, what: str) -> None:
        """Users end the step at once; a client may be passing by, so try again."""
        holders = self.hw.holders(pf)
        self.refuse_users(pf, what, holders)
        for client in blocking_clients(holders, self.policy):
            finding = Finding.of(Code.HELD, pf=pf, holder=client, wanted=what)
            raise TryAgain(finding, f"held by {client}")

    def holder_names(self, pf: Bdf) -> str:
        names = ", ".join(str(holder) for holder in self.hw.holders(pf))
        return names or "a client that is not to be seen in /proc"

    def no_other_tool(self, step: Step) -> None:
        """As `_no_tool_running`, with the tries of its own."""

        def attempt() -> StepStatus:
            self.no_tool_running(step.pf, step.summary)
            return StepStatus.DONE

        self.retrying(step.pf, step.summary, attempt)

    def no_tool_running(self, pf: Bdf, what: str) -> None:
        for actor in self.hw.actors():
            if actor.kind == "process":
                finding = Finding.of(
                    Code.OTHER_ACTOR, kind=actor.kind, name=actor.name, detail=actor.detail
                )
                raise TryAgain(finding, f"{actor.name} is running ({actor.detail}): {what}")

    def bind_back(self, pf: Bdf) -> None:
        """Off pci-pf-stub or out of nowhere, back to nvidia and into NVML's sight."""
        was = self.hw.pf(pf).driver or "no driver"
        try:
            self.hw.bind_driver(pf)
        except HardwareError as err:
            if is_of_the_gpu(err) and err.kind is not ErrorKind.NOT_FOUND:
                raise
            raise StepFailed(
                Finding.of(Code.PF_BIND_FAILED, pf=pf, driver=was, detail=err.detail)
            ) from err
        if (now := self.hw.pf(pf).driver) != PF_DRIVER:
            detail = "the driver did not take it"
            now = now or "no driver"
            raise StepFailed(Finding.of(Code.PF_BIND_FAILED, pf=pf, driver=now, detail=detail))
        self.until_nvml_sees(pf)
        self.note(Finding.of(Code.PF_BOUND_BACK, pf=pf, driver=was))

    def until_nvml_sees(self, pf: Bdf) -> None:
        until = self.hw.now() + self.policy.call_s
        while True:
            try:
                self.hw.facts(pf)
            except HardwareError as err:
                if err.kind not in (ErrorKind.NOT_FOUND, ErrorKind.NOT_READY):
                    raise
                if self.hw.now() >= until:
                    raise
                self.wait(pf, "NVML to see it again", until)
            else:
                return
