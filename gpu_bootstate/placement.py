"""Where GPU instances go: profiles x placements -> a layout, or why there is none. Pure.

A GPU has a handful of memory slices and each profile a handful of places in them (NVML's possible
placements), so the search is complete: it finds a layout whenever one exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from gpu_bootstate.model import GiProfile, InstanceTarget, Placement

_Existing = tuple[int, Placement]  # gi_profile_id and where it is
_Score = tuple[int, tuple[Placement, ...]]  # instances moved (negative: kept), then places


@dataclass(frozen=True, slots=True)
class Placed:
    gi_profile_id: int
    placement: Placement
    kept: bool  # it is there already


@dataclass(frozen=True, slots=True)
class Layout:
    placed: tuple[Placed, ...]  # by placement


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why there is no layout.

    ``gi_profile_id`` is the first profile that finds no room when big ones are placed first, and
    ``why`` is a clause about it. ``nearest`` is what does fit then: (gi_profile_id, count), big
    ones first. ``blockers`` are those of ``fixed`` without which everything would fit.
    """

    gi_profile_id: int
    why: str
    nearest: tuple[tuple[int, int], ...]
    blockers: tuple[Placement, ...]


def solve(
    profiles: Sequence[GiProfile],
    wanted: Sequence[InstanceTarget],
    keep: Sequence[_Existing] = (),
    fixed: Sequence[_Existing] = (),
) -> Layout | Misfit:
    """A place for every wanted instance.

    ``keep`` are instances that are there and may go: as many as possible stay where they are.
    ``fixed`` are instances that cannot go: they serve what is wanted, or are in its way. All else
    equal, big profiles come first and take the lowest starts; the answer is always the same.
    """
    board = _Board({profile.gi_profile_id: profile for profile in profiles})
    layout = board.fit(wanted, keep, fixed)
    return layout if layout is not None else board.explain(wanted, fixed)


@dataclass(frozen=True, slots=True)
class _Group:
    """Instances of one profile that may go to the same places."""

    gi_profile_id: int
    candidates: tuple[Placement, ...]
    count: int


class _Board:
    def __init__(self, profiles: Mapping[int, GiProfile]) -> None:
        self._profiles = profiles
        # The profile of the whole GPU is always offered, so it tells how much there is.
        self._compute = max((p.slice_count for p in profiles.values()), default=0)
        ends = (at.start + at.size for p in profiles.values() for at in p.placements)
        self._memory = max(ends, default=0)

    def fit(
        self,
        wanted: Iterable[InstanceTarget],
        keep: Iterable[_Existing],
        fixed: Sequence[_Existing],
    ) -> Layout | None:
        counts = Counter((target.gi_profile_id, target.start) for target in wanted)
        if any(gi_profile_id not in self._profiles for gi_profile_id, _ in counts):
            return None
        placed = [Placed(*existing, kept=True) for existing in _serving(counts, fixed)]
        if not self._within_limits(counts, fixed):
            return None
        groups = sorted(
            (
                _Group(gi_profile_id, self._candidates(gi_profile_id, start), count)
                for (gi_profile_id, start), count in counts.items()
                if count
            ),
            key=lambda group: (*self._big_first(group.gi_profile_id), group.candidates),
        )
        staying = frozenset(keep)
        taken = sum(_slices(placement) for _, placement in fixed)
        places = _search(groups, taken, staying)
        if places is None:
            return None
        ids = (group.gi_profile_id for group in groups for _ in range(group.count))
        placed += [
            Placed(gi_profile_id, placement, kept=(gi_profile_id, placement) in staying)
            for gi_profile_id, placement in zip(ids, places, strict=True)
        ]
        return Layout(tuple(sorted(placed, key=lambda item: item.placement)))

    def explain(self, wanted: Sequence[InstanceTarget], fixed: Sequence[_Existing]) -> Misfit:
        """Big ones first, as long as all so far still fit together. Only where `fit` gave None."""
        accepted: list[InstanceTarget] = []
        refused: list[InstanceTarget] = []
        why = ""
        for target in sorted(wanted, key=self._order):
            if target in refused:
                continue
            if self.fit([*accepted, target], (), fixed) is not None:
                accepted.append(target)
                continue
            why = why or self._why(target, accepted, fixed)
            refused.append(target)
        nearest = Counter(target.gi_profile_id for target in accepted)
        return Misfit(
            gi_profile_id=refused[0].gi_profile_id,
            why=why,
            nearest=tuple(nearest.items()),
            blockers=self._blockers(wanted, fixed),
        )

    # ------------------------------------------------------------------ rules of the board

    def _within_limits(
        self, counts: Mapping[tuple[int, int | None], int], fixed: Sequence[_Existing]
    ) -> bool:
        total = Counter(gi_profile_id for gi_profile_id, _ in fixed)
        for (gi_profile_id, _), count in counts.items():
            total[gi_profile_id] += count
            if total[gi_profile_id] > self._profiles[gi_profile_id].max_instances:
                return False
        return self._compute_used(total) <= self._compute

    def _compute_used(self, total: Mapping[int, int]) -> int:
        # An instance of a profile that is not offered (any more) still has its memory slices.
        known = self._profiles
        return sum(known[i].slice_count * count for i, count in total.items() if i in known)

    def _candidates(self, gi_profile_id: int, start: int | None) -> tuple[Placement, ...]:
        places = sorted(self._profiles[gi_profile_id].placements)
        return tuple(place for place in places if start is None or place.start == start)

    def _big_first(self, gi_profile_id: int) -> tuple[int, int, int]:
        profile = self._profiles[gi_profile_id]
        return -_size(profile), -profile.slice_count, gi_profile_id

    def _order(self, target: InstanceTarget) -> tuple[bool, tuple[int, int, int], int]:
        """Big ones first; those with no choice of place before those with one."""
        start = self._memory if target.start is None else target.start
        if target.gi_profile_id not in self._profiles:
            return False, (0, 0, target.gi_profile_id), start
        return True, self._big_first(target.gi_profile_id), start

    # ------------------------------------------------------------------ reasons

    def _why(
        self,
        target: InstanceTarget,
        accepted: Sequence[InstanceTarget],
        fixed: Sequence[_Existing],
    ) -> str:
        profile = self._profiles.get(target.gi_profile_id)
        if profile is None:
            return "the GPU has no such profile"
        if not self._candidates(profile.gi_profile_id, target.start):
            starts = ", ".join(str(place.start) for place in sorted(profile.placements))
            return f"it can start at {starts} only, not at {target.start}"
        layout = self.fit(accepted, (), fixed)
        there = {*fixed}
        if layout is not None:
            there |= {(item.gi_profile_id, item.placement) for item in layout.placed}
        total = Counter(gi_profile_id for gi_profile_id, _ in there)
        if total[profile.gi_profile_id] >= profile.max_instances:
            return f"the GPU allows {profile.max_instances} of it"
        compute_left = self._compute - self._compute_used(total)
        if compute_left < profile.slice_count:
            needed = _count(profile.slice_count, "compute slice")
            return f"it takes {needed} and {compute_left} of {self._compute} are left"
        memory_left = self._memory - sum(placement.size for _, placement in there)
        if memory_left < _size(profile):
            needed = _count(_size(profile), "memory slice")
            return f"it takes {needed} and {memory_left} of {self._memory} are left"
        if target.start is not None:
            return f"the memory slices from {target.start} on are taken"
        left = f"{memory_left} of {self._memory} memory slices are left"
        return f"{left}, but not together where it can start"

    def _blockers(
        self, wanted: Sequence[InstanceTarget], fixed: Sequence[_Existing]
    ) -> tuple[Placement, ...]:
        if not fixed or self.fit(wanted, (), ()) is None:
            return ()
        harmless: list[_Existing] = []
        blockers: list[Placement] = []
        for existing in sorted(fixed, key=lambda item: item[1]):
            if self.fit(wanted, (), [*harmless, existing]) is not None:
                harmless.append(existing)
            else:
                blockers.append(existing[1])
        return tuple(blockers)


def _serving(
    counts: Counter[tuple[int, int | None]], fixed: Iterable[_Existing]
) -> list[_Existing]:
    """The fixed instances that are wanted; each takes one off ``counts``."""
    serving = []
    for gi_profile_id, placement in sorted(fixed, key=lambda item: item[1]):
        for start in (placement.start, None):
            if counts[gi_profile_id, start]:
                counts[gi_profile_id, start] -= 1
                serving.append((gi_profile_id, placement))
                break
    return serving


def _search(
    groups: Sequence[_Group], taken: int, staying: frozenset[_Existing]
) -> tuple[Placement, ...] | None:
    """The best places for all groups, in their order; None when there are none."""

    # What is still to place and which slices are taken decide the rest, so equal situations that
    # are reached in different ways are worked out once.
    @cache
    def best(index: int, taken: int) -> _Score | None:
        if index == len(groups):
            return 0, ()
        group = groups[index]
        free = [place for place in group.candidates if not taken & _slices(place)]
        found: _Score | None = None
        for places in combinations(free, group.count):
            slices = sum(_slices(place) for place in places)
            if slices.bit_count() != sum(place.size for place in places):
                continue  # two of them overlap
            rest = best(index + 1, taken | slices)
            if rest is None:
                continue
            kept = sum((group.gi_profile_id, place) in staying for place in places)
            score = rest[0] - kept, places + rest[1]
            if found is None or score < found:
                found = score
        return found

    score = best(0, taken)
    return None if score is None else score[1]


def _slices(placement: Placement) -> int:
    """The memory slices as a bit mask."""
    return ((1 << placement.size) - 1) << placement.start


def _size(profile: GiProfile) -> int:
    return max((placement.size for placement in profile.placements), default=0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
