"""Somebody begins to use a GPU: before the run, and after each of its calls.

From that moment nothing on that GPU may change, but for persistence mode being put back.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from typing import Any

from gpu_bootstate.model import PF_DRIVER
from tests.chaos.matrix import Situation, before, scratch
from tests.support.node import Node
from tests.support.situations import assert_is

Comes = Callable[[Node, str], object]


def _vm(node: Node, pf: str) -> None:
    gpu = node.gpu(pf)
    used = [vf.index for vf in gpu.vfs if vf.type_id]
    if gpu.vfs:
        node.with_vm(pf, used[0] if used else 0)


def _process(node: Node, pf: str) -> None:
    if node.gpu(pf).driver == PF_DRIVER:  # nobody opens a GPU that has no device node
        node.with_compute(pf)


def _on_an_instance(node: Node, pf: str) -> None:
    for gi in node.gpu(pf).instances[:1]:
        node.with_instance_holder(pf, gi.gi_id)


# Who comes, and how the message names it. Not all can come at any time: a VM needs a VF.
USERS: dict[str, tuple[Comes, str]] = {
    "a VM": (_vm, "db-1"),
    "a compute process": (_process, "python3"),
    "a process on a GPU instance": (_on_an_instance, "mig-watch"),
}


def meet(situation: Situation, user: str, at: int) -> str | None:
    """A run in which the user comes to the first GPU after so many calls on it (0: before it).

    Not in the middle of a call on another GPU: between looking for users and acting there is always
    a moment, and GPUs are worked on side by side. Returns how it ended, or None when the run made
    no more calls than that.
    """
    comes, named = USERS[user]
    victim = next(iter(situation.wishes))
    with scratch() as directory:
        node = situation.node(directory)
        was = before(node)
        found: dict[str, Any] = {}
        clients = len(node.gpu(victim).holders)

        def come() -> None:
            comes(node, victim)
            found.update(deepcopy(asdict(node.gpu(victim))))

        if at:
            node.after((victim, at), come)
        else:
            come()
        result = node.apply(situation.text)
        if not found:
            return None
        gpu = {each["pf"]: each for each in result["gpus"]}[victim]
        if len(found["holders"]) == clients:
            assert result["exit_code"] == 0
            return "cannot come yet"
        late = [call for call in node.calls if call.target == victim][at:]
        changed = [call for call in late if call.verb != "set_persistence"]
        assert changed == [], f"{user} has {victim}, and it is changed: {changed}"
        now = asdict(node.gpu(victim))
        same = {key: value for key, value in found.items() if key != "persistence"}
        assert same == {key: now[key] for key in same}, f"{victim} is not as the user found it"
        if gpu["condition"] == "converged":
            assert_is(node, victim, situation.wishes[victim])
            said = "converged: nothing was left to do"
        else:
            assert gpu["reason"] == "in-use", gpu
            assert named in gpu["message"], gpu["message"]
            assert victim in gpu["message"], gpu["message"]
            assert result["exit_code"] in (2, 3), result["exit_code"]
            assert not node.ready
            assert not node.gpu_ready(victim)
            said = "refused, and the user is named"
        for pf, wish in situation.wishes.items():
            if pf != victim:
                assert_is(node, pf, wish)
        for each in node.gpus():
            if each.bdf not in situation.wishes:
                assert asdict(each) == was[each.bdf], f"{each.bdf} is not named and was touched"
        del node.gpu(victim).holders[clients:]
        final = node.apply(situation.text)
        assert final["exit_code"] == 0, (final["summary"], final["gpus"])
        assert node.ready
        for pf, wish in situation.wishes.items():
            assert_is(node, pf, wish)
            assert node.gpu(pf).persistence == was[pf]["persistence"]
        return said
