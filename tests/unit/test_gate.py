"""The gate's files on a real directory: who is let through when, and in which order files move."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_bootstate.gate import Gate, GateError
from gpu_bootstate.model import Bdf, GateFile, GatePolicy, Mark
from gpu_bootstate.paths import Paths

A, B, C = (Bdf.parse(f"{bus}:00.0") for bus in ("17", "3d", "60"))
BOOT, LAST_BOOT = "boot-now", "boot-before"
FIRST = GateFile("/run/x/first", "one\n", Mark("c.yaml", 1, 1))
SECOND = GateFile("/run/y/second", "", Mark("c.yaml", 2, 1))

_moves: list[tuple[str, str]] | None = None


def _record(event: str, args: tuple[Any, ...]) -> None:
    if _moves is not None and event in ("os.remove", "os.rename"):
        _moves.append((event, str(args[0 if event == "os.remove" else 1])))


sys.addaudithook(_record)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "node")


@pytest.fixture
def moves(paths: Paths) -> Iterator[list[tuple[str, str]]]:
    """What is removed and renamed from here on, in order, as seen by the interpreter."""
    global _moves
    _moves = []
    yield _moves
    _moves = None


def gate(
    paths: Paths,
    *configured: Bdf,
    files: tuple[GateFile, ...] = (FIRST, SECOND),
    policy: GatePolicy = GatePolicy.ALL,
    boot_id: str = BOOT,
    absent: int = 0,
    digest: str | None = "d1",
) -> Gate:
    ticks = itertools.count(1_700_000_000)
    return Gate(
        paths,
        boot_id,
        configured=configured,
        files=files,
        policy=policy,
        absent=absent,
        digest=digest,
        wall_time=lambda: next(ticks),
    )


def opened(paths: Paths, *configured: Bdf, policy: GatePolicy = GatePolicy.ALL) -> Gate:
    made = gate(paths, *configured, policy=policy)
    for pf in configured:
        made.open_gpu(pf, {"profile": "p"})
    assert made.update_node()
    return made


def there(paths: Paths) -> set[str]:
    """All files of the node, by their absolute path on it; but no leftover of a write."""
    return {
        f"/{path.relative_to(paths.root)}" for path in paths.root.rglob("*") if not path.is_dir()
    }


def snapshot(paths: Paths) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in paths.root.rglob("*")
        if path.is_file()
    }


RUN = "/run/gpu-bootstate"
GPU_A, GPU_B = f"{RUN}/gpus/{A}.json", f"{RUN}/gpus/{B}.json"
NODE = {f"{RUN}/ready", "/run/x/first", "/run/y/second"}


# --------------------------------------------------------------------------- opening


def test_all_verified_opens_the_node_and_writes_every_file(paths: Paths) -> None:
    made = opened(paths, A, B)

    assert made.is_open
    assert there(paths) == {GPU_A, GPU_B, *NODE}
    assert paths.at(FIRST.path).read_text() == "one\n"
    assert json.loads(paths.ready.read_text()) == {
        "boot_id": BOOT,
        "written_at": "2023-11-14T22:13:22Z",
        "policy": "all",
        "digest": "d1",
        "open": [str(A), str(B)],
        "closed": [],
        "absent": 0,
        "files": ["/run/x/first", "/run/y/second"],
    }
    assert json.loads(paths.gpu_gate(A).read_text()) == {
        "pf": str(A),
        "boot_id": BOOT,
        "verified_at": "2023-11-14T22:13:20Z",
        "profile": "p",
    }


def test_ready_is_written_before_the_extra_files_and_those_in_their_order(
    paths: Paths, moves: list[tuple[str, str]]
) -> None:
    made = gate(paths, A)
    made.open_gpu(A, {})
    made.update_node()

    written = [Path(path).name for event, path in moves if event == "os.rename"]
    assert written == [f"{A}.json", "ready", "first", "second"]


def test_one_gpu_not_verified_keeps_the_node_shut_under_all(paths: Paths) -> None:
    made = gate(paths, A, B)
    made.open_gpu(A, {})

    assert not made.update_node()
    assert not made.is_open
    assert there(paths) == {GPU_A}


def test_g6_any_opens_with_one_and_says_which_are_missing(paths: Paths) -> None:
    made = gate(paths, A, B, policy=GatePolicy.ANY)
    made.open_gpu(B, {})

    assert made.update_node()
    assert made.is_gpu_open(B)
    assert not made.is_gpu_open(A)
    ready = json.loads(paths.ready.read_text())
    assert (ready["open"], ready["closed"]) == ([str(B)], [str(A)])


@pytest.mark.parametrize(("policy", "is_open"), [(GatePolicy.ALL, True), (GatePolicy.ANY, False)])
def test_n22_no_gpu_configured_wants_nothing(
    paths: Paths, policy: GatePolicy, *, is_open: bool
) -> None:
    assert gate(paths, policy=policy).update_node() is is_open


def test_a_gpu_that_the_node_has_not_keeps_it_shut_under_all_only(paths: Paths) -> None:
    for policy, is_open in ((GatePolicy.ALL, False), (GatePolicy.ANY, True)):
        made = gate(paths, A, policy=policy, absent=1)
        made.open_gpu(A, {})
        assert made.update_node() is is_open


def test_converged_node_sees_no_write(paths: Paths) -> None:
    opened(paths, A, B)
    before = snapshot(paths)

    again = gate(paths, A, B)
    again.discard_stale()
    again.open_gpu(A, {"profile": "p"})
    again.open_gpu(B, {"profile": "p"})

    assert again.update_node()
    assert snapshot(paths) == before


@pytest.mark.parametrize("name", sorted(NODE))
def test_g1_g5_a_missing_file_comes_back_and_no_other_is_written(paths: Paths, name: str) -> None:
    opened(paths, A)
    before = snapshot(paths)
    paths.at(name).unlink()

    assert gate(paths, A).update_node()

    after = snapshot(paths)
    assert there(paths) == {GPU_A, *NODE}
    assert {path for path in after if after[path] != before.get(path)} == {str(paths.at(name))}


def test_g2_a_missing_file_stays_away_while_a_gpu_is_not_verified(paths: Paths) -> None:
    made = opened(paths, A, B)
    paths.at(FIRST.path).unlink()
    made.close_gpu(B)

    assert not made.update_node()
    assert there(paths) == {GPU_A}


def test_extra_file_with_other_content_is_written_anew(paths: Paths) -> None:
    opened(paths, A)
    paths.at(FIRST.path).write_text("somebody else's")

    assert gate(paths, A).update_node()
    assert paths.at(FIRST.path).read_text() == "one\n"


def test_what_was_verified_anew_replaces_what_was_verified_before(paths: Paths) -> None:
    made = opened(paths, A)
    made.open_gpu(A, {"profile": "q"})

    assert json.loads(paths.gpu_gate(A).read_text())["profile"] == "q"


# --------------------------------------------------------------------------- closing


def test_closing_goes_outside_in(paths: Paths, moves: list[tuple[str, str]]) -> None:
    made = opened(paths, A, B)
    moves.clear()

    made.close_gpu(A)

    assert [Path(path).name for _, path in moves] == ["second", "first", "ready", f"{A}.json"]
    assert there(paths) == {GPU_B}


def test_closing_one_of_two_under_any_rewrites_ready_and_keeps_the_node_open(paths: Paths) -> None:
    made = opened(paths, A, B, policy=GatePolicy.ANY)

    made.close_gpu(A)

    assert made.is_open
    assert json.loads(paths.ready.read_text())["closed"] == [str(A)]
    made.close_gpu(B)
    assert there(paths) == set()


def test_closing_what_is_closed_changes_nothing(paths: Paths) -> None:
    made = gate(paths, A, B)
    made.open_gpu(A, {})
    before = snapshot(paths)

    made.close_gpu(B)

    assert snapshot(paths) == before


def test_closing_many_gpus_from_many_threads_leaves_the_truth(paths: Paths) -> None:
    pfs = tuple(Bdf(0, bus, 0, 0) for bus in range(16))
    made = opened(paths, *pfs, policy=GatePolicy.ANY)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(made.close_gpu, pfs[:-1]))

    assert json.loads(paths.ready.read_text())["open"] == [str(pfs[-1])]
    assert there(paths) == {f"{RUN}/gpus/{pfs[-1]}.json", *NODE}


def test_a_file_that_cannot_be_removed_is_told_and_the_others_go(paths: Paths) -> None:
    made = opened(paths, A)
    paths.at(SECOND.path).unlink()
    paths.at(SECOND.path).mkdir()

    with pytest.raises(GateError) as told:
        made.close_gpu(A)

    assert told.value.path == paths.at(SECOND.path)
    assert not made.is_open
    assert not paths.at(FIRST.path).exists()


# --------------------------------------------------------------------------- another boot, damage


def test_everything_of_another_boot_goes(paths: Paths) -> None:
    old = gate(paths, A, B, boot_id=LAST_BOOT)
    for pf in (A, B):
        old.open_gpu(pf, {})
    assert old.update_node()

    made = gate(paths, A, B)
    assert not made.is_open
    assert not made.is_gpu_open(A)
    made.discard_stale()

    assert there(paths) == set()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"boot_id": null}'])
def test_damaged_ready_is_no_release(paths: Paths, damage: str) -> None:
    made = opened(paths, A)
    paths.ready.write_text(damage)

    assert not made.is_open
    made.discard_stale()
    assert there(paths) == {GPU_A}


def test_r4_extra_files_from_elsewhere_go_where_nothing_was_verified(paths: Paths) -> None:
    for file in (FIRST, SECOND):
        paths.at(file.path).parent.mkdir(parents=True)
        paths.at(file.path).write_text(file.content)

    gate(paths, A).discard_stale()

    assert there(paths) == set()


def test_damaged_gpu_file_shuts_the_node(paths: Paths) -> None:
    made = opened(paths, A, B)
    paths.gpu_gate(A).write_text("{")

    made.discard_stale()

    assert there(paths) == {GPU_B}


def test_what_holds_in_this_boot_is_left_alone(paths: Paths) -> None:
    made = opened(paths, A, B)
    before = snapshot(paths)

    made.discard_stale()

    assert snapshot(paths) == before


# --------------------------------------------------------------------------- the config changes


def test_n12_a_gpu_dropped_from_the_config_loses_its_file_and_nothing_else(paths: Paths) -> None:
    opened(paths, A, B)

    made = gate(paths, A)
    made.discard_stale()

    assert made.is_open
    assert there(paths) == {GPU_A, *NODE}
    made.update_node()
    assert json.loads(paths.ready.read_text())["open"] == [str(A)]


def test_a_gpu_added_to_the_config_shuts_the_node_until_it_is_verified(paths: Paths) -> None:
    opened(paths, A, B)

    made = gate(paths, A, B, C)
    made.discard_stale()
    assert there(paths) == {GPU_A, GPU_B}

    made.open_gpu(C, {})
    assert made.update_node()


@pytest.mark.parametrize("still_open", [True, False])
def test_an_extra_file_dropped_from_the_config_does_not_stay_behind(
    paths: Paths, *, still_open: bool
) -> None:
    opened(paths, A)

    made = gate(paths, A, files=(FIRST,))
    if not still_open:
        made.close_gpu(A)
    assert made.update_node() is still_open

    assert there(paths) == ({GPU_A, f"{RUN}/ready", FIRST.path} if still_open else set())


# --------------------------------------------------------------------------- not ours alone


def test_linked_run_directory_is_refused_before_anything_is_written_or_removed(
    paths: Paths, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "ready").write_text("theirs")
    paths.run_dir.parent.mkdir(parents=True)
    paths.run_dir.symlink_to(elsewhere)
    made = gate(paths, A)

    for act in (made.discard_stale, made.update_node, lambda: made.open_gpu(A, {})):
        with pytest.raises(GateError) as told:
            act()
        assert told.value.finding.message == (
            f"The gate cannot be kept: {paths.run_dir}: it is a link or a file, not a directory."
        )
    assert [path.name for path in elsewhere.iterdir()] == ["ready"]


def test_run_directory_that_everybody_may_write_to_is_refused(paths: Paths) -> None:
    paths.run_dir.mkdir(parents=True)
    paths.run_dir.chmod(0o777)

    with pytest.raises(GateError, match="everybody may write to it"):
        gate(paths, A).update_node()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_run_directory_of_somebody_else_is_refused(paths: Paths) -> None:
    paths.run_dir.mkdir(parents=True)
    os.chown(paths.run_dir, 65534, 65534)

    with pytest.raises(GateError, match="it belongs to user 65534"):
        gate(paths, A).update_node()


def test_extra_file_that_is_a_link_is_replaced_and_its_target_untouched(
    paths: Paths, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    paths.at(FIRST.path).parent.mkdir(parents=True)
    paths.at(FIRST.path).symlink_to(target)

    opened(paths, A)

    assert target.read_text() == "theirs"
    assert not paths.at(FIRST.path).is_symlink()


def test_directory_that_cannot_be_made_is_told_with_its_path(paths: Paths) -> None:
    paths.at("/run").mkdir(parents=True)
    paths.at("/run/x").write_text("a file where a directory is needed")
    made = gate(paths, A)
    made.open_gpu(A, {})

    with pytest.raises(GateError) as told:
        made.update_node()

    assert told.value.path == paths.at(FIRST.path)
