"""Field cases I1 to I4, T1 to T10, N15, N24, R6 to R8, R12 to R15: instances and vGPU types."""

from __future__ import annotations

import pytest

from gpu_bootstate.problems import ConfigInvalid
from tests.support.node import NodeMaker, config

A, B = "0000:17:00.0", "0000:3d:00.0"
SEVEN = "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}"
WHOLE = "{vgpus: {H200X-141C: 1}}"


def test_I1_right_instances_without_compute_instances_see_no_call(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A)
    made.with_instances(A, *(("1g.18gb", start) for start in range(7)))
    made.with_types(A, dict.fromkeys(range(7), "H200X-1-18C"))
    assert made.apply(config({A: SEVEN}))["exit_code"] == 0
    assert made.calls == []


def test_I2_instances_move_only_where_the_places_are_pinned(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A).with_instances(A, ("3g.71gb", 4))
    assert made.apply(config({A: "{mig: {3g.71gb: 1}}"}))["exit_code"] == 0
    assert made.calls == []
    assert made.apply(config({A: "{mig: {3g.71gb: [0]}}"}))["exit_code"] == 0
    assert made.layout(A) == [("3g.71gb", 0)]
    assert made.verbs() == ["destroy_gpu_instance", "create_gpu_instance"]


def test_I2_and_not_while_something_runs(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A).with_instances(A, ("3g.71gb", 4))
    made.with_compute(A)
    assert made.apply(config({A: "{mig: {3g.71gb: [0]}}"}))["exit_code"] == 3
    assert made.calls == []


def test_I3_only_the_gpu_that_drifted_is_touched(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    text = config({gpu.bdf: SEVEN for gpu in made.gpus()})
    assert made.apply(text)["exit_code"] == 0
    gpu = made.gpu(B)
    lost = gpu.instances.pop(3)
    for vf in gpu.vfs:
        if vf.gi_id == lost.gi_id:
            vf.type_id, vf.gi_id = 0, None
    assert made.apply(text)["exit_code"] == 0
    assert made.touched() == {B} | {vf.bdf for vf in gpu.vfs} & made.touched()
    assert made.verbs() == ["create_gpu_instance", "set_vgpu_type"]


def test_I4_a_place_that_the_driver_refuses_is_told_with_what_is_there(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"create_gpu_instance {A} error:insufficient-resources")
    result = made.apply(config({A: SEVEN, B: SEVEN}))
    assert result["exit_code"] == 2
    assert result["gpus"][0]["reason"] == "instance-create-failed"
    assert "There now: none." in result["gpus"][0]["message"]
    assert made.verbs(A).count("create_gpu_instance") == 1


def test_T1_a_type_that_is_there_is_not_written(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_vfs(A).with_types(A, {0: "H200X-141C"})
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    assert made.calls == []


def test_T2_another_type_is_cleared_and_then_written(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_vfs(A).with_types(A, {0: "H200X-70C"})
    assert made.apply(config({A: WHOLE}))["exit_code"] == 0
    writes = [call.arguments for call in made.calls if call.verb == "set_vgpu_type"]
    assert writes == ["0000:17:00.4 0", "0000:17:00.4 1428"]
    assert len(made.calls) == 2


def test_T3_another_type_that_a_vm_uses_is_refused_with_its_name(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_vfs(A).with_types(A, {0: "H200X-70C"}).with_vm(A, 0, "db-7")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (3, [])
    assert "VM db-7: qemu-system-x86 (pid 4127)" in result["gpus"][0]["message"]


def test_T5_names_hold_over_a_driver_upgrade_that_changed_the_ids(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: SEVEN}))["exit_code"] == 0
    made.reboot()
    made.sim.state.type_id_shift = 100
    assert made.apply(config({A: SEVEN}))["exit_code"] == 0
    assert made.types(A) == dict.fromkeys(range(7), "H200X-1-18C")
    assert {vf.type_id for vf in made.gpu(A).vfs} == {0, 1514}


def test_T6_a_type_without_an_instance_has_its_own_reason(node: NodeMaker) -> None:
    line = "NVRM: Failed to add vgpu create request: 0x38"
    made = node("hgx-h200-8").fault(f"set_vgpu_type {A} log:{line}")
    result = made.apply(config({A: SEVEN}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "type-no-gpu-instance")


def test_T7_a_gpu_that_is_not_initialised_yet_is_tried_again(node: NodeMaker) -> None:
    line = "NVRM: kvgpumgrCreateRequestVgpu: GPU is not initialized yet"
    made = node("hgx-h200-8").fault(f"set_vgpu_type {A} times=2 log:{line}")
    result = made.apply(config({A: WHOLE}))
    assert result["exit_code"] == 0
    step = next(s for s in result["gpus"][0]["steps"] if s["action"] == "set-vgpu-type")
    assert step["attempts"] == 3


def test_T8_a_write_that_did_not_stay_is_a_failure(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"set_vgpu_type {A} noop")
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (1, "type-not-applied")
    assert "reads 0" in result["gpus"][0]["message"]
    assert not made.ready


def test_T9_instances_are_derived_from_the_vgpus_that_share_them(node: NodeMaker) -> None:
    made = node("rtx-pro-6000-2")
    pf = "0000:4a:00.0"
    result = made.apply(config({pf: '{vgpus: {"RTX Pro 6000 Blackwell DC-1-2Q": 20}}'}))
    assert result["exit_code"] == 0
    assert made.layout(pf) == [("1g.24gb+gfx", 0), ("1g.24gb+gfx", 1)]
    assert made.types(pf) == dict.fromkeys(range(20), "DC-1-2Q")
    seats = [vf.gi_id for vf in made.gpu(pf).vfs if vf.type_id]
    assert [seats.count(gi.gi_id) for gi in made.gpu(pf).instances] == [12, 8]


def test_T10_mixed_sizes_need_the_mode_and_get_it_before_the_first_type(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    mixed = "{vgpus: {H200X-35C: 2, H200X-70C: 1}, mixed-size: true}"
    assert made.apply(config({A: mixed}))["exit_code"] == 0
    verbs = made.verbs()
    assert verbs.index("set_mixed_size") < verbs.index("set_vgpu_type")
    assert made.types(A) == {0: "H200X-35C", 1: "H200X-35C", 2: "H200X-70C"}
    with pytest.raises(ConfigInvalid) as caught:
        made.look(config({A: mixed.replace(", mixed-size: true", "")}))
    assert [problem.code.value for problem in caught.value.problems] == ["mixed-sizes"]


def test_R12_mixed_size_mode_that_the_vfs_took_is_set_again(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    mixed = config({A: "{vgpus: {H200X-35C: 2, H200X-70C: 1}, mixed-size: true}"})
    assert made.apply(mixed)["exit_code"] == 0
    made.sim.reload_driver()
    assert made.apply(mixed)["exit_code"] == 0
    verbs = made.verbs()
    assert verbs.index("sriov_manage") < verbs.index("set_mixed_size")
    assert made.gpu(A).mixed_size is True


@pytest.mark.parametrize("pid_name", ["dcgm", "mig-watch"])
def test_R6_N15_an_instance_that_a_daemon_holds_stays_with_its_siblings(
    node: NodeMaker, pid_name: str
) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A)
    made.with_instances(A, ("1g.18gb", 0), ("1g.18gb", 1), ("2g.35gb", 4))
    made.with_instance_holder(A, made.gpu(A).instances[0].gi_id, pid_name)
    before = made.layout(A)
    result = made.apply(config({A: "{mig: {3g.71gb: 2}}"}))
    assert (result["exit_code"], made.calls, made.layout(A)) == (3, [], before)
    assert pid_name in result["gpus"][0]["message"]


def test_R6_a_refusal_of_the_driver_itself_is_not_reported_as_gone(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A).with_instances(A, ("2g.35gb", 4))
    made.fault(f"destroy_gpu_instance {A} error:in-use")
    result = made.apply(config({A: "{mig: {3g.71gb: 2}}"}))
    assert (result["exit_code"], result["gpus"][0]["reason"]) == (3, "instance-destroy-failed")
    assert made.layout(A) == [("2g.35gb", 4)]


def test_R7_scattered_instances_make_room_when_they_are_idle(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_mig(A).with_vfs(A)
    made.with_instances(A, ("1g.18gb", 0), ("1g.18gb", 2), ("1g.18gb", 5))
    assert made.apply(config({A: "{mig: {3g.71gb: 1, 1g.18gb: 2}}"}))["exit_code"] == 0
    layout = made.layout(A)
    assert sorted(name for name, _ in layout) == ["1g.18gb", "1g.18gb", "3g.71gb"]
    assert made.verbs().count("destroy_gpu_instance") == 1


def test_R8_a_half_made_instance_is_used_by_the_next_run(node: NodeMaker) -> None:
    made = node("hgx-h200-8").fault(f"create_compute_instance {A} times=1 error:unknown")
    text = config({A: "{mig: {3g.71gb: 1}, compute-instances: true}"})
    assert made.apply(text)["exit_code"] == 1
    assert made.layout(A) == [("3g.71gb", 0)]
    assert made.apply(text)["exit_code"] == 0
    assert made.verbs() == ["create_compute_instance"]
    assert made.gpu(A).instances[0].compute_instances == 1


def test_R13_vfs_on_vfio_pci_have_a_reason_and_not_no_types(node: NodeMaker) -> None:
    made = node("hgx-h200-8").with_vfs(A)
    for vf in made.gpu(A).vfs:
        vf.driver = "vfio-pci"
    result = made.apply(config({A: WHOLE}))
    assert (result["exit_code"], made.calls) == (3, [])
    assert result["gpus"][0]["reason"] == "vfs-on-vfio-pci"
    assert f"sriov-manage -d {A}" in result["gpus"][0]["remedy"]


def test_R14_a_media_type_is_never_downgraded_quietly(node: NodeMaker) -> None:
    made = node("hgx-b200-8")
    with pytest.raises(ConfigInvalid) as caught:
        made.look(config({A: "{vgpus: {B200X-2-45CME: 1}}"}))
    (problem,) = caught.value.problems
    assert problem.nearest is not None
    assert problem.nearest.endswith("B200X-2-45C")
    assert made.calls == []


def test_R15_mig_from_a_former_owner_is_switched_off_in_the_right_order(node: NodeMaker) -> None:
    made = node("hgx-a100-8").with_mig(A).with_vfs(A).with_instances(A, ("3g.40gb", 0))
    made.with_types(A, {0: "A100DX-3-40C"})
    assert made.apply(config({A: "{vgpus: {A100DX-80C: 1}}"}))["exit_code"] == 0
    wanted = ("set_vgpu_type", "destroy_gpu_instance", "sriov_manage", "set_mig_mode")
    assert [verb for verb in made.verbs() if verb in wanted] == [
        "set_vgpu_type",
        "destroy_gpu_instance",
        "sriov_manage",
        "set_mig_mode",
        "sriov_manage",
        "set_vgpu_type",
    ]
    assert made.types(A) == {0: "A100DX-80C"}


def test_N24_fewer_of_a_type_than_before_is_said_in_words(node: NodeMaker) -> None:
    made = node("hgx-h200-8")
    assert made.apply(config({A: SEVEN}))["exit_code"] == 0
    plan = made.look(config({A: SEVEN.replace("C: 7", "C: 5")})).plan
    (note,) = plan.gpus[0].notes
    assert note.message == f"{A}: NVIDIA H200X-1-18C goes from 7 to 5."


def test_mdev_hosts_reach_the_same_state_with_stable_uuids(node: NodeMaker) -> None:
    made = node("hgx-a100-8")
    made.sim.state.framework = "mdev"
    text = config({A: "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 3}}"})
    assert made.apply(text)["exit_code"] == 0
    uuids = [vf.mdev_uuid for vf in made.gpu(A).vfs[:3]]
    assert len(set(uuids)) == 3
    assert None not in uuids
    assert made.apply(text)["exit_code"] == 0
    assert made.calls == []
    made.reboot()
    assert made.apply(text)["exit_code"] == 0
    assert [vf.mdev_uuid for vf in made.gpu(A).vfs[:3]] == uuids
