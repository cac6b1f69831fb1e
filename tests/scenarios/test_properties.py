"""What holds in every run: random wishes, random starting states, random faults."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gpu_bootstate.model import HolderKind
from gpu_bootstate.simulator.state import Call
from tests.support.node import Node, config


@dataclass(frozen=True)
class Wish:
    """A profile as it is written, and what a GPU with it looks like."""

    text: str
    mig: bool = False
    vfs: bool = True
    layout: tuple[tuple[str, int], ...] = ()  # profile -> count
    types: tuple[tuple[int, str], ...] = ()  # VF -> type


def _types(*names: str) -> tuple[tuple[int, str], ...]:
    return tuple(enumerate(names))


BARE = Wish("{mode: none}", vfs=False)

WISHES = {
    "hgx-h200-8": [
        BARE,
        Wish(
            "{mig: {1g.18gb: 7}, vgpus: {H200X-1-18C: 7}}",
            mig=True,
            layout=(("1g.18gb", 7),),
            types=_types(*["H200X-1-18C"] * 7),
        ),
        Wish(
            "{mig: {1g.18gb: 3, 4g.71gb: 1}, vgpus: {H200X-1-18C: 2, H200X-4-71C: [5]}}",
            mig=True,
            layout=(("1g.18gb", 3), ("4g.71gb", 1)),
            types=((0, "H200X-1-18C"), (1, "H200X-1-18C"), (5, "H200X-4-71C")),
        ),
        Wish(
            "{vgpus: {H200X-3-71C: 1, H200X-2-35C: 1}}",
            mig=True,
            layout=(("2g.35gb", 1), ("3g.71gb", 1)),
            types=_types("H200X-3-71C", "H200X-2-35C"),
        ),
        Wish("{vgpus: {H200X-141C: 1}}", types=_types("H200X-141C")),
        Wish(
            "{vgpus: {H200X-35C: 2, H200X-70C: 1}, mixed-size: true}",
            types=_types("H200X-35C", "H200X-35C", "H200X-70C"),
        ),
    ],
    "hgx-a100-8": [
        BARE,
        Wish(
            "{mig: {1g.10gb: 7}, vgpus: {A100DX-1-10C: 5}}",
            mig=True,
            layout=(("1g.10gb", 7),),
            types=_types(*["A100DX-1-10C"] * 5),
        ),
        Wish(
            "{mig: {3g.40gb: [4], 2g.20gb: 2}, vgpus: {A100DX-2-20C: 2}}",
            mig=True,
            layout=(("2g.20gb", 2), ("3g.40gb", 1)),
            types=_types("A100DX-2-20C", "A100DX-2-20C"),
        ),
        Wish("{vgpus: {A100DX-40C: 2}}", types=_types("A100DX-40C", "A100DX-40C")),
    ],
    "l40s-4": [
        BARE,
        Wish("{vgpus: {L40S-12Q: 4}}", types=_types(*["L40S-12Q"] * 4)),
        Wish("{vgpus: {L40S-48Q: [7]}}", types=((7, "L40S-48Q"),)),
    ],
}

# How a GPU may be found at the start of a run; each is a state that the hardware allows.
STARTS = [
    "bare",
    "mig on",
    "mig pending",
    "vfs on",
    "some vfs on",
    "vfs on and carved",
    "carved otherwise",
    "stranded on the stub",
    "unbound",
    "lock left",
    "whole card",
]

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


def _start(node: Node, pf: str, start: str) -> None:
    gpu = node.gpu(pf)
    has_mig = node.sim.board_of(gpu).mig
    small = next((p for p in node.sim.profiles(gpu) if p.slice_count == 2), None)
    if start in ("mig on", "vfs on and carved", "carved otherwise") and has_mig:
        node.with_mig(pf)
    if start == "mig pending" and has_mig:
        node.with_mig(pf, current=False, pending=True)
    if start in ("vfs on", "vfs on and carved", "carved otherwise", "whole card"):
        node.with_vfs(pf)
    if start == "some vfs on":
        node.with_vfs(pf, 4)
    if start == "vfs on and carved" and small is not None:
        node.with_instances(pf, (small.name, 0), (small.name, 4))
        kind = next(t for t in node.sim.types(gpu) if t.gi_profile_id == small.gi_profile_id)
        node.with_types(pf, {1: kind.name.split()[-1]})
    if start == "carved otherwise" and small is not None:
        node.with_instances(pf, *((small.name, place.start) for place in small.placements))
    if start == "whole card":
        whole = max(
            (t for t in node.sim.types(gpu) if t.gi_profile_id is None),
            key=lambda t: t.framebuffer_mib,
        )
        node.with_types(pf, {0: whole.name.split()[-1]})
    if start == "stranded on the stub":
        node.stranded(pf, "pci-pf-stub")
    if start == "unbound":
        node.stranded(pf, None)
    if start == "lock left":
        gpu.unbind_lock = True


@st.composite
def situations(draw: st.DrawFn) -> tuple[str, dict[str, Wish], dict[str, str]]:
    board = draw(st.sampled_from(sorted(WISHES)))
    pfs = [gpu.bdf for gpu in Node(board, Path("/nowhere")).gpus()]
    named = draw(st.lists(st.sampled_from(pfs), unique=True, min_size=1, max_size=4))
    wishes = {pf: draw(st.sampled_from(WISHES[board])) for pf in named}
    starts = {pf: draw(st.sampled_from(STARTS)) for pf in named}
    return board, wishes, starts


def _node(board: str, starts: dict[str, str], directory: str) -> Node:
    node = Node(board, Path(directory))
    for pf, start in starts.items():
        _start(node, pf, start)
    return node


def _written(wishes: dict[str, Wish], policy: str = "") -> str:
    return config({pf: wish.text for pf, wish in wishes.items()}, policy)


def _assert_is(node: Node, pf: str, wish: Wish) -> None:
    gpu = node.gpu(pf)
    assert (gpu.driver, gpu.unbind_lock) == ("nvidia", False)
    assert (gpu.mig_current, gpu.mig_pending) == (wish.mig, wish.mig)
    total = node.sim.board_of(gpu).sriov_totalvfs
    assert len(gpu.vfs) == (total if wish.vfs else 0)
    assert sorted(Counter(name for name, _ in node.layout(pf)).items()) == sorted(wish.layout)
    assert node.types(pf) == dict(wish.types)


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
        node = _node(board, starts, directory)
        on_before = _vfs_on(node)
        result = node.apply(_written(wishes))
        assert result["exit_code"] == 0, result["summary"]
        _assert_always(node, wishes, on_before=on_before, ready=True)
        assert all(call.ok for call in node.calls), "a call was made to see whether it fails"
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)

        again = node.apply(_written(wishes))
        assert (again["exit_code"], node.calls, node.ready) == (0, [], True)

        node.reboot()
        assert node.apply(_written(wishes))["exit_code"] == 0
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)
        node.sim.reload_driver()
        assert node.apply(_written(wishes))["exit_code"] == 0
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.data())
def test_geometry_changed_in_the_file_converges_from_what_the_last_one_left(
    situation: tuple[str, dict[str, Wish], dict[str, str]], data: st.DataObject
) -> None:
    board, wishes, starts = situation
    with tempfile.TemporaryDirectory() as directory:
        node = _node(board, starts, directory)
        assert node.apply(_written(wishes))["exit_code"] == 0
        then = {pf: data.draw(st.sampled_from(WISHES[board])) for pf in wishes}
        on_before = _vfs_on(node)
        before = dict(wishes)
        result = node.apply(_written(then))
        assert result["exit_code"] == 0, result["summary"]
        _assert_always(node, then, on_before=on_before, ready=True)
        for pf, wish in then.items():
            _assert_is(node, pf, wish)
            if wish == before[pf]:
                assert pf not in node.touched(), "it was right, whatever its neighbours were"


@SETTINGS
@given(situations(), st.sampled_from(TRANSIENT))
def test_a_failure_that_passes_is_got_over(
    situation: tuple[str, dict[str, Wish], dict[str, str]], fault: str
) -> None:
    board, wishes, starts = situation
    with tempfile.TemporaryDirectory() as directory:
        node = _node(board, starts, directory).fault(fault)
        on_before = _vfs_on(node)
        result = node.apply(_written(wishes))
        event(f"met: {bool(node.sim.state.faults[0].seen)}")
        assert result["exit_code"] == 0, (result["summary"], result["gpus"])
        _assert_always(node, wishes, on_before=on_before, ready=True)
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.sampled_from(PERMANENT))
def test_one_gpu_that_fails_for_good_takes_no_other_down_and_is_told(
    situation: tuple[str, dict[str, Wish], dict[str, str]], fault: str
) -> None:
    board, wishes, starts = situation
    victim = sorted(wishes)[0]
    verb, effect = fault.split(" ", 1)
    with tempfile.TemporaryDirectory() as directory:
        node = _node(board, starts, directory)
        node.fault(f"{verb} {victim} {effect}")
        on_before = _vfs_on(node)
        result = node.apply(_written(wishes))
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
                _assert_is(node, pf, wish)
        if failed:
            assert outcome[victim]["reason"]
            assert victim in outcome[victim]["message"]
            assert outcome[victim]["remedy"]
            assert result["exit_code"] == (2 if len(wishes) > 1 else result["exit_code"])
            assert result["exit_code"] != 0
            assert not node.gpu_ready(victim)
        else:
            _assert_is(node, victim, wishes[victim])

        # The cause is gone: the next run goes on from whatever was left.
        node.without_faults()
        gpu = node.gpu(victim)
        gpu.lost = gpu.off_bus = False
        final = node.apply(_written(wishes))
        assert final["exit_code"] == 0, (final["summary"], final["gpus"])
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)


@SETTINGS
@given(situations(), st.sampled_from([HolderKind.VM, HolderKind.COMPUTE, HolderKind.INSTANCE]))
def test_a_gpu_in_use_sees_no_call_whatever_is_wanted(
    situation: tuple[str, dict[str, Wish], dict[str, str]], kind: HolderKind
) -> None:
    board, wishes, starts = situation
    victim = sorted(wishes)[0]
    with tempfile.TemporaryDirectory() as directory:
        node = _node(board, starts, directory)
        gpu = node.gpu(victim)
        if kind is HolderKind.VM and gpu.vfs:
            node.with_vm(victim, 0)
        elif kind is HolderKind.INSTANCE and gpu.instances:
            node.with_instance_holder(victim, gpu.instances[0].gi_id)
        else:
            node.with_compute(victim)
        result = node.apply(_written(wishes))
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
                _assert_is(node, pf, wish)


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
        node = _node(board, starts, directory).fault(f"{verb} nth={1 + number // 5} {when}")
        try:
            node.apply(_written(wishes))
        except Killed:
            assert not node.ready, "the gate is open on what nobody has verified"
        event(f"killed: {not node.ready}")
        node.without_faults()
        result = node.apply(_written(wishes))
        assert result["exit_code"] == 0, (result["summary"], result["gpus"])
        for pf, wish in wishes.items():
            _assert_is(node, pf, wish)
