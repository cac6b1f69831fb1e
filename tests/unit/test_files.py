"""What others are to read has its mode by name, not by the umask of whoever runs us."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_bootstate.files import make_directory, write_atomic


@pytest.fixture(autouse=True)
def _strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_file_and_each_new_directory_above_it_can_be_read_by_all(tmp_path: Path) -> None:
    write_atomic(tmp_path / "a" / "b" / "ready", "x")
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o755
    assert mode(tmp_path / "a" / "b" / "ready") == 0o644


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o711)
    make_directory(tmp_path / "own")
    make_directory(tmp_path / "own" / "new")
    assert mode(tmp_path / "own") == 0o711


def test_a_link_to_a_directory_is_a_directory(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to("target")
    write_atomic(tmp_path / "link" / "sub" / "ready", "x")
    assert (tmp_path / "target" / "sub" / "ready").read_text(encoding="utf-8") == "x"


def test_something_else_in_the_way_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        write_atomic(tmp_path / "file" / "ready", "x")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(NotADirectoryError):
        make_directory(tmp_path / "dangling")
