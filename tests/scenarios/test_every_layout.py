"""Every multiset of GPU instances, on every board: placed and taken, or refused without a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from gpu_bootstate.catalog.reader import node_names, node_spec
from gpu_bootstate.model import GiProfile, InstanceTarget
from gpu_bootstate.placement import Layout, Misfit, solve
from gpu_bootstate.problems import ConfigInvalid
from tests.support.node import NodeMaker, config

# Model -> a node that has one, and where.
WITH_MIG = {
    model.model: (name, str(pf))
    for name in node_names()
    for pf, model in node_spec(name).gpus
    if model.gi_profiles
}


def multisets(profiles: Sequence[GiProfile]) -> Iterator[tuple[int, ...]]:
    """Up to one more of each than the GPU allows."""
    yield from product(*(range(profile.max_instances + 2) for profile in profiles))


def is_possible(profiles: Sequence[GiProfile], counts: Sequence[int]) -> bool:
    """By trying every place for every instance, biggest first: the rules, written down again."""
    if any(count > each.max_instances for each, count in zip(profiles, counts, strict=True)):
        return False
    slices = max(each.slice_count for each in profiles)
    pairs = list(zip(profiles, counts, strict=True))
    if sum(each.slice_count * count for each, count in pairs) > slices:
        return False
    todo = [each for each, count in pairs for _ in range(count)]
    todo.sort(key=lambda each: -max(spot.size for spot in each.placements))

    def place(number: int, taken: int) -> bool:
        if number == len(todo):
            return True
        for spot in todo[number].placements:
            mask = ((1 << spot.size) - 1) << spot.start
            if not taken & mask and place(number + 1, taken | mask):
                return True
        return False

    return place(0, 0)


def wanted(profiles: Sequence[GiProfile], counts: Sequence[int]) -> list[InstanceTarget]:
    return [
        InstanceTarget(each.gi_profile_id, each.name, None)
        for each, count in zip(profiles, counts, strict=True)
        for _ in range(count)
    ]


@pytest.mark.parametrize("model", WITH_MIG)
def test_a_layout_is_found_exactly_when_there_is_one_and_the_node_takes_it(
    node: NodeMaker, model: str
) -> None:
    name, pf = WITH_MIG[model]
    made = node(name)
    gpu = made.gpu(pf)
    gpu.mig_current = gpu.mig_pending = True
    profiles = made.sim.profiles(gpu)
    possible = impossible = 0
    for counts in multisets(profiles):
        solved = solve(profiles, wanted(profiles, counts))
        assert isinstance(solved, Layout) == is_possible(profiles, counts), counts
        if isinstance(solved, Misfit):
            impossible += 1
            continue
        possible += 1
        gpu.instances.clear()
        for each in solved.placed:
            made.sim.create_instance(gpu, each.gi_profile_id, each.placement)
    assert possible > len(profiles)
    assert impossible > possible


@pytest.mark.parametrize("model", WITH_MIG)
def test_what_is_just_too_much_is_refused_without_a_call(node: NodeMaker, model: str) -> None:
    """Those that would fit with any one instance less; what holds these holds every greater one."""
    name, pf = WITH_MIG[model]
    made = node(name)
    profiles = made.sim.profiles(made.gpu(pf))
    refused = 0
    for counts in multisets(profiles):
        if is_possible(profiles, counts) or not all(
            is_possible(profiles, [*counts[:n], counts[n] - 1, *counts[n + 1 :]])
            for n in range(len(counts))
            if counts[n]
        ):
            continue
        rows = (f'"{p.name}": {n}' for p, n in zip(profiles, counts, strict=True) if n)
        with pytest.raises(ConfigInvalid) as invalid:
            made.look(config({pf: f"{{mig: {{{', '.join(rows)}}}}}"}))
        (problem,) = invalid.value.problems
        assert pf in problem.message
        assert problem.nearest
        assert made.calls == []
        refused += 1
    assert refused > len(profiles)
