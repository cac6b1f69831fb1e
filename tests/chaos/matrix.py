"""Which situations are tried: boards, starting states and wishes, alone and beside a neighbour."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.support.node import Node
from tests.support.situations import STARTS, WISHES, Wish, made_node, written

_WITH_MDEV = ("hgx-a100-8",)
_MDEV_STARTS = ("bare", "some vfs on", "vfs on and carved", "whole card")


@dataclass(frozen=True)
class Situation:
    board: str
    starts: dict[str, str]  # PF -> how it is found
    wishes: dict[str, Wish]  # PF -> what it is to be
    holders: str = ""  # a unit that has the first GPU open, and may be stopped
    framework: str = "vendor-vfio"

    def __str__(self) -> str:
        each = [f"{pf} {self.starts[pf]} -> {wish.text}" for pf, wish in self.wishes.items()]
        more = [self.holders] * bool(self.holders) + ["mdev"] * (self.framework == "mdev")
        return f"{self.board}: {'; '.join([*each, *more])}"

    @property
    def text(self) -> str:
        policy = f"{{holders: {{stop: [{self.holders}]}}}}" if self.holders else ""
        return written(self.wishes, policy)

    def node(self, directory: str) -> Node:
        node = made_node(self.board, self.starts, directory, self.framework)
        if self.holders:
            pf = next(iter(self.wishes))
            node.with_unit(self.holders, "active").with_client(pf, "nv-hostengine", self.holders)
        return node


def every() -> Iterator[Situation]:
    """One GPU in each starting state with each wish, then with a neighbour, then with a service;
    and where kernels before 6.8 make mdevs, that.
    """
    for board, wishes in WISHES.items():
        pfs = [gpu.bdf for gpu in Node(board, Path("/nowhere")).gpus()]
        for number, start in enumerate(STARTS):
            for offset, wish in enumerate(wishes):
                yield Situation(board, {pfs[0]: start}, {pfs[0]: wish})
                other = wishes[(number + offset) % len(wishes)]
                beside = STARTS[(number * 3 + offset) % len(STARTS)]
                yield Situation(
                    board, {pfs[1]: start, pfs[0]: beside}, {pfs[1]: wish, pfs[0]: other}
                )
        for wish in wishes:
            yield Situation(board, {pfs[0]: "bare"}, {pfs[0]: wish}, holders="nvidia-dcgm.service")
        if board in _WITH_MDEV:
            for start, wish in itertools.product(_MDEV_STARTS, wishes):
                yield Situation(board, {pfs[0]: start}, {pfs[0]: wish}, framework="mdev")


def before(node: Node) -> dict[str, dict[str, Any]]:
    return {gpu.bdf: asdict(gpu) for gpu in node.gpus()}


def some(count: int, seed: int) -> list[Situation]:
    return random.Random(seed).sample(list(every()), count)  # noqa: S311  # not for secrets


@dataclass
class Figures:
    """What a matrix came to."""

    tried: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> None:
        self.tried += 1
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="gpu-bootstate-chaos-")
