"""systemd units through `systemctl`. Jobs are queued and never waited for.

A unit that is ordered after ours starts only when we have ended: waiting for its job would wait
for ourselves.
"""

from __future__ import annotations

from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.hardware.runner import Runner
from gpu_bootstate.model import UnitState

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "ExecMainStartTimestampMonotonic",
)


def unit_state(runner: Runner, unit: str, *, timeout_s: float) -> UnitState:
    """A machine without systemd has no units."""
    command = ["systemctl", "show", "--property", ",".join(_PROPERTIES), "--", unit]
    try:
        done = runner.run(command, timeout_s=timeout_s)
    except HardwareError as err:
        if err.kind is not ErrorKind.TOOL_MISSING:
            raise
        return _state(unit, {})
    if done.timed_out:
        operation = f"ask systemd for {unit}"
        raise HardwareError(ErrorKind.HUNG, operation, waited_s=timeout_s)
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return _state(unit, {name: value for name, _, value in pairs})


def _state(unit: str, shown: dict[str, str]) -> UnitState:
    return UnitState(
        name=unit,
        exists=shown.get("LoadState") == "loaded",
        active_state=shown.get("ActiveState") or "inactive",
        sub_state=shown.get("SubState") or "dead",
        result=shown.get("Result") or "success",
        exit_status=_number(shown.get("ExecMainStatus")),
        ran=_number(shown.get("ExecMainStartTimestampMonotonic")) > 0,
    )


def queue_job(runner: Runner, verb: str, unit: str, *, timeout_s: float) -> None:
    """``verb`` is systemctl's. Raises HardwareError when systemd does not take the job."""
    _ask(runner, f"{verb} {unit}", [verb, "--", unit], timeout_s)


def reboot(runner: Runner, *, timeout_s: float) -> None:
    """Raises HardwareError when systemd does not take it."""
    _ask(runner, "reboot", ["reboot"], timeout_s)


def _ask(runner: Runner, operation: str, words: list[str], timeout_s: float) -> None:
    done = runner.run(["systemctl", "--no-block", *words], timeout_s=timeout_s)
    if done.timed_out:
        raise HardwareError(ErrorKind.HUNG, operation, waited_s=timeout_s)
    if done.exit_code != 0:
        raise HardwareError(ErrorKind.UNKNOWN, operation, detail=done.text)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
