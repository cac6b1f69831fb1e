"""The node comes back from a reboot as another: a card replaced, gone or moved, a newer driver.

What the configuration meant before is brought back where that is still the same thing; where it is
not, nothing is touched and the message says so.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from tests.chaos.matrix import Situation, before, scratch
from tests.support.node import Node
from tests.support.situations import assert_is, written

Change = Callable[[Node, str], object]


def _renumbered(node: Node, _: str) -> None:
    """A riser card more: every bus number is higher than before."""
    for gpu in node.gpus():
        gpu.bdf = _moved(gpu.bdf)


def _moved(bdf: str) -> str:
    domain, bus, rest = bdf.split(":")
    return f"{domain}:{int(bus, 16) + 2:02x}:{rest}"


def _newer_driver(node: Node, _: str) -> None:
    node.sim.state.type_id_shift += 17


CHANGES: dict[str, Change] = {
    "nothing": lambda node, pf: None,
    "a card of the same model in the slot": lambda node, pf: node.replaced(pf),
    "the card is gone": lambda node, pf: node.removed(pf),
    "other bus numbers": _renumbered,
    "a driver with other type ids": _newer_driver,
}

# How the configuration names the first GPU, and after which changes it still finds it.
MATCHES: dict[str, set[str]] = {
    "pci": {"nothing", "a card of the same model in the slot", "a driver with other type ids"},
    "uuid": {"nothing", "other bus numbers", "a driver with other type ids"},
    "serial": {"nothing", "other bus numbers", "a driver with other type ids"},
}


def singles() -> Iterator[tuple[str, str, str]]:
    for match in MATCHES:
        for change in CHANGES:
            for on_missing in ("fail", "degrade"):
                yield match, change, on_missing


def _text(situation: Situation, node: Node, match: str, on_missing: str) -> str:
    victim = next(iter(situation.wishes))
    lines = written(situation.wishes).splitlines()
    for number, line in enumerate(lines):
        if victim in line:
            gpu = node.gpu(victim)
            value = {"pci": victim, "uuid": gpu.uuid, "serial": gpu.serial}[match]
            lines[number] = f'  - match: {{{match}: "{value}"}}\n    on-missing: {on_missing}'
    return "\n".join(lines) + "\n"


def meet(situation: Situation, match: str, change: str, on_missing: str) -> str:
    """Converged, a reboot with the change, the run after it. Returns how that ended."""
    victim = next(iter(situation.wishes))
    with scratch() as directory:
        node = replace(situation, holders="").node(directory)
        text = _text(situation, node, match, on_missing)
        # By address: a card that is found without its driver cannot say its UUID yet.
        assert node.apply(written(situation.wishes))["exit_code"] == 0
        node.reboot()
        CHANGES[change](node, victim)
        moved = _moved if change == "other bus numbers" else str
        wishes = {moved(pf): wish for pf, wish in situation.wishes.items()}
        if change == "other bus numbers":  # the neighbour is named by what it is now
            for pf in situation.wishes:
                if pf != victim:
                    text = text.replace(pf, moved(pf))
        was = before(node)
        with contextlib.redirect_stderr(io.StringIO()):
            result = node.apply(text)
        found = change in MATCHES[match]
        others = [pf for pf in wishes if pf != moved(victim)]
        if found:
            assert result["exit_code"] == 0, (result["summary"], result["gpus"])
            assert node.ready
            told = wishes
            said = "converged"
        elif on_missing == "degrade":
            # Degraded while a GPU came up; where this was the only one, the file fits nothing here.
            assert result["exit_code"] == (2 if others else 4), result["summary"]
            assert "gpu-missing" in [finding["reason"] for finding in result["findings"]]
            assert not node.ready
            told = {pf: wishes[pf] for pf in others}
            said = f"{result['condition']}: gpu-missing"
        else:
            assert result["exit_code"] == 4, result["summary"]
            assert node.calls == []
            assert not node.ready
            told = {}
            said = "refused: the configuration names a GPU that is not there"
        for pf, wish in told.items():
            assert_is(node, pf, wish)
        _assert_untouched(node, set(told), was)
        with contextlib.redirect_stderr(io.StringIO()):
            again = node.apply(text)
        assert (again["exit_code"], node.calls) == (result["exit_code"], [])
        return said


def _assert_untouched(node: Node, named: set[str], was: dict[str, dict[str, Any]]) -> None:
    for gpu in node.gpus():
        if gpu.bdf not in named:
            assert asdict(gpu) == was[gpu.bdf], f"{gpu.bdf} is not named and was touched"
