"""A seeded part of the long matrix (`make chaos`)."""

from __future__ import annotations

import random
import signal

import pytest

from tests.chaos import boots, faults, users
from tests.chaos.crash import crash
from tests.chaos.matrix import Situation, every, some
from tests.chaos.mutations import MUTATIONS, REPO

PAIRS = list(faults.pairs())
SINGLES = list(faults.singles())
WITH_SERVICE = [situation for situation in every() if situation.holders]


@pytest.mark.parametrize("situation", some(10, seed=4), ids=str)
def test_a_run_that_is_stopped_anywhere_is_continued(situation: Situation) -> None:
    draw = random.Random(str(situation))  # noqa: S311
    points = crash(situation, None).points
    for at in sorted(draw.sample(range(1, points + 1), min(points, 10))):
        crash(situation, at)
        crash(situation, at, signal.SIGTERM)


def test_what_a_killed_run_has_stopped_is_started_by_the_next() -> None:
    """At each point of the whole run: the service, and persistence mode."""
    situation = WITH_SERVICE[1]
    points = crash(situation, None).points
    assert points > 40
    for at in range(1, points + 1):
        crash(situation, at)


@pytest.mark.parametrize("situation", [*some(6, seed=5), *WITH_SERVICE[1::5]], ids=str)
def test_faults_end_as_they_should(situation: Situation) -> None:
    draw = random.Random(str(situation))  # noqa: S311
    for fault in draw.sample(SINGLES, 25):
        faults.meet(situation, fault)
    for first, second in draw.sample(PAIRS, 15):
        faults.meet(situation, first, second)


@pytest.mark.parametrize("situation", some(10, seed=6), ids=str)
@pytest.mark.parametrize("user", users.USERS)
def test_what_somebody_uses_is_not_changed(situation: Situation, user: str) -> None:
    outcomes = [users.meet(situation, user, 0)]
    while outcomes[-1] is not None:
        outcomes.append(users.meet(situation, user, len(outcomes)))


@pytest.mark.parametrize("situation", some(6, seed=7), ids=str)
def test_a_node_that_comes_back_as_another_is_told_apart(situation: Situation) -> None:
    for change in boots.singles():
        boots.meet(situation, *change)


def test_each_fault_to_plant_still_fits_the_code() -> None:
    """`make mutations` plants them and runs the tests."""
    for each in MUTATIONS:
        text = (REPO / "gpu_bootstate" / each.file).read_text(encoding="utf-8")
        assert text.count(each.old) == 1, each.name
        for test in each.tests.split():
            assert (REPO / test).exists(), each.name
