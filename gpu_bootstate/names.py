"""Names of MIG profiles and vGPU types: what people write and what drivers say. Pure.

The grammar is in host-interfaces.md section 4.1. Ids, and the instances that a type needs, are
never read off a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gpu_bootstate.model import GiProfile, VgpuType

_PREFIXES = ("NVIDIA ", "GRID ")
_SUFFIXES = ("MEALL", "NOME", "ME", "GFX")  # MEALL and NOME before ME, which they contain

_SHAPE = re.compile(r"(?P<slices>\d+)g\.(?P<gb>\d+)gb(?P<attributes>.*)")

# Drivers round a profile's memory in different ways (S10: 1g.9gb on a card that reports 79 GB);
# profiles of one shape on one GPU differ by a factor of two.
_ROUNDING = 0.15


def bare_name(name: str) -> str:
    """Without the vendor's prefix, which changes between drivers: ``H200X-1-18C``."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def plain_form(name: str) -> str:
    """Without a suffix for media engines or graphics: ``H200X-1-18C`` for ``H200X-1-18CME``."""
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def find_type(
    asked: str, types: Sequence[VgpuType], gi_profiles: Sequence[GiProfile]
) -> tuple[VgpuType, ...]:
    """The type that ``asked`` names, or the several that it may name, or none.

    The name may leave the vendor's prefix out, and of a product of several words all but the last
    (``DC-1-24Q``). Case counts only where it makes the difference.
    """
    bare = bare_name(asked)
    spellings: tuple[Callable[[str], bool], ...] = (
        lambda name: name == asked,
        lambda name: bare_name(name) == bare,
        lambda name: name.split()[-1:] == [bare],
        lambda name: bare_name(name).casefold() == bare.casefold(),
        lambda name: name.casefold().split()[-1:] == [bare.casefold()],
    )
    for is_meant in spellings:
        found = tuple(vgpu_type for vgpu_type in types if is_meant(vgpu_type.name))
        if found:
            return found
    if not asked.endswith("GFX"):
        return ()
    # Drivers name these types without the suffix that their instances have (+gfx).
    graphics = {p.gi_profile_id for p in gi_profiles if p.name.endswith("+gfx")}
    plain = find_type(asked.removesuffix("GFX"), types, gi_profiles)
    return tuple(vgpu_type for vgpu_type in plain if vgpu_type.gi_profile_id in graphics)


def same_shape(asked: str, offered: str) -> bool:
    """Same slices and attributes, and memory that may be the same number rounded otherwise."""
    one, other = _SHAPE.fullmatch(asked), _SHAPE.fullmatch(offered)
    if one is None or other is None:
        return False
    if (one["slices"], one["attributes"]) != (other["slices"], other["attributes"]):
        return False
    sizes = int(one["gb"]), int(other["gb"])
    return abs(sizes[0] - sizes[1]) <= _ROUNDING * max(sizes)
