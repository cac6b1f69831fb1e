"""Faults by script: what can be written, and what each does to the node."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from gpu_bootstate.hardware.protocol import ActivationStatus, CallLimits, ErrorKind, HardwareError
from gpu_bootstate.model import Bdf, MigMode, Placement
from gpu_bootstate.simulator.faults import CHANGES, READS, parse_fault
from gpu_bootstate.simulator.hardware import LATENCY_S, Killed, SimHardware
from gpu_bootstate.simulator.node import VGPU_MGR, SimNode, new_node
from gpu_bootstate.simulator.state import GpuState

A, B = Bdf.parse("0000:17:00.0"), Bdf.parse("0000:3d:00.0")
SEVENTH, WHOLE_TYPE = 19, 1428
LIMITS = CallLimits(read_s=7.0, call_s=31.0)


def _node(*faults: str) -> tuple[SimNode, SimHardware, GpuState]:
    node = new_node("hgx-h200-8")
    node.state.vf_ready_s = 0.0
    for gpu in node.state.gpus:
        gpu.persistence = False
    node.state.faults = [parse_fault(text) for text in faults]
    return node, SimHardware(node, limits=LIMITS), node.state.gpus[0]


def _tool(hw: SimHardware, *, enable: bool = True, timeout_s: float = 60.0) -> int:
    return hw.sriov_manage(A, enable=enable, timeout_s=timeout_s).exit_code


def _error(call: Callable[[], object]) -> HardwareError:
    with pytest.raises(HardwareError) as caught:
        call()
    return caught.value


# --------------------------------------------------------------------------- what can be written


def test_every_call_of_the_node_can_be_named() -> None:
    assert set(LATENCY_S) == CHANGES
    for verb in CHANGES | READS:
        assert callable(getattr(SimHardware, verb))
        assert parse_fault(f"{verb} hang").verb == verb


def test_a_fault_is_read_with_all_its_parts() -> None:
    fault = parse_fault("  reset_gpu 00000000:17:00.0 nth=3  times=2 exit:255:In use, by a client")
    assert (fault.verb, fault.pf, fault.nth, fault.times) == ("reset_gpu", str(A), 3, 2)
    assert fault.effect == "exit:255:In use, by a client"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a fault is: VERB [PF] [nth=N] [times=N] EFFECT"),
        ("sriov_manag noop", "there is no call 'sriov_manag'; did you mean sriov_manage?"),
        ("sriov_manage", "a fault ends in an effect: noop, hang"),
        ("sriov_manage explode", "'explode' is no PCI address, nth=N, times=N or effect (noop"),
        ("sriov_manage nth=x noop", "nth= takes a whole number from 1, not 'x'"),
        ("sriov_manage times=0 noop", "times= takes a whole number from 1, not '0'"),
        ("stop_unit 0000:17:00.0 noop", "stop_unit is not a call on one GPU"),
        ("facts noop", "noop cannot happen to facts (what can: hang, error, io"),
        ("create_gpu_instance leave-on-stub", "leave-on-stub cannot happen to create_gpu_instance"),
        ("reset_gpu partial:4", "partial cannot happen to reset_gpu"),
        ("pfs lose", "lose cannot happen to pfs"),
        ("sriov_manage noop:1", "noop takes no argument after a colon"),
        ("sriov_manage late", "late takes an argument after a colon"),
        ("sriov_manage late:soon", "'soon' is no number of seconds"),
        ("sriov_manage partial:all", "partial: takes a number of VFs, not 'all'"),
        ("reset_gpu exit:many", "exit: takes an exit code from 0 to 255, then perhaps :text"),
        ("reset_gpu exit:256", "exit: takes an exit code from 0 to 255, then perhaps :text"),
        ("set_vgpu_type io:EWHAT", "'EWHAT' is no errno name like EIO"),
        ("facts error:odd", "'odd' is none of not-supported, no-permission, in-use"),
        ("set_mig_mode status:odd", "'odd' is none of success, in-use"),
    ],
)
def test_what_is_no_fault_is_refused_with_what_would_be(text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # compared below
        parse_fault(text)
    assert str(caught.value).startswith(says)


# --------------------------------------------------------------------------- which occurrence


def test_nth_is_one_occurrence_times_are_so_many_and_neither_is_always() -> None:
    for words, failing in (
        ("nth=2", [2]),
        ("times=2", [1, 2]),
        ("nth=2 times=2", [2, 3]),
        ("", [1, 2, 3, 4]),
    ):
        _, hw, _ = _node(f"set_persistence {words} error:unknown")
        failed = []
        for number in range(1, 5):
            try:
                hw.set_persistence(A, enabled=True)
            except HardwareError:
                failed.append(number)
        assert failed == failing, words


def test_a_fault_of_one_gpu_leaves_the_others_alone_and_does_not_count_them() -> None:
    _, hw, _ = _node(f"set_persistence {A} nth=1 error:unknown")
    hw.set_persistence(B, enabled=True)
    assert _error(lambda: hw.set_persistence(A, enabled=True)).kind is ErrorKind.UNKNOWN


# --------------------------------------------------------------------------- for every call


def _changes(hw: SimHardware) -> dict[str, Callable[[], object]]:
    """Each change once, on a GPU that allows all of them (MIG on, VFs, two instances)."""
    vf = hw.vfs(A)[5].bdf
    return {
        "set_persistence": lambda: hw.set_persistence(A, enabled=True),
        "set_mig_mode": lambda: hw.set_mig_mode(B, enabled=True),
        "bind_driver": lambda: hw.bind_driver(B),
        "release_unbind_lock": lambda: hw.release_unbind_lock(A),
        "create_gpu_instance": lambda: hw.create_gpu_instance(A, SEVENTH, Placement(6, 1)),
        "destroy_gpu_instance": lambda: hw.destroy_gpu_instance(A, 7),
        "create_compute_instance": lambda: hw.create_compute_instance(A, 8),
        "set_mixed_size": lambda: hw.set_mixed_size(B, enabled=True, gi_id=None),
        "set_vgpu_type": lambda: hw.set_vgpu_type(vf, 1414, mdev_uuid=None),
        "stop_unit": lambda: hw.stop_unit(VGPU_MGR),
        "reload_unit": lambda: hw.reload_unit("nvidia-dcgm.service"),
        "start_unit": lambda: hw.start_unit("nvidia-dcgm.service"),
        "reboot": hw.reboot,
        "reset_gpu": lambda: hw.reset_gpu(B, timeout_s=60.0),
        "sriov_manage": lambda: hw.sriov_manage(B, enable=True, timeout_s=60.0),
    }


def _prepared(verb: str, effect: str) -> tuple[SimNode, SimHardware]:
    """A node on which that call would change something, and meets the fault."""
    node, hw, gpu = _node()
    gpu.mig_current = gpu.mig_pending = True
    node.make_vfs(gpu, 32, ready_at=0.0)
    for start in (0, 1):
        node.create_instance(gpu, SEVENTH, Placement(start, 1))
    other = node.state.gpus[1]
    if verb == "bind_driver":
        other.driver = "pci-pf-stub"
    if verb == "release_unbind_lock":
        gpu.unbind_lock = True
    if verb == "set_mixed_size":
        node.make_vfs(other, 32, ready_at=0.0)
    if verb == "reset_gpu":
        other.mig_pending = True
    node.state.faults = [parse_fault(f"{verb} {effect}")]
    return node, hw


def _picture(node: SimNode) -> str:
    """Everything that a change could change, as a text to compare."""
    units = {name: unit.changes for name, unit in node.state.units.items()}
    return repr((node.state.gpus, units, node.state.reboot_asked))


@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_a_process_killed_after_a_change_has_made_it(verb: str) -> None:
    node, hw = _prepared(verb, "kill-after")
    before = _picture(node)
    with pytest.raises(Killed):
        _changes(hw)[verb]()
    assert _picture(node) != before
    assert [(call.verb, call.ok) for call in hw.calls] == [(verb, True)]


@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_a_process_killed_before_a_change_has_not(verb: str) -> None:
    node, hw = _prepared(verb, "kill-before")
    before = _picture(node)
    with pytest.raises(Killed):
        _changes(hw)[verb]()
    assert (_picture(node), hw.calls) == (before, [])
    with pytest.raises(Killed):
        hw.pfs()


@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_noop_reports_success_and_changes_nothing(verb: str) -> None:
    node, hw = _prepared(verb, "noop")
    before = _picture(node)
    _changes(hw)[verb]()
    assert _picture(node) == before
    assert [(call.verb, call.ok) for call in hw.calls] == [(verb, True)]


@pytest.mark.parametrize("verb", sorted(CHANGES - {"reset_gpu", "sriov_manage"}))
def test_a_change_that_hangs_costs_its_limit_and_raises(verb: str) -> None:
    node, hw = _prepared(verb, "hang")
    change = _changes(hw)[verb]
    before, picture = hw.now(), _picture(node)
    assert _error(change).kind is ErrorKind.HUNG
    assert hw.now() - before == pytest.approx(LIMITS.call_s + LATENCY_S[verb])
    assert _picture(node) == picture
    assert [(call.verb, call.ok) for call in hw.calls] == [(verb, False)]


@pytest.mark.parametrize("verb", sorted(CHANGES))
def test_an_error_is_raised_in_place_of_the_change_and_traced(verb: str) -> None:
    node, hw = _prepared(verb, "error:no-permission")
    before = _picture(node)
    assert _error(_changes(hw)[verb]).kind is ErrorKind.NO_PERMISSION
    assert _picture(node) == before
    assert [(call.verb, call.ok) for call in hw.calls] == [(verb, False)]


# --------------------------------------------------------------------------- reads


def test_a_read_that_hangs_costs_its_limit_once_and_closes_the_gpu() -> None:
    _, hw, _ = _node(f"facts {A} hang")
    before = hw.now()
    assert _error(lambda: hw.facts(A)).waited_s == LIMITS.read_s
    assert hw.now() - before == pytest.approx(LIMITS.read_s, abs=0.1)
    before = hw.now()
    assert _error(lambda: hw.set_mig_mode(A, enabled=True)).kind is ErrorKind.HUNG
    assert hw.now() - before < 2.0
    assert hw.pf(A).driver == "nvidia"  # what sysfs itself says
    assert hw.facts(B).nvml_index == 1


def test_unreadable_facts_and_types_are_none_and_not_off() -> None:
    _, hw, _ = _node("facts unreadable", f"vfs {A} times=1 unreadable")
    assert hw.facts(A).mig == MigMode(None, None)
    assert hw.facts(A).recovery_action is None
    _tool(hw)
    assert {vf.vgpu_type_id for vf in hw.vfs(A)} == {None}
    assert {vf.vgpu_type_id for vf in hw.vfs(A)} == {0}


def test_a_gpu_lost_to_nvml_is_still_on_the_bus_and_one_that_fell_off_is_not() -> None:
    _, hw, _ = _node(f"facts {A} lost", f"facts {B} lose")
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.GPU_LOST
    assert _error(lambda: hw.facts(B)).kind is ErrorKind.GPU_LOST
    assert [pci.bdf for pci in hw.pfs()][:1] == [A]
    assert B not in {pci.bdf for pci in hw.pfs()}
    assert _error(lambda: hw.gpu_instances(A)).kind is ErrorKind.GPU_LOST


# --------------------------------------------------------------------------- the tools


def test_a_tool_that_hangs_is_ended_at_its_limit_and_leaves_the_lock() -> None:
    _, hw, gpu = _node("sriov_manage hang")
    before = hw.now()
    done = hw.sriov_manage(A, enable=True, timeout_s=60.0)
    assert done.timed_out
    assert hw.now() - before == pytest.approx(60.0)
    assert (gpu.unbind_lock, len(gpu.vfs)) == (True, 0)
    _, hw, _ = _node("reset_gpu hang")
    assert hw.reset_gpu(A, timeout_s=60.0).timed_out


def test_a_missing_tool_cannot_be_started() -> None:
    _, hw, _ = _node("sriov_manage missing", "reset_gpu missing")
    assert _error(lambda: _tool(hw)).kind is ErrorKind.TOOL_MISSING
    assert _error(lambda: hw.reset_gpu(A, timeout_s=60.0)).kind is ErrorKind.TOOL_MISSING


def test_an_exit_code_and_its_text_are_the_tools_answer() -> None:
    _, hw, gpu = _node("reset_gpu exit:3:Resetting GPU is not supported.")
    gpu.mig_pending = True
    done = hw.reset_gpu(A, timeout_s=60.0)
    assert (done.exit_code, done.text) == (3, "Resetting GPU is not supported.")
    assert gpu.mig_current is False


@pytest.mark.parametrize(
    ("effect", "driver"), [("leave-on-stub", "pci-pf-stub"), ("leave-unbound", None)]
)
def test_a_stranded_pf_has_lost_what_an_unbind_takes(effect: str, driver: str | None) -> None:
    _, hw, gpu = _node(f"sriov_manage nth=2 {effect}")
    hw.set_mig_mode(A, enabled=True)
    _tool(hw)
    hw.create_gpu_instance(A, SEVENTH, Placement(0, 1))
    hw.set_vgpu_type(hw.vfs(A)[0].bdf, 1414, mdev_uuid=None)
    assert _tool(hw, enable=False) == 1
    assert (hw.pf(A).driver, hw.pf(A).sriov_numvfs) == (driver, 32)
    assert _error(lambda: hw.facts(A)).kind is ErrorKind.NOT_FOUND
    hw.bind_driver(A)
    assert (hw.gpu_instances(A), gpu.vfs[0].type_id) == ((), 0)


def test_partial_gives_so_many_vfs() -> None:
    _, hw, _ = _node("sriov_manage partial:16")
    assert (_tool(hw), hw.pf(A).sriov_numvfs, len(hw.vfs(A))) == (0, 16, 16)


def test_late_vfs_offer_types_only_then() -> None:
    _, hw, _ = _node("sriov_manage late:6")
    _tool(hw)
    before = hw.now()
    assert {vf.framework for vf in hw.vfs(A)} == {None}
    hw.wait_for_event(60.0)
    assert hw.now() - before == pytest.approx(6.0, abs=0.1)
    assert None not in {vf.framework for vf in hw.vfs(A)}


def test_vfs_that_never_offer_types_do_after_one_off_and_on() -> None:
    _, hw, _ = _node("sriov_manage times=1 never")
    _tool(hw)
    hw.sleep(1000.0)
    assert {vf.framework for vf in hw.vfs(A)} == {None}
    vf = hw.vfs(A)[0].bdf
    assert _error(lambda: hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)).errno == errno.ENOENT
    _tool(hw, enable=False)
    _tool(hw)
    assert None not in {vf.framework for vf in hw.vfs(A)}


def test_a_spoilt_run_that_was_refused_spoils_nothing_later() -> None:
    _, hw, gpu = _node("sriov_manage times=1 never")
    gpu.unbind_lock = True
    assert _tool(hw) == 1
    hw.release_unbind_lock(A)
    _tool(hw)
    assert None not in {vf.framework for vf in hw.vfs(A)}


def test_a_spoilt_run_still_corrupts_one_beside_it() -> None:
    node, hw, gpu = _node(f"sriov_manage {A} partial:4")
    now = hw.now()
    node.sriov_manage(node.state.gpus[1], enable=True, start=now, end=now + 4.0)
    assert _tool(hw) == 1
    assert gpu.driver is None


def test_a_busy_unbind_lock_is_free_after_its_time() -> None:
    _, hw, _ = _node("sriov_manage nth=1 unbind-lock-busy:3")
    done = hw.sriov_manage(A, enable=True, timeout_s=60.0)
    assert (done.exit_code, done.stderr) == (1, f"Cannot obtain unbindLock for {A}\n")
    assert hw.holders(A) == ()
    assert hw.reset_gpu(A, timeout_s=60.0).exit_code == 255
    hw.sleep(3.0)
    assert _tool(hw) == 0


def test_a_kernel_line_comes_with_the_failure_that_it_explains() -> None:
    _, hw, _ = _node("sriov_manage log:not enough MMIO resources for SR-IOV")
    assert (_tool(hw), hw.pf(A).sriov_numvfs) == (1, 0)
    assert hw.kernel_log()[-1].text == "not enough MMIO resources for SR-IOV"
    _, hw, _ = _node("set_vgpu_type log:NVRM: GPU is not initialized yet")
    _tool(hw)
    vf = hw.vfs(A)[0].bdf
    assert _error(lambda: hw.set_vgpu_type(vf, WHOLE_TYPE, mdev_uuid=None)).errno == errno.EIO
    assert hw.kernel_log()[-1].text == "NVRM: GPU is not initialized yet"


def test_an_activation_status_comes_with_nothing_set() -> None:
    _, hw, gpu = _node("set_mig_mode status:reset-required")
    assert hw.set_mig_mode(A, enabled=True) is ActivationStatus.RESET_REQUIRED
    assert (gpu.mig_current, gpu.mig_pending) == (False, False)
