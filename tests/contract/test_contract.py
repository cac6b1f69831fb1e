"""What every Hardware must do, asked of the simulated node and of the real adapters alike."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_bootstate.catalog.reader import board
from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError
from gpu_bootstate.model import Bdf, Framework, HostVgpuMode, Placement
from gpu_bootstate.simulator.faults import parse_fault
from gpu_bootstate.simulator.hardware import SimHardware
from gpu_bootstate.simulator.node import new_node
from tests.support.host import Host

A, B = Bdf.parse("0000:17:00.0"), Bdf.parse("0000:3d:00.0")
H200 = board("h200")
SEVENTH, HALF = 19, 9  # GI profile ids of 1g.18gb and 3g.71gb
MIG_TYPE, WHOLE_TYPE = 1414, 1428


@dataclass
class Subject:
    """One implementation, and how to arrange what its protocol has no verb for."""

    hw: Any
    strand: Callable[[Bdf], None]
    lock: Callable[[Bdf], None]
    hang_facts: Callable[[], None]


@pytest.fixture(params=["simulated", "real"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "simulated":
        yield _simulated()
        return
    host = Host(tmp_path, {str(A): "h200", str(B): "h200"})
    hw = host.hardware(read_s=5.0)

    def strand(pf: Bdf) -> None:
        link = tmp_path / "sys/bus/pci/devices" / str(pf) / "driver"
        link.unlink()
        link.symlink_to("../../drivers/pci-pf-stub")
        host.nvml(str(pf), "visible", 0)

    yield Subject(
        hw,
        strand,
        lambda pf: host.write(f"proc/driver/nvidia/gpus/{pf}/unbindLock", "1\n"),
        lambda: host.hang("nvmlDeviceGetMigMode"),
    )
    assert hw.end() == 0


def _simulated() -> Subject:
    node = new_node("hgx-h200-8")
    node.state.vf_ready_s = 0.0
    node.state.gpus = [gpu for gpu in node.state.gpus if gpu.bdf in (str(A), str(B))]
    for gpu in node.state.gpus:
        gpu.persistence = False

    def of(pf: Bdf) -> Any:
        return next(gpu for gpu in node.state.gpus if gpu.bdf == str(pf))

    return Subject(
        SimHardware(node),
        lambda pf: setattr(of(pf), "driver", "pci-pf-stub"),
        lambda pf: setattr(of(pf), "unbind_lock", True),
        lambda: node.state.faults.append(parse_fault(f"facts {A} hang")),
    )


def _refused(kind: ErrorKind, call: Callable[[], object]) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        call()
    assert caught.value.kind is kind, caught.value
    return caught.value


def _with_mig(hw: Any) -> None:
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.SUCCESS


def _with_vfs(hw: Any, pf: Bdf = A) -> None:
    assert hw.sriov_manage(pf, enable=True, timeout_s=30.0).exit_code == 0


def test_pfs_are_listed_by_address_with_driver_and_vf_counts(subject: Subject) -> None:
    found = subject.hw.pfs()
    assert [pci.bdf for pci in found] == [A, B]
    for pci in found:
        assert (pci.device_id, pci.subsystem_id) == (0x2335, 0x18BE)
        assert (pci.driver, pci.driver_override) == ("nvidia", None)
        assert (pci.sriov_totalvfs, pci.sriov_numvfs, pci.unbind_lock) == (32, 0, False)


def test_a_pf_that_is_not_there_is_not_found(subject: Subject) -> None:
    _refused(ErrorKind.NOT_FOUND, lambda: subject.hw.pf(Bdf.parse("0000:5e:00.0")))


def test_facts_of_a_just_booted_gpu(subject: Subject) -> None:
    facts = subject.hw.facts(B)
    assert (facts.nvml_index, facts.name) == (1, "NVIDIA H200")
    assert facts.mig is not None
    assert (facts.mig.current, facts.mig.pending) == (False, False)
    assert facts.resetless_mig is True
    assert facts.recovery_action is not None
    assert facts.recovery_action.value == 0
    assert (facts.host_vgpu_host, facts.host_vgpu_mode) == (True, HostVgpuMode.SRIOV)
    assert (facts.persistence, facts.mixed_size, facts.active_vgpus) == (False, False, ())


def test_profiles_and_types_are_those_of_the_board_with_mig_off(subject: Subject) -> None:
    by_id = sorted(subject.hw.gi_profiles(A), key=lambda p: p.gi_profile_id)
    assert by_id == sorted(H200.gi_profiles, key=lambda p: p.gi_profile_id)
    assert subject.hw.vgpu_types(A) == H200.vgpu_types
    assert subject.hw.gpu_instances(A) == ()


def test_mig_mode_takes_effect_at_once_on_a_free_hopper(subject: Subject) -> None:
    _with_mig(subject.hw)
    mode = subject.hw.facts(A).mig
    assert (mode.current, mode.pending) == (True, True)
    assert subject.hw.facts(B).mig.current is False


def test_instances_need_mig_mode(subject: Subject) -> None:
    def create() -> int:
        return int(subject.hw.create_gpu_instance(A, SEVENTH, Placement(0, 1)))

    _refused(ErrorKind.NOT_SUPPORTED, create)


def test_instances_are_created_where_they_were_asked_for_and_nowhere_twice(
    subject: Subject,
) -> None:
    hw = subject.hw
    _with_mig(hw)
    gi_id = hw.create_gpu_instance(A, HALF, Placement(4, 4))
    (found,) = hw.gpu_instances(A)
    assert (found.gi_id, found.gi_profile_id, found.placement) == (gi_id, HALF, Placement(4, 4))
    assert (found.compute_instances, found.mixed_size) in ((0, None), (0, False))
    taken = lambda: hw.create_gpu_instance(A, SEVENTH, Placement(5, 1))  # noqa: E731
    _refused(ErrorKind.INSUFFICIENT_RESOURCES, taken)
    impossible = lambda: hw.create_gpu_instance(A, HALF, Placement(2, 4))  # noqa: E731
    _refused(ErrorKind.INVALID_ARGUMENT, impossible)
    hw.destroy_gpu_instance(A, gi_id)
    assert hw.gpu_instances(A) == ()
    _refused(ErrorKind.NOT_FOUND, lambda: hw.destroy_gpu_instance(A, gi_id))


def test_an_idle_compute_instance_goes_with_its_gpu_instance(subject: Subject) -> None:
    hw = subject.hw
    _with_mig(hw)
    gi_id = hw.create_gpu_instance(A, HALF, Placement(0, 4))
    hw.create_compute_instance(A, gi_id)
    assert [gi.compute_instances for gi in hw.gpu_instances(A)] == [1]
    hw.destroy_gpu_instance(A, gi_id)
    assert hw.gpu_instances(A) == ()


def test_enabling_vfs_gives_all_of_them_in_numeric_order(subject: Subject) -> None:
    hw = subject.hw
    _with_vfs(hw)
    assert hw.pf(A).sriov_numvfs == 32
    assert hw.pf(B).sriov_numvfs == 0
    vfs = hw.vfs(A)
    assert [vf.index for vf in vfs] == list(range(32))
    assert str(vfs[0].bdf) == "0000:17:00.4"
    assert str(vfs[12].bdf) == "0000:17:02.0"
    assert {(vf.framework, vf.vgpu_type_id, vf.driver) for vf in vfs} == {
        (Framework.VENDOR_VFIO, 0, "nvidia")
    }


def test_our_own_nvml_session_is_not_in_the_way_of_the_tools(subject: Subject) -> None:
    hw = subject.hw
    for pf in (A, B):
        hw.facts(pf)  # opens sessions, and each of them has every GPU open
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.SUCCESS
    hw.facts(B)
    done = hw.sriov_manage(A, enable=True, timeout_s=30.0)
    assert (done.exit_code, done.timed_out) == (0, False), done
    hw.facts(B)
    assert hw.reset_gpu(B, timeout_s=30.0).exit_code == 0


def test_toggling_vfs_wipes_gpu_instances_and_types_and_keeps_the_mig_mode(
    subject: Subject,
) -> None:
    hw = subject.hw
    _with_mig(hw)
    _with_vfs(hw)
    hw.create_gpu_instance(A, SEVENTH, Placement(0, 1))
    hw.set_vgpu_type(hw.vfs(A)[0].bdf, MIG_TYPE, mdev_uuid=None)
    assert hw.sriov_manage(A, enable=False, timeout_s=30.0).exit_code == 0
    assert hw.vfs(A) == ()
    assert hw.gpu_instances(A) == ()
    assert hw.facts(A).mig.current is True


def test_persistence_mode_keeps_the_tools_away(subject: Subject) -> None:
    hw = subject.hw
    hw.set_persistence(A, enabled=True)
    assert hw.facts(A).persistence is True
    done = hw.sriov_manage(A, enable=True, timeout_s=30.0)
    assert (done.exit_code, hw.pf(A).sriov_numvfs) == (1, 0)
    assert f"Cannot obtain unbindLock for {A}" in done.text
    done = hw.reset_gpu(A, timeout_s=30.0)
    assert done.exit_code == 255
    assert "In use by another client" in done.text
    hw.set_persistence(A, enabled=False)
    assert hw.reset_gpu(A, timeout_s=30.0).exit_code == 0


def test_a_gpu_with_vfs_is_not_reset(subject: Subject) -> None:
    _with_vfs(subject.hw)
    assert subject.hw.reset_gpu(A, timeout_s=30.0).exit_code == 255


def test_a_type_is_written_once_and_has_to_be_cleared_first(subject: Subject) -> None:
    hw = subject.hw
    _with_vfs(hw)
    vf = hw.vfs(A)[3].bdf
    hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)
    assert hw.vfs(A)[3].vgpu_type_id == WHOLE_TYPE

    def write(type_id: int) -> Callable[[], None]:
        return lambda: hw.set_vgpu_type(vf, type_id, mdev_uuid=None)

    assert _refused(ErrorKind.IO, write(WHOLE_TYPE)).errno == errno.EPERM
    assert hw.vfs(A)[3].vgpu_type_id == WHOLE_TYPE
    hw.set_vgpu_type(vf, 0, mdev_uuid=None)
    assert hw.vfs(A)[3].vgpu_type_id == 0
    assert _refused(ErrorKind.IO, write(0)).errno == errno.EPERM


def test_an_unknown_type_leaves_none(subject: Subject) -> None:
    hw = subject.hw
    _with_vfs(hw)
    vf = hw.vfs(A)[0].bdf
    refused = _refused(ErrorKind.IO, lambda: hw.set_vgpu_type(vf, 4242, mdev_uuid=None))
    assert refused.errno == errno.EIO
    assert hw.vfs(A)[0].vgpu_type_id == 0


def test_a_mig_type_goes_to_the_lowest_free_instance_of_its_profile(subject: Subject) -> None:
    hw = subject.hw
    _with_mig(hw)
    _with_vfs(hw)
    vfs = [vf.bdf for vf in hw.vfs(A)]
    before = hw.now()

    def write() -> None:
        hw.set_vgpu_type(vfs[0], MIG_TYPE, mdev_uuid=None)

    assert _refused(ErrorKind.IO, write).errno == errno.EIO
    said = [line.text for line in hw.kernel_log() if line.time_s >= before]
    assert said == ["NVRM: Failed to add vgpu create request: 0x38"]
    hw.create_gpu_instance(A, HALF, Placement(4, 4))
    ids = sorted(hw.create_gpu_instance(A, SEVENTH, Placement(start, 1)) for start in (1, 0))
    for vf in vfs[:2]:
        hw.set_vgpu_type(vf, MIG_TYPE, mdev_uuid=None)
    assert [vf.gi_id for vf in hw.vfs(A)[:3]] == [*ids, None]


def test_mixed_size_mode_of_the_gpu_is_lost_with_the_vfs(subject: Subject) -> None:
    hw = subject.hw
    _with_vfs(hw)
    hw.set_mixed_size(A, enabled=True, gi_id=None)
    assert hw.facts(A).mixed_size is True
    hw.sriov_manage(A, enable=False, timeout_s=30.0)
    _with_vfs(hw)
    assert hw.facts(A).mixed_size is False


def test_a_stranded_pf_is_out_of_nvml_until_it_is_bound_back(subject: Subject) -> None:
    subject.strand(B)
    assert subject.hw.pf(B).driver == "pci-pf-stub"
    _refused(ErrorKind.NOT_FOUND, lambda: subject.hw.facts(B))
    subject.hw.bind_driver(B)
    assert subject.hw.pf(B).driver == "nvidia"
    assert subject.hw.facts(B).nvml_index == 1


def test_a_left_unbind_lock_is_seen_and_released(subject: Subject) -> None:
    subject.lock(A)
    assert subject.hw.pf(A).unbind_lock is True
    subject.hw.release_unbind_lock(A)
    assert subject.hw.pf(A).unbind_lock is False


def test_units_are_told_apart_and_stopped(subject: Subject) -> None:
    hw = subject.hw
    assert hw.unit_state("no-such.service").exists is False
    manager = hw.unit_state("nvidia-vgpu-mgr.service")
    assert (manager.exists, manager.is_active, manager.ran) == (True, True, True)
    hw.stop_unit("nvidia-vgpu-mgr.service")
    hw.sleep(1.0)
    assert hw.unit_state("nvidia-vgpu-mgr.service").active_state == "inactive"
    hw.start_unit("nvidia-vgpu-mgr.service")
    hw.sleep(1.0)
    assert hw.unit_state("nvidia-vgpu-mgr.service").is_active
    hw.stop_unit("nvidia-vgpu-mgr.service")
    hw.sleep(1.0)
    hw.reload_unit("nvidia-vgpu-mgr.service")
    hw.sleep(1.0)
    assert hw.unit_state("nvidia-vgpu-mgr.service").is_active, "started: it was not active"
    with pytest.raises(HardwareError):
        hw.stop_unit("no-such.service")


def test_the_driver_and_its_library_are_told(subject: Subject) -> None:
    info = subject.hw.driver_info()
    assert (info.module_version, info.problem) == ("580.159.04", None)


def test_a_read_that_hangs_is_given_up_and_the_other_gpu_goes_on(subject: Subject) -> None:
    subject.hang_facts()
    hung = _refused(ErrorKind.HUNG, lambda: subject.hw.facts(A))
    assert hung.waited_s
    _refused(ErrorKind.HUNG, lambda: subject.hw.gi_profiles(A))
    assert subject.hw.pf(A).driver == "nvidia"
    assert len(subject.hw.gi_profiles(B)) == 7
