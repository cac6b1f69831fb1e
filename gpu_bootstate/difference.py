"""One readable GPU beside its target: the steps between the two. Pure.

What must go comes first, then the MIG mode, VFs, instances and types, in the order that the
hardware enforces. Nothing here asks whether the GPU is in use; `plan` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpu_bootstate.model import (
    AwaitVfs,
    ClearVgpuType,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyGpuInstance,
    DisableVfs,
    EnableVfs,
    GpuFacts,
    GpuInstance,
    GpuTarget,
    MigMode,
    Mode,
    ObservedGpu,
    Policy,
    ResetGpu,
    SetMigMode,
    SetMixedSize,
    SetVgpuType,
    Step,
    Vf,
)
from gpu_bootstate.placement import Layout, Misfit, solve
from gpu_bootstate.reasons import Code, Finding


class Refused(Exception):
    """Nothing may be done on this GPU; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def steps_between(
    gpu: ObservedGpu, facts: GpuFacts, target: GpuTarget, policy: Policy
) -> tuple[Step, ...]:
    """Empty when the GPU is as it is to be. Raises Refused when no steps lead there."""
    difference = _Difference(gpu, facts, target, policy)
    return tuple(difference.steps())


@dataclass(frozen=True, slots=True)
class _Difference:
    gpu: ObservedGpu
    facts: GpuFacts
    target: GpuTarget
    policy: Policy

    def steps(self) -> Iterator[Step]:
        gpu, target = self.gpu, self.target
        mig = self.facts.mig or MigMode(current=False, pending=False)
        mig_differs = mig.current != target.mig or mig.pending != target.mig
        off_why = self._why_vfs_off(mig_differs=mig_differs)
        vfs_stay = bool(gpu.pci.sriov_numvfs) and off_why is None

        if not vfs_stay:
            yield from self._remove_all(off_why)
            if mig_differs:
                yield from self._mig_mode(mig)
            if target.mode is Mode.VGPU:
                yield self._enable_vfs(off_why)
                why = "they are registered a while after they appear"
                yield AwaitVfs(gpu.pf, why, gpu.pci.sriov_totalvfs)
                yield from self._build(self._layout(()), kept=(), vfs=())
            return

        layout = self._layout(gpu.gpu_instances)
        staying = {placed.placement for placed in layout.placed if placed.kept}
        kept = tuple(gi for gi in gpu.gpu_instances if gi.placement in staying)
        gone = tuple(gi for gi in gpu.gpu_instances if gi.placement not in staying)
        vfs = []
        for vf in gpu.vfs:
            no_longer = self._why_cleared(vf, gone, kept)
            if no_longer is not None:
                yield self._clear(vf, no_longer)
                vfs.append(replace(vf, vgpu_type_id=0, gi_id=None))
            else:
                vfs.append(vf)
        for gi in gone:
            yield self._destroy(gi, "it is not in the layout, or stands in its way")
        unready = sum(vf.framework is None for vf in gpu.vfs)
        if unready or len(gpu.vfs) < gpu.pci.sriov_numvfs:
            yield AwaitVfs(gpu.pf, "not all of them do yet", gpu.pci.sriov_numvfs)
        yield from self._build(layout, kept, vfs)

    # ------------------------------------------------------------------ what goes

    def _why_vfs_off(self, *, mig_differs: bool) -> str | None:
        """Why VFs that are on must go off; None when they may stay or are off."""
        on, total = self.gpu.pci.sriov_numvfs, self.gpu.pci.sriov_totalvfs
        if on == 0:
            return None
        if self.target.mode is not Mode.VGPU:
            return "the GPU is to be bare"
        if mig_differs:
            return "MIG mode cannot be changed while VFs are on"
        needed = max((vgpu.vf_index + 1 for vgpu in self.target.vgpus), default=0)
        if on != total and not (self.policy.allow_fewer_vfs and on >= needed):
            return f"{on} of {total} VFs are on and their number cannot be changed in place"
        return None

    def _remove_all(self, off_why: str | None) -> Iterator[Step]:
        gpu = self.gpu
        why = off_why or "enabling VFs re-attaches the driver, which would wipe it"
        if self.target.mode is not Mode.VGPU:
            why = "the GPU is to be bare"
        for vf in gpu.vfs:
            if vf.vgpu_type_id:
                yield self._clear(vf, why)
        for gi in gpu.gpu_instances:
            yield self._destroy(gi, why)
        if gpu.pci.sriov_numvfs:
            yield DisableVfs(gpu.pf, why, gpu.pci.sriov_numvfs)

    def _why_cleared(
        self, vf: Vf, gone: Sequence[GpuInstance], kept: Sequence[GpuInstance]
    ) -> str | None:
        """Why the type of a VF that stays must go; None when it has none or may keep it."""
        if vf.framework is not None and vf.vgpu_type_id is None:
            operation = f"reading the vGPU type of VF {vf.bdf}"
            raise Refused(
                Finding.of(
                    Code.GPU_UNREADABLE,
                    pf=self.gpu.pf,
                    operation=operation,
                    detail="there is no number in it",
                )
            )
        if not vf.vgpu_type_id:
            return None
        wanted = next((v for v in self.target.vgpus if v.vf_index == vf.index), None)
        if wanted is None:
            return "the profile has no vGPU there"
        if wanted.vgpu_type_id != vf.vgpu_type_id:
            return f"it is to have {wanted.type_name}"
        if self._sits_on(vf, gone):
            return "its GPU instance has to go"
        if self._mixed_size_differs(vf, kept):
            return "mixed-size mode can be changed only while no vGPU is set"
        there = next((gi for gi in self.gpu.gpu_instances if gi.gi_id == vf.gi_id), None)
        if there is not None and there.gi_profile_id != wanted.gi_profile_id:
            return "it sits on a GPU instance of another profile"
        return None

    def _sits_on(self, vf: Vf, instances: Sequence[GpuInstance]) -> bool:
        if vf.gi_id is not None:
            return any(gi.gi_id == vf.gi_id for gi in instances)
        # The driver does not say where the vGPU sits; it can only be on its type's profile.
        profile = next(
            (t.gi_profile_id for t in self.gpu.vgpu_types if t.vgpu_type_id == vf.vgpu_type_id),
            None,
        )
        return any(gi.gi_profile_id == profile for gi in instances)

    def _mixed_size_differs(self, vf: Vf, kept: Sequence[GpuInstance]) -> bool:
        wanted = self.target.mixed_size
        if not self.target.mig:
            return bool(self.facts.mixed_size) != wanted
        changing = tuple(gi for gi in kept if bool(gi.mixed_size) != wanted)
        return self._sits_on(vf, changing)

    # ------------------------------------------------------------------ what comes

    def _mig_mode(self, mig: MigMode) -> Iterator[Step]:
        why = f"it is {'on' if mig.current else 'off'}"
        if mig.is_pending:
            why += f" with {'on' if mig.pending else 'off'} pending"
        yield SetMigMode(self.gpu.pf, why, self.target.mig)
        # Field 184 says that the part changes the mode by itself; there only a mode that is
        # already stuck can need the reset (host-interfaces.md 5.1).
        if self.facts.resetless_mig is not True or mig.is_pending:
            yield ResetGpu(self.gpu.pf, "this part may commit a MIG mode only by a reset")

    def _enable_vfs(self, off_why: str | None) -> Step:
        why = "vGPUs live on VFs and the VFs are off"
        if off_why is not None:
            why = "they had to be off for the change"
        return EnableVfs(self.gpu.pf, why, self.gpu.pci.sriov_totalvfs)

    def _layout(self, existing: Sequence[GpuInstance]) -> Layout:
        keep = [(gi.gi_profile_id, gi.placement) for gi in existing]
        solved = solve(self.gpu.gi_profiles, self.target.instances, keep=keep)
        if isinstance(solved, Misfit):
            nearest = (f"{self._profile(gi_id)}: {count}" for gi_id, count in solved.nearest)
            finding = Finding.of(
                Code.LAYOUT_IMPOSSIBLE,
                pf=self.gpu.pf,
                misfit=self._profile(solved.gi_profile_id),
                layout=", ".join(instance.profile_name for instance in self.target.instances),
                why=solved.why,
                nearest=", ".join(nearest),
            )
            raise Refused(finding)
        return solved

    def _build(
        self, layout: Layout, kept: Sequence[GpuInstance], vfs: Sequence[Vf]
    ) -> Iterator[Step]:
        """Instances, mixed-size mode and types, beside what stays."""
        pf, target = self.gpu.pf, self.target
        # Big ones first: NVIDIA's own advice where placements are left to the driver.
        for placed in sorted(layout.placed, key=lambda p: (-p.placement.size, p.placement.start)):
            if not placed.kept:
                name = self._profile(placed.gi_profile_id)
                why = "the layout has it and the GPU has not"
                yield CreateGpuInstance(pf, why, placed.gi_profile_id, name, placed.placement)
        if target.compute_instances:
            done = {gi.placement for gi in kept if gi.compute_instances}
            for placed in layout.placed:
                if placed.placement not in done:
                    why = "the profile asks for compute instances"
                    yield CreateComputeInstance(pf, why, placed.placement)
        yield from self._mixed_size(layout, kept, vfs_stay=bool(vfs))
        present = {vf.index: vf.vgpu_type_id for vf in vfs}
        for vgpu in target.vgpus:
            if present.get(vgpu.vf_index) != vgpu.vgpu_type_id:
                yield SetVgpuType(
                    pf,
                    "the VF has none",
                    vgpu.vf_index,
                    vgpu.vgpu_type_id,
                    vgpu.type_name,
                    vgpu.gi_profile_id,
                    vgpu.mdev_uuid,
                )

    def _mixed_size(
        self, layout: Layout, kept: Sequence[GpuInstance], *, vfs_stay: bool
    ) -> Iterator[Step]:
        """The mode goes with the VFs and with the instance, so new ones start without it."""
        pf, enabled = self.gpu.pf, self.target.mixed_size
        why = "the profile asks for it" if enabled else "the profile does not ask for it"
        if not self.target.mig:
            is_on = vfs_stay and bool(self.facts.mixed_size)
            if is_on != enabled:
                yield SetMixedSize(pf, why, enabled, None)
            return
        now = {gi.placement: bool(gi.mixed_size) for gi in kept}
        for placed in layout.placed:
            if now.get(placed.placement, False) != enabled:
                yield SetMixedSize(pf, why, enabled, placed.placement)

    # ------------------------------------------------------------------ names

    def _clear(self, vf: Vf, why: str) -> Step:
        type_id = vf.vgpu_type_id or 0
        named = {t.vgpu_type_id: t.name for t in self.gpu.vgpu_types}
        name = named.get(type_id, f"type {type_id}")
        return ClearVgpuType(self.gpu.pf, why, vf.bdf, type_id, name, vf.mdev_uuid)

    def _destroy(self, gi: GpuInstance, why: str) -> Step:
        name = self._profile(gi.gi_profile_id)
        return DestroyGpuInstance(self.gpu.pf, why, gi.gi_id, name, gi.placement)

    def _profile(self, gi_profile_id: int) -> str:
        named = {p.gi_profile_id: p.name for p in self.gpu.gi_profiles}
        return named.get(gi_profile_id, f"profile {gi_profile_id}")
