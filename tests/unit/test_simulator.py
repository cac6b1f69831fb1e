"""The rules of the simulated node: each is there because hardware has it, and bites."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import pytest

from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind, HardwareError, ToolResult
from gpu_bootstate.model import Bdf, Placement
from gpu_bootstate.side_by_side import side_by_side
from gpu_bootstate.simulator.faults import parse_fault
from gpu_bootstate.simulator.hardware import LATENCY_S, Killed, SimHardware
from gpu_bootstate.simulator.node import FABRIC_MANAGER, VGPU_MGR, SimNode, new_node
from gpu_bootstate.simulator.state import from_json, to_json
from gpu_bootstate.simulator.store import DamagedStore, Store

A, B = Bdf.parse("0000:17:00.0"), Bdf.parse("0000:3d:00.0")


def _free(board: str) -> tuple[SimNode, SimHardware]:
    """A node on which nothing holds a GPU and VFs are ready at once."""
    node = new_node(board)
    node.state.vf_ready_s = 0.0
    for gpu in node.state.gpus:
        gpu.persistence = False
    return node, SimHardware(node)


def _vfs(hw: SimHardware, pf: Bdf = A) -> None:
    assert hw.sriov_manage(pf, enable=True, timeout_s=60.0).exit_code == 0


# --------------------------------------------------------------------------- sriov-manage


def test_overlapping_runs_for_one_model_leave_the_second_card_driverless() -> None:
    _, hw = _free("hgx-h200-8")
    hw.now()
    tasks = [partial(hw.sriov_manage, pf, enable=True, timeout_s=60.0) for pf in (A, B)]
    codes = [run.exit_code for run in side_by_side(tasks, limit=2) if isinstance(run, ToolResult)]
    assert sorted(codes) == [0, 1]
    assert sorted(str(hw.pf(pf).driver) for pf in (A, B)) == ["None", "nvidia"]


def test_runs_one_after_the_other_do_not() -> None:
    _, hw = _free("hgx-h200-8")
    for pf in (A, B):
        _vfs(hw, pf)
    assert [hw.pf(pf).driver for pf in (A, B)] == ["nvidia", "nvidia"]


def test_a_driverless_card_of_the_model_is_captured_and_stays_on_the_stub() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.gpus[1].driver = None
    _vfs(hw)
    assert hw.pf(B).driver == "pci-pf-stub"


def test_one_with_a_driver_override_is_not() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.gpus[1].driver, node.state.gpus[1].driver_override = None, "vfio-pci"
    _vfs(hw)
    assert hw.pf(B).driver is None


def test_without_the_manager_the_tool_exits_0_and_does_nothing() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.units[VGPU_MGR].active_state = "failed"
    done = hw.sriov_manage(A, enable=True, timeout_s=60)
    assert (done.exit_code, hw.pf(A).sriov_numvfs) == (0, 0)
    hw.sleep(1)
    assert "vgpu_mgr daemon" in hw.kernel_log()[-1].text


def test_it_needs_the_pf_on_its_driver_and_a_card_in_sriov_mode() -> None:
    node, hw = _free("t4-and-a100")
    assert hw.sriov_manage(Bdf.parse("0000:65:00.0"), enable=True, timeout_s=60).exit_code == 1
    node.state.gpus[0].driver = "pci-pf-stub"
    assert hw.sriov_manage(Bdf.parse("0000:3b:00.0"), enable=True, timeout_s=60).exit_code == 1


def test_vf_interfaces_come_after_the_vfs() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.vf_ready_s = 2.0
    _vfs(hw)
    assert {vf.framework for vf in hw.vfs(A)} == {None}
    with pytest.raises(HardwareError) as caught:
        hw.set_vgpu_type(hw.vfs(A)[0].bdf, 1428, mdev_uuid=None)
    assert caught.value.errno == errno.ENOENT
    before = hw.now()
    hw.wait_for_event(60.0)
    assert hw.now() - before < 3.0
    assert None not in {vf.framework for vf in hw.vfs(A)}


def test_the_rebind_costs_persistence_mode() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.units["nvidia-persistenced.service"].active_state = "inactive"
    _vfs(hw)
    assert hw.facts(A).persistence is False


# --------------------------------------------------------------------------- MIG mode and reset


def test_mig_mode_is_refused_while_vfs_are_on() -> None:
    _, hw = _free("hgx-h200-8")
    _vfs(hw)
    with pytest.raises(HardwareError) as caught:
        hw.set_mig_mode(A, enabled=True)
    assert caught.value.kind is ErrorKind.IN_USE


def test_mig_mode_is_not_switched_off_over_instances() -> None:
    _, hw = _free("hgx-h200-8")
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, 19, Placement(0, 1))
    with pytest.raises(HardwareError):
        hw.set_mig_mode(A, enabled=False)


@pytest.mark.parametrize(
    ("board", "pending"), [("hgx-a100-8", True), ("hgx-h200-8", False)], ids=["ampere", "hopper"]
)
def test_a_held_gpu_does_not_change_its_mode(board: str, pending: bool) -> None:  # noqa: FBT001
    node, hw = _free(board)
    node.state.gpus[0].persistence = True
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.IN_USE
    mode = hw.facts(A).mig
    assert mode is not None
    assert (mode.current, mode.pending) == (False, pending)


def test_a_reset_commits_a_pending_mode_and_wipes_what_is_volatile() -> None:
    node, hw = _free("hgx-a100-8")
    gpu = node.state.gpus[0]
    gpu.mig_pending, gpu.mixed_size = True, True
    assert hw.reset_gpu(A, timeout_s=60).exit_code == 0
    assert (gpu.mig_current, gpu.mixed_size) == (True, False)


def test_an_a100_board_with_nvswitch_needs_fabric_manager_for_a_reset() -> None:
    for board, exit_code in (("hgx-a100-8", 255), ("hgx-h200-8", 0), ("a100-pcie-2", 0)):
        node, hw = _free(board)
        if FABRIC_MANAGER in node.state.units:
            node.state.units[FABRIC_MANAGER].active_state = "failed"
        pf = Bdf.parse(node.state.gpus[0].bdf)
        assert hw.reset_gpu(pf, timeout_s=60).exit_code == exit_code, board


# --------------------------------------------------------------------------- instances and types


def test_compute_slices_and_the_maximum_of_a_profile_bound_the_instances() -> None:
    _, hw = _free("hgx-h200-8")
    hw.set_mig_mode(A, enabled=True)
    hw.create_gpu_instance(A, 20, Placement(0, 1))  # 1g.18gb+me: one a card
    for gi_profile_id, placement in ((20, Placement(1, 1)), (0, Placement(0, 8))):
        with pytest.raises(HardwareError) as caught:
            hw.create_gpu_instance(A, gi_profile_id, placement)
        assert caught.value.kind is ErrorKind.INSUFFICIENT_RESOURCES


def test_an_instance_under_a_vgpu_is_in_use() -> None:
    _, hw = _free("hgx-h200-8")
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    gi_id = hw.create_gpu_instance(A, 19, Placement(0, 1))
    hw.set_vgpu_type(hw.vfs(A)[0].bdf, 1414, mdev_uuid=None)
    with pytest.raises(HardwareError) as caught:
        hw.destroy_gpu_instance(A, gi_id)
    assert caught.value.kind is ErrorKind.IN_USE


def test_what_can_be_created_shrinks_and_a_full_vf_offers_nothing() -> None:
    _, hw = _free("l40s-4")
    pf = Bdf.parse("0000:01:00.0")
    _vfs(hw, pf)
    first, second = (vf.bdf for vf in hw.vfs(pf)[:2])
    ids = {t.name: t.vgpu_type_id for t in hw.vgpu_types(pf)}
    assert set(hw.creatable_vgpu_types(first)) == set(ids.values())
    hw.set_vgpu_type(first, ids["NVIDIA L40S-12Q"], mdev_uuid=None)
    assert hw.creatable_vgpu_types(first) == ()
    assert hw.creatable_vgpu_types(second) == (ids["NVIDIA L40S-12Q"],)  # equal-size mode
    with pytest.raises(HardwareError):
        hw.set_vgpu_type(second, ids["NVIDIA L40S-24Q"], mdev_uuid=None)
    assert hw.kernel_log()[-1].text.endswith("0x56")


def test_mixed_size_mode_lets_sizes_mix_up_to_the_framebuffer() -> None:
    _, hw = _free("l40s-4")
    pf = Bdf.parse("0000:01:00.0")
    _vfs(hw, pf)
    hw.set_mixed_size(pf, enabled=True, gi_id=None)
    ids = {t.name: t.vgpu_type_id for t in hw.vgpu_types(pf)}
    vfs = [vf.bdf for vf in hw.vfs(pf)]
    for vf, name in zip(vfs, ("24Q", "12Q", "12Q"), strict=False):
        hw.set_vgpu_type(vf, ids[f"NVIDIA L40S-{name}"], mdev_uuid=None)
    with pytest.raises(HardwareError):
        hw.set_vgpu_type(vfs[3], ids["NVIDIA L40S-1Q"], mdev_uuid=None)
    with pytest.raises(HardwareError) as caught:
        hw.set_mixed_size(pf, enabled=False, gi_id=None)
    assert caught.value.kind is ErrorKind.IN_USE


def test_mixed_size_mode_needs_vfs_and_is_not_for_a_whole_gpu_in_mig_mode() -> None:
    _, hw = _free("hgx-h200-8")
    with pytest.raises(HardwareError):
        hw.set_mixed_size(A, enabled=True, gi_id=None)
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    with pytest.raises(HardwareError):
        hw.set_mixed_size(A, enabled=True, gi_id=None)
    assert hw.facts(A).mixed_size is None


def test_a_time_sliced_type_does_not_go_on_a_gpu_in_mig_mode() -> None:
    _, hw = _free("hgx-h200-8")
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    with pytest.raises(HardwareError) as caught:
        hw.set_vgpu_type(hw.vfs(A)[0].bdf, 1428, mdev_uuid=None)
    assert caught.value.errno == errno.EIO


# --------------------------------------------------------------------------- what survives


@pytest.mark.parametrize(
    ("board", "mig_after"), [("hgx-a100-8", True), ("hgx-h200-8", False)], ids=["ampere", "hopper"]
)
@pytest.mark.parametrize("event", ["reboot", "reload_driver"])
def test_a_reboot_and_a_driver_reload_take_all_but_amperes_mig_mode(
    board: str,
    mig_after: bool,  # noqa: FBT001
    event: str,
) -> None:
    node, hw = _free(board)
    hw.set_mig_mode(A, enabled=True)
    _vfs(hw)
    hw.create_gpu_instance(A, 9, Placement(0, 4))
    before = hw.boot_id()
    getattr(node, event)()
    after = SimHardware(node)
    assert (after.pf(A).sriov_numvfs, after.vfs(A), after.gpu_instances(A)) == (0, (), ())
    mode = after.facts(A).mig
    assert mode is not None
    assert mode.current is mig_after
    assert (after.boot_id() == before) is (event == "reload_driver")


# --------------------------------------------------------------------------- time


def test_waits_side_by_side_take_the_time_of_the_longest() -> None:
    _, hw = _free("hgx-h200-8")
    before = hw.now()
    side_by_side([partial(hw.sleep, seconds) for seconds in (5.0, 3.0, 9.0, 1.0)], limit=4)
    assert hw.now() - before == pytest.approx(9.0)


def test_a_call_takes_its_latency() -> None:
    _, hw = _free("hgx-h200-8")
    before = hw.now()
    hw.set_mig_mode(A, enabled=True)
    assert hw.now() - before == pytest.approx(LATENCY_S["set_mig_mode"])


# --------------------------------------------------------------------------- faults and the store


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sriov_manage",
        "sriov_manage 0000:17:00.0",
        "sriov_manage explode",
        "facts error:no-such-kind",
        "set_vgpu_type io:EWHAT",
        "sriov_manage nth=0 noop",
        "sriov_manage noop:1",
        "sriov_manage late",
    ],
)
def test_a_fault_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_fault(text)


def test_a_fault_meets_only_the_occurrence_it_names() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.faults.append(parse_fault(f"facts {A} nth=2 error:unknown"))
    hw.facts(B)
    hw.facts(A)
    with pytest.raises(HardwareError):
        hw.facts(A)
    hw.facts(A)


def test_a_killed_process_reaches_nothing_any_more() -> None:
    node, hw = _free("hgx-h200-8")
    node.state.faults.append(parse_fault("set_mig_mode kill-after"))
    with pytest.raises(Killed):
        hw.set_mig_mode(A, enabled=True)
    assert node.state.gpus[0].mig_current is True
    with pytest.raises(Killed):
        hw.set_mig_mode(B, enabled=True)
    assert node.state.gpus[1].mig_current is False


def test_the_state_goes_to_json_and_back() -> None:
    node, hw = _free("hgx-h200-8")
    _vfs(hw)
    node.state.faults.append(parse_fault("facts hang"))
    assert from_json(to_json(node.state)) == node.state


def test_separate_processes_see_one_node(tmp_path: Path) -> None:
    first, second = Store.open(tmp_path, "l40s-4"), Store.open(tmp_path, "l40s-4")
    hw = SimHardware(first.node, first)
    pf = Bdf.parse("0000:01:00.0")
    hw.set_persistence(pf, enabled=False)
    assert SimHardware(second.node, second).facts(pf).persistence is False
    assert [call["verb"] for call in second.trace] == ["set_persistence"]


def test_a_damaged_store_is_told(tmp_path: Path) -> None:
    Store.open(tmp_path, "l40s-4")
    (tmp_path / "node.json").write_text('{"board": "l40s-4", "gpus": [{"no": 1}]}')
    with pytest.raises(DamagedStore):
        Store.open(tmp_path, "l40s-4").read()
