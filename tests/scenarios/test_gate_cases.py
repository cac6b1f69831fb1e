"""Field cases G1, G2, G4 to G6, N22, R4: the gate says only what was verified in this boot."""

from __future__ import annotations

import json

import pytest

from tests.support.node import NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
WHOLE = "{vgpus: {H200X-141C: 1}}"
VALIDATIONS = "/run/nvidia/validations"
GATE = f"{{files: [{VALIDATIONS}/workload-type, {VALIDATIONS}/vgpu-devices-ready]}}"


def test_G1_G5_a_deleted_file_comes_back_and_no_gpu_sees_a_call(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({A: WHOLE}, gate=GATE)
    assert made.apply(text)["exit_code"] == 0
    for gone in (made.paths.at(f"{VALIDATIONS}/vgpu-devices-ready"), made.paths.ready):
        gone.unlink()
        assert made.apply(text)["exit_code"] == 0
        assert gone.exists()
        assert made.calls == []


def test_G2_it_does_not_come_back_while_a_gpu_is_not_right(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({A: WHOLE, B: WHOLE}, gate=GATE)
    assert made.apply(text)["exit_code"] == 0
    released = made.paths.at(f"{VALIDATIONS}/vgpu-devices-ready")
    released.unlink()
    made.gpu(A).lost = True
    assert made.apply(text)["exit_code"] == 2
    assert not released.exists()
    assert not made.ready
    assert made.gpu_ready(B)
    assert not made.gpu_ready(A)


def test_G4_a_containerised_driver_is_told_before_acting_and_its_restart_is_drift(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8").with_actor("container driver", "/run/nvidia/driver", "toggles VFs")
    text = config({A: WHOLE})
    result = made.apply(text)
    assert result["exit_code"] == 0
    assert made.said[0].code.value == "other-actor"
    assert made.look(text).plan.is_empty
    made.sim.reload_driver()
    assert not made.look(text).plan.is_empty


def test_G6_policy_any_is_ready_with_one_gpu_out_and_says_degraded(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"sriov_manage {A} noop")
    result = made.apply(config({A: WHOLE, B: WHOLE}, policy="{gate: any}"))
    assert (result["exit_code"], result["gate"]["open"]) == (2, True)
    assert made.ready
    assert made.gpu_ready(B)
    assert not made.gpu_ready(A)


def test_R4_a_file_from_another_boot_is_no_gate(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({A: WHOLE})
    assert made.apply(text)["exit_code"] == 0
    old = made.paths.ready.read_text()
    made.reboot()
    made.paths.run_dir.mkdir(parents=True)
    made.paths.ready.write_text(old)  # a /run that is no tmpfs
    made.fault(f"sriov_manage {A} noop")
    assert made.apply(text)["exit_code"] == 1
    assert made.under_an_open_gate == []
    assert not made.ready


def test_the_gate_is_closed_before_the_first_change_and_opens_after_the_last(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: WHOLE, B: WHOLE}))["exit_code"] == 0
    made.sim.reload_driver()
    assert made.ready
    assert made.apply(config({A: WHOLE, B: WHOLE}))["exit_code"] == 0
    assert len(made.calls) > 0
    assert made.under_an_open_gate == []
    assert made.ready


def test_a_bad_file_and_a_refusal_leave_the_gate_that_this_boot_has_opened(
    node: NodeMaker,
) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    assert made.apply(config({A: "{vgpus: {H200X-999C: 1}}"}))["exit_code"] == 4
    assert made.ready
    made.with_vm(A, 0)
    assert made.apply(config({A: "{vgpus: {H200X-70C: 2}}"}))["exit_code"] == 3
    assert made.ready
    assert made.gpu_ready(A)


def test_the_file_of_a_gpu_says_what_was_seen(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    record = json.loads(made.paths.run_dir.joinpath("gpus", f"{A}.json").read_text())
    assert record["vgpus"] == {"0000:17:00.4": "NVIDIA H200X-141C"}
    assert record["boot_id"] == "00000000-0000-4000-8000-000000000001"
    assert record["uuid"] == made.gpu(A).uuid


def test_N22_no_configuration_is_a_success_with_an_open_gate(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    result = made.apply("version: v1\ngpus: []\n")
    assert (result["exit_code"], made.calls, made.ready) == (0, [], True)


@pytest.mark.parametrize("policy", ["all", "any"])
def test_without_a_driver_no_gate_opens_even_where_no_gpu_can_be_told(
    node: NodeMaker, policy: str
) -> None:
    made = node("hgx-h200-8")
    made.sim.state.module_version = None
    for match in (A, "{uuid: GPU-12345678-0000-0000-0000-000000000000}", "{index: 60}"):
        result = made.apply(config({match: WHOLE}, policy=f"{{gate: {policy}, manager-wait: 5}}"))
        assert (result["exit_code"], result["gate"]["open"], made.ready) == (5, False, False)
