"""`python -m tests.chaos`: the long matrix of reboots, users, crashes and faults, and its outcome.

Prints each failure with how to repeat it, then the figures. Exit code 1 when anything was harmed.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.chaos import boots, faults, users
from tests.chaos.crash import crash
from tests.chaos.matrix import Figures, Situation, every

Result = tuple[Figures, list[str]]

_SIGNALS = (signal.SIGKILL, signal.SIGTERM)


def crashes(situation: Situation) -> Result:
    """Every point of this situation, with each signal."""
    figures, harmed = Figures(), []
    points = crash(situation, None).points
    # A few more: side by side, a run comes by some points more or fewer.
    for number in _SIGNALS:
        for at in range(1, points + 4):
            try:
                ended = crash(situation, at, number)
                how = "killed" if ended.killed else f"ended with {ended.exit_code}"
                figures.count(f"{number.name}: {how}")
            except AssertionError as err:
                figures.count("HARMED")
                harmed.append(f"{number.name} at point {at}: {situation}: {err}")
    return figures, harmed


def faulty(combinations: Iterable[tuple[str, ...]], situation: Situation) -> Result:
    figures, harmed = Figures(), []
    for combination in combinations:
        try:
            figures.count(faults.meet(situation, *combination))
        except AssertionError as err:
            figures.count("HARMED")
            harmed.append(f"{' and '.join(combination)}: {situation}: {err}")
    return figures, harmed


def used(situation: Situation) -> Result:
    """Each kind of user, before the run and after each of its calls."""
    figures, harmed = Figures(), []
    for user in users.USERS:
        for at in itertools.count():
            try:
                outcome = users.meet(situation, user, at)
                if outcome is None:
                    break
                figures.count(outcome)
            except AssertionError as err:
                figures.count("HARMED")
                harmed.append(f"{user} after {at} calls: {situation}: {err}")
    return figures, harmed


def rebooted(situation: Situation) -> Result:
    figures, harmed = Figures(), []
    for change in boots.singles():
        try:
            figures.count(boots.meet(situation, *change))
        except AssertionError as err:
            figures.count("HARMED")
            harmed.append(f"{', '.join(change)}: {situation}: {err}")
    return figures, harmed


def part(title: str, work: Callable[[Situation], Result], of: list[Situation]) -> int:
    started, total, bad = time.monotonic(), Figures(), 0
    with ProcessPoolExecutor() as pool:
        for figures, harmed in pool.map(work, of):
            total.tried += figures.tried
            for outcome, count in figures.outcomes.items():
                total.outcomes[outcome] = total.outcomes.get(outcome, 0) + count
            for text in harmed:
                print(f"HARMED {text}", file=sys.stderr)
            bad += len(harmed)
    print(f"{title}: {total.tried} tried in {len(of)} situations, harmed: {bad}")
    for outcome, count in sorted(total.outcomes.items(), key=lambda each: -each[1]):
        print(f"    {count:7}  {outcome}")
    print(f"    {time.monotonic() - started:.0f} s", flush=True)
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="only these; all when none is named")
    parser.add_argument("--situations", type=int, help="only so many, drawn by --seed")
    parser.add_argument("--pairs", type=int, default=20000, help="pairs of faults, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)  # noqa: S311  # not for secrets
    situations = list(every())
    if chosen.situations is not None:
        situations = draw.sample(situations, chosen.situations)
    singles = [(fault,) for fault in faults.singles()]
    pairs = list(faults.pairs())
    each = draw.sample(pairs, min(len(pairs), -(-chosen.pairs // len(situations))))
    parts: dict[str, tuple[str, Callable[[Situation], Result]]] = {
        "reboots": ("reboots as another node", rebooted),
        "users": ("users that come at any moment", used),
        "crashes": ("crash points", crashes),
        "singles": ("single faults", partial(faulty, singles)),
        "pairs": ("pairs of faults", partial(faulty, each)),
    }
    if unknown := set(chosen.parts) - set(parts):
        parser.error(f"no such part: {', '.join(unknown)} (there are: {', '.join(parts)})")
    bad = 0
    for name in chosen.parts or parts:
        bad += part(*parts[name], situations)
    print(f"harmed: {bad}")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
