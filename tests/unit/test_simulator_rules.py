"""More rules of the simulated node: who is in the way, what a tool leaves, what a boot changes."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError
from gpu_bootstate.model import Bdf, Framework, HolderKind, Placement, RecoveryAction
from gpu_bootstate.simulator.hardware import SimHardware
from gpu_bootstate.simulator.node import DCGM, PERSISTENCED, VGPU_MGR, VGPUD, SimNode, new_node
from gpu_bootstate.simulator.state import GpuState, HolderState, UnitChange

A, B = Bdf.parse("0000:17:00.0"), Bdf.parse("0000:3d:00.0")
RTX = Bdf.parse("0000:4a:00.0")
HALF_TYPE, WHOLE_TYPE = 90007, 1428  # H200X-35C, H200X-141C
SEVENTH = 19


def _free(board: str = "hgx-h200-8") -> tuple[SimNode, SimHardware, GpuState]:
    """A node on which nothing holds a GPU and VFs are ready at once; its first GPU."""
    node = new_node(board)
    node.state.vf_ready_s = 0.0
    for gpu in node.state.gpus:
        gpu.persistence = False
    return node, SimHardware(node), node.state.gpus[0]


def _vfs(hw: SimHardware, pf: Bdf = A) -> list[Bdf]:
    assert hw.sriov_manage(pf, enable=True, timeout_s=60.0).exit_code == 0
    return [vf.bdf for vf in hw.vfs(pf)]


def _holder(kind: HolderKind, **more: object) -> HolderState:
    values = {"pid": 4127, "name": "someone", "command": "/usr/bin/someone", "device": "/dev/x"}
    return HolderState(kind=kind.value, **(values | more))  # type: ignore[arg-type]  # mixed values


def _error(call: Callable[[], object]) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        call()
    return caught.value


# --------------------------------------------------------------------------- who is in the way


@pytest.mark.parametrize("kind", list(HolderKind))
def test_any_holder_keeps_the_tool_the_reset_and_the_mode_away(kind: HolderKind) -> None:
    _, hw, gpu = _free()
    gpu.holders.append(_holder(kind))
    done = hw.sriov_manage(A, enable=True, timeout_s=60.0)
    assert (done.exit_code, done.stderr) == (1, f"Cannot obtain unbindLock for {A}\n")
    done = hw.reset_gpu(A, timeout_s=60.0)
    assert done.exit_code == 255
    assert "The following GPUs could not be reset" in done.stdout
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.IN_USE
    assert hw.pf(A).sriov_numvfs == 0


def test_the_vgpu_stack_and_fabric_manager_are_in_nobodys_way() -> None:
    _, hw, gpu = _free()
    for name in ("nvidia-vgpu-mgr", "nvidia-vgpud", "nv-fabricmanager"):
        gpu.holders.append(_holder(HolderKind.CLIENT, name=name))
    assert len(hw.holders(A)) == 3
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.SUCCESS
    _vfs(hw)


def test_a_client_that_comes_and_goes_blocks_and_is_not_seen() -> None:
    node, hw, gpu = _free()
    until = node.state.clock_s + 10.0
    gpu.holders.append(_holder(HolderKind.CLIENT, until=until, hidden=True))
    assert hw.holders(A) == ()
    assert hw.sriov_manage(A, enable=True, timeout_s=60.0).exit_code == 1
    hw.sleep(10.0)
    _vfs(hw)


def test_a_running_vm_keeps_its_vfs_and_its_type() -> None:
    _, hw, gpu = _free()
    vf = _vfs(hw)[0]
    hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)
    gpu.holders.append(_holder(HolderKind.VM, vf=str(vf), vm="db-1"))
    assert hw.sriov_manage(A, enable=False, timeout_s=60.0).exit_code == 1
    assert _error(lambda: hw.set_vgpu_type(vf, 0, mdev_uuid=None)).errno == errno.EPERM
    assert hw.vfs(A)[0].vgpu_type_id == WHOLE_TYPE
    assert [(v.vm_id, v.vgpu_type_id) for v in hw.facts(A).active_vgpus] == [("db-1", WHOLE_TYPE)]


def test_a_process_on_an_instance_keeps_that_instance_alone() -> None:
    _, hw, gpu = _free()
    hw.set_mig_mode(A, enabled=True)
    held, free = (hw.create_gpu_instance(A, SEVENTH, Placement(at, 1)) for at in (0, 1))
    gpu.holders.append(_holder(HolderKind.INSTANCE, gi_id=held))
    assert _error(lambda: hw.destroy_gpu_instance(A, held)).kind is ErrorKind.IN_USE
    hw.destroy_gpu_instance(A, free)
    assert [gi.gi_id for gi in hw.gpu_instances(A)] == [held]


def test_persistenced_is_a_client_of_each_gpu_until_the_mode_is_lowered_on_that_gpu() -> None:
    hw = SimHardware(new_node("hgx-h200-8"))
    (daemon,) = hw.holders(A)
    assert (daemon.name, daemon.unit) == ("nvidia-persistenced"[:15], PERSISTENCED)
    assert daemon.kind is HolderKind.CLIENT
    hw.set_persistence(A, enabled=False)
    assert hw.holders(A) == ()
    assert len(hw.holders(B)) == 1


def test_stopping_persistenced_frees_all_gpus_and_starting_it_takes_them_again() -> None:
    hw = SimHardware(new_node("hgx-h200-8"))
    hw.stop_unit(PERSISTENCED)
    assert hw.facts(A).persistence is True  # the job is queued, not done
    hw.sleep(1.0)
    assert [hw.facts(pf).persistence for pf in (A, B)] == [False, False]
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 0
    hw.start_unit(PERSISTENCED)
    hw.sleep(1.0)
    assert [hw.facts(pf).persistence for pf in (A, B)] == [True, True]
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 255


def test_persistence_mode_holds_the_gpu_without_the_daemon_too() -> None:
    node, hw, gpu = _free()
    node.state.units[PERSISTENCED].active_state = "inactive"
    gpu.persistence = True
    assert hw.holders(A) == ()
    assert hw.sriov_manage(A, enable=True, timeout_s=60.0).exit_code == 1


def test_a_stopped_service_is_no_holder_any_more() -> None:
    node, hw, gpu = _free()
    node.state.units[DCGM].active_state = "active"
    gpu.holders.append(_holder(HolderKind.CLIENT, name="nv-hostengine", unit=DCGM))
    assert [holder.unit for holder in hw.holders(A)] == [DCGM]
    hw.stop_unit(DCGM)
    assert len(hw.holders(A)) == 1
    hw.sleep(1.0)
    assert hw.holders(A) == ()


# --------------------------------------------------------------------------- units


def test_a_start_of_a_running_unit_changes_nothing() -> None:
    _, hw, _ = _free()
    hw.start_unit(VGPU_MGR)
    assert hw.unit_state(VGPU_MGR).active_state == "active"


def test_a_unit_changes_when_its_time_has_come() -> None:
    node, hw, _ = _free()
    now = node.state.clock_s
    node.state.units[VGPU_MGR].changes = [
        UnitChange(now + 5.0, "failed", "exit-code"),
        UnitChange(now + 20.0, "active"),
    ]
    assert hw.unit_state(VGPU_MGR).is_active
    hw.sleep(6.0)
    dead = hw.unit_state(VGPU_MGR)
    assert (dead.active_state, dead.result, dead.exit_status) == ("failed", "exit-code", 1)
    hw.sleep(15.0)
    assert hw.unit_state(VGPU_MGR).is_active


# --------------------------------------------------------------------------- NVML's sight


def test_nvml_counts_only_what_it_sees() -> None:
    node, hw, gpu = _free()
    assert hw.facts(B).nvml_index == 1
    gpu.driver = "vfio-pci"
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.NOT_FOUND
    assert hw.facts(B).nvml_index == 0
    assert [pci.driver for pci in hw.pfs()[:2]] == ["vfio-pci", "nvidia"]
    node.state.gpus[1].off_bus = True
    assert hw.facts(Bdf.parse("0000:60:00.0")).nvml_index == 0


def test_a_locked_gpu_cannot_be_opened_by_anyone() -> None:
    _, hw, gpu = _free()
    gpu.unbind_lock = True
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.NOT_FOUND
    assert _error(lambda: hw.set_mig_mode(A, enabled=True)).kind is ErrorKind.NOT_FOUND
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 6
    assert hw.sriov_manage(A, enable=True, timeout_s=60.0).exit_code == 1
    hw.release_unbind_lock(A)
    assert hw.facts(A).nvml_index == 0
    _vfs(hw)


def test_only_under_the_loaded_driver_is_there_a_lock_to_read() -> None:
    node, hw, gpu = _free()
    assert hw.pf(A).unbind_lock is False
    gpu.driver = "pci-pf-stub"
    assert hw.pf(A).unbind_lock is None
    node.state.module_version = None
    assert hw.pf(B).unbind_lock is None


def test_a_lost_gpu_answers_nothing_and_neither_tool_helps() -> None:
    _, hw, gpu = _free()
    gpu.lost = True
    for call in (
        lambda: hw.facts(A),
        lambda: hw.gpu_instances(A),
        lambda: hw.set_mig_mode(A, enabled=True),
    ):
        assert _error(call).kind is ErrorKind.GPU_LOST
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 15
    assert hw.sriov_manage(A, enable=True, timeout_s=60.0).exit_code == 1
    assert hw.pf(A).sriov_numvfs == 0


def test_the_tools_fail_on_a_gpu_that_left_the_bus() -> None:
    _, hw, gpu = _free()
    gpu.off_bus = True
    assert hw.sriov_manage(A, enable=True, timeout_s=60.0).exit_code == 1
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 6
    assert A not in {pci.bdf for pci in hw.pfs()}
    assert _error(lambda: hw.pf(A)).kind is ErrorKind.NOT_FOUND


def test_nvml_is_not_ready_before_its_time_and_the_kernel_announces_it() -> None:
    node, hw, _ = _free()
    node.state.nvml_ready_at = node.state.clock_s + 12.0
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.NOT_READY
    assert hw.driver_info().problem is not None
    hw.wait_for_event(60.0)
    assert 12.0 <= hw.now() - node.state.clock_s < 13.0
    assert hw.facts(A).nvml_index == 0


def test_a_library_of_another_version_reads_nothing() -> None:
    node, hw, _ = _free()
    node.state.library_version = "595.45.04"
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.VERSION_MISMATCH


# --------------------------------------------------------------------------- MIG mode, reset


def test_an_idle_ampere_commits_its_mode_without_a_reset_call() -> None:
    _, hw, gpu = _free("hgx-a100-8")
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.SUCCESS
    assert (gpu.mig_current, gpu.mig_pending) == (True, True)


def test_a_part_without_mig_refuses_the_mode() -> None:
    _, hw, _ = _free("l40s-4")
    pf = Bdf.parse("0000:01:00.0")
    assert hw.facts(pf).mig is None
    error = _error(lambda: hw.set_mig_mode(pf, enabled=True))
    assert error.kind is ErrorKind.NOT_SUPPORTED


def test_mig_mode_is_not_switched_off_over_vfs() -> None:
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    assert _error(lambda: hw.set_mig_mode(A, enabled=False)).kind is ErrorKind.IN_USE
    hw.sriov_manage(A, enable=False, timeout_s=60.0)
    assert hw.set_mig_mode(A, enabled=False) is ActivationStatus.SUCCESS


def test_a_reset_wipes_instances_and_what_the_driver_asked_it_for() -> None:
    _, hw, gpu = _free()
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, SEVENTH, Placement(0, 1))
    gpu.recovery_action = RecoveryAction.RESET.value
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 0
    assert hw.gpu_instances(A) == ()
    assert hw.facts(A).recovery_action is RecoveryAction.NONE


def test_a_reset_is_not_the_reboot_that_the_driver_asks_for() -> None:
    node, hw, gpu = _free()
    gpu.recovery_action = RecoveryAction.REBOOT.value
    hw.reset_gpu(A, timeout_s=60.0)
    assert hw.facts(A).recovery_action is RecoveryAction.REBOOT
    node.reboot()
    assert SimHardware(node).facts(A).recovery_action is RecoveryAction.NONE


# --------------------------------------------------------------------------- VFs, the PF's driver


def test_the_tool_does_nothing_where_there_is_nothing_to_do() -> None:
    _, hw, gpu = _free()
    assert hw.sriov_manage(A, enable=False, timeout_s=60.0).exit_code == 0
    vf = _vfs(hw)[0]
    hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)
    del gpu.vfs[16:]  # and be it that some are missing
    done = hw.sriov_manage(A, enable=True, timeout_s=60.0)
    assert (done.exit_code, done.stdout) == (0, "")
    assert (hw.pf(A).sriov_numvfs, hw.vfs(A)[0].vgpu_type_id) == (16, WHOLE_TYPE)


def test_a_second_tool_on_another_model_is_no_trouble() -> None:
    node, hw, _ = _free("t4-and-a100")
    node.state.gpus[1].driver = None  # the T4
    _vfs(hw, Bdf.parse("0000:3b:00.0"))
    assert hw.pf(Bdf.parse("0000:65:00.0")).driver is None


def test_without_the_manager_enabling_still_costs_the_instances() -> None:
    node, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, SEVENTH, Placement(0, 1))
    node.state.units[VGPU_MGR].active_state = "failed"
    hw.sriov_manage(A, enable=True, timeout_s=60.0)
    assert (hw.gpu_instances(A), hw.pf(A).sriov_numvfs) == ((), 0)


def test_persistence_mode_does_not_come_back_after_the_tool_by_itself() -> None:
    node = new_node("hgx-h200-8")
    hw = SimHardware(node)
    hw.set_persistence(A, enabled=False)
    _vfs(hw)
    assert (hw.facts(A).persistence, hw.holders(A)) == (False, ())
    assert hw.facts(B).persistence is True


def test_a_tool_that_takes_longer_than_it_may_is_ended_midway() -> None:
    _, hw, _ = _free()
    before = hw.now()
    done = hw.sriov_manage(A, enable=True, timeout_s=1.5)
    assert done.timed_out
    assert hw.now() - before == pytest.approx(1.5)
    assert (hw.pf(A).sriov_numvfs, hw.pf(A).unbind_lock) == (0, True)
    assert hw.reset_gpu(B, timeout_s=0.5).timed_out


def test_binding_needs_the_pf_free_of_other_drivers() -> None:
    _, hw, gpu = _free()
    for driver in ("vfio-pci", "nvidia"):
        gpu.driver = driver
        assert _error(lambda: hw.bind_driver(A)).kind is ErrorKind.IN_USE
        assert gpu.driver == driver
    for free in ("pci-pf-stub", None):
        gpu.driver = free
        hw.bind_driver(A)
        assert hw.pf(A).driver == "nvidia"


def test_an_override_for_another_driver_keeps_nvidia_off() -> None:
    _, hw, gpu = _free()
    gpu.driver, gpu.driver_override = None, "vfio-pci"
    assert _error(lambda: hw.bind_driver(A)).errno == errno.ENODEV
    assert hw.pf(A).driver is None


def test_a_stranded_pf_keeps_its_vfs_and_loses_their_types() -> None:
    node, hw, gpu = _free()
    vf = _vfs(hw)[0]
    hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)
    node.strand(gpu, "pci-pf-stub")
    assert hw.pf(A).sriov_numvfs == 32
    assert {vf.framework for vf in hw.vfs(A)} == {None}
    hw.bind_driver(A)
    assert hw.vfs(A)[0].vgpu_type_id == 0


# --------------------------------------------------------------------------- instances


def test_an_instance_is_numbered_by_its_place_and_not_by_its_turn() -> None:
    ids = {}
    for order in ((0, 1, 2), (2, 1, 0)):
        _, hw, _ = _free()
        hw.set_mig_mode(A, enabled=True)
        for at in order:
            hw.create_gpu_instance(A, SEVENTH, Placement(at, 1))
        ids[order] = [(gi.gi_id, gi.placement.start) for gi in hw.gpu_instances(A)]
    assert ids[0, 1, 2] == ids[2, 1, 0]
    assert [gi_id for gi_id, _ in ids[0, 1, 2]] != [0, 1, 2]


def test_compute_slices_run_out_before_memory_slices() -> None:
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    for at in (0, 2, 4):
        hw.create_gpu_instance(A, 14, Placement(at, 2))  # 2g.35gb: six of seven slices
    hw.create_gpu_instance(A, 15, Placement(6, 2))  # 1g.35gb: the seventh
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, 5, Placement(0, 4))  # 4g.71gb
    hw.create_gpu_instance(A, 9, Placement(4, 4))  # 3g.71gb
    assert sum(gi.placement.size for gi in hw.gpu_instances(A)) == 8
    _, hw, gpu = _free()
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, 5, Placement(0, 4))
    for at in (4, 5, 6):
        hw.create_gpu_instance(A, SEVENTH, Placement(at, 1))
    assert len(gpu.instances) == 4


def test_one_compute_instance_fills_its_gpu_instance() -> None:
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    gi_id = hw.create_gpu_instance(A, 9, Placement(0, 4))
    hw.create_compute_instance(A, gi_id)
    error = _error(lambda: hw.create_compute_instance(A, gi_id))
    assert error.kind is ErrorKind.INSUFFICIENT_RESOURCES
    assert _error(lambda: hw.create_compute_instance(A, 99)).kind is ErrorKind.NOT_FOUND


# --------------------------------------------------------------------------- types


def _refusal(hw: SimHardware, vf: Bdf, type_id: int, uuid: str | None = None) -> str:
    """The RM status that the kernel log gives for a refused type."""
    assert _error(lambda: hw.set_vgpu_type(vf, type_id, mdev_uuid=uuid)).errno == errno.EIO
    return hw.kernel_log()[-1].text.rpartition(" ")[2]


def test_each_refusal_of_a_type_has_its_status_in_the_kernel_log() -> None:
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    vfs = _vfs(hw)
    assert _refusal(hw, vfs[0], 4242) == "0x57"  # no such type
    assert _refusal(hw, vfs[0], 1414) == "0x38"  # MIG on, no instance
    hw.create_gpu_instance(A, 20, Placement(0, 1))
    assert _refusal(hw, vfs[0], 1414) == "0x40"  # 1g.18gb+me is not the type's 1g.18gb
    assert _refusal(hw, vfs[0], WHOLE_TYPE) == "0x38"  # time-sliced, MIG on
    hw.set_vgpu_type(vfs[0], 1413, mdev_uuid=None)
    assert _refusal(hw, vfs[1], 1413) == "0x1a"  # one a card
    assert _refusal(hw, _vfs(hw, B)[0], 1414) == "0x38"  # MIG off


def test_a_time_sliced_type_goes_on_no_more_vfs_than_its_maximum() -> None:
    _, hw, _ = _free()
    vfs = _vfs(hw)
    for vf in vfs[:4]:
        hw.set_vgpu_type(vf, HALF_TYPE, mdev_uuid=None)
    assert _refusal(hw, vfs[4], HALF_TYPE) == "0x1a"
    assert hw.creatable_vgpu_types(vfs[4]) == ()


def test_no_type_is_made_while_the_manager_is_down() -> None:
    node, hw, _ = _free()
    vf = _vfs(hw)[0]
    node.state.units[VGPU_MGR].active_state = "failed"
    assert _refusal(hw, vf, WHOLE_TYPE) == "0x66"
    assert "GPU is not initialized yet" in hw.kernel_log()[-2].text
    assert hw.vfs(A)[0].vgpu_type_id == 0


def test_a_vf_on_another_driver_takes_and_offers_no_type() -> None:
    _, hw, gpu = _free()
    vf = _vfs(hw)[0]
    gpu.vfs[0].driver = "vfio-pci"
    assert (hw.vfs(A)[0].framework, hw.vfs(A)[0].vgpu_type_id) == (None, None)
    error = _error(lambda: hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None))
    assert error.errno == errno.ENOENT
    assert hw.creatable_vgpu_types(vf) == ()


def test_several_small_vgpus_share_an_instance_of_a_part_that_time_slices() -> None:
    _, hw, _ = _free("rtx-pro-6000-2")
    hw.set_mig_mode(RTX, enabled=True)
    vfs = _vfs(hw, RTX)
    ids = {t.name.split()[-1]: t.vgpu_type_id for t in hw.vgpu_types(RTX)}
    first, second = (hw.create_gpu_instance(RTX, 47, Placement(at, 1)) for at in (0, 1))
    for vf in vfs[:13]:
        hw.set_vgpu_type(vf, ids["DC-1-2Q"], mdev_uuid=None)
    assert [vf.gi_id for vf in hw.vfs(RTX)[:13]] == [first] * 12 + [second]
    assert _refusal(hw, vfs[13], ids["DC-1-4Q"]) == "0x40"  # one framebuffer size an instance


def test_mixed_sizes_within_an_instance_need_its_own_mode() -> None:
    _, hw, _ = _free("rtx-pro-6000-2")
    hw.set_mig_mode(RTX, enabled=True)
    ids = {t.name.split()[-1]: t.vgpu_type_id for t in hw.vgpu_types(RTX)}
    gi_id = hw.create_gpu_instance(RTX, 47, Placement(0, 1))

    def mode() -> None:
        hw.set_mixed_size(RTX, enabled=True, gi_id=gi_id)

    assert _error(mode).kind is ErrorKind.NOT_SUPPORTED  # no VFs yet
    vfs = _vfs(hw, RTX)  # which takes the instance
    gi_id = hw.create_gpu_instance(RTX, 47, Placement(0, 1))
    mode()
    assert hw.gpu_instances(RTX)[0].mixed_size is True
    hw.set_vgpu_type(vfs[0], ids["DC-1-2Q"], mdev_uuid=None)
    hw.set_vgpu_type(vfs[1], ids["DC-1-4Q"], mdev_uuid=None)
    assert _error(mode).kind is ErrorKind.IN_USE


def test_an_instance_that_holds_one_vgpu_has_no_mixed_size_mode() -> None:
    _, hw, _ = _free()
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    gi_id = hw.create_gpu_instance(A, SEVENTH, Placement(0, 1))
    assert hw.gpu_instances(A)[0].mixed_size is None
    error = _error(lambda: hw.set_mixed_size(A, enabled=True, gi_id=gi_id))
    assert error.kind is ErrorKind.NOT_SUPPORTED


def test_an_mdev_needs_a_uuid_of_its_own() -> None:
    node, hw, _ = _free()
    node.state.framework = Framework.MDEV.value
    first, second = _vfs(hw)[:2]

    def create(vf: Bdf, uuid: str | None) -> None:
        hw.set_vgpu_type(vf, HALF_TYPE, mdev_uuid=uuid)

    assert _error(lambda: create(first, None)).errno == errno.EINVAL
    create(first, "a")
    assert _error(lambda: create(second, "a")).errno == errno.EEXIST
    create(second, "b")
    assert [(vf.framework, vf.mdev_uuid) for vf in hw.vfs(A)[:2]] == [
        (Framework.MDEV, "a"),
        (Framework.MDEV, "b"),
    ]
    hw.set_vgpu_type(first, 0, mdev_uuid=None)
    assert (hw.vfs(A)[0].vgpu_type_id, hw.vfs(A)[0].mdev_uuid) == (0, None)
    assert _refusal(hw, first, WHOLE_TYPE, "c") == "0x56"  # the same limits as elsewhere


def test_a_driver_upgrade_gives_the_same_names_other_ids() -> None:
    node, hw, _ = _free()
    before = {t.name: t.vgpu_type_id for t in hw.vgpu_types(A)}
    node.state.type_id_shift = 100
    after = {t.name: t.vgpu_type_id for t in hw.vgpu_types(A)}
    assert after == {name: type_id + 100 for name, type_id in before.items()}
    assert _refusal(hw, _vfs(hw)[0], before["NVIDIA H200X-141C"]) == "0x57"


# --------------------------------------------------------------------------- what survives


def test_after_a_reboot_units_are_as_they_are_enabled() -> None:
    node, _, _ = _free()
    node.state.units[VGPU_MGR].active_state = "failed"
    node.state.units[DCGM].active_state = "active"
    node.state.units[PERSISTENCED].enabled = False
    node.reboot()
    hw = SimHardware(node)
    states = {name: hw.unit_state(name) for name in (VGPU_MGR, DCGM, VGPUD, PERSISTENCED)}
    assert {name: (s.active_state, s.ran) for name, s in states.items()} == {
        VGPU_MGR: ("active", True),
        DCGM: ("inactive", False),
        VGPUD: ("inactive", True),  # it ends at once
        PERSISTENCED: ("inactive", False),
    }
    assert hw.facts(A).persistence is False


def test_after_a_reboot_persistenced_has_the_gpus_again() -> None:
    node, _, _ = _free()
    node.reboot()
    assert SimHardware(node).facts(A).persistence is True


def test_a_reboot_brings_stranded_cards_back_and_ends_all_processes() -> None:
    node, _, gpu = _free()
    gpu.driver, gpu.unbind_lock = "pci-pf-stub", True
    gpu.holders.append(_holder(HolderKind.COMPUTE))
    node.state.gpus[1].driver, node.state.gpus[1].driver_override = "vfio-pci", "vfio-pci"
    node.log(1.0, "NVRM: of the boot before")
    node.reboot()
    gpu.persistence = False
    hw = SimHardware(node)
    assert (hw.pf(A).driver, hw.pf(A).unbind_lock, hw.holders(A)) == ("nvidia", False, ())
    assert hw.pf(B).driver == "vfio-pci"
    assert hw.kernel_log() == ()


def test_a_pending_mode_of_an_ampere_is_current_after_the_reboot() -> None:
    node, _, gpu = _free("hgx-a100-8")
    gpu.mig_pending = True
    node.reboot()
    assert (gpu.mig_current, gpu.mig_pending) == (True, True)


def test_a_loading_driver_takes_driverless_cards_and_leaves_those_on_the_stub() -> None:
    node, hw, gpu = _free()
    _vfs(hw)
    node.strand(gpu, "pci-pf-stub")
    other = node.state.gpus[1]
    other.driver = None
    other.holders.append(_holder(HolderKind.CLIENT))
    node.reload_driver()
    assert (hw.pf(A).driver, hw.pf(A).sriov_numvfs) == ("pci-pf-stub", 32)
    assert (hw.pf(B).driver, hw.holders(B)) == ("nvidia", ())
