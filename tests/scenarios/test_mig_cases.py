"""Field cases M1 to M9: MIG mode, and the reset that is the exception."""

from __future__ import annotations

import pytest

from tests.support.node import Node, NodeMaker, config

PFS = [f"0000:{bus}:00.0" for bus in ("17", "3d", "60", "70", "98", "ba", "dd", "ed")]
A = PFS[0]
A100_MIG = "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 7}}"
H200_MIG = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
WHOLE = "{vgpus: {H200X-141C: 1}}"


def _resets(node: Node) -> list[str]:
    return [call.target for call in node.calls if call.verb == "reset_gpu"]


def test_M1_persistence_is_lowered_on_that_gpu_alone_and_restored(node: NodeMaker) -> None:
    made = node("hgx-a100-8")
    result = made.apply(config({A: A100_MIG}))
    assert result["exit_code"] == 0
    assert made.touched() == {A}
    assert made.verbs(A)[:2] == ["set_persistence", "set_mig_mode"]
    assert made.verbs(A)[-1] == "set_persistence"
    assert made.gpu(A).persistence is True
    assert _resets(made) == []  # free of clients, the driver resets the GPU inside the call


def test_M1_a_mode_that_stays_pending_costs_one_reset_of_that_gpu(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_hidden_client(A, seconds=3.2)
    result = made.apply(config({A: A100_MIG}))
    assert result["exit_code"] == 0, result["gpus"][0]["message"]
    assert set(_resets(made)) == {A}
    assert made.touched() == {A}
    assert made.verbs(A).count("set_mig_mode") == 2  # set, and once more


def test_one_gpu_of_eight_with_a_pending_mode_is_the_only_one_reset(node: NodeMaker) -> None:
    """Pending at the start, and the driver's own reset does not come: only nvidia-smi's does."""
    made = node("hgx-a100-8")
    text = config({'{device: "0x20b2", count: 8}': A100_MIG})
    assert made.apply(text)["exit_code"] == 0
    made.reboot()
    for pf in PFS:
        made.gpu(pf).persistence = False
    third = PFS[2]
    assert made.apply(text)["exit_code"] == 0
    made.gpu(third).vfs.clear()
    made.gpu(third).instances.clear()
    made.with_mig(third, current=False, pending=True)
    made.fault(f"set_mig_mode {third} status:in-use")
    result = made.apply(text)
    assert result["exit_code"] == 0, result["summary"]
    assert _resets(made) == [third]
    assert made.touched() == {third}


def test_M2_a_pending_mode_with_vfs_on_is_not_reset_before_they_are_off(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_vfs(A, 16).with_mig(A, current=False, pending=True)
    made.with_types(A, {0: "A100DX-80C"})
    result = made.apply(config({A: A100_MIG}))
    assert result["exit_code"] == 0
    verbs = [call.verb + call.arguments.rpartition(" ")[2] for call in made.calls]
    order = ["set_vgpu_type0", "sriov_manage-d", "set_mig_modeenabled=True", "sriov_manage-e"]
    assert [verb for verb in verbs if verb in order] == order
    assert made.types(A) == dict.fromkeys(range(7), "A100DX-1-10C")


def test_M2_with_a_running_vgpu_it_is_refused(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_vfs(A, 16).with_mig(A, current=False, pending=True)
    made.with_types(A, {0: "A100DX-80C"}).with_vm(A, 0)
    result = made.apply(config({A: A100_MIG}))
    assert (result["exit_code"], made.calls) == (3, [])
    assert "VM db-1" in result["gpus"][0]["message"]


def test_M3_a_refused_reset_names_the_holder_and_the_others_go_on(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True)
    made.fault(f"set_mig_mode {A} status:in-use")
    made.fault(f"reset_gpu {A} exit:255:GPU {A}: In use by another client")
    result = made.apply(config({A: A100_MIG, PFS[1]: A100_MIG}))
    assert result["exit_code"] == 2
    first, second = result["gpus"]
    assert (first["reason"], second["condition"]) == ("reset-refused", "converged")
    assert first["stopped_in"] == "mig-mode"
    assert "sriov_manage" not in made.verbs(A)


def test_M4_a_reset_that_is_not_supported_is_not_tried_again(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True)
    made.fault(f"set_mig_mode {A} status:reset-required")
    made.fault(f"reset_gpu {A} exit:3:Resetting GPU {A} is not supported.")
    result = made.apply(config({A: A100_MIG}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "reset-unsupported")
    assert _resets(made) == [A]
    assert "Reboot the node, or reset the GPU from the hypervisor." in result["gpus"][0]["remedy"]


def test_M5_a_reset_that_changes_nothing_is_a_failure(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True)
    made.fault(f"set_mig_mode {A} status:in-use").fault(f"reset_gpu {A} noop")
    result = made.apply(config({A: A100_MIG}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "reset-ineffective")
    assert _resets(made) == [A]
    assert not made.ready


@pytest.mark.parametrize(
    ("board", "profile"),
    [
        pytest.param("hgx-h200-8", H200_MIG, id="M6-hopper"),
        pytest.param("hgx-h100-8", "{vgpus: {H100XM-1-10C: 7}}", id="M6-hopper-h100"),
        pytest.param("hgx-b200-8", "{vgpus: {B200X-1-23C: 7}}", id="M6-blackwell"),
    ],
)
def test_parts_that_change_the_mode_by_themselves_are_never_reset(
    node: NodeMaker, board: str, profile: str
) -> None:
    made = node(board)
    text = config(dict.fromkeys(PFS, profile))
    assert made.apply(text)["exit_code"] == 0
    assert _resets(made) == []
    assert made.reboot().apply(text)["exit_code"] == 0
    assert _resets(made) == []
    assert made.verbs().count("set_mig_mode") == 8  # the mode is lost with the driver


def test_an_ampere_keeps_its_mode_over_a_reboot_and_sees_no_mode_call_then(
    node: NodeMaker,
) -> None:
    made = node("hgx-a100-8")
    text = config(dict.fromkeys(PFS, A100_MIG))
    assert made.apply(text)["exit_code"] == 0
    assert made.reboot().apply(text)["exit_code"] == 0
    assert "set_mig_mode" not in made.verbs()
    assert _resets(made) == []


def test_a_busy_ampere_needs_one_reset_after_its_holder_is_gone(node: NodeMaker) -> None:
    """DCGM holds it and may be stopped; a poller keeps the driver's own reset away meanwhile."""
    made = node("hgx-a100-8").with_unit("nvidia-dcgm.service", "active")
    made.with_client(A, "nv-hostengine", "nvidia-dcgm.service")
    made.fault(f"set_mig_mode {A} status:in-use").with_mig(A, current=False, pending=True)
    result = made.apply(config({A: A100_MIG}, policy="{holders: {stop: [nvidia-dcgm.service]}}"))
    assert result["exit_code"] == 0, result["gpus"][0]["message"]
    assert _resets(made) == [A]
    assert [c.verb for c in made.calls if c.target == "nvidia-dcgm.service"] == [
        "stop_unit",
        "start_unit",
    ]


def test_M7_mig_off_comes_after_types_instances_and_vfs(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: H200_MIG}))["exit_code"] == 0
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    verbs = [verb for verb in made.verbs(A) if verb != "set_persistence"]
    assert verbs == [
        *["set_vgpu_type"] * 7,
        *["destroy_gpu_instance"] * 7,
        "sriov_manage",
        "set_mig_mode",
        "sriov_manage",
        "set_vgpu_type",
    ]
    flags = [call.arguments for call in made.calls if call.verb == "sriov_manage"]
    assert flags == ["-d", "-e"]
    assert made.types(A) == {0: "H200X-141C"}


def test_M8_a_gpu_whose_driver_asks_for_a_reboot_is_left_alone(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    made.gpu(A).recovery_action = 2
    result = made.apply(config(dict.fromkeys(PFS, H200_MIG)))
    assert result["exit_code"] == 2
    assert A not in made.touched()
    assert result["gpus"][0]["reason"] == "gpu-needs-reboot"
    assert "needs: reboot." in result["gpus"][0]["message"]


def test_M9_no_reset_on_an_a100_board_while_fabric_manager_is_down(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True)
    made.fault(f"set_mig_mode {A} status:in-use")
    made.with_unit("nvidia-fabricmanager.service", "failed")
    result = made.apply(config({A: A100_MIG}, policy="{manager-wait: 20}"))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "fabric-manager-down")
    assert _resets(made) == []
    assert "after 20 s" in result["gpus"][0]["message"]


def test_M9_it_is_waited_for(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A, current=False, pending=True)
    made.fault(f"set_mig_mode {A} status:in-use")
    made.with_unit("nvidia-fabricmanager.service", "failed", (30.0, "active"))
    assert made.apply(config({A: A100_MIG}))["exit_code"] == 0
    assert _resets(made) == [A]
