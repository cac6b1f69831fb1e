"""The placement solver: tables from the field, and a comparison with trying everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_bootstate.model import GiProfile, InstanceTarget, Placement
from gpu_bootstate.placement import Layout, Misfit, solve
from tests.support.mig_tables import A100_40, H200, RTX_PRO, by_name, instances

Existing = tuple[int, Placement]


def shown(profiles: tuple[GiProfile, ...], layout: Layout | Misfit) -> str:
    """``4g.71gb@0 1g.18gb@4*``; a star marks what stays where it is."""
    assert isinstance(layout, Layout), layout
    names = {profile.gi_profile_id: profile.name for profile in profiles}
    return " ".join(
        f"{names[item.gi_profile_id]}@{item.placement.start}{'*' if item.kept else ''}"
        for item in layout.placed
    )


def there(profiles: tuple[GiProfile, ...], name: str, start: int) -> Existing:
    profile = by_name(profiles, name)
    return profile.gi_profile_id, next(p for p in profile.placements if p.start == start)


def pinned(profiles: tuple[GiProfile, ...], name: str, *starts: int) -> list[InstanceTarget]:
    gi_profile_id = by_name(profiles, name).gi_profile_id
    return [InstanceTarget(gi_profile_id, name, start) for start in starts]


@pytest.mark.parametrize(
    ("profiles", "wanted", "expected"),
    [
        pytest.param(
            H200,
            {"4g.71gb": 1, "1g.18gb": 3},
            "4g.71gb@0 1g.18gb@4 1g.18gb@5 1g.18gb@6",
            id="S4",
        ),
        pytest.param(
            H200,
            {"1g.18gb": 7},
            "1g.18gb@0 1g.18gb@1 1g.18gb@2 1g.18gb@3 1g.18gb@4 1g.18gb@5 1g.18gb@6",
            id="seven small ones",
        ),
        pytest.param(
            H200,
            {"3g.71gb": 1, "1g.18gb": 4},
            "1g.18gb@0 1g.18gb@1 1g.18gb@2 1g.18gb@3 3g.71gb@4",
            id="the big one gives way where its lowest start leaves no room",
        ),
        pytest.param(H200, {"3g.71gb": 1, "4g.71gb": 1}, "4g.71gb@0 3g.71gb@4", id="both halves"),
        pytest.param(
            H200,
            {"1g.18gb+me": 1, "1g.18gb": 6},
            "1g.18gb@0 1g.18gb@1 1g.18gb@2 1g.18gb@3 1g.18gb@4 1g.18gb@5 1g.18gb+me@6",
            id="media engines share the slices of the plain profile",
        ),
        pytest.param(
            H200,
            {"1g.35gb": 3, "1g.18gb": 2},
            "1g.35gb@0 1g.35gb@2 1g.18gb@4 1g.18gb@5 1g.35gb@6",
            id="only a big-memory instance can use the last slice",
        ),
        pytest.param(H200, {"7g.141gb": 1}, "7g.141gb@0", id="the whole card"),
        pytest.param(H200, {}, "", id="nothing"),
        pytest.param(
            RTX_PRO,
            {"1g.24gb": 2, "2g.48gb+gfx": 1},
            "2g.48gb+gfx@0 1g.24gb@6 1g.24gb@9",
            id="twelve memory slices",
        ),
    ],
)
def test_layout(profiles: tuple[GiProfile, ...], wanted: dict[str, int], expected: str) -> None:
    targets = instances(profiles, **wanted)
    assert shown(profiles, solve(profiles, targets)) == expected
    assert shown(profiles, solve(profiles, targets[::-1])) == expected
    assert shown(tuple(profiles[::-1]), solve(profiles[::-1], targets)) == expected


@pytest.mark.parametrize(
    ("profiles", "wanted", "misfit", "why", "nearest"),
    [
        pytest.param(
            A100_40,
            {"4g.20gb": 1, "3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1},
            "2g.10gb",
            "it takes 2 compute slices and 0 of 7 are left",
            {"4g.20gb": 1, "3g.20gb": 1},
            id="S5",
        ),
        pytest.param(
            A100_40,
            {"1g.10gb": 4, "1g.5gb": 3},
            "1g.5gb",
            "it takes 1 memory slice and 0 of 8 are left",
            {"1g.10gb": 4},
            id="S6",
        ),
        pytest.param(
            H200,
            {"1g.18gb+me": 2},
            "1g.18gb+me",
            "the GPU allows 1 of it",
            {"1g.18gb+me": 1},
            id="S7",
        ),
        pytest.param(
            H200, {"1g.18gb": 64}, "1g.18gb", "the GPU allows 7 of it", {"1g.18gb": 7}, id="64"
        ),
        pytest.param(
            H200,
            {"7g.141gb": 1, "4g.71gb": 1, "3g.71gb": 2, "2g.35gb": 3, "1g.35gb": 4, "1g.18gb": 7},
            "4g.71gb",
            "it takes 4 compute slices and 0 of 7 are left",
            {"7g.141gb": 1},
            id="everything at once",
        ),
    ],
)
def test_no_layout(
    profiles: tuple[GiProfile, ...],
    wanted: dict[str, int],
    misfit: str,
    why: str,
    nearest: dict[str, int],
) -> None:
    ids = {profile.name: profile.gi_profile_id for profile in profiles}
    expected = Misfit(
        ids[misfit], why, tuple((ids[name], count) for name, count in nearest.items()), ()
    )
    assert solve(profiles, instances(profiles, **wanted)) == expected


def test_a_profile_that_the_gpu_lacks_is_a_misfit() -> None:
    wanted = [InstanceTarget(77, "9g.1000gb", None), *instances(H200, **{"1g.18gb": 1})]
    assert solve(H200, wanted) == Misfit(77, "the GPU has no such profile", ((19, 1),), ())


def test_compute_slices_run_out_where_memory_does_not() -> None:
    board = (
        GiProfile(0, "whole", 3, 1, 0, (Placement(0, 8),)),
        GiProfile(1, "half", 2, 2, 0, (Placement(0, 3), Placement(4, 3))),
    )
    assert solve(board, [InstanceTarget(1, "half", None)] * 2) == Misfit(
        1, "it takes 2 compute slices and 1 of 3 are left", ((1, 1),), ()
    )


def test_places_of_one_profile_may_overlap() -> None:
    board = (
        GiProfile(0, "whole", 4, 1, 0, (Placement(0, 4),)),
        GiProfile(1, "half", 1, 2, 0, tuple(Placement(start, 2) for start in range(3))),
    )
    assert shown(board, solve(board, [InstanceTarget(1, "half", None)] * 2)) == "half@0 half@2"


class TestPinned:
    def test_starts_are_honoured_and_the_rest_goes_around_them(self) -> None:
        wanted = pinned(H200, "3g.71gb", 4) + instances(H200, **{"1g.18gb": 2, "2g.35gb": 1})
        assert shown(H200, solve(H200, wanted)) == "2g.35gb@0 1g.18gb@2 1g.18gb@3 3g.71gb@4"

    def test_some_pinned_and_some_not_of_one_profile(self) -> None:
        wanted = instances(H200, **{"1g.18gb": 1}) + pinned(H200, "1g.18gb", 0, 5)
        assert shown(H200, solve(H200, wanted)) == "1g.18gb@0 1g.18gb@1 1g.18gb@5"

    def test_an_impossible_start_names_the_possible_ones(self) -> None:
        misfit = solve(H200, pinned(H200, "3g.71gb", 2))
        assert misfit == Misfit(9, "it can start at 0, 4 only, not at 2", (), ())

    def test_two_pins_on_one_slice(self) -> None:
        misfit = solve(H200, pinned(H200, "2g.35gb", 0) + pinned(H200, "1g.18gb", 1))
        assert misfit == Misfit(19, "the memory slices from 1 on are taken", ((14, 1),), ())

    def test_pins_that_leave_the_free_slices_apart(self) -> None:
        wanted = pinned(H200, "1g.18gb", 1, 5) + instances(H200, **{"3g.71gb": 1})
        assert solve(H200, wanted) == Misfit(
            19, "the memory slices from 5 on are taken", ((9, 1), (19, 1)), ()
        )


class TestKeep:
    def test_what_fits_stays_where_it_is(self) -> None:
        keep = [there(H200, "1g.18gb", 6), there(H200, "1g.18gb", 3)]
        layout = solve(H200, instances(H200, **{"1g.18gb": 3}), keep=keep)
        assert shown(H200, layout) == "1g.18gb@0 1g.18gb@3* 1g.18gb@6*"

    def test_what_is_in_the_way_of_another_moves(self) -> None:
        keep = [there(H200, "1g.18gb", 0), there(H200, "1g.18gb", 5)]
        layout = solve(H200, instances(H200, **{"4g.71gb": 1, "1g.18gb": 2}), keep=keep)
        assert shown(H200, layout) == "4g.71gb@0 1g.18gb@4 1g.18gb@5*"

    def test_a_new_one_takes_another_place_than_the_lowest_to_let_one_stay(self) -> None:
        keep = [there(H200, "1g.18gb", 0)]
        layout = solve(H200, instances(H200, **{"3g.71gb": 1, "1g.18gb": 1}), keep=keep)
        assert shown(H200, layout) == "1g.18gb@0* 3g.71gb@4"

    def test_another_profile_at_the_same_place_is_not_kept(self) -> None:
        keep = [there(H200, "1g.18gb+me", 0)]
        layout = solve(H200, instances(H200, **{"1g.18gb": 1}), keep=keep)
        assert shown(H200, layout) == "1g.18gb@0"

    def test_i2_explicit_starts_move_what_is_elsewhere(self) -> None:
        keep = [there(H200, "3g.71gb", 0)]
        assert shown(H200, solve(H200, pinned(H200, "3g.71gb", 4), keep=keep)) == "3g.71gb@4"


class TestFixed:
    def test_one_in_use_serves_what_is_wanted(self) -> None:
        fixed = [there(H200, "3g.71gb", 4)]
        layout = solve(H200, instances(H200, **{"3g.71gb": 1, "4g.71gb": 1}), fixed=fixed)
        assert shown(H200, layout) == "4g.71gb@0 3g.71gb@4*"

    def test_one_in_use_serves_the_pin_on_its_place(self) -> None:
        fixed = [there(H200, "1g.18gb", 0), there(H200, "1g.18gb", 3)]
        wanted = instances(H200, **{"1g.18gb": 1}) + pinned(H200, "1g.18gb", 0)
        assert shown(H200, solve(H200, wanted, fixed=fixed)) == "1g.18gb@0* 1g.18gb@3*"

    def test_r7_the_instances_in_the_way_are_named(self) -> None:
        fixed = [there(H200, "1g.18gb", start) for start in (6, 0, 4)]
        misfit = solve(H200, instances(H200, **{"3g.71gb": 1, "1g.18gb": 3}), fixed=fixed)
        assert isinstance(misfit, Misfit)
        assert misfit.gi_profile_id == by_name(H200, "3g.71gb").gi_profile_id
        assert misfit.why == "5 of 8 memory slices are left, but not together where it can start"
        assert misfit.blockers == (Placement(4, 1), Placement(6, 1))

    def test_blockers_are_not_named_where_it_would_not_fit_anyway(self) -> None:
        fixed = [there(H200, "1g.18gb", 0)]
        misfit = solve(H200, instances(H200, **{"4g.71gb": 2}), fixed=fixed)
        assert isinstance(misfit, Misfit)
        assert misfit.blockers == ()

    def test_an_unwanted_one_counts_against_the_limits(self) -> None:
        fixed = [there(H200, "1g.18gb+me", 0)]
        misfit = solve(H200, pinned(H200, "1g.18gb+me", 3), fixed=fixed)
        assert misfit == Misfit(20, "the GPU allows 1 of it", (), (Placement(0, 1),))


# --------------------------------------------------------------------------- all possibilities


def fits(
    profiles: Sequence[GiProfile], places: Iterable[Existing], fixed: Sequence[Existing]
) -> bool:
    """The rules of the board, written down a second time."""
    everything = [*places, *fixed]
    by_id = {profile.gi_profile_id: profile for profile in profiles}
    counts = Counter(gi_profile_id for gi_profile_id, _ in everything)
    limit = max(profile.slice_count for profile in profiles)
    apart = all(
        not a.overlaps(b) for n, (_, a) in enumerate(everything) for _, b in everything[n + 1 :]
    )
    within = all(count <= by_id[i].max_instances for i, count in counts.items())
    return apart and within and sum(by_id[i].slice_count * c for i, c in counts.items()) <= limit


def all_layouts(
    profiles: Sequence[GiProfile], wanted: Sequence[InstanceTarget], fixed: Sequence[Existing]
) -> list[list[Existing]]:
    """Every way to place them, those served by a fixed instance first in each."""
    by_id = {profile.gi_profile_id: profile for profile in profiles}
    choices = [
        [
            (target.gi_profile_id, place)
            for place in by_id[target.gi_profile_id].placements
            if target.start in (None, place.start)
        ]
        for target in wanted
    ]
    return [
        list(places)
        for places in product(*choices)
        if len(set(places)) == len(places)
        and fits(profiles, [place for place in places if place not in fixed], fixed)
    ]


@st.composite
def boards(draw: st.DrawFn) -> tuple[GiProfile, ...]:
    """A real table, or one that no card has: tight in compute, with places that overlap."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([H200, RTX_PRO]))
    profiles = [GiProfile(0, "whole", draw(st.integers(2, 5)), 1, 0, (Placement(0, 6),))]
    for gi_profile_id in range(1, draw(st.integers(2, 4))):
        size = draw(st.integers(1, 3))
        starts = draw(st.sets(st.integers(0, 6 - size), min_size=2))
        slices, most = draw(st.integers(1, 2)), draw(st.integers(1, 4))
        places = tuple(Placement(start, size) for start in sorted(starts))
        profiles.append(GiProfile(gi_profile_id, f"p{gi_profile_id}", slices, most, 0, places))
    return tuple(profiles)


@st.composite
def problems(
    draw: st.DrawFn,
) -> tuple[tuple[GiProfile, ...], list[InstanceTarget], list[Existing]]:
    """A board, what is wanted on it, and what is there already (a possible state)."""
    profiles = draw(boards())
    parts = [profile for profile in profiles if profile.max_instances > 1] or list(profiles)
    choice = st.sampled_from([*profiles, *parts, *parts])
    wanted = []
    for _ in range(draw(st.integers(0, 4))):
        profile = draw(choice)
        starts = [None, None, *(place.start for place in profile.placements)]
        start = draw(st.sampled_from(starts))
        wanted.append(InstanceTarget(profile.gi_profile_id, profile.name, start))
    present: list[Existing] = []
    for _ in range(draw(st.integers(0, 3))):
        profile = draw(choice)
        candidate = (profile.gi_profile_id, draw(st.sampled_from(profile.placements)))
        if fits(profiles, [candidate], present):
            present.append(candidate)
    return profiles, wanted, present


@settings(max_examples=300, derandomize=True, deadline=None)
@given(problems())
def test_finds_a_layout_exactly_when_there_is_one_and_keeps_as_many_as_can_stay(
    problem: tuple[tuple[GiProfile, ...], list[InstanceTarget], list[Existing]],
) -> None:
    profiles, wanted, present = problem
    possible = all_layouts(profiles, wanted, ())
    solved = solve(profiles, wanted, keep=present)
    assert isinstance(solved, Layout) == bool(possible)
    assert solved == solve(profiles[::-1], wanted[::-1], keep=present[::-1])
    if isinstance(solved, Misfit):
        _check_misfit(profiles, wanted, (), solved)
        return
    _check_layout(profiles, wanted, (), solved)
    kept = [item for item in solved.placed if item.kept]
    assert all((item.gi_profile_id, item.placement) in present for item in kept)
    assert len(kept) == max(sum(place in present for place in places) for places in possible)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(problems())
def test_fixed_instances_stay_and_a_layout_is_found_exactly_when_there_is_one(
    problem: tuple[tuple[GiProfile, ...], list[InstanceTarget], list[Existing]],
) -> None:
    profiles, wanted, fixed = problem
    solved = solve(profiles, wanted, fixed=fixed)
    assert isinstance(solved, Layout) == bool(all_layouts(profiles, wanted, fixed))
    if isinstance(solved, Misfit):
        _check_misfit(profiles, wanted, fixed, solved)
        assert set(solved.blockers) <= {placement for _, placement in fixed}
        if all_layouts(profiles, wanted, ()):
            rest = [each for each in fixed if each[1] not in solved.blockers]
            assert solved.blockers
            assert isinstance(solve(profiles, wanted, fixed=rest), Layout)
        return
    _check_layout(profiles, wanted, fixed, solved)


def _check_layout(
    profiles: Sequence[GiProfile],
    wanted: Sequence[InstanceTarget],
    fixed: Sequence[Existing],
    layout: Layout,
) -> None:
    places = [(item.gi_profile_id, item.placement) for item in layout.placed]
    assert places == sorted(places, key=lambda place: place[1])
    assert fits(profiles, [place for place in places if place not in fixed], fixed)
    by_id = {profile.gi_profile_id: profile for profile in profiles}
    assert all(placement in by_id[i].placements for i, placement in places)
    served = any(
        all(
            target.gi_profile_id == i and target.start in (None, placement.start)
            for target, (i, placement) in zip(order, places, strict=True)
        )
        for order in permutations(wanted)
    )
    assert served


def _check_misfit(
    profiles: Sequence[GiProfile],
    wanted: Sequence[InstanceTarget],
    fixed: Sequence[Existing],
    misfit: Misfit,
) -> None:
    """What is offered instead does fit, is part of what was wanted, and lacks the misfit."""
    nearest = Counter(dict(misfit.nearest))
    asked = Counter(target.gi_profile_id for target in wanted)
    assert nearest < asked
    assert nearest[misfit.gi_profile_id] < asked[misfit.gi_profile_id]
    assert misfit.why
