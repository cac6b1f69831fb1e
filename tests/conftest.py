"""Fixtures that every kind of test uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node import Node, NodeMaker


@pytest.fixture
def node(tmp_path: Path) -> NodeMaker:
    """`node("hgx-h200-8")`: a just booted simulated node with files of its own."""
    made = 0

    def make(board: str) -> Node:
        nonlocal made
        made += 1
        return Node(board, tmp_path / f"node-{made}")

    return make
