"""Faults by script: which call, on which GPU, which time, and what happens instead.

sriov_manage 0000:17:00.0 nth=3 noop      the third call exits 0 and does nothing
facts 0000:3d:00.0 hang                   every read of that GPU blocks
set_vgpu_type times=1 io:EIO              one write fails
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import TypeVar

from gpu_bootstate.hardware.protocol import ActivationStatus, ErrorKind
from gpu_bootstate.model import Bdf
from gpu_bootstate.simulator.state import FaultState

_E = TypeVar("_E", bound=Enum)

ALWAYS = 10**9

TOOLS = frozenset({"sriov_manage", "reset_gpu"})
_NODE_CHANGES = frozenset({"stop_unit", "start_unit", "reload_unit", "reboot"})
_GPU_CHANGES = TOOLS | {
    "bind_driver",
    "create_compute_instance",
    "create_gpu_instance",
    "destroy_gpu_instance",
    "release_unbind_lock",
    "set_mig_mode",
    "set_mixed_size",
    "set_persistence",
    "set_vgpu_type",
}
CHANGES = _GPU_CHANGES | _NODE_CHANGES
_GPU_READS = frozenset(
    {
        "creatable_vgpu_types",
        "facts",
        "gi_profiles",
        "gpu_instances",
        "holders",
        "pf",
        "vfs",
        "vgpu_types",
    }
)
_NODE_READS = frozenset({"actors", "driver_info", "fabric_mode", "kernel_log", "pfs", "unit_state"})
READS = _GPU_READS | _NODE_READS
OF_A_GPU = _GPU_CHANGES | _GPU_READS
_ANY = CHANGES | READS
_TOOL = frozenset({"sriov_manage"})


@dataclass(frozen=True)
class _Effect:
    """``check`` raises ValueError for an argument that is none; None: it takes no argument."""

    verbs: frozenset[str]
    check: Callable[[str], object] | None = None


def parse_fault(text: str) -> FaultState:
    """Raises ValueError that says what was expected."""
    verb, _, rest = text.strip().partition(" ")
    if not verb:
        raise ValueError("a fault is: VERB [PF] [nth=N] [times=N] EFFECT")
    if verb not in _ANY:
        raise ValueError(f"there is no call {verb!r}{_nearest(verb, _ANY)}")
    fault = FaultState(verb=verb, pf=None, nth=1, times=ALWAYS, effect="")
    while rest := rest.strip():
        word, _, after = rest.partition(" ")
        if word.startswith("nth="):
            fault.nth = _count(word)
            fault.times = 1 if fault.times == ALWAYS else fault.times
        elif word.startswith("times="):
            fault.times = _count(word)
        elif word.partition(":")[0] in _EFFECTS:
            fault.effect = rest  # the argument of an effect may have blanks
            break
        else:
            fault.pf = _address(word)
        rest = after
    if fault.pf is not None and verb not in OF_A_GPU:
        raise ValueError(f"{verb} is not a call on one GPU")
    _check(verb, fault.effect)
    return fault


def _address(word: str) -> str:
    try:
        return str(Bdf.parse(word))
    except ValueError:
        known = ", ".join(_EFFECTS)
        raise ValueError(
            f"{word!r} is no PCI address, nth=N, times=N or effect ({known})"
        ) from None


def _check(verb: str, text: str) -> None:
    name, colon, argument = text.partition(":")
    effect = _EFFECTS.get(name)
    if effect is None:
        raise ValueError(f"a fault ends in an effect: {', '.join(_EFFECTS)}")
    if verb not in effect.verbs:
        possible = ", ".join(known for known, each in _EFFECTS.items() if verb in each.verbs)
        raise ValueError(f"{name} cannot happen to {verb} (what can: {possible})")
    if effect.check is None:
        if colon:
            raise ValueError(f"{name} takes no argument after a colon")
    elif not argument:
        raise ValueError(f"{name} takes an argument after a colon")
    else:
        effect.check(argument)


def _nearest(word: str, known: frozenset[str]) -> str:
    near = get_close_matches(word[:100], sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else f" (there are: {', '.join(sorted(known))})"


def error_kind(name: str) -> ErrorKind:
    return _member(ErrorKind, name)


def activation_status(name: str) -> ActivationStatus:
    return _member(ActivationStatus, name)


def _member(kinds: type[_E], name: str) -> _E:
    wanted = name.upper().replace("-", "_").replace(" ", "_")
    try:
        return kinds[wanted]
    except KeyError:
        known = ", ".join(kind.name.lower().replace("_", "-") for kind in kinds)
        raise ValueError(f"{name!r} is none of {known}") from None


def _errno(name: str) -> None:
    if name not in errno.errorcode.values():
        raise ValueError(f"{name!r} is no errno name like EIO")


def _exit(argument: str) -> None:
    code = argument.partition(":")[0]
    if not code.isdecimal() or int(code) > 255:
        raise ValueError(
            f"exit: takes an exit code from 0 to 255, then perhaps :text, not {code!r}"
        )


def _vf_count(text: str) -> None:
    if not text.isdecimal():
        raise ValueError(f"partial: takes a number of VFs, not {text!r}")


def _seconds(text: str) -> None:
    whole, _, part = text.partition(".")
    if not whole.isdecimal() or (part and not part.isdecimal()):
        raise ValueError(f"{text!r} is no number of seconds")


def _count(word: str) -> int:
    name, _, text = word.partition("=")
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}= takes a whole number from 1, not {text!r}")
    return int(text)


_EFFECTS = {
    "noop": _Effect(CHANGES),  # reports success and does nothing
    "hang": _Effect(_ANY),  # does not come back within its limit
    "error": _Effect(_ANY, error_kind),  # error:in-use, the name of an ErrorKind
    "io": _Effect(_ANY - TOOLS, _errno),  # io:EIO
    "lose": _Effect(OF_A_GPU),  # the GPU falls off the bus now
    "lost": _Effect(OF_A_GPU),  # NVML says "GPU is lost" from now on
    "unreadable": _Effect(frozenset({"facts", "vfs"})),  # answers, but not the MIG mode or types
    "kill-before": _Effect(CHANGES),  # the process dies before the call
    "kill-after": _Effect(CHANGES),  # the process dies after the call took effect
    "status": _Effect(frozenset({"set_mig_mode"}), activation_status),  # only this, nothing set
    "missing": _Effect(TOOLS),  # the tool cannot be started
    "exit": _Effect(TOOLS, _exit),  # exit:255:text
    # A kernel log line; the call then fails with EIO, or the tool exits 1 and does nothing.
    "log": _Effect(TOOLS | {"set_vgpu_type"}, str),
    "leave-on-stub": _Effect(_TOOL),  # exits 1, the PF stays on pci-pf-stub
    "leave-unbound": _Effect(_TOOL),  # exits 1, the PF has no driver
    "never": _Effect(_TOOL),  # the VFs never offer types, until the next off and on
    "partial": _Effect(_TOOL, _vf_count),  # only so many VFs
    "late": _Effect(_TOOL, _seconds),  # the VFs offer types after so many seconds
    "unbind-lock-busy": _Effect(_TOOL, _seconds),  # a client that nobody sees has the GPU so long
}


def due(faults: list[FaultState], verb: str, pf: str | None) -> str | None:
    """The effect that this occurrence of the call meets, if any. Counts the occurrence."""
    effect = None
    for fault in faults:
        if fault.verb != verb or fault.pf not in (None, pf):
            continue
        fault.seen += 1
        if fault.nth <= fault.seen < fault.nth + fault.times and effect is None:
            effect = fault.effect
    return effect
