"""Outcomes as data for machines (status.json, --format json) and as text for people. Pure.

The shape of status.json is described in docs/status-schema.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import groupby
from typing import Any

from gpu_bootstate import __version__
from gpu_bootstate.model import (
    Bdf,
    DesiredState,
    GpuOutcome,
    GpuPlan,
    ObservedGpu,
    ObservedNode,
    Phase,
    Plan,
    RunOutcome,
    Step,
    StepOutcome,
    StepStatus,
)
from gpu_bootstate.reasons import Code, Condition, Finding

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class RunStart:
    """What is known of a run when it begins."""

    boot_id: str
    pid: int
    wall_s: float  # since the epoch
    now_s: float | None = None  # on Hardware.now(); None: the run begins with its first step


def running(start: RunStart) -> dict[str, Any]:
    """status.json before work starts: a run that dies leaves this behind."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "boot_id": start.boot_id,
        "pid": start.pid,
        "started_at": _time(start.wall_s),
        "finished_at": None,
        "progress": "running",
        "condition": None,
        "exit_code": None,
    }


def finished(
    start: RunStart,
    outcome: RunOutcome,
    *,
    wall_s: float,
    desired: DesiredState | None,
    node: ObservedNode | None,
) -> dict[str, Any]:
    """status.json of a run that came to its end. ``desired`` is None when it could not be read,
    ``node`` when nothing was observed.
    """
    failed = [gpu for gpu in outcome.gpus if gpu.condition is not Condition.CONVERGED]
    began_s = outcome.started_s if start.now_s is None else start.now_s
    return {
        **running(start),
        "finished_at": _time(wall_s),
        "progress": "done",
        "condition": outcome.condition.value,
        "exit_code": outcome.condition.exit_code,
        "summary": _summary(outcome, failed),
        "duration_s": round(outcome.started_s + outcome.duration_s - began_s, 3),
        "gate": {
            "open": outcome.gate_open,
            "policy": desired.policy.gate.value if desired else None,
            "files": [file.path for file in desired.gate_files] if desired else [],
        },
        "config": {
            "sources": list(desired.sources) if desired else [],
            "digest": desired.digest if desired else None,
        },
        "phases": _phases(outcome.phase_s),
        "findings": [finding_dict(finding) for finding in outcome.findings],
        "gpus": [_gpu(gpu, node, began_s) for gpu in outcome.gpus],
        "units_stopped": list(outcome.units_stopped),
        "unclaimed": [str(pf) for pf in outcome.unclaimed],
    }


def _summary(outcome: RunOutcome, failed: Sequence[GpuOutcome]) -> str:
    gate = "the gate is open" if outcome.gate_open else "the gate is closed"
    if failed:
        good = f"{len(outcome.gpus) - len(failed)} of {_count(len(outcome.gpus), 'GPU')}"
        others = ", ".join(str(gpu.pf) for gpu in failed)
        return f"{good} as configured, not so {others}; {gate}."
    if outcome.condition is not Condition.CONVERGED:
        reasons = [f for f in outcome.findings if f.condition is not Condition.CONVERGED]
        first = reasons[0].message if reasons else "The run did not come to its end."
        return f"{first.rstrip('.')}; {gate}."
    if not outcome.gpus:
        return f"No GPU is configured, nothing to do; {gate}."
    changed = any(step.status is StepStatus.DONE for gpu in outcome.gpus for step in gpu.steps)
    how = "as configured" if changed else "as configured already, nothing was changed"
    return f"{_count(len(outcome.gpus), 'GPU')} {how}; {gate}."


def _gpu(outcome: GpuOutcome, node: ObservedNode | None, began_s: float) -> dict[str, Any]:
    observed = node.gpu(outcome.pf) if node else None
    facts = observed.facts if observed else None
    good = outcome.condition is Condition.CONVERGED
    cause = None if good or not outcome.findings else outcome.findings[0]
    return {
        "pf": str(outcome.pf),
        "name": facts.name if facts else None,
        "uuid": facts.uuid if facts else None,
        "serial": facts.serial if facts else None,
        "profile": outcome.profile_name,
        "condition": outcome.condition.value,
        "reason": cause.code.value if cause else None,
        "message": cause.message if cause else None,
        "cause": cause.cause if cause else None,
        "remedy": cause.remedy if cause else None,
        "stopped_in": outcome.stopped_in.value if outcome.stopped_in else None,
        "findings": [finding_dict(finding) for finding in outcome.findings],
        "phases": _phases(outcome.phase_s),
        "steps": [_step_outcome(step, began_s) for step in outcome.steps],
        "actual": gpu_dict(observed) if observed else None,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    return {
        "reason": finding.code.value,
        "condition": finding.condition.value,
        "message": finding.message,
        "cause": finding.cause,
        "remedy": finding.remedy,
        "facts": dict(finding.facts),
    }


def _step_outcome(outcome: StepOutcome, began_s: float) -> dict[str, Any]:
    return {
        **step_dict(outcome.step),
        "status": outcome.status.value,
        "attempts": outcome.attempts,
        "started_s": round(outcome.started_s - began_s, 3),
        "duration_s": round(outcome.duration_s, 3),
        "reason": outcome.finding.code.value if outcome.finding else None,
    }


def step_dict(step: Step) -> dict[str, Any]:
    return {
        "phase": step.phase.value,
        "action": step.action,
        "pf": str(step.pf),
        "summary": step.summary,
        "why": step.why,
        "before": step.before,
        "after": step.after,
    }


def _phases(phase_s: Sequence[tuple[Phase, float]]) -> dict[str, float]:
    return {phase.value: round(seconds, 3) for phase, seconds in phase_s}


def _time(wall_s: float) -> str:
    when = datetime.fromtimestamp(wall_s, tz=timezone.utc)
    return when.isoformat(timespec="seconds").replace("+00:00", "Z")


# --------------------------------------------------------------------------- observed and planned


def gpu_dict(gpu: ObservedGpu) -> dict[str, Any]:
    """What a GPU is now. None: not known."""
    facts, mig = gpu.facts, gpu.facts.mig if gpu.facts else None
    profiles = {p.gi_profile_id: p.name for p in gpu.gi_profiles}
    types = {t.vgpu_type_id: t.name for t in gpu.vgpu_types}
    return {
        "driver": gpu.pci.driver,
        "device": f"0x{gpu.pci.device_id:04x}",
        "nvml_index": facts.nvml_index if facts else None,
        "vgpu_host": gpu.is_vgpu_host,
        "host_vgpu_mode": (facts.host_vgpu_mode.value if facts and facts.host_vgpu_mode else None),
        "mig": {"current": mig.current, "pending": mig.pending} if mig else None,
        "mixed_size": facts.mixed_size if facts else None,
        "vfs": {"on": gpu.pci.sriov_numvfs, "total": gpu.pci.sriov_totalvfs},
        "framework": gpu.framework.value if gpu.framework else None,
        "gpu_instances": [
            {
                "id": gi.gi_id,
                "profile": profiles.get(gi.gi_profile_id, str(gi.gi_profile_id)),
                "start": gi.placement.start,
                "size": gi.placement.size,
                "compute_instances": gi.compute_instances,
            }
            for gi in gpu.gpu_instances
        ],
        "vgpus": [
            {
                "vf": str(vf.bdf),
                "index": vf.index,
                "type": types.get(vf.vgpu_type_id, str(vf.vgpu_type_id)),
                "gpu_instance": vf.gi_id,
            }
            for vf in gpu.vfs
            if vf.vgpu_type_id
        ],
        "holders": [str(holder) for holder in gpu.holders],
        "findings": [finding_dict(finding) for finding in gpu.findings],
    }


def node_dict(node: ObservedNode) -> dict[str, Any]:
    return {
        "boot_id": node.boot_id,
        "driver": {
            "module": node.driver.module_version,
            "library": node.driver.library_version,
            "problem": finding_dict(node.driver.problem) if node.driver.problem else None,
        },
        "units": {
            unit.name: unit.active_state if unit.exists else "not there"
            for unit in (node.vgpud, node.vgpu_mgr, node.fabric_manager)
        },
        "fabric_mode": node.fabric_mode,
        "other_software": [
            {"kind": actor.kind, "name": actor.name, "detail": actor.detail}
            for actor in node.actors
        ],
        "gpus": {str(gpu.pf): _named(gpu) for gpu in node.gpus},
    }


def _named(gpu: ObservedGpu) -> dict[str, Any]:
    facts = gpu.facts
    return {
        "name": facts.name if facts else None,
        "uuid": facts.uuid if facts else None,
        "serial": facts.serial if facts else None,
        **gpu_dict(gpu),
    }


def plan_dict(plan: Plan) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "changes": not plan.is_empty,
        "condition": plan_condition(plan).value,
        "refusal": finding_dict(plan.refusal) if plan.refusal else None,
        "gpus": [
            {
                "pf": str(gpu.pf),
                "profile": gpu.profile_name,
                "steps": [step_dict(step) for step in gpu.steps],
                "refusal": finding_dict(gpu.refusal) if gpu.refusal else None,
                "notes": [finding_dict(note) for note in gpu.notes],
            }
            for gpu in plan.gpus
        ],
        "units_to_stop": list(plan.stop_units),
        "missing": [finding_dict(finding) for finding in plan.missing],
        "notes": [finding_dict(note) for note in plan.notes],
        "unclaimed": [str(pf) for pf in plan.unclaimed],
    }


def plan_condition(plan: Plan) -> Condition:
    """CONVERGED when every GPU is right or can be made so, as far as can be seen from here."""
    if plan.refusal is not None:
        return plan.refusal.condition
    parts = [gpu.refusal.condition if gpu.refusal else Condition.CONVERGED for gpu in plan.gpus]
    parts += [finding.condition for finding in plan.missing]
    return Condition.of_all(parts, changed=False)


# --------------------------------------------------------------------------- for people


def plan_text(plan: Plan) -> str:
    """GPUs for which the same is to be done are told together."""
    lines: list[str] = []
    if plan.stop_units:
        units = ", ".join(plan.stop_units)
        lines.append(f"stopped for the change, started again after it: {units}")
    alike: dict[str, list[GpuPlan]] = {}
    for gpu in plan.gpus:
        alike.setdefault("\n".join(_planned(gpu)), []).append(gpu)
    for told, gpus in alike.items():
        count = f"{len(gpus)} GPUs, " if len(gpus) > 1 else ""
        lines.append(f"{_list([gpu.pf for gpu in gpus])}\n  {count}{told}")
    for finding in plan.missing:
        lines += [finding.message, *_why_and_to_do(finding)]
    lines += [f"note: {note.message}" for note in plan.notes]
    if plan.unclaimed:
        lines.append(f"not in the configuration, left alone: {_list(plan.unclaimed)}")
    if not plan.gpus and plan.refusal is not None:
        lines += [plan.refusal.message, *_why_and_to_do(plan.refusal)]
    elif not plan.gpus:
        lines.append("No GPU is configured.")
    return "\n".join(lines) + "\n"


def _planned(gpu: GpuPlan) -> list[str]:
    if gpu.refusal is not None:
        lines = [f"{gpu.profile_name}: nothing will be done", f"    what:   {gpu.refusal.message}"]
        lines += _why_and_to_do(gpu.refusal)
    elif not gpu.steps:
        lines = [f"{gpu.profile_name}: as configured, nothing to do"]
    else:
        lines = [f"{gpu.profile_name}: {_count(len(gpu.steps), 'step')}", *_steps(gpu.steps)]
    return [*lines, *(f"    note: {note.message}" for note in gpu.notes)]


def _steps(steps: Sequence[Step]) -> list[str]:
    """Steps of one kind and one reason in a row are one item: seven instances are not seven."""
    lines: list[str] = []
    for _, group in groupby(steps, key=lambda step: (type(step), step.why, step.before)):
        alike = list(group)
        what, after = alike[0].summary, alike[0].after
        if len(alike) > 1:
            what += f" ... {alike[-1].summary} ({len(alike)})"
            after += f" ... {alike[-1].after}" if alike[-1].after != after else ""
        lines.append(f"    {alike[0].phase.value:<13}  {what}, because {alike[0].why}")
        lines.append(f"{'':<19}  only if {alike[0].before}; then {after}")
    return lines


def text(report: Mapping[str, Any], *, color: bool = False) -> str:
    """One screen of a finished or running run, from the data of status.json."""
    if report["progress"] == "running":
        return f"A run is at work since {report['started_at']} (pid {report['pid']}).\n"
    condition = _painted(str(report["condition"]).upper(), report["condition"], color=color)
    took = f"after {report['duration_s']:.1f} s{_spent(report['phases'])}"
    lines = [f"{condition}: {report['summary']}", f"  finished {report['finished_at']} {took}"]
    for gpu in report["gpus"]:
        word = _painted(f"{gpu['condition']:<11}", gpu["condition"], color=color)
        line = f"  {gpu['pf']}  {word}  {gpu['profile']:<16}  {_now(gpu)}"
        lines += [line.rstrip(), *_explained(gpu)]
    for finding in report["findings"]:
        if finding["message"].rstrip(".") not in report["summary"]:
            lines.append(f"  {finding['message']}")
        if finding["condition"] != Condition.CONVERGED.value:
            lines.append(f"      to do:  {finding['remedy']}")
    if report["units_stopped"]:
        units = ", ".join(report["units_stopped"])
        lines.append(f"  stopped for the time of the change: {units}")
    if report["unclaimed"]:
        lines.append(f"  not in the configuration, left alone: {', '.join(report['unclaimed'])}")
    return "\n".join(lines) + "\n"


def _spent(phases: Mapping[str, float]) -> str:
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())
    return f" ({told})" if told else ""


def _explained(gpu: Mapping[str, Any]) -> list[str]:
    """What happened, what was done about it, what to do next; and what else was met."""
    lines, others = [], gpu["findings"]
    if gpu["message"]:
        lines += [
            f"      what:   {gpu['message']}",
            f"      why:    {gpu['cause']}",
            f"      did:    {_did(gpu)}",
            f"      to do:  {gpu['remedy']}",
        ]
        others = others[1:]
    # Repeated attempts are in `did`, and in the data.
    notes = [f["message"] for f in others if f["reason"] != Code.RETRIED.value]
    return [*lines, *(f"      note:   {message}" for message in dict.fromkeys(notes))]


def _did(gpu: Mapping[str, Any]) -> str:
    words = []
    done = [step for step in gpu["steps"] if step["status"] == StepStatus.DONE.value]
    if done:
        words.append(f"{_count(len(done), 'step')}, the last: {done[-1]['summary']}")
    for step in gpu["steps"]:
        if step["status"] == StepStatus.FAILED.value:
            tries = "once" if step["attempts"] == 1 else f"{step['attempts']} times"
            words.append(f"tried {tries}: {step['summary']}")
    return "; ".join(words) or "nothing was changed on this GPU"


def _now(gpu: Mapping[str, Any]) -> str:
    return state_text(gpu["actual"]) if gpu["actual"] is not None else ""


def state_text(actual: Mapping[str, Any]) -> str:
    """What a GPU is, in a few words, from `gpu_dict`."""
    mig = actual["mig"]
    words = []
    if mig is not None:
        words.append(f"MIG {_on_off(mig['current'])}")
    words.append(f"{actual['vfs']['on']}/{actual['vfs']['total']} VFs")
    kinds: dict[str, int] = {}
    for vgpu in actual["vgpus"]:
        kinds[vgpu["type"]] = kinds.get(vgpu["type"], 0) + 1
    words += [f"{count} x {name}" for name, count in kinds.items()]
    return ", ".join(words)


def _on_off(value: bool | None) -> str:  # noqa: FBT001  # it is the thing that is told
    return "unknown" if value is None else "on" if value else "off"


_GREEN, _YELLOW, _RED = 32, 33, 31
_COLORS = {
    Condition.CONVERGED.value: _GREEN,
    Condition.DEGRADED.value: _YELLOW,
    Condition.REFUSED.value: _YELLOW,
}


def _painted(text: str, condition: str, *, color: bool) -> str:
    return f"\x1b[{_COLORS.get(condition, _RED)}m{text}\x1b[0m" if color else text


def _why_and_to_do(finding: Finding) -> list[str]:
    return [f"    why:    {finding.cause}", f"    to do:  {finding.remedy}"]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _list(pfs: Sequence[Bdf]) -> str:
    return ", ".join(str(pf) for pf in pfs)
