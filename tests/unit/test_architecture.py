"""The arrows between the modules, read from their imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "gpu_bootstate"
STAGES = {"config", "observe", "resolve", "plan", "execute", "report"}
PURE = {
    "model",
    "reasons",
    "problems",
    "placement",
    "resolve",
    "matching",
    "geometry",
    "names",
    "seating",
    "difference",
    "plan",
    "in_use",
}
# What a pure module may take from the standard library: nothing that reaches a file or a clock.
HARMLESS = {
    *("__future__", "collections", "dataclasses", "difflib", "enum", "functools", "itertools"),
    *("math", "re", "string", "typing", "uuid"),
}


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _ours(path: Path) -> set[str]:
    prefix = "gpu_bootstate."
    return {name.removeprefix(prefix) for name in _imports(path) if name.startswith(prefix)}


def _modules(folder: str = "") -> list[Path]:
    return sorted((PACKAGE / folder).rglob("*.py"))


@pytest.mark.parametrize("stage", sorted(STAGES))
def test_stages_do_not_import_each_other(stage: str) -> None:
    taken = {name.split(".")[0] for name in _ours(PACKAGE / f"{stage}.py")}
    assert taken & (STAGES - {stage}) == set()


@pytest.mark.parametrize("module", sorted(PURE))
def test_pure_modules_reach_nothing_outside(module: str) -> None:
    path = PACKAGE / f"{module}.py"
    outside = {
        name.split(".")[0] for name in _imports(path) if not name.startswith("gpu_bootstate")
    }
    assert outside <= HARMLESS
    assert {name.split(".")[0] for name in _ours(path)} <= PURE


def test_nvml_and_udev_are_imported_under_hardware_only() -> None:
    for path in _modules():
        if path.is_relative_to(PACKAGE / "hardware"):
            continue
        assert not {"pynvml", "pyudev"} & {name.split(".")[0] for name in _imports(path)}, path


def test_the_client_library_is_imported_in_one_module() -> None:
    taken = {
        path.relative_to(PACKAGE).as_posix()
        for path in _modules()
        if {"kubernetes", "urllib3"} & {name.split(".")[0] for name in _imports(path)}
    }
    assert taken == {"kubernetes/api.py"}


def test_only_the_command_line_chooses_between_real_and_simulated() -> None:
    for path in _modules():
        if any(path.is_relative_to(PACKAGE / folder) for folder in ("cli", "simulator")):
            continue
        taken = _ours(path)
        assert not any(name.startswith("simulator") for name in taken), path
        if not path.is_relative_to(PACKAGE / "hardware"):
            assert not any(name.startswith("hardware.real") for name in taken), path


def test_the_simulator_shares_no_mistake_with_the_planner() -> None:
    forbidden = {"placement", "resolve", "plan", "difference", "execute", "observe", "geometry"}
    for path in _modules("simulator"):
        assert not forbidden & {name.split(".")[0] for name in _ours(path)}, path


def test_programs_are_started_in_one_place() -> None:
    for path in _modules():
        if path.name != "runner.py":
            assert "subprocess" not in _imports(path), path
