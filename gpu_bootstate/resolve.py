"""(configuration, observed node) -> what each GPU is to be, or what is wrong. Pure.

Nothing has been touched when this answers, so a mistake on any GPU costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from gpu_bootstate.geometry import Fault, Geometry, Offer, geometry
from gpu_bootstate.matching import match
from gpu_bootstate.model import (
    Bdf,
    Card,
    DesiredState,
    Entry,
    GpuTarget,
    Mode,
    ObservedGpu,
    ObservedNode,
    VgpuTarget,
)
from gpu_bootstate.names import bare_name
from gpu_bootstate.problems import Problem
from gpu_bootstate.reasons import Code, Finding

# Guests and libvirt domains refer to mdevs by UUID: never change this.
_MDEV_NAMESPACE = UUID("7c1d2a53-5f0e-4b0b-9c0d-3d1f6a1e8b42")


@dataclass(frozen=True, slots=True)
class Resolution:
    """With ``problems`` nothing may be done, whatever else is here."""

    targets: tuple[GpuTarget, ...]  # by PF
    # GPUs that cannot be read now, and no other of their model can: what they offer is not known.
    deferred: tuple[tuple[Bdf, Entry], ...]
    # Named with on-missing: degrade, and not there: entry, what it names, why.
    missing: tuple[tuple[Entry, str, Finding], ...]
    problems: tuple[Problem, ...]
    notices: tuple[Finding, ...]
    unclaimed: tuple[Bdf, ...]  # carved, but named by no entry
    # Targets without their vGPUs: off a vGPU host there is nothing to look types up in.
    unchecked: tuple[Bdf, ...]


def resolve(
    desired: DesiredState, node: ObservedNode, remembered: Mapping[Bdf, Card]
) -> Resolution:
    """``remembered`` is the card that each PF had when it was last read and right."""
    claims = match(desired.entries, node, remembered)
    targets: list[GpuTarget] = []
    deferred: list[tuple[Bdf, Entry]] = []
    unchecked: list[Bdf] = []
    notices: list[Finding] = []
    faults: dict[Fault, list[Bdf]] = {}
    for gpu, entry in claims.claimed:
        if entry.profile.mode is not Mode.VGPU:
            targets.append(_bare(gpu.pf, entry))
            continue
        offer = _offer(gpu, node, needs_types=bool(entry.profile.vgpus))
        if offer is None:
            deferred.append((gpu.pf, entry))
            continue
        meant = geometry(offer, entry.profile, _profile_path(entry))
        for fault in meant.faults:
            faults.setdefault(fault, []).append(gpu.pf)
        if meant.faults:
            continue
        targets.append(_carved(gpu.pf, entry, meant))
        if meant.types_unchecked:
            unchecked.append(gpu.pf)
        for got, used in meant.renamed:
            notices.append(Finding.of(Code.PROFILE_RESOLVED, pf=gpu.pf, got=got, used=used))
    problems = [*claims.problems, *(fault.problem(pfs) for fault, pfs in faults.items())]
    return Resolution(
        targets=tuple(targets),
        deferred=tuple(deferred),
        missing=claims.missing,
        problems=_in_file_order(problems, desired.sources),
        notices=tuple(notices),
        unclaimed=claims.unclaimed,
        unchecked=tuple(unchecked),
    )


def _bare(pf: Bdf, entry: Entry) -> GpuTarget:
    return GpuTarget(
        pf=pf,
        mode=entry.profile.mode,
        profile_name=entry.profile.name,
        mig=False,
        instances=(),
        vgpus=(),
        mixed_size=False,
        compute_instances=False,
        mark=entry.mark,
        path=entry.path,
    )


def _carved(pf: Bdf, entry: Entry, meant: Geometry) -> GpuTarget:
    vgpus = []
    for vf_index, vgpu_type in meant.vgpus:
        # The prefix is left out: a later driver may say NVIDIA where an earlier one said GRID.
        stable = f"{pf}/{vf_index}/{bare_name(vgpu_type.name)}"
        vgpus.append(
            VgpuTarget(
                vf_index=vf_index,
                vgpu_type_id=vgpu_type.vgpu_type_id,
                type_name=vgpu_type.name,
                gi_profile_id=vgpu_type.gi_profile_id,
                mdev_uuid=str(uuid5(_MDEV_NAMESPACE, stable)),
            )
        )
    return replace(
        _bare(pf, entry),
        mig=meant.mig,
        instances=meant.instances,
        vgpus=tuple(vgpus),
        mixed_size=entry.profile.mixed_size,
        compute_instances=entry.profile.compute_instances,
    )


def _offer(gpu: ObservedGpu, node: ObservedNode, *, needs_types: bool) -> Offer | None:
    """What the GPU offers, or what another card of its model does while it cannot be read."""
    model = gpu.pci.device_id, gpu.pci.subsystem_id
    others = [g for g in node.gpus if (g.pci.device_id, g.pci.subsystem_id) == model]
    for one in (gpu, *others):
        if one.facts is None:
            continue
        # A vGPU host without types is one whose vGPU manager has not said them yet.
        if needs_types and one.is_vgpu_host and not one.vgpu_types:
            continue
        return Offer(
            name=one.facts.name,
            has_mig=one.facts.mig is not None,
            is_vgpu_host=one.is_vgpu_host,
            gi_profiles=one.gi_profiles,
            vgpu_types=one.vgpu_types,
            vf_count=gpu.pci.sriov_totalvfs,
        )
    return None


def _profile_path(entry: Entry) -> str:
    """The key path of the entry's profile; one written in the entry itself has its own as name."""
    name = entry.profile.name
    return name if name == f"{entry.path}.profile" else f"profiles.{name}"


def _in_file_order(problems: list[Problem], sources: tuple[str, ...]) -> tuple[Problem, ...]:
    rank = {name: index for index, name in enumerate(sources)}

    def place(problem: Problem) -> tuple[int, int, int]:
        mark = problem.mark
        if mark is None:
            return len(rank) + 1, 0, 0
        return rank.get(mark.file, len(rank)), mark.line, mark.column

    return tuple(sorted(problems, key=place))
