"""`status`: the result of this boot, and whether the node still is what that result says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import click

from gpu_bootstate import report
from gpu_bootstate.cli.look import look, remembered_cards
from gpu_bootstate.cli.show import show
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.files import read_json
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.lock import holder_pid
from gpu_bootstate.model import DesiredState, Plan, Policy, UnitState
from gpu_bootstate.paths import Paths
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Code, Condition, Finding

# They hold the gate's files between runs; on a host that was set up without them nobody does.
_GUARDS = ("gpu-bootstate-regate.path", "gpu-bootstate-regate.service")

_POLL_S = 0.2
_DIED, _NEVER_RAN = "died", "never-ran"


@click.command(name="status")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option("--wait", is_flag=True, help="Block until this boot has a result, or its run died.")
@click.option("--timeout", type=float, metavar="SECONDS", help="With --wait: at the longest.")
@click.pass_obj
def command(where: Where, *, form: str, wait: bool, timeout: float | None) -> None:
    """Show how the last run of this boot ended and what is on the GPUs now.

    Exits with the code of that run, or of what is found now where that is worse: 2 when the node
    has drifted, 5 when there is no vGPU host here, 1 when nothing has run in this boot.
    """
    policy = Policy()
    with where.hardware(policy) as hw:
        boot_id = hw.boot_id()
        if wait:
            _wait(where.paths, boot_id, timeout)
        last = _last(where.paths, boot_id, warn=True)
        # While a run works, a look through NVML would be one more client in its way; and who
        # waits for the result wants the result.
        live = None if wait or last["progress"] == "running" else _live(where, hw)
    data = {**last, "live": live}
    show(data, form, _text)
    raise SystemExit(_exit_code(data))


def _wait(paths: Paths, boot_id: str, timeout_s: float | None) -> None:
    until = None if timeout_s is None else time.monotonic() + timeout_s
    while until is None or time.monotonic() < until:
        if _last(paths, boot_id)["progress"] in ("done", _DIED):
            return
        time.sleep(_POLL_S)


def _last(paths: Paths, boot_id: str, *, warn: bool = False) -> dict[str, Any]:
    """The recorded result of this boot; ``progress`` also tells "never-ran" and "died".

    ``warn``: say that a damaged record is ignored.
    """
    # The lock is asked first: a run that ends in between has its result written by then.
    alive = holder_pid(paths) is not None
    status = read_json(paths.status)
    if status is None or status.get("boot_id") != boot_id or not _is_usable(status):
        ours = status is None or status.get("boot_id") == boot_id
        if warn and ours and paths.status.exists():
            what = f"{paths.status} is damaged or of another version"
            click.echo(f"gpu-bootstate: {what}; it is ignored", err=True)
        return {"progress": "running" if alive else _NEVER_RAN, "boot_id": boot_id}
    if status["progress"] == "running" and not alive:
        return {**status, "progress": _DIED}
    return status


def _is_usable(status: dict[str, Any]) -> bool:
    """Whether it is a record as we write it; found out by using it for all that it is for."""
    try:
        if status["progress"] == "done":
            code = Condition(status["condition"]).exit_code
            return bool(_text({**status, "live": None})) and status["exit_code"] == code
        return status["progress"] == "running" and bool(report.text(status))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return False


def _live(where: Where, hw: Hardware) -> dict[str, Any]:
    """What is there now, and what `apply` would still do."""
    try:
        desired = load(where.paths, where.config)
    except ConfigInvalid as invalid:
        return {"condition": Condition.BAD_CONFIG.value, "problems": _lines(invalid)}
    try:
        view = look(hw, desired, remembered_cards(where.paths))
    except ConfigInvalid as invalid:
        return {"condition": Condition.BAD_CONFIG.value, "problems": _lines(invalid)}
    node = report.node_dict(view.node)
    live: dict[str, Any] = {
        "condition": _condition_now(view.plan, desired, node).value,
        "node": node,
        "plan": report.plan_dict(view.plan),
    }
    if unguarded := _unguarded(hw):
        live["gate"] = [report.finding_dict(finding) for finding in unguarded]
    return live


def _unguarded(hw: Hardware) -> list[Finding]:
    path, service = (_unit(hw, name) for name in _GUARDS)
    dead = None
    if path is not None and path.exists and not path.is_active:
        dead = path
    elif service is not None and service.exists and service.active_state == "failed":
        dead = service
    if dead is None:
        return []
    state = f"{dead.active_state}, result {dead.result}"
    return [Finding.of(Code.GATE_UNGUARDED, unit=dead.name, state=state)]


def _unit(hw: Hardware, name: str) -> UnitState | None:
    try:
        return hw.unit_state(name)
    except HardwareError:
        return None  # a systemd that does not answer shows in what hangs on it


def _condition_now(plan: Plan, desired: DesiredState, node: Mapping[str, Any]) -> Condition:
    if not desired.entries and node["driver"]["problem"] is not None:
        return Condition.UNAVAILABLE
    gpus = node["gpus"].values()
    if not desired.entries and gpus and not any(gpu["vgpu_host"] for gpu in gpus):
        return Condition.UNAVAILABLE
    condition = report.plan_condition(plan)
    if condition is Condition.CONVERGED and not plan.is_empty:
        return Condition.DEGRADED
    return condition


def _lines(invalid: ConfigInvalid) -> list[str]:
    return [str(problem) for problem in invalid.problems]


def _exit_code(data: Mapping[str, Any]) -> int:
    live = data["live"]
    now = Condition(live["condition"]) if live else Condition.CONVERGED
    if data["progress"] == "done":
        recorded = int(data["exit_code"])
        return recorded or now.exit_code
    if now is Condition.UNAVAILABLE:
        return now.exit_code
    return Condition.FAILED.exit_code


def _text(data: Mapping[str, Any]) -> str:
    lines = []
    if data["progress"] == _NEVER_RAN:
        lines.append("No run in this boot yet. `gpu-bootstate apply` makes one.")
    elif data["progress"] == _DIED:
        lines.append(
            f"The run that began at {data['started_at']} (pid {data['pid']}) died before its end. "
            "`gpu-bootstate apply` goes on from what is there."
        )
    elif data["progress"] == "running" and "started_at" not in data:
        lines.append("A run is at work.")
    else:
        lines.append(report.text(data).rstrip("\n"))
    live = data["live"]
    if live is not None:
        lines.append("Now:")
        lines += [f"  {problem}" for problem in live.get("problems", ())]
        if "node" in live:
            lines += _now(live["node"], live["plan"])
        for finding in live.get("gate", ()):
            lines.append(f"  {finding['message']}")
            lines.append(f"      to do:  {finding['remedy']}")
    return "\n".join(lines) + "\n"


def _now(node: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    driver = node["driver"]
    lines = []
    if driver["problem"] is not None:
        lines += [
            f"  {driver['problem']['message']}",
            f"      to do:  {driver['problem']['remedy']}",
        ]
    planned = {gpu["pf"]: gpu for gpu in plan["gpus"]}
    for pf, gpu in node["gpus"].items():
        lines.append(f"  {pf}  {gpu['name'] or '(not in NVML)'}: {report.state_text(gpu)}")
        mine = planned.get(pf)
        if mine is None and gpu["findings"]:
            lines.append(f"      what:   {gpu['findings'][0]['message']}")
            lines.append(f"      to do:  {gpu['findings'][0]['remedy']}")
        elif mine is None:
            host = "" if gpu["vgpu_host"] else "; no vGPU host driver runs this GPU"
            lines.append(f"      not in the configuration{host}")
        elif mine["refusal"] is not None:
            lines.append(f"      what:   {mine['refusal']['message']}")
            lines.append(f"      to do:  {mine['refusal']['remedy']}")
        elif mine["steps"]:
            count = len(mine["steps"])
            lines.append(
                f"      drifted: {count} steps to do, the first: {mine['steps'][0]['summary']}"
            )
    for note in plan["notes"]:
        lines.append(f"  {note['message']}")
    return lines
