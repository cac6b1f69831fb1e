"""Faults by script: which call, on which GPU, which time, and what happens instead.

sriov_manage 0000:17:00.0 nth=3 noop      the third call exits 0 and does nothing
facts 0000:3d:00.0 hang                   every read of that GPU blocks
set_vgpu_type times=1 io:EIO              one write fails
"""

from __future__ import annotations

import errno

from gpu_bootstate.hardware.protocol import ErrorKind
from gpu_bootstate.model import Bdf
from gpu_bootstate.simulator.state import FaultState

ALWAYS = 10**9

# effect -> whether it takes an argument after a colon
_EFFECTS = {
    "noop": False,  # reports success and does nothing
    "hang": False,  # does not come back within its limit
    "lose": False,  # the GPU falls off the bus now
    "lost": False,  # NVML says "GPU is lost" from now on
    "leave-on-stub": False,  # sriov_manage: exits 1, the PF stays on pci-pf-stub
    "leave-unbound": False,  # sriov_manage: exits 1, the PF has no driver
    "never": False,  # sriov_manage: the VFs never offer types, until the next off and on
    "kill-before": False,  # the process dies before the call
    "kill-after": False,  # the process dies after the call took effect
    "missing": False,  # the tool cannot be started
    "error": True,  # error:in-use, the name of an ErrorKind
    "io": True,  # io:EIO
    "exit": True,  # exit:255:text
    "partial": True,  # sriov_manage: only so many VFs
    "late": True,  # sriov_manage: VF directories after so many seconds
    "log": True,  # a kernel log line; the call then fails with EIO, or the tool does nothing
    "status": True,  # set_mig_mode: only this activation status, nothing set
}


def parse_fault(text: str) -> FaultState:
    """Raises ValueError that says what was expected."""
    head, _, _ = text.strip().partition(" ")
    words = text.split(None, 1)
    if not words:
        raise ValueError("a fault is: VERB [PF] [nth=N] [times=N] EFFECT")
    fault = FaultState(verb=head, pf=None, nth=1, times=ALWAYS, effect="")
    rest = words[1] if len(words) > 1 else ""
    while rest:
        word, _, after = rest.partition(" ")
        if word.startswith("nth="):
            fault.nth = _number(word)
            fault.times = 1 if fault.times == ALWAYS else fault.times
        elif word.startswith("times="):
            fault.times = _number(word)
        elif word.partition(":")[0] in _EFFECTS:
            fault.effect = rest  # the argument of an effect may have blanks
            break
        else:
            try:
                fault.pf = str(Bdf.parse(word))
            except ValueError:
                known = ", ".join(_EFFECTS)
                raise ValueError(
                    f"{word!r} is no PCI address, nth=N, times=N or effect ({known})"
                ) from None
        rest = after.strip()
    _check(fault.effect)
    return fault


def _check(effect: str) -> None:
    name, colon, argument = effect.partition(":")
    if name not in _EFFECTS:
        raise ValueError(f"a fault ends in an effect: {', '.join(_EFFECTS)}")
    if _EFFECTS[name] != bool(colon):
        raise ValueError(f"{name} takes {'an' if _EFFECTS[name] else 'no'} argument after a colon")
    if name == "error":
        error_kind(argument)
    elif name == "io" and not hasattr(errno, argument):
        raise ValueError(f"{argument!r} is no errno name like EIO")
    elif name in ("partial", "late"):
        float(argument)


def error_kind(name: str) -> ErrorKind:
    wanted = name.upper().replace("-", "_").replace(" ", "_")
    try:
        return ErrorKind[wanted]
    except KeyError:
        known = ", ".join(kind.name.lower().replace("_", "-") for kind in ErrorKind)
        raise ValueError(f"{name!r} is none of {known}") from None


def _number(word: str) -> int:
    name, _, text = word.partition("=")
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name}= takes a whole number from 1, not {text!r}")
    return int(text)


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
