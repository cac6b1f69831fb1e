"""`check` in image builds and hooks: several files, every board, SARIF."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sarif_pydantic import Sarif

from gpu_bootstate.catalog.reader import node_names

REPO = Path(__file__).parents[2]
GOOD = """version: v1
gpus:
  - match: {pci: "0000:17:00.0"}
    profile: {mig: {3g.71gb: 1}, vgpus: {H200X-3-71C: 1}}
"""
NO_ROOM = GOOD.replace("3g.71gb: 1}, vgpus: {H200X-3-71C: 1}", "3g.71gb: 2, 2g.35gb: 1}")
MISSPELT = GOOD.replace("profile:", "profil:")


def run(*words: object, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-m", "gpu_bootstate", "check", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(REPO), "PATH": "/usr/bin:/bin"},
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in (("good", GOOD), ("no-room", NO_ROOM), ("misspelt", MISSPELT)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


BOARD = ("--board", "hgx-h200-8")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["good"], 0),
        (["good", "good"], 0),
        (["good", "misspelt"], 4),
        (["no-room", "good"], 4),
        (["misspelt"], 4),
    ],
)
def test_the_worst_file_decides(files: Path, names: list[str], code: int) -> None:
    done = run(*BOARD, *(files / f"{name}.yaml" for name in names))
    assert done.returncode == code, done.stdout + done.stderr
    for name in names:
        assert f"{name}.yaml:" in done.stdout


def test_each_file_is_read_by_itself(files: Path) -> None:
    """Together they would name one GPU twice."""
    assert run(*BOARD, files / "good.yaml", files / "good.yaml").returncode == 0


def test_several_files_are_a_list_in_json(files: Path) -> None:
    data = json.loads(
        run(*BOARD, "--format", "json", files / "good.yaml", files / "misspelt.yaml").stdout
    )
    assert [each["ok"] for each in data["files"]] == [True, False]
    alone = json.loads(run(*BOARD, "--format", "json", files / "good.yaml").stdout)
    assert data["files"][0] == alone


# --------------------------------------------------------------------------- boards


def test_every_board_has_its_verdict_with_placement_or_reason(files: Path) -> None:
    done = run("--all-boards", "--format", "json", files / "good.yaml")
    assert done.returncode == 0
    boards = {each["board"]: each for each in json.loads(done.stdout)["boards"]}
    assert tuple(boards) == node_names()
    assert [name for name, each in boards.items() if each["fits"]] == ["hgx-h200-8"]
    assert boards["hgx-h200-8"]["layout"] == [
        "gpus[0].profile: 3g.71gb at 0, 1 x NVIDIA H200X-3-71C  (0000:17:00.0)"
    ]
    assert "has no MIG" in boards["l40s-4"]["why"]
    assert "has no MIG profile 3g.71gb" in boards["hgx-h100-8"]["why"]


def test_what_fits_no_board_is_an_error(files: Path) -> None:
    done = run("--all-boards", files / "no-room.yaml")
    assert done.returncode == 4
    first, second, *_ = done.stdout.splitlines()
    assert first.endswith("no-room.yaml: fits no board that is known")
    assert "hgx-h200-8: no: gpus[0].profile.mig.2g.35gb:" in second


def test_a_file_that_is_wrong_on_every_board_is_said_once(files: Path) -> None:
    done = run("--all-boards", files / "misspelt.yaml")
    assert done.returncode == 4
    assert done.stdout.count("unknown key 'profil'") == 1


def test_one_board_and_all_of_them_exclude_each_other(files: Path) -> None:
    assert run(*BOARD, "--all-boards", files / "good.yaml").returncode == 2


# --------------------------------------------------------------------------- SARIF


def sarif(*words: object, cwd: Path = REPO) -> dict[str, Any]:
    """Read by somebody else's model of SARIF, which loses what it does not know."""
    text = run("--format", "sarif", *words, cwd=cwd).stdout
    data = json.loads(text)
    assert isinstance(data, dict)
    kept = Sarif.model_validate_json(text).model_dump(mode="json", by_alias=True, exclude_none=True)
    assert _is_within(data, kept)
    (found,) = data["runs"]
    assert isinstance(found, dict)
    return found


def _is_within(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and _is_within(value, whole[key]) for key, value in part.items()
        )
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_is_within, part, whole))
    return bool(part == whole)


def test_a_mistake_is_a_result_at_its_line(files: Path) -> None:
    found = sarif(*BOARD, "good.yaml", "no-room.yaml", "misspelt.yaml", cwd=files)
    places = [
        (
            result["ruleId"],
            result["level"],
            result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            result["locations"][0]["physicalLocation"]["region"]["startLine"],
        )
        for result in found["results"]
    ]
    assert places == [
        ("layout-impossible", "error", "no-room.yaml", 4),
        ("config-invalid", "error", "misspelt.yaml", 3),
        ("config-invalid", "error", "misspelt.yaml", 4),
    ]
    rules = found["tool"]["driver"]["rules"]
    assert [rules[result["ruleIndex"]]["id"] for result in found["results"]] == [
        p[0] for p in places
    ]
    assert "{" not in json.dumps([rule["help"] for rule in rules]).replace('{"text"', "")


def test_no_mistake_is_an_empty_list(files: Path) -> None:
    assert sarif(*BOARD, files / "good.yaml")["results"] == []


def test_a_name_with_odd_characters_is_a_uri(files: Path) -> None:
    odd = files / "a b#ä.yaml"
    odd.write_text(MISSPELT)
    found = sarif(odd)
    uri = found["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri.startswith("file:///")
    assert uri.endswith("/a%20b%23%C3%A4.yaml")
