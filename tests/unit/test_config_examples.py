"""The files that are shipped as examples are read without a problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_bootstate.config import load
from gpu_bootstate.model import Bdf, MatchKind, Mode, Policy
from gpu_bootstate.paths import Paths

CONFIG = Path(__file__).parents[2] / "config"
EXAMPLES = sorted((CONFIG / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_read(path: Path, tmp_path: Path) -> None:
    state = load(Paths(tmp_path), path)
    assert state.entries
    assert state.sources == (str(path),)


def test_there_is_an_example_of_every_kind() -> None:
    assert {path.stem for path in EXAMPLES} == {
        "back-to-bare",
        "mig-backed",
        "mixed-layouts",
        "mixed-size",
        "passthrough",
        "time-sliced-l40s",
        "whole-card",
    }


def test_the_main_example_is_four_cards_of_each_kind_and_shows_the_defaults(tmp_path: Path) -> None:
    state = load(Paths(tmp_path), CONFIG / "config.yaml")
    seven, whole = state.entries
    assert [len(entry.match) for entry in state.entries] == [4, 4]
    assert {item.kind for entry in state.entries for item in entry.match} == {MatchKind.PCI}
    buses = (0x17, 0x3D, 0x60, 0x70, 0x98, 0xBA, 0xDD, 0xED)
    assert [item.value for entry in state.entries for item in entry.match] == [
        Bdf(0, bus, 0, 0) for bus in buses
    ]
    assert [(r.profile, r.count) for r in seven.profile.mig or ()] == [("1g.18gb", 7)]
    assert [(r.type_name, r.count) for r in seven.profile.vgpus] == [("H200X-1-18C", 7)]
    assert whole.profile.mig is None
    assert [(r.type_name, r.count) for r in whole.profile.vgpus] == [("H200X-141C", 1)]
    assert {entry.profile.mode for entry in state.entries} == {Mode.VGPU}
    assert state.policy == Policy()
