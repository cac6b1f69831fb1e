"""Who has a GPU: users, for whom nothing may change, and clients, who must step aside. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_bootstate.model import GpuFacts, Holder, HolderKind, Policy

PERSISTENCED = "nvidia-persistenced"

# Part of the vGPU stack itself: these run wherever VFs can be enabled at all, so their handles
# cannot be what keeps sriov-manage away (host-interfaces.md 1.6).
_STACK = frozenset({"nvidia-vgpu-mgr", "nvidia-vgpud", "nv-fabricmanager"})

_COMM_LENGTH = 15  # the kernel cuts process names there


def users(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """VMs and processes that the GPU works for: while there is one, nothing on it may change."""
    return tuple(holder for holder in holders if holder.kind is not HolderKind.CLIENT)


def blocking_clients(holders: Iterable[Holder], policy: Policy) -> tuple[Holder, ...]:
    """Clients that must be off the GPU before an exclusive step, and that nothing here moves.

    nvidia-persistenced is not among them (persistence mode is lowered instead), nor is a unit
    that the policy allows to stop.
    """
    return tuple(
        holder
        for holder in holders
        if holder.kind is HolderKind.CLIENT
        and not any(_is_named(holder, name) for name in _STACK)
        and not is_persistenced(holder)
        and holder.unit not in policy.stop_units
    )


def is_persistenced(holder: Holder) -> bool:
    return _is_named(holder, PERSISTENCED)


def is_held_by_persistence(facts: GpuFacts, holders: Iterable[Holder]) -> bool:
    """The mode can read "off" while the daemon still has the GPU open (gpud#1322)."""
    return bool(facts.persistence) or any(map(is_persistenced, holders))


def _is_named(holder: Holder, name: str) -> bool:
    return holder.name[:_COMM_LENGTH] == name[:_COMM_LENGTH]
