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


def test_a_sick_card_takes_no_other_of_its_model_down(node: NodeMaker) -> None:
    """Its files in sysfs answer with EIO, or it leaves the bus, while the tool runs for others."""
    for fault in (f"pf {B} io:EIO", f"sriov_manage {B} lose"):
        made = node("hgx-h200-8").stranded(A, None).fault(fault)
        result = made.apply(config({A: WHOLE, B: WHOLE}))
        conditions = {gpu["pf"]: gpu["condition"] for gpu in result["gpus"]}
        assert conditions == {A: "converged", B: "failed"}, fault


def test_a_sick_card_that_is_not_ours_and_may_be_captured_stops_the_tool(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.after("set_persistence", lambda: made.fault(f"pf {B} io:EIO"))
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "sibling-unreadable")
    assert B in result["gpus"][0]["message"]
    assert "sriov_manage" not in made.verbs()


def test_a_client_that_comes_in_the_middle_of_a_phase_keeps_the_tool_from_being_run(
    node: NodeMaker,
) -> None:
    made = _carved(node)
    made.after("set_vgpu_type", lambda: made.with_client(A, "nvidia-smi"))
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert (result["gpus"][0]["reason"], result["gpus"][0]["stopped_in"]) == ("held", "removals")
    assert "sriov_manage" not in made.verbs()


def test_a_card_that_loses_its_driver_in_the_middle_of_a_phase_is_not_captured(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8")
    other = "0000:60:00.0"
    made.after("sriov_manage", lambda: made.stranded(other, None))
    result = made.apply(config({A: WHOLE, B: WHOLE}))
    assert [gpu["reason"] for gpu in result["gpus"]] == [None, "sibling-driverless"]
    assert made.gpu(other).driver is None


def test_a_vm_that_only_nvml_knows_of_is_in_use_all_the_same(node: NodeMaker) -> None:
    made = _carved(node).with_unseen_vm(A, 0)
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (3, [])
    assert "VM vm-uuid" in result["gpus"][0]["message"]


def test_instances_that_the_driver_brings_back_by_itself_are_dealt_with(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.after("sriov_manage", lambda: made.with_instances(A, ("3g.71gb", 0)))
    result = made.apply(config({A: SEVEN}))
    assert result["exit_code"] == 0, result["gpus"][0]["message"]
    assert all(call.ok for call in made.calls)
    assert {name for name, _ in made.layout(A)} == {"1g.18gb"}


def test_services_are_stopped_under_a_gate_that_is_closed(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_unit("nvidia-dcgm.service", "active")
    text = config({A: WHOLE}, policy="{holders: {stop: [nvidia-dcgm.service]}}")
    assert made.apply(text)["exit_code"] == 0
    made.sim.reload_driver()
    made.with_unit("nvidia-dcgm.service", "active")
    assert made.apply(text)["exit_code"] == 0
    assert made.calls[0].verb == "stop_unit"
    assert made.under_an_open_gate == []


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


def test_a_tool_that_hangs_is_ended_its_lock_released_and_not_run_again(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} hang")
    result = made.apply(config({A: WHOLE, B: WHOLE}))
    assert result["exit_code"] == 2
    assert [gpu["reason"] for gpu in result["gpus"]] == ["tool-hung", None]
    assert made.verbs(A).count("sriov_manage") == 1
    assert "release_unbind_lock" in made.verbs(A)
    assert made.gpu(A).unbind_lock is False


def test_a_type_that_landed_on_an_instance_of_another_profile_is_told(node: NodeMaker) -> None:
    made = node("hgx-h200-8")

    def misplace() -> None:
        gpu = made.gpu(A)
        gpu.vfs[0].gi_id = next(gi.gi_id for gi in gpu.instances if gi.gi_profile_id == 14)

    made.after("set_vgpu_type", misplace)
    result = made.apply(config({A: "{mig: {2g.35gb: 1, 1g.18gb: 1}, vgpus: {H200X-1-18C: 1}}"}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "type-wrong-instance")
    assert not made.ready


def test_a_daemon_that_keeps_the_gpu_open_with_persistence_off_stops_the_rest(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").with_client(A, "nvidia-persiste", "nvidia-persistenced.service")
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "persistence-not-lowered")
    assert made.gpu(A).persistence is True
    assert "sriov_manage" not in made.verbs()


def test_removals_that_report_success_and_did_nothing_are_failures(node: NodeMaker) -> None:
    made = _carved(node).fault(f"set_vgpu_type {A} noop")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "type-not-applied")
    made.without_faults().fault(f"destroy_gpu_instance {A} noop")
    result = made.apply(config({A: WHOLE}))
    assert result["gpus"][0]["reason"] == "instance-destroy-failed"
    made.without_faults().fault(f"sriov_manage {A} noop")
    result = made.apply(config({A: WHOLE}, policy="{attempts: 2}"))
    assert result["gpus"][0]["reason"] == "vfs-not-removed"
    assert "set_mig_mode" not in made.verbs()


def test_a_node_that_cannot_be_looked_at_again_is_told_of_for_each_gpu(node: NodeMaker) -> None:
    """/sys itself answers with EIO: both GPUs are taken out, and the journal hears why at once."""
    made = node("hgx-h200-8").fault("pfs nth=3 times=99 io:EIO")
    result = made.apply(config({A: WHOLE, B: WHOLE}))
    assert result["exit_code"] == 1
    assert not made.ready
    assert made.gpu(A).persistence, "what was lowered is put back all the same"
    assert [gpu["reason"] for gpu in result["gpus"]] == ["node-unreadable"] * 2
    assert "node-unreadable" in [finding.code.value for finding in made.said]


@pytest.mark.parametrize("nth", [1, 2, 5, 9])
def test_systemd_that_does_not_answer_ends_the_run_with_a_reason(node: NodeMaker, nth: int) -> None:
    made = node("hgx-h200-8").fault(f"unit_state nth={nth} times=99 hang")
    result = made.apply(config({A: WHOLE}, policy="{holders: {stop: [nvidia-dcgm.service]}}"))
    assert (result["exit_code"], made.ready) == (1, False)
    told = {each["reason"] for each in (*result["gpus"], *result["findings"])}
    assert "node-unreadable" in told
    assert made.gpu(A).persistence


def test_a_mode_that_somebody_puts_back_is_set_again_before_anything_is_built_on_it(
    node: NodeMaker,
) -> None:
    """The first card's mode goes while the second's is set: no VFs before it is right again."""
    made = node("hgx-h200-8")

    def undo() -> None:
        made.gpu(A).mig_current = made.gpu(A).mig_pending = False

    made.after("set_mig_mode", lambda: made.after("set_mig_mode", undo))
    result = made.apply(config({A: SEVEN, B: SEVEN}))
    assert result["exit_code"] == 0
    assert made.verbs(A).count("sriov_manage") == 1
    modes = [index for index, verb in enumerate(made.verbs(A)) if verb == "set_mig_mode"]
    assert len(modes) == 2
    assert max(modes) < made.verbs(A).index("sriov_manage")
