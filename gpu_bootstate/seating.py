"""vGPUs on GPU instances, seated as the driver does it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm

from gpu_bootstate.model import VgpuType


@dataclass(frozen=True, slots=True)
class Seats:
    instances: int  # with a vGPU on them
    standing: tuple[int, ...]  # those that found no room, by their index


def seat(types: Sequence[VgpuType], *, mixed_size: bool, limit: int | None = None) -> Seats:
    """Puts vGPUs of one GI profile on instances the way the driver does.

    Each goes to the first instance that has room; in equal-size mode one that has vGPUs has room
    only for the same framebuffer size (host-interfaces.md 2.4).
    """
    whole = lcm(*(max(1, vgpu_type.max_per_gi) for vgpu_type in types))
    instances: list[tuple[int, int]] = []  # share taken, framebuffer size
    standing: list[int] = []
    for index, vgpu_type in enumerate(types):
        share = whole // max(1, vgpu_type.max_per_gi)
        size = vgpu_type.framebuffer_mib
        for at, (taken, other_size) in enumerate(instances):
            if taken + share <= whole and (mixed_size or size == other_size):
                instances[at] = taken + share, size
                break
        else:
            if limit is None or len(instances) < limit:
                instances.append((share, size))
            else:
                standing.append(index)
    return Seats(len(instances), tuple(standing))
