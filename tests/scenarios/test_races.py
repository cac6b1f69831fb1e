"""What comes between plan and act: each precondition is checked again at the moment of acting."""

from __future__ import annotations

import pytest

from gpu_bootstate.model import Bdf
from tests.support.node import Node, NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
WHOLE = "{vgpus: {H200X-141C: 1}}"


def _carved(node: NodeMaker) -> Node:
    made = node("hgx-h200-8")
    assert made.apply(config({A: SEVEN}))["exit_code"] == 0
    return made


def test_a_process_that_comes_after_the_plan_stops_the_next_exclusive_step(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8")
    made.after("set_persistence", lambda: made.with_compute(A))
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (3, "in-use")
    assert "sriov_manage" not in made.verbs()


def test_a_vm_that_comes_between_two_removals_stops_the_second(node: NodeMaker) -> None:
    made = _carved(node)
    made.after("set_vgpu_type", lambda: made.with_vm(A, 3))
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (3, "in-use")
    assert made.verbs().count("set_vgpu_type") == 1
    assert not {"destroy_gpu_instance", "sriov_manage", "set_mig_mode"} & set(made.verbs())


def test_a_process_on_an_instance_stops_the_destroying_of_the_others(node: NodeMaker) -> None:
    made = _carved(node)
    made.after("destroy_gpu_instance", lambda: made.with_compute(A))
    result = made.apply(config({A: WHOLE}))
    assert result["gpus"][0]["reason"] == "in-use"
    assert made.verbs().count("destroy_gpu_instance") == 1


def test_a_user_that_comes_before_the_mode_is_set_stops_that(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_vfs(A)
    made.after("sriov_manage", lambda: made.with_compute(A))
    result = made.apply(config({A: "{mig: {1g.10gb: 7}}"}))
    assert result["gpus"][0]["reason"] == "in-use"
    assert "set_mig_mode" not in made.verbs()


def test_a_user_that_comes_before_a_reset_stops_that(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True).without_persistence()
    made.fault(f"set_mig_mode {A} status:reset-required")
    made.after("set_mig_mode", lambda: made.with_compute(A))
    result = made.apply(config({A: "{mig: {1g.10gb: 7}}"}))
    assert result["gpus"][0]["reason"] == "in-use"
    assert "reset_gpu" not in made.verbs()


def test_vfs_that_somebody_enables_before_a_reset_stop_it(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True).without_persistence()
    made.fault(f"set_mig_mode {A} status:reset-required")
    made.after("set_mig_mode", lambda: made.with_vfs(A))
    result = made.apply(config({A: "{mig: {1g.10gb: 7}}"}))
    assert result["gpus"][0]["reason"] == "reset-failed"
    assert "reset_gpu" not in made.verbs()


def test_a_client_that_comes_and_stays_is_named_at_the_step(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.after("set_persistence", lambda: made.with_client(A, "nvidia-smi"))
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert result["gpus"][0]["reason"] == "held"
    assert "sriov_manage" not in made.verbs()


def test_a_sibling_that_loses_its_driver_in_between_is_not_captured(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.after("set_persistence", lambda: made.stranded(B, None))
    result = made.apply(config({A: WHOLE}))
    assert result["gpus"][0]["reason"] == "sibling-driverless"
    assert made.gpu(B).driver is None


def test_another_run_of_the_tool_is_waited_for(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_actor("process", "sriov-manage", "pid 77", seconds=4.0)
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    first = next(call for call in made.calls if call.verb == "sriov_manage")
    assert first.time_s >= 24.0


def test_another_run_of_the_tool_that_stays_is_named(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.after("set_persistence", lambda: made.with_actor("process", "sriov-manage", "pid 77"))
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert result["gpus"][0]["reason"] == "other-actor"
    assert "sriov_manage" not in made.verbs()


def test_a_type_that_somebody_else_writes_first_is_not_overwritten(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_vfs(A).with_mig(A)
    made.with_instances(A, *(("1g.18gb", start) for start in range(6)))

    def steal() -> None:
        vf = made.gpu(A).vfs[0]
        made.sim.set_type(Bdf.parse(vf.bdf), 1414, None, now=1e9)

    made.after("create_gpu_instance", steal)
    result = made.apply(config({A: SEVEN}))
    # It is the very type that was wanted: seen, and left.
    assert result["exit_code"] == 0
    assert made.verbs().count("set_vgpu_type") == 6


def test_instances_that_go_missing_are_seen_before_the_gate(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.fault(f"set_vgpu_type {A} nth=7 error:unknown")
    made.after("set_vgpu_type", lambda: made.gpu(A).instances.pop())
    result = made.apply(config({A: SEVEN}))
    assert result["exit_code"] != 0
    assert not made.ready


@pytest.mark.parametrize("clears", ["types", "vfs"])
def test_what_somebody_undoes_behind_our_back_is_not_called_verified(
    node: NodeMaker, clears: str
) -> None:
    made = node("hgx-h200-8")
    count = 0

    def undo() -> None:
        nonlocal count
        count += 1
        for vf in made.gpu(A).vfs:
            vf.type_id = 0
        if clears == "vfs":
            made.gpu(A).vfs.clear()
        made.after("set_vgpu_type", undo)

    made.after("set_vgpu_type", undo)
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 1
    assert not made.ready
    assert count < 10
