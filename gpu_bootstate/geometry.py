"""What a profile means on one kind of GPU: names -> ids, instances, types, VFs. Pure.

It knows no address: GPUs that offer the same get the same answer, mistakes included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_bootstate.model import (
    Bdf,
    GiProfile,
    InstanceTarget,
    Mark,
    MigRequest,
    Profile,
    VgpuRequest,
    VgpuType,
)
from gpu_bootstate.names import bare_name, find_type, plain_form, same_shape
from gpu_bootstate.placement import Layout, Misfit, solve
from gpu_bootstate.problems import Problem, nearest
from gpu_bootstate.reasons import Code, Finding
from gpu_bootstate.seating import seat


@dataclass(frozen=True, slots=True)
class Offer:
    """What one GPU offers. ``vf_count`` 0: it shows no SR-IOV, so nothing is known of VFs."""

    name: str
    has_mig: bool
    is_vgpu_host: bool
    gi_profiles: tuple[GiProfile, ...]
    vgpu_types: tuple[VgpuType, ...]
    vf_count: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A mistake in a profile, without the GPU on which it shows."""

    code: Code
    mark: Mark
    path: str
    facts: tuple[tuple[str, str], ...]  # all that the sentence needs but pf
    detail: str = ""
    want: str = ""
    nearest: str | None = None

    def problem(self, pfs: Sequence[Bdf]) -> Problem:
        """One problem, however many GPUs share the mistake."""
        pf = str(pfs[0])
        if len(pfs) > 1:
            pf += f" (and {len(pfs) - 1} more)"
        message = Finding.of(self.code, pf=pf, **dict(self.facts)).message.removesuffix(".")
        if self.detail:
            message += f" ({self.detail})"
        return Problem(self.mark, self.path, message, self.want, self.nearest, self.code)


@dataclass(frozen=True, slots=True)
class Geometry:
    """With ``faults`` the rest is not to be used."""

    mig: bool
    instances: tuple[InstanceTarget, ...]
    vgpus: tuple[tuple[int, VgpuType], ...]  # VF index and type, by VF index
    types_unchecked: bool  # off a vGPU host there are no types to look names up in
    renamed: tuple[tuple[str, str], ...]  # MIG profile as written, as the driver names it
    faults: tuple[Fault, ...]


def geometry(offer: Offer, profile: Profile, path: str) -> Geometry:
    """``path`` is the profile's key path, ``profiles.seven``. For profiles of mode vgpu."""
    return _Work(offer, profile, path).geometry()


_Wish = tuple[int, VgpuRequest, VgpuType]  # VF index, what was asked for, what that is


class _Work:
    def __init__(self, offer: Offer, profile: Profile, path: str) -> None:
        self._offer = offer
        self._profile = profile
        self._path = path
        self._by_id = {p.gi_profile_id: p for p in offer.gi_profiles}
        self._faults: list[Fault] = []
        self._renamed: list[tuple[str, str]] = []

    def geometry(self) -> Geometry:
        given = self._profile.mig
        instances = self._given(given) if given is not None else ()
        wishes: tuple[_Wish, ...] = ()
        unchecked = bool(self._profile.vgpus) and not self._offer.is_vgpu_host
        if not unchecked:
            self._check_vfs()
            wishes = self._wishes()
            backed = [wish for wish in wishes if wish[2].gi_profile_id is not None]
            sliced = [wish for wish in wishes if wish[2].gi_profile_id is None]
            if sliced and (backed or given is not None):
                self._needs_mig_off(sliced[0][1], backed[0][2] if backed else None)
            elif sliced:
                self._check_time_sliced(sliced)
            elif backed and given is None:
                instances = self._derived(backed)
            elif backed and instances is not None:
                self._check_room(backed, instances)
        return Geometry(
            mig=given is not None or bool(instances),
            instances=instances or (),
            vgpus=tuple((vf_index, vgpu_type) for vf_index, _, vgpu_type in wishes),
            types_unchecked=unchecked,
            renamed=tuple(self._renamed),
            faults=tuple(self._faults),
        )

    # ------------------------------------------------------------------ GPU instances

    def _given(self, requests: Sequence[MigRequest]) -> tuple[InstanceTarget, ...] | None:
        """The instances that ``mig:`` lists; None when they cannot be told."""
        if not self._offer.has_mig:
            for request in requests[:1]:
                self._fault_mig(Code.NO_MIG, request, name=self._offer.name, got=request.profile)
            return None
        found = [(request, self._gi_profile(request)) for request in requests]
        known = [(request, profile) for request, profile in found if profile is not None]
        if len(known) < len(found):
            return None
        targets = tuple(
            InstanceTarget(profile.gi_profile_id, profile.name, start)
            for request, profile in known
            for start in request.starts or (None,) * request.count
        )
        places = {
            profile.gi_profile_id: (request.mark, self._mig_path(request))
            for request, profile in known
        }
        self._check_layout(targets, places)
        return targets

    def _gi_profile(self, request: MigRequest) -> GiProfile | None:
        profiles = self._offer.gi_profiles
        for profile in profiles:
            if profile.name == request.profile:
                return profile
        alike = [profile for profile in profiles if same_shape(request.profile, profile.name)]
        if len(alike) == 1:
            self._renamed.append((request.profile, alike[0].name))
            return alike[0]
        names = [profile.name for profile in profiles]
        near = nearest(request.profile, names, cutoff=0.7)
        self._fault_mig(
            Code.PROFILE_UNKNOWN,
            request,
            near=near,
            got=request.profile,
            available=", ".join(names) or "none",
            nearest=near or "one of these",
        )
        return None

    def _check_layout(
        self, targets: Sequence[InstanceTarget], places: dict[int, tuple[Mark, str]]
    ) -> None:
        """``places`` says where in the file each profile is asked for."""
        solved = solve(self._offer.gi_profiles, targets)
        if isinstance(solved, Layout):
            return
        mark, path = places[solved.gi_profile_id]
        near = self._nearest_layout(targets, solved)
        self._fault(
            Code.LAYOUT_IMPOSSIBLE,
            mark,
            path,
            {
                "misfit": self._name(solved.gi_profile_id),
                "layout": _notation((target.profile_name, target.start) for target in targets),
                "why": solved.why,
                "nearest": near or "nothing",
            },
            detail=solved.why,
            near=near,
        )

    def _nearest_layout(self, targets: Sequence[InstanceTarget], misfit: Misfit) -> str | None:
        """The same instances at other starts, where these were the trouble; else fewer."""
        pinned = {target.gi_profile_id for target in targets if target.start is not None}
        free = [InstanceTarget(t.gi_profile_id, t.profile_name, None) for t in targets]
        solved = solve(self._offer.gi_profiles, free) if pinned else misfit
        if isinstance(solved, Layout):
            return _notation(
                (
                    self._name(placed.gi_profile_id),
                    placed.placement.start if placed.gi_profile_id in pinned else None,
                )
                for placed in solved.placed
            )
        fitting = (f"{self._name(profile_id)}: {count}" for profile_id, count in solved.nearest)
        return ", ".join(fitting) or None

    # ------------------------------------------------------------------ vGPU types and VFs

    def _check_vfs(self) -> None:
        count = self._offer.vf_count
        if count == 0:
            return
        wanted = 0
        for request in self._profile.vgpus:
            wanted += request.count
            if wanted > count:
                limit = f"the card has {count} VFs"
                self._fault_vgpu(Code.TOO_MANY_VGPUS, request, wanted=wanted, limit=limit)
            beyond = [index for index in request.vf_indexes if index >= count]
            if beyond:
                self._fault_vgpu(Code.NO_SUCH_VF, request, index=beyond[0], count=count)

    def _wishes(self) -> tuple[_Wish, ...]:
        """Every vGPU with its VF; which VF is a function of the configuration alone."""
        pinned = {index for request in self._profile.vgpus for index in request.vf_indexes}
        total = len(pinned) + sum(request.count for request in self._profile.vgpus)
        free = iter([index for index in range(total) if index not in pinned])
        wishes: list[_Wish] = []
        for request in self._profile.vgpus:
            # Taken before the name is looked up: an unknown one moves no other vGPU.
            indexes = request.vf_indexes or tuple(next(free) for _ in range(request.count))
            vgpu_type = self._vgpu_type(request)
            if vgpu_type is not None:
                wishes += [(index, request, vgpu_type) for index in indexes]
        return tuple(sorted(wishes, key=lambda wish: wish[0]))

    def _vgpu_type(self, request: VgpuRequest) -> VgpuType | None:
        asked, types = request.type_name, self._offer.vgpu_types
        found = find_type(asked, types, self._offer.gi_profiles)
        if len(found) == 1:
            return found[0]
        if found:
            names = " or ".join(vgpu_type.name for vgpu_type in found)
            self._fault_vgpu(Code.TYPE_AMBIGUOUS, request, got=asked, names=names)
            return None
        # Never the plain type in place of one with media engines, but that one is what to offer.
        plain = find_type(plain_form(asked), types, self._offer.gi_profiles)
        names_here = [bare_name(vgpu_type.name) for vgpu_type in types]
        known = [*names_here, *(name.split()[-1] for name in names_here)]
        near = bare_name(plain[0].name) if plain else nearest(bare_name(asked), known)
        want = ""
        if near is None:
            such = f", such as {names_here[0]}" if names_here else ""
            want = f"a vGPU type that the GPU offers{such}"
        self._fault_vgpu(
            Code.TYPE_UNKNOWN, request, want=want, near=near, got=asked, nearest=near or want
        )
        return None

    def _needs_mig_off(self, request: VgpuRequest, backed: VgpuType | None) -> None:
        other = f"{bare_name(backed.name)} needs it on" if backed else "`mig:` turns it on"
        name = request.type_name
        self._fault_vgpu(Code.TYPE_NEEDS_MIG_OFF, request, type=name, other=other)

    def _check_time_sliced(self, wishes: Sequence[_Wish]) -> None:
        counts = Counter(vgpu_type for _, _, vgpu_type in wishes)
        for _, request, vgpu_type in wishes:
            count, most = counts[vgpu_type], vgpu_type.max_per_gpu
            if count > most:
                limit = f"the GPU takes {most} of {bare_name(vgpu_type.name)}"
                self._fault_vgpu(Code.TOO_MANY_VGPUS, request, wanted=count, limit=limit)
        last = wishes[-1][1]
        sizes = sorted({vgpu_type.framebuffer_mib for vgpu_type in counts})
        if len(sizes) == 1:
            most = min(vgpu_type.max_per_gpu for vgpu_type in counts)
            if len(counts) > 1 and len(wishes) > most:
                limit = f"the GPU takes {most} of that size"
                self._fault_vgpu(Code.TOO_MANY_VGPUS, last, wanted=len(wishes), limit=limit)
        elif not self._profile.mixed_size:
            self._mixed_sizes(wishes)
        else:
            used = sum(vgpu_type.framebuffer_mib for _, _, vgpu_type in wishes)
            # The type that takes the whole GPU tells how much of its memory vGPUs can have.
            whole = max(
                t.framebuffer_mib for t in self._offer.vgpu_types if t.gi_profile_id is None
            )
            if used > whole:
                limit = f"they take {used} MiB of framebuffer and the GPU has {whole} MiB"
                self._fault_vgpu(Code.TOO_MANY_VGPUS, last, wanted=len(wishes), limit=limit)

    def _mixed_sizes(self, wishes: Sequence[_Wish]) -> None:
        sizes = sorted({vgpu_type.framebuffer_mib for _, _, vgpu_type in wishes})
        first = wishes[0][2].framebuffer_mib
        request = next(r for _, r, vgpu_type in wishes if vgpu_type.framebuffer_mib != first)
        self._fault_vgpu(
            Code.MIXED_SIZES,
            request,
            want="mixed-size: true, or one size",
            sizes=", ".join(f"{size} MiB" for size in sizes),
        )

    def _derived(self, wishes: Sequence[_Wish]) -> tuple[InstanceTarget, ...]:
        """As many instances of each type's profile as its vGPUs fill."""
        targets: list[InstanceTarget] = []
        places: dict[int, tuple[Mark, str]] = {}
        for profile_id, group in _by_gi_profile(wishes).items():
            types = [vgpu_type for _, _, vgpu_type in group]
            needed = seat(types, mixed_size=self._profile.mixed_size).instances
            targets += [InstanceTarget(profile_id, self._name(profile_id), None)] * needed
            request = group[0][1]
            places[profile_id] = request.mark, self._vgpu_path(request)
        self._check_layout(targets, places)
        return tuple(targets)

    def _check_room(self, wishes: Sequence[_Wish], instances: Sequence[InstanceTarget]) -> None:
        """A type lives only on instances of its exact profile (host-interfaces.md 2.4)."""
        there = Counter(target.gi_profile_id for target in instances)
        for profile_id, group in _by_gi_profile(wishes).items():
            types = [vgpu_type for _, _, vgpu_type in group]
            room = there[profile_id]
            seats = seat(types, mixed_size=self._profile.mixed_size, limit=room)
            if not seats.standing:
                continue
            if not seat(types, mixed_size=True, limit=room).standing:
                self._mixed_sizes(group)
                continue
            left_over = Counter(group[index][1] for index in seats.standing)
            for request, count in left_over.items():
                self._fault_vgpu(
                    Code.TYPE_NO_INSTANCE,
                    request,
                    wanted=request.count,
                    type=request.type_name,
                    room=request.count - count,
                    profile=self._name(profile_id),
                )

    # ------------------------------------------------------------------ names and faults

    def _name(self, gi_profile_id: int) -> str:
        profile = self._by_id.get(gi_profile_id)
        return profile.name if profile else f"profile {gi_profile_id}"

    def _mig_path(self, request: MigRequest) -> str:
        return f"{self._path}.mig.{request.profile}"

    def _vgpu_path(self, request: VgpuRequest) -> str:
        return f"{self._path}.vgpus.{request.type_name}"

    def _fault_mig(
        self, code: Code, request: MigRequest, *, near: str | None = None, **facts: object
    ) -> None:
        self._fault(code, request.mark, self._mig_path(request), facts, near=near)

    def _fault_vgpu(
        self,
        code: Code,
        request: VgpuRequest,
        *,
        want: str = "",
        near: str | None = None,
        **facts: object,
    ) -> None:
        path = self._vgpu_path(request)
        self._fault(code, request.mark, path, facts, want=want, near=near)

    def _fault(
        self,
        code: Code,
        mark: Mark,
        path: str,
        facts: Mapping[str, object],
        *,
        detail: str = "",
        want: str = "",
        near: str | None = None,
    ) -> None:
        """Only the first fault of a kind at one place: the others say the same again."""
        if any(fault.code is code and fault.mark == mark for fault in self._faults):
            return
        texts = tuple((name, str(value)) for name, value in facts.items())
        self._faults.append(Fault(code, mark, path, texts, detail, want, near))


def _by_gi_profile(wishes: Iterable[_Wish]) -> dict[int, list[_Wish]]:
    groups: dict[int, list[_Wish]] = {}
    for wish in wishes:
        if wish[2].gi_profile_id is not None:
            groups.setdefault(wish[2].gi_profile_id, []).append(wish)
    return groups


def _notation(instances: Iterable[tuple[str, int | None]]) -> str:
    """A layout as the configuration writes it: ``3g.71gb: [4], 1g.18gb: 3``."""
    starts: dict[str, list[int | None]] = {}
    for name, start in instances:
        starts.setdefault(name, []).append(start)
    return ", ".join(
        f"{name}: {len(each) if None in each else each}" for name, each in starts.items()
    )
