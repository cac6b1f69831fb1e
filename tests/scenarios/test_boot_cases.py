"""Field cases R2, R3, R5, R9 to R11, N6, N8, N10, N12, N13, N20, N21: around the GPUs."""

from __future__ import annotations

import itertools

import pytest

from gpu_bootstate.problems import ConfigInvalid
from tests.support.node import NodeMaker, config

PFS = [f"0000:{bus}:00.0" for bus in ("17", "3d", "60", "70", "98", "ba", "dd", "ed")]
A, B = PFS[:2]
WHOLE = "{vgpus: {H200X-141C: 1}}"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
ALL = {'{device: "0x2335", count: 8}': WHOLE}


def test_R2_a_service_is_stopped_and_started_without_waiting_for_its_job(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_unit("nvidia-dcgm.service", "active")
    made.with_client(A, "nv-hostengine", "nvidia-dcgm.service")
    result = made.apply(config({A: WHOLE}, policy="{holders: {stop: [nvidia-dcgm.service]}}"))
    assert (result["exit_code"], result["units_stopped"]) == (0, ["nvidia-dcgm.service"])
    assert made.calls[0].verb == "stop_unit"
    assert made.calls[-1].verb == "start_unit"
    # Queued, and that is all: it may be ordered after us.
    assert made.sim.state.units["nvidia-dcgm.service"].active_state == "activating"


def test_a_service_that_was_stopped_is_started_again_after_a_failure_too(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_unit("nvidia-dcgm.service", "active")
    made.fault(f"sriov_manage {A} noop")
    result = made.apply(config({A: WHOLE}, policy="{holders: {stop: [nvidia-dcgm.service]}}"))
    assert result["exit_code"] == 1
    assert [c.verb for c in made.calls if c.target == "nvidia-dcgm.service"] == [
        "stop_unit",
        "start_unit",
    ]
    assert made.gpu(A).persistence is True


def test_a_service_that_is_just_starting_is_stopped_as_well(node: NodeMaker) -> None:
    """As the run before has left it: it opens the GPU in a moment."""
    made = node("hgx-h200-8").with_unit("nvidia-dcgm.service", "activating", (0.5, "active"))
    made.with_client(A, "nv-hostengine", "nvidia-dcgm.service")
    result = made.apply(config({A: WHOLE}, policy="{holders: {stop: [nvidia-dcgm.service]}}"))
    assert (result["exit_code"], result["units_stopped"]) == (0, ["nvidia-dcgm.service"])
    assert made.calls[-1].verb == "start_unit"


def test_a_service_that_was_not_running_stays_so(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    policy = "{holders: {stop: [nvidia-dcgm.service]}}"
    assert made.apply(config({A: WHOLE}, policy=policy))["exit_code"] == 0
    assert "nvidia-dcgm.service" not in made.touched()


@pytest.mark.parametrize("late_s", [0.2, 12.0])
def test_R3_nvml_that_comes_late_is_waited_for(node: NodeMaker, late_s: float) -> None:
    made = node("hgx-h200-8")
    made.sim.state.nvml_ready_at = made.sim.state.clock_s + late_s
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    assert made.waits


def test_R3_nvml_that_never_comes_is_no_success(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.sim.state.nvml_ready_at = 1e9
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls, made.ready) == (5, [], False)


def test_R5_a_missing_tool_is_named_with_its_package_and_not_tried_again(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").fault("sriov_manage missing")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (5, "tool-missing")
    assert "/usr/lib/nvidia/sriov-manage" in result["gpus"][0]["message"]
    assert "vGPU host driver" in result["gpus"][0]["remedy"]
    assert made.verbs().count("sriov_manage") == 1


def test_R9_a_card_replaced_in_its_slot_is_told_by_uuid_and_taken_by_address(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8")
    by_uuid = config({f"{{uuid: {made.gpu(A).uuid}}}": WHOLE})
    by_slot = config({A: WHOLE})
    assert made.apply(by_uuid)["exit_code"] == 0
    new = "GPU-99999999-0000-0000-0000-000000000000"
    made.gpu(A).uuid, made.gpu(A).serial = new, "1699999999999"
    made.reboot()
    assert made.apply(by_uuid)["exit_code"] == 4
    assert made.calls == []
    with pytest.raises(ConfigInvalid) as caught:
        made.look(by_uuid)
    assert f"{new} at {A}" in str(caught.value.problems[0])
    assert made.apply(by_slot)["exit_code"] == 0


def test_R10_a_gpu_that_nvml_has_lost_takes_no_other_down(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.gpu(PFS[4]).lost = True
    result = made.apply(config(ALL))
    assert result["exit_code"] == 2
    outcome = {gpu["pf"]: gpu for gpu in result["gpus"]}
    assert outcome.pop(PFS[4])["reason"] == "gpu-lost"
    assert {gpu["condition"] for gpu in outcome.values()} == {"converged"}


def test_R10_one_that_falls_off_the_bus_in_the_middle(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"set_vgpu_type {A} lose")
    result = made.apply(config(dict.fromkeys(PFS, SEVEN)))
    assert result["exit_code"] == 2
    assert [gpu["pf"] for gpu in result["gpus"] if gpu["condition"] != "converged"] == [A]
    assert result["gpus"][0]["reason"] == "gpu-lost"


def test_R11_vfs_that_somebody_else_enabled_are_neither_touched_nor_counted(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").with_vfs(B).with_types(B, {0: "H200X-141C"})
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    assert made.touched() == {A} | ({"0000:17:00.4"} & made.touched())
    assert made.types(B) == {0: "H200X-141C"}


def test_N6_a_manager_that_dies_for_a_while_is_waited_for(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.with_unit("nvidia-vgpu-mgr.service", "active", (0.004, "failed"), (20.0, "active"))
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    assert made.verbs().count("sriov_manage") == 1


def test_N6_one_that_never_comes_back_is_exit_5_with_its_last_words(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_unit("nvidia-vgpu-mgr.service", "failed")
    made.sim.log(1.0, "nvidia-vgpu-mgr: error: vmiop_env_log: failed to start")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (5, [])
    assert result["gpus"][0]["reason"] == "vgpu-manager-down"
    assert "vmiop_env_log: failed to start" in result["gpus"][0]["cause"]


def test_N8_a_card_that_the_driver_did_not_take_is_named(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"facts {B} error:not-found")
    result = made.apply(config(ALL))
    assert result["exit_code"] == 2
    bad = [gpu for gpu in result["gpus"] if gpu["condition"] != "converged"]
    assert [(gpu["pf"], gpu["reason"]) for gpu in bad] == [(B, "gpu-not-in-nvml")]


def test_N10_an_unknown_card_in_the_slot_says_where_the_known_one_is(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({A: WHOLE})
    assert made.apply(text)["exit_code"] == 0
    made.gpu(B).serial, made.gpu(A).serial = made.gpu(A).serial, "1600000000000"
    made.reboot()
    result = made.apply(text)
    assert (result["exit_code"], made.calls) == (4, [])
    assert f"is now at {B}" in result["summary"]


def test_N12_a_gpu_dropped_from_the_config_is_left_alone_and_listed(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: WHOLE, B: SEVEN}))["exit_code"] == 0
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["unclaimed"], made.calls) == (0, [B], [])
    assert made.types(B) == dict.fromkeys(range(7), "H200X-1-18C")
    assert not made.gpu_ready(B)


def test_N13_a_version_mismatch_is_exit_5_with_both_versions_at_once(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.sim.state.library_version = "595.45.04"
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls, made.waits) == (5, [], [])
    assert not made.ready
    assert "version 580.159.04, the NVML library 595.45.04" in result["gpus"][0]["message"]


def test_N13_also_where_no_gpu_can_be_told_by_its_uuid(node: NodeMaker) -> None:
    made = node("hgx-h200-8").stranded(A, "vfio-pci")
    made.sim.state.library_version = "595.45.04"
    text = config({"{uuid: GPU-12345678-0000-0000-0000-000000000000}": WHOLE})
    for pf in PFS[1:]:
        made.removed(pf)
    result = made.apply(text)
    assert (result["exit_code"], made.calls, made.ready) == (5, [], False)
    assert "595.45.04" in result["summary"]


@pytest.mark.parametrize(("policy", "exit_code"), [("warn", 0), ("refuse", 3)])
def test_N20_another_caller_of_the_tool_is_told_before_acting_or_refused(
    node: NodeMaker, policy: str, exit_code: int
) -> None:
    made = node("hgx-h200-8").with_actor("unit", "site-vgpu.service", "calls sriov-manage")
    result = made.apply(config({A: WHOLE}, policy=f"{{on-conflict: {policy}}}"))
    assert result["exit_code"] == exit_code
    assert made.said[0].code.value == "other-actor"
    assert (made.calls == []) is (policy == "refuse")


@pytest.mark.parametrize(("policy", "exit_code"), [("warn", 0), ("refuse", 3)])
def test_N21_whole_cards_without_fabric_partitions_are_told_or_refused(
    node: NodeMaker, policy: str, exit_code: int
) -> None:
    made = node("hgx-h200-8")
    made.sim.state.fabric_mode = 0
    result = made.apply(config({A: WHOLE}, policy=f"{{on-conflict: {policy}}}"))
    assert result["exit_code"] == exit_code
    assert "fabric-mode" in [finding.code.value for finding in made.said]
    assert made.apply(config({B: SEVEN}, policy=f"{{on-conflict: {policy}}}"))["exit_code"] == 0


def test_the_deadline_of_the_run_ends_it_with_exit_6(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} late:500")
    result = made.apply(config({A: WHOLE}, policy="{deadline: 30, vf-wait: 400}"))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (6, "deadline")
    assert not made.ready


def test_a_hung_read_of_one_gpu_keeps_no_other_from_converging(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"facts {A} hang")
    result = made.apply(config(ALL))
    assert result["exit_code"] == 2
    assert result["gpus"][0]["reason"] == "gpu-hung"
    assert {gpu["condition"] for gpu in result["gpus"][1:]} == {"converged"}


def test_a_clock_that_jumps_back_years_changes_nothing(
    node: NodeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of day is for people: a dead battery, or NTP in the middle of the run."""
    times = itertools.count(1_900_000_000, -30_000_000)
    monkeypatch.setattr("time.time", lambda: float(next(times)))
    made = (
        node("hgx-h200-8")
        .fault(f"sriov_manage {A} times=1 noop")
        .fault(f"sriov_manage {B} late:30")
    )
    result = made.apply(config({A: WHOLE, B: SEVEN}))
    assert (result["exit_code"], made.ready) == (0, True)
    assert 30 < result["duration_s"] < 120
    assert made.apply(config({A: WHOLE, B: SEVEN}))["exit_code"] == 0
    assert made.calls == []
    made.reboot()
    assert made.apply(config({A: WHOLE, B: SEVEN}))["exit_code"] == 0
    assert made.ready
