"""Every failure at every place where it can occur, singly and in pairs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict

from gpu_bootstate.reasons import Code, Condition
from gpu_bootstate.simulator.faults import OF_A_GPU
from gpu_bootstate.simulator.hardware import Killed
from tests.chaos.crash import assert_harmless
from tests.chaos.matrix import Situation, before, scratch
from tests.support.situations import assert_is

# verb -> what can happen instead (host-interfaces.md, and what its texts are turned into).
EFFECTS = {
    "sriov_manage": (
        *("noop", "hang", "missing", "never", "partial:3", "late:1", "late:30"),
        *("leave-on-stub", "leave-unbound", "unbind-lock-busy:2", "unbind-lock-busy:600"),
        *("exit:1:Cannot obtain unbindLock", "exit:255:killed", "lose", "lost"),
        "log:not enough MMIO resources for SR-IOV",
    ),
    "set_vgpu_type": (
        *("noop", "hang", "io:EIO", "io:EPERM", "io:EINVAL", "io:ENOENT", "io:ENOSPC"),
        *("lose", "lost"),
        "log:NVRM: kvgpumgrCreateRequestVgpu: GPU is not initialized yet 0x66",
    ),
    "set_mig_mode": (
        *("noop", "hang", "error:unknown", "error:in-use", "error:gpu-lost", "error:no-permission"),
        *("status:reset-required", "lose", "lost"),
    ),
    "reset_gpu": ("noop", "hang", "exit:255:in use by another client", "missing", "lose"),
    "create_gpu_instance": (
        *("noop", "hang", "error:unknown", "error:insufficient-resources", "error:in-use"),
        *("error:gpu-lost", "lose"),
    ),
    "destroy_gpu_instance": ("noop", "hang", "error:in-use", "error:unknown", "lost"),
    "bind_driver": ("noop", "hang", "io:ENODEV", "io:EBUSY"),
    "release_unbind_lock": ("noop", "io:EIO"),
    "set_persistence": ("noop", "hang", "error:unknown"),
    "set_mixed_size": ("noop", "error:unknown"),
    "facts": ("hang", "error:unknown", "error:gpu-lost", "unreadable"),
    "vfs": ("hang", "io:EIO", "unreadable"),
    "pf": ("io:EIO",),
    "gpu_instances": ("error:unknown",),
    "vgpu_types": ("error:unknown",),
    "gi_profiles": ("error:unknown",),
    "holders": ("io:EACCES",),
    "pfs": ("io:EIO",),
    "unit_state": ("hang",),
}
_WHEN = ("times=1", "nth=2 times=1", "")  # the first, the second, each


def singles() -> Iterator[str]:
    """Faults of the first GPU; the place of the PF is left open."""
    for verb, effects in EFFECTS.items():
        for effect, when in itertools.product(effects, _WHEN):
            pf = "{pf}" if verb in OF_A_GPU else ""
            yield " ".join(word for word in (verb, pf, when, effect) if word)


def pairs() -> Iterator[tuple[str, str]]:
    return itertools.combinations(singles(), 2)


def meet(situation: Situation, *faults: str) -> str:
    """A run that meets the faults: what must hold, and the run after they are gone. Returns the
    outcome of the first GPU, with its reason.
    """
    victim = next(iter(situation.wishes))
    others = [pf for pf in situation.wishes if pf != victim]
    with scratch() as directory:
        node = situation.node(directory)
        was = before(node)
        for fault in faults:
            node.fault(fault.format(pf=victim))
        try:
            result = node.apply(situation.text)
        except Killed as err:
            raise AssertionError("a fault killed the run") from err
        assert node.under_an_open_gate == []
        gpus = {gpu["pf"]: gpu for gpu in result["gpus"]}
        outcome = gpus.get(victim)
        node.without_faults()
        gpu = node.gpu(victim)
        gone = gpu.off_bus
        gpu.lost = gpu.off_bus = False
        gpu.holders = [each for each in gpu.holders if not each.hidden]
        if outcome is not None and outcome["condition"] == Condition.CONVERGED.value:
            assert_is(node, victim, situation.wishes[victim])
            said = "converged"
        else:
            reason = outcome["reason"] if outcome else result["findings"][-1]["reason"]
            assert reason != Code.INTERNAL.value, (result["summary"], result["findings"])
            said = f"{outcome['condition'] if outcome else result['condition']}: {reason}"
            assert result["exit_code"] != 0
            assert not node.ready
            assert not node.gpu_ready(victim)
            told = outcome or result["findings"][-1]
            assert told["message"]
            assert told["remedy"]
        for pf in others if gpus else ():  # none: nothing was begun
            if gpus[pf]["condition"] == Condition.CONVERGED.value:
                assert_is(node, pf, situation.wishes[pf])
            else:  # the tool would capture the first one, or what all hang on is the trouble
                assert gpus[pf]["reason"] in ("sibling-driverless", "node-unreadable"), gpus[pf]
        for each in node.gpus():
            if each.bdf not in situation.wishes:
                assert asdict(each) == was[each.bdf], f"{each.bdf} is not named and was touched"
        if not gone:
            assert_harmless(node, situation.text, was, situation.wishes)
        final = node.apply(situation.text)
        assert final["exit_code"] == 0, (final["summary"], final["gpus"])
        assert node.ready
        for pf, wish in situation.wishes.items():
            assert_is(node, pf, wish)
            assert node.gpu(pf).persistence == was[pf]["persistence"]
        return said
