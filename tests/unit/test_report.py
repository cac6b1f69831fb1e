# ruff: noqa: E501 -- the text for people is compared whole, line by line
"""Outcomes as data that keeps to the documented schema, and as the text that people read."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import jsonschema
import pytest

from gpu_bootstate import __version__, report
from gpu_bootstate.config import parse
from gpu_bootstate.model import (
    Actor,
    AwaitVfs,
    Bdf,
    CreateGpuInstance,
    DesiredState,
    DestroyGpuInstance,
    EnableVfs,
    Framework,
    GpuInstance,
    GpuOutcome,
    GpuPlan,
    Holder,
    HolderKind,
    MigMode,
    ObservedGpu,
    Phase,
    Placement,
    Plan,
    RunOutcome,
    SetMigMode,
    SetVgpuType,
    Step,
    StepOutcome,
    StepStatus,
    Vf,
)
from gpu_bootstate.reasons import Code, Condition, Finding
from tests.support.mig_tables import H200_TYPES, hgx_h200, node, unread

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "status-schema.json").read_text())

A, B, C = (Bdf.parse(f"{bus}:00.0") for bus in ("17", "3d", "60"))
START = report.RunStart("boot-now", 4127, 1_700_000_000.0, now_s=995.0)
TOO_FEW = Finding.of(Code.VFS_TOO_FEW, pf=B, found=16, wanted=32)
RETRIED = Finding.of(Code.RETRIED, pf=B, step="enable 32 VFs", attempt=1, detail="0 of 32 VFs")
BOUND_BACK = Finding.of(Code.PF_BOUND_BACK, pf=B, driver="no driver")
IN_USE = Finding.of(Code.IN_USE, pf=C, holder="VM web: qemu (pid 7)", wanted="set MIG mode off")
MISSING = Finding.of(Code.GPU_MISSING, wanted="0000:5e:00.0", nearest="nearest: 0000:5d:00.0")

MIG = SetMigMode(A, "it is off", enabled=True)
INSTANCES = tuple(
    CreateGpuInstance(A, "the layout has it and the GPU has not", 19, "1g.18gb", Placement(at, 1))
    for at in range(3)
)
TYPE = SetVgpuType(A, "the VF has none", 0, 1414, "NVIDIA H200X-1-18C", 19, "uuid")


def desired() -> DesiredState:
    return parse(
        dedent("""\
            version: v1
            gpus:
              - match: {pci: "0000:17:00.0"}
                profile: {mode: none}
            policy: {gate: any}
            gate:
              files: [/run/x/ready]
            """),
        "c.yaml",
    )


def h200(pf: Bdf) -> ObservedGpu:
    return next(gpu for gpu in hgx_h200() if gpu.pf == pf)


def carved(pf: Bdf) -> ObservedGpu:
    """MIG on, one instance, 32 VFs, a type on the first of them."""
    bare = h200(pf)
    assert bare.facts is not None
    seven = next(t.vgpu_type_id for t in H200_TYPES if t.name == "NVIDIA H200X-1-18C")
    vfs = tuple(
        Vf(at, Bdf(0, pf.bus, 0, 4 + at), "nvidia", Framework.VENDOR_VFIO, type_id, gi_id)
        for at, (type_id, gi_id) in enumerate([(seven, 7), (0, None)])
    )
    return replace(
        bare,
        pci=replace(bare.pci, sriov_numvfs=32),
        facts=replace(bare.facts, mig=MigMode(current=True, pending=True)),
        gpu_instances=(GpuInstance(7, 19, Placement(0, 1)),),
        vfs=vfs,
    )


def step(
    what: Step,
    duration_s: float = 1.0,
    status: StepStatus = StepStatus.DONE,
    attempts: int = 1,
    finding: Finding | None = None,
) -> StepOutcome:
    return StepOutcome(what, status, 1001.0, duration_s, attempts, finding)


def up(pf: Bdf, *steps: StepOutcome, findings: tuple[Finding, ...] = ()) -> GpuOutcome:
    spent = tuple({s.step.phase: s.duration_s for s in steps}.items())
    return GpuOutcome(pf, "mig-seven", Condition.CONVERGED, findings, steps, spent, None)


FAILED = GpuOutcome(
    B,
    "mig-seven",
    Condition.FAILED,
    (TOO_FEW, RETRIED, BOUND_BACK),
    (
        step(SetMigMode(B, "it is off", enabled=True)),
        step(EnableVfs(B, "the VFs are off", 32), 60.0, StepStatus.FAILED, 4, TOO_FEW),
    ),
    ((Phase.MIG_MODE, 1.0), (Phase.VFS, 60.0)),
    Phase.VFS,
)
REFUSED = GpuOutcome(C, "bare", Condition.REFUSED, (IN_USE,), (), (), Phase.PREFLIGHT)


def run(*gpus: GpuOutcome, condition: Condition, **other: Any) -> RunOutcome:
    spent = ((Phase.MIG_MODE, 1.0), (Phase.VFS, 60.5)) if any(gpu.steps for gpu in gpus) else ()
    return RunOutcome(
        condition,
        gpus,
        other.pop("findings", ()),
        gate_open=other.pop("gate_open", True),
        started_s=1000.0,
        duration_s=62.25,
        phase_s=spent,
        **other,
    )


def finished(outcome: RunOutcome, *gpus: ObservedGpu) -> dict[str, Any]:
    return report.finished(
        START,
        outcome,
        wall_s=START.wall_s + 67,
        desired=desired(),
        node=node(*gpus) if gpus else None,
    )


CONVERGED_RUN = run(
    up(A, step(MIG), step(TYPE, 0.25), findings=(BOUND_BACK,)), condition=Condition.CONVERGED
)
DEGRADED_RUN = run(
    up(A, step(MIG)),
    FAILED,
    REFUSED,
    condition=Condition.DEGRADED,
    gate_open=False,
    findings=(MISSING,),
    units_stopped=("nvidia-dcgm.service",),
    unclaimed=(Bdf.parse("ed:00.0"),),
)
NOTHING_KNOWN = run(
    condition=Condition.BAD_CONFIG,
    gate_open=False,
    findings=(Finding.of(Code.CONFIG_INVALID, count=2, first="c.yaml:3:5: profile: x"),),
)


# --------------------------------------------------------------------------- the schema


def strict(schema: Any) -> Any:
    """The schema with every key that it does not name forbidden: none may be left undocumented."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if "required" in made and "properties" in made and "$ref" not in made:
        made.setdefault("additionalProperties", False)
    return made


def strict_schema() -> Any:
    made = strict({key: value for key, value in SCHEMA.items() if key not in ("then", "else")})
    return {**made, "then": SCHEMA["then"], "else": SCHEMA["else"]}


REPORTS = {
    "running": report.running(START),
    "converged": finished(CONVERGED_RUN, carved(A)),
    "nothing to do": finished(run(up(A), condition=Condition.CONVERGED), carved(A)),
    "no GPU": finished(run(condition=Condition.CONVERGED)),
    "degraded": finished(DEGRADED_RUN, carved(A), unread(h200(B), None), h200(C)),
    "not observed": finished(DEGRADED_RUN),
    "bad configuration": report.finished(
        START, NOTHING_KNOWN, wall_s=START.wall_s, desired=None, node=None
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_report_keeps_to_the_documented_schema_and_has_nothing_undocumented(name: str) -> None:
    told = json.loads(json.dumps(REPORTS[name]))
    for schema in (SCHEMA, strict_schema()):
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(told, schema, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("key", "value"),
    [("schema", 2), ("progress", "died"), ("condition", None), ("gpus", None), ("boot_id", 5)],
)
def test_schema_tells_a_wrong_report(key: str, value: object) -> None:
    wrong = {**copy.deepcopy(REPORTS["degraded"]), key: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA, cls=jsonschema.Draft202012Validator)


def test_schema_knows_every_condition_and_phase() -> None:
    assert SCHEMA["$defs"]["condition"]["enum"] == [condition.value for condition in Condition]
    assert SCHEMA["$defs"]["phase"]["enum"] == [phase.value for phase in Phase]
    assert SCHEMA["$defs"]["step"]["properties"]["status"]["enum"] == [s.value for s in StepStatus]


# --------------------------------------------------------------------------- the data


def test_running_says_what_a_run_that_dies_leaves_behind() -> None:
    assert report.running(START) == {
        "schema": 1,
        "version": __version__,
        "boot_id": "boot-now",
        "pid": 4127,
        "started_at": "2023-11-14T22:13:20Z",
        "finished_at": None,
        "progress": "running",
        "condition": None,
        "exit_code": None,
    }


def test_finished_run_says_how_it_went_and_by_which_configuration() -> None:
    told = REPORTS["degraded"]
    assert {key: told[key] for key in told if key not in ("gpus", "findings")} == {
        **report.running(START),
        "finished_at": "2023-11-14T22:14:27Z",
        "progress": "done",
        "condition": "degraded",
        "exit_code": 2,
        "summary": (
            "1 of 3 GPUs as configured, not so 0000:3d:00.0, 0000:60:00.0; the gate is closed."
        ),
        "duration_s": 67.25,
        "gate": {"open": False, "policy": "any", "files": ["/run/x/ready"]},
        "config": {"sources": ["c.yaml"], "digest": desired().digest},
        "phases": {"mig-mode": 1.0, "vfs": 60.5},
        "units_stopped": ["nvidia-dcgm.service"],
        "unclaimed": ["0000:ed:00.0"],
    }


def test_failed_gpu_says_why_and_what_to_do_and_which_step_failed() -> None:
    gpu = REPORTS["degraded"]["gpus"][1]

    assert gpu["condition"] == "failed"
    assert gpu["reason"] == "vfs-too-few"
    assert (gpu["message"], gpu["cause"], gpu["remedy"]) == (
        TOO_FEW.message,
        TOO_FEW.cause,
        TOO_FEW.remedy,
    )
    assert gpu["stopped_in"] == "vfs"
    assert gpu["phases"] == {"mig-mode": 1.0, "vfs": 60.0}
    assert [finding["reason"] for finding in gpu["findings"]] == [
        "vfs-too-few",
        "retried",
        "pf-bound-back",
    ]
    assert gpu["steps"][1] == {
        "phase": "vfs",
        "action": "enable-vfs",
        "pf": "0000:3d:00.0",
        "summary": "enable 32 VFs (sriov-manage -e)",
        "why": "the VFs are off",
        "before": EnableVfs.before,
        "after": "sriov_numvfs is 32 and every VF offers vGPU types",
        "status": "failed",
        "attempts": 4,
        "started_s": 6.0,  # after the start of the run, not of its first step
        "duration_s": 60.0,
        "reason": "vfs-too-few",
    }


def test_converged_gpu_has_no_reason_but_what_was_met() -> None:
    gpu = REPORTS["converged"]["gpus"][0]
    assert [gpu[key] for key in ("reason", "message", "cause", "remedy", "stopped_in")] == [
        None
    ] * 5
    assert [finding["reason"] for finding in gpu["findings"]] == ["pf-bound-back"]


def test_actual_state_is_told_by_names() -> None:
    actual = REPORTS["converged"]["gpus"][0]["actual"]
    assert actual["mig"] == {"current": True, "pending": True}
    assert actual["vfs"] == {"on": 32, "total": 32}
    assert actual["framework"] == "vendor-vfio"
    assert actual["gpu_instances"] == [
        {"id": 7, "profile": "1g.18gb", "start": 0, "size": 1, "compute_instances": 0}
    ]
    assert [(vgpu["index"], vgpu["gpu_instance"]) for vgpu in actual["vgpus"]] == [(0, 7)]
    assert actual["vgpus"][0]["vf"] == "0000:17:00.4"


@pytest.mark.parametrize(
    ("outcome", "summary"),
    [
        (CONVERGED_RUN, "1 GPU as configured; the gate is open."),
        (
            run(up(A), up(B), condition=Condition.CONVERGED),
            "2 GPUs as configured already, nothing was changed; the gate is open.",
        ),
        (
            run(condition=Condition.CONVERGED),
            "No GPU is configured, nothing to do; the gate is open.",
        ),
        (
            NOTHING_KNOWN,
            "The configuration has 2 problem(s); the first: c.yaml:3:5: profile: x; the gate is closed.",
        ),
        (
            run(up(A), condition=Condition.DEGRADED, findings=(MISSING,), gate_open=False),
            "The configuration names 0000:5e:00.0, which this node does not have (nearest: 0000:5d:00.0); the gate is closed.",
        ),
        (
            run(REFUSED, condition=Condition.REFUSED),
            "0 of 1 GPU as configured, not so 0000:60:00.0; the gate is open.",
        ),
    ],
)
def test_summary_is_one_sentence_for_people(outcome: RunOutcome, summary: str) -> None:
    assert finished(outcome)["summary"] == summary


# --------------------------------------------------------------------------- the text


def test_text_of_a_converged_run() -> None:
    assert report.text(REPORTS["converged"]) == dedent("""\
        CONVERGED: 1 GPU as configured; the gate is open.
          finished 2023-11-14T22:14:27Z after 67.2 s (mig-mode 1.0 s, vfs 60.5 s)
          0000:17:00.0  converged    mig-seven         MIG on, 32/32 VFs, 1 x NVIDIA H200X-1-18C
              note:   0000:3d:00.0 was on no driver and has been bound back to nvidia.
        """)


def test_text_of_a_run_in_which_each_gpu_came_to_something_else() -> None:
    assert report.text(REPORTS["degraded"]) == dedent("""\
        DEGRADED: 1 of 3 GPUs as configured, not so 0000:3d:00.0, 0000:60:00.0; the gate is closed.
          finished 2023-11-14T22:14:27Z after 67.2 s (mig-mode 1.0 s, vfs 60.5 s)
          0000:17:00.0  converged    mig-seven         MIG on, 32/32 VFs, 1 x NVIDIA H200X-1-18C
          0000:3d:00.0  failed       mig-seven         0/32 VFs
              what:   0000:3d:00.0: 16 of 32 VFs came up.
              why:    The kernel or the firmware gave fewer than the card can have.
              did:    1 step, the last: set MIG mode on; tried 4 times: enable 32 VFs (sriov-manage -e)
              to do:  Look at `journalctl -k -g SR-IOV`; `policy: allow-fewer-vfs: true` accepts them if enough for the vGPUs asked for.
              note:   0000:3d:00.0 was on no driver and has been bound back to nvidia.
          0000:60:00.0  refused      bare              MIG off, 0/32 VFs
              what:   0000:60:00.0 is in use by VM web: qemu (pid 7), so nothing was changed: set MIG mode off.
              why:    The change would take the GPU away from a running VM or process.
              did:    nothing was changed on this GPU
              to do:  Stop VM web: qemu (pid 7), then `systemctl reload-or-restart gpu-bootstate`.
          The configuration names 0000:5e:00.0, which this node does not have (nearest: 0000:5d:00.0).
              to do:  Correct the entry, or set `on-missing: degrade` to bring the other GPUs up without it.
          stopped for the time of the change: nvidia-dcgm.service
          not in the configuration, left alone: 0000:ed:00.0
        """)


def test_text_of_a_bad_configuration() -> None:
    assert report.text(REPORTS["bad configuration"]) == dedent("""\
        BAD-CONFIG: The configuration has 2 problem(s); the first: c.yaml:3:5: profile: x; the gate is closed.
          finished 2023-11-14T22:13:20Z after 67.2 s
              to do:  Correct the file, then run `gpu-bootstate check`.
        """)


def test_text_of_a_run_at_work() -> None:
    assert report.text(REPORTS["running"]) == (
        "A run is at work since 2023-11-14T22:13:20Z (pid 4127).\n"
    )


def test_color_adds_nothing_but_color() -> None:
    plain, painted = (report.text(REPORTS["degraded"], color=color) for color in (False, True))

    assert painted.startswith("\x1b[33mDEGRADED\x1b[0m: ")
    assert "\x1b[32mconverged  \x1b[0m" in painted
    assert "\x1b[31mfailed     \x1b[0m" in painted
    for sequence in ("\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"):
        painted = painted.replace(sequence, "")
    assert painted == plain


# --------------------------------------------------------------------------- the plan


def seven(pf: Bdf) -> GpuPlan:
    steps = (MIG, *INSTANCES, TYPE)
    return GpuPlan(pf, "mig-seven", None, tuple(replace(step, pf=pf) for step in steps))


PLAN = Plan(
    gpus=(
        seven(A),
        seven(B),
        GpuPlan(C, "bare", None, (), refusal=IN_USE),
        GpuPlan(Bdf.parse("98:00.0"), "whole-card", None, ()),
        GpuPlan(
            Bdf.parse("ba:00.0"),
            "whole-card",
            None,
            (
                DestroyGpuInstance(
                    Bdf.parse("ba:00.0"), "the GPU is to be bare", 3, "1g.18gb", Placement(0, 1)
                ),
                AwaitVfs(Bdf.parse("ba:00.0"), "not all of them do yet", 32),
            ),
            notes=(
                Finding.of(
                    Code.FEWER_THAN_BEFORE, pf="0000:ba:00.0", type="H200X-1-18C", before=7, after=0
                ),
            ),
        ),
    ),
    stop_units=("nvidia-dcgm.service",),
    missing=(MISSING,),
    notes=(Finding.of(Code.OTHER_ACTOR, kind="unit", name="vgpu.service", detail="calls it"),),
    unclaimed=(Bdf.parse("ed:00.0"),),
)


def test_text_of_a_plan_tells_like_gpus_together() -> None:
    assert report.plan_text(PLAN) == dedent("""\
        stopped for the change, started again after it: nvidia-dcgm.service
        0000:17:00.0, 0000:3d:00.0
          2 GPUs, mig-seven: 5 steps
            mig-mode       set MIG mode on, because it is off
                             only if VFs are off and no client holds the GPU; then pending MIG mode is on
            gpu-instances  create GPU instance 1g.18gb at {0}:1 ... create GPU instance 1g.18gb at {2}:1 (3), because the layout has it and the GPU has not
                             only if MIG mode is on and the placement is free; then an instance of profile 19 is at {0}:1 ... an instance of profile 19 is at {2}:1
            vgpu-types     set vGPU type NVIDIA H200X-1-18C on virtfn0, because the VF has none
                             only if the VF has no type and the type can be created on it; then virtfn0 has type 1414
        0000:60:00.0
          bare: nothing will be done
            what:   0000:60:00.0 is in use by VM web: qemu (pid 7), so nothing was changed: set MIG mode off.
            why:    The change would take the GPU away from a running VM or process.
            to do:  Stop VM web: qemu (pid 7), then `systemctl reload-or-restart gpu-bootstate`.
        0000:98:00.0
          whole-card: as configured, nothing to do
        0000:ba:00.0
          whole-card: 2 steps
            removals       destroy GPU instance 3 (1g.18gb at {0}:1), because the GPU is to be bare
                             only if the instance is there and nothing uses it; then the instance is gone, its siblings are not
            vfs            wait until all 32 VFs offer vGPU types; else switch them off and on once, because not all of them do yet
                             only if VFs are on and some of them offer no vGPU types; then all 32 VFs offer vGPU types
            note: 0000:ba:00.0: H200X-1-18C goes from 7 to 0.
        The configuration names 0000:5e:00.0, which this node does not have (nearest: 0000:5d:00.0).
            why:    The card was moved, replaced or fell off the bus, or the address is misspelt.
            to do:  Correct the entry, or set `on-missing: degrade` to bring the other GPUs up without it.
        note: Other software changes the same GPUs: unit vgpu.service (calls it).
        not in the configuration, left alone: 0000:ed:00.0
        """)


def test_text_of_a_plan_for_nothing() -> None:
    assert report.plan_text(Plan(())) == "No GPU is configured.\n"


def test_plan_as_data_has_each_step_with_what_is_checked_around_it() -> None:
    told = report.plan_dict(PLAN)

    assert json.loads(json.dumps(told)) == told
    assert told["changes"] is True
    assert told["condition"] == "degraded"
    assert [(gpu["pf"], len(gpu["steps"])) for gpu in told["gpus"]] == [
        ("0000:17:00.0", 5),
        ("0000:3d:00.0", 5),
        ("0000:60:00.0", 0),
        ("0000:98:00.0", 0),
        ("0000:ba:00.0", 2),
    ]
    assert told["gpus"][0]["steps"][0] == {
        "phase": "mig-mode",
        "action": "set-mig-mode",
        "pf": "0000:17:00.0",
        "summary": "set MIG mode on",
        "why": "it is off",
        "before": "VFs are off and no client holds the GPU",
        "after": "pending MIG mode is on",
    }
    assert told["gpus"][2]["refusal"]["reason"] == "in-use"
    assert [note["reason"] for note in told["gpus"][4]["notes"]] == ["fewer-than-before"]
    assert told["units_to_stop"] == ["nvidia-dcgm.service"]
    assert [finding["reason"] for finding in told["missing"]] == ["gpu-missing"]
    assert [note["reason"] for note in told["notes"]] == ["other-actor"]
    assert told["unclaimed"] == ["0000:ed:00.0"]


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(()), Condition.CONVERGED),
        (Plan((seven(A),)), Condition.CONVERGED),
        (Plan((GpuPlan(C, "bare", None, (), refusal=IN_USE),)), Condition.REFUSED),
        (Plan((seven(A),), missing=(MISSING,)), Condition.DEGRADED),
    ],
)
def test_what_a_plan_can_come_to(plan: Plan, expected: Condition) -> None:
    assert report.plan_condition(plan) is expected


# --------------------------------------------------------------------------- the node


def test_node_as_data() -> None:
    holder = Holder(7, "qemu", "qemu -name web", HolderKind.VM, "/dev/vfio/1", vm="web")
    seen_node = replace(
        node(replace(carved(A), holders=(holder,)), unread(h200(B), "vfio-pci")),
        actors=(Actor("unit", "vgpu.service", "calls it"),),
    )

    told = report.node_dict(seen_node)

    assert json.loads(json.dumps(told)) == told
    assert told["other_software"] == [
        {"kind": "unit", "name": "vgpu.service", "detail": "calls it"}
    ]
    assert list(told["gpus"]) == ["0000:17:00.0", "0000:3d:00.0"]
    assert told["gpus"]["0000:17:00.0"]["holders"] == ["VM web: qemu (pid 7)"]
    unseen = told["gpus"]["0000:3d:00.0"]
    assert (unseen["name"], unseen["driver"], unseen["mig"]) == (None, "vfio-pci", None)


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (carved(A), "MIG on, 32/32 VFs, 1 x NVIDIA H200X-1-18C"),
        (h200(A), "MIG off, 0/32 VFs"),
        (unread(h200(A), None), "0/32 VFs"),
    ],
)
def test_state_in_a_few_words(gpu: ObservedGpu, words: str) -> None:
    assert report.state_text(report.gpu_dict(gpu)) == words
