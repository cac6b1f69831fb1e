"""What holds in every run: random wishes, random starting states, random faults."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gpu_bootstate.model import HolderKind
from gpu_bootstate.simulator.state import Call
from tests.support.node import Node
from tests.support.situations import STARTS, WISHES, Wish, assert_is, made_node, written

TRANSIENT = [
    "sriov_manage times=1 noop",
    "sriov_manage times=1 exit:1:Cannot obtain unbindLock",
    "sriov_manage times=1 leave-on-stub",
    "sriov_manage times=1 leave-unbound",
    "sriov_manage times=1 late:6",
    "sriov_manage times=1 never",
    "set_vgpu_type times=1 log:NVRM: kvgpumgrCreateRequestVgpu: GPU is not initialized yet 0x66",
    "create_gpu_instance times=1 error:unknown",
    "set_mig_mode times=1 error:in-use",
]
PERMANENT = [
    "sriov_manage noop",
    "sriov_manage hang",
    "sriov_manage leave-on-stub",
    "sriov_manage partial:3",
    "set_vgpu_type io:EIO",
    "set_vgpu_type noop",
    "create_gpu_instance error:insufficient-resources",
    "destroy_gpu_instance error:in-use",
    "set_mig_mode error:unknown",
    "set_mig_mode noop",
    "facts error:gpu-lost",
    "facts hang",
    "vfs hang",
    "set_persistence error:unknown",
    "bind_driver noop",
]

SETTINGS = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[str, dict[str, Wish], dict[str, str]]:
    board = draw(st.sampled_from(sorted(WISHES)))
    pfs = [gpu.bdf for gpu in Node(board, Path("/nowhere")).gpus()]
    named = draw(st.lists(st.sampled_from(pfs), unique=True, min_size=1, max_size=4))
    wishes = {pf: draw(st.sampled_from(WISHES[board])) for pf in named}
    starts = {pf: draw(st.sampled_from(STARTS)) for pf in named}
    return board, wishes, starts


def _assert_order(calls: list[Call], pf: str, *, vfs_on: bool) -> None:
    """No VF before its MIG mode is committed, no instance or type before its VFs; no reset and
    no MIG mode with VFs on.
    """
    for call in calls:
        if call.target != pf:
            continue
        if call.verb == "sriov_manage" and call.ok:
            vfs_on = call.arguments == "-e"
        if call.verb in ("set_mig_mode", "reset_gpu"):
            assert not vfs_on, calls
        if call.verb == "create_gpu_instance":
            assert vfs_on, calls
        if call.verb == "set_vgpu_type" and not call.arguments.endswith(" 0"):
            assert vfs_on, calls


def _assert_always(
    node: Node, wishes: dict[str, Wish], *, on_before: dict[str, bool], ready: bool
) -> None:
    assert node.touched() <= set(wishes), "a GPU that is not named was touched"
    assert node.under_an_open_gate == []
    assert node.ready == ready
    for pf in wishes:
        _assert_order(node.calls, pf, vfs_on=on_before[pf])


def _vfs_on(node: Node) -> dict[str, bool]:
    return {gpu.bdf: bool(gpu.vfs) for gpu in node.gpus()}


@SETTINGS
@given(situations())
def test_every_start_converges_in_order_and_the_next_run_does_nothing(
    situation: tuple[str, dict[str, Wish], dict[str, str]],
) -> None:
    board, wishes, starts = situation
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory)
        on_before = _vfs_on(node)
        result = node.apply(written(wishes))
        assert result["exit_code"] == 0, result["summary"]
        _assert_always(node, wishes, on_before=on_before, ready=True)
        assert all(call.ok for call in node.calls), "a call was made to see whether it fails"
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)

        again = node.apply(written(wishes))
        assert (again["exit_code"], node.calls, node.ready) == (0, [], True)

        node.reboot()
        assert node.apply(written(wishes))["exit_code"] == 0
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)
        node.sim.reload_driver()
        assert node.apply(written(wishes))["exit_code"] == 0
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.data())
def test_geometry_changed_in_the_file_converges_from_what_the_last_one_left(
    situation: tuple[str, dict[str, Wish], dict[str, str]], data: st.DataObject
) -> None:
    board, wishes, starts = situation
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory)
        assert node.apply(written(wishes))["exit_code"] == 0
        then = {pf: data.draw(st.sampled_from(WISHES[board])) for pf in wishes}
        on_before = _vfs_on(node)
        before = dict(wishes)
        result = node.apply(written(then))
        assert result["exit_code"] == 0, result["summary"]
        _assert_always(node, then, on_before=on_before, ready=True)
        for pf, wish in then.items():
            assert_is(node, pf, wish)
            if wish == before[pf]:
                assert pf not in node.touched(), "it was right, whatever its neighbours were"


@SETTINGS
@given(situations(), st.sampled_from(TRANSIENT))
def test_a_failure_that_passes_is_got_over(
    situation: tuple[str, dict[str, Wish], dict[str, str]], fault: str
) -> None:
    board, wishes, starts = situation
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory).fault(fault)
        on_before = _vfs_on(node)
        result = node.apply(written(wishes))
        event(f"met: {bool(node.sim.state.faults[0].seen)}")
        assert result["exit_code"] == 0, (result["summary"], result["gpus"])
        _assert_always(node, wishes, on_before=on_before, ready=True)
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.sampled_from(PERMANENT))
def test_one_gpu_that_fails_for_good_takes_no_other_down_and_is_told(
    situation: tuple[str, dict[str, Wish], dict[str, str]], fault: str
) -> None:
    board, wishes, starts = situation
    victim = sorted(wishes)[0]
    verb, effect = fault.split(" ", 1)
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory)
        node.fault(f"{verb} {victim} {effect}")
        on_before = _vfs_on(node)
        result = node.apply(written(wishes))
        outcome = {gpu["pf"]: gpu for gpu in result["gpus"]}
        failed = outcome[victim]["condition"] != "converged"
        event(f"failed: {failed}")
        _assert_always(node, wishes, on_before=on_before, ready=not failed)
        for pf, wish in wishes.items():
            if pf != victim and outcome[pf]["reason"] == "sibling-driverless":
                # The one that failed could not be bound, so the tool would capture it.
                assert node.gpu(victim).driver is None
            elif pf != victim:
                assert outcome[pf]["condition"] == "converged", outcome[pf]["message"]
                assert_is(node, pf, wish)
        if failed:
            assert outcome[victim]["reason"]
            assert victim in outcome[victim]["message"]
            assert outcome[victim]["remedy"]
            assert result["exit_code"] == (2 if len(wishes) > 1 else result["exit_code"])
            assert result["exit_code"] != 0
            assert not node.gpu_ready(victim)
        else:
            assert_is(node, victim, wishes[victim])

        # The cause is gone: the next run goes on from whatever was left.
        node.without_faults()
        gpu = node.gpu(victim)
        gpu.lost = gpu.off_bus = False
        final = node.apply(written(wishes))
        assert final["exit_code"] == 0, (final["summary"], final["gpus"])
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.sampled_from([HolderKind.VM, HolderKind.COMPUTE, HolderKind.INSTANCE]))
def test_a_gpu_in_use_sees_no_call_whatever_is_wanted(
    situation: tuple[str, dict[str, Wish], dict[str, str]], kind: HolderKind
) -> None:
    board, wishes, starts = situation
    victim = sorted(wishes)[0]
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory)
        gpu = node.gpu(victim)
        if kind is HolderKind.VM and gpu.vfs:
            node.with_vm(victim, 0)
        elif kind is HolderKind.INSTANCE and gpu.instances:
            node.with_instance_holder(victim, gpu.instances[0].gi_id)
        else:
            node.with_compute(victim)
        result = node.apply(written(wishes))
        assert victim not in node.touched()
        outcome = next(g for g in result["gpus"] if g["pf"] == victim)
        if outcome["condition"] != "converged":
            assert (outcome["condition"], outcome["reason"]) == ("refused", "in-use")
            assert gpu.holders[0].name in outcome["message"]
        by_pf = {each["pf"]: each for each in result["gpus"]}
        for pf, wish in wishes.items():
            if pf != victim and by_pf[pf]["reason"] == "sibling-driverless":
                # The one in use may not be bound, so the tool would capture it.
                assert gpu.driver is None
                assert not {"sriov_manage", "set_mig_mode"} & set(node.verbs(pf))
            elif pf != victim:
                assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.integers(1, 40), st.sampled_from(["kill-before", "kill-after"]))
def test_a_run_that_is_killed_at_any_change_is_continued_by_the_next(
    situation: tuple[str, dict[str, Wish], dict[str, str]], number: int, when: str
) -> None:
    from gpu_bootstate.simulator.hardware import Killed

    board, wishes, starts = situation
    verbs = ("sriov_manage", "create_gpu_instance", "set_vgpu_type", "set_mig_mode", "bind_driver")
    verb = verbs[number % len(verbs)]
    with tempfile.TemporaryDirectory() as directory:
        node = made_node(board, starts, directory).fault(f"{verb} nth={1 + number // 5} {when}")
        try:
            node.apply(written(wishes))
        except Killed:
            assert not node.ready, "the gate is open on what nobody has verified"
        event(f"killed: {not node.ready}")
        node.without_faults()
        result = node.apply(written(wishes))
        assert result["exit_code"] == 0, (result["summary"], result["gpus"])
        for pf, wish in wishes.items():
            assert_is(node, pf, wish)
