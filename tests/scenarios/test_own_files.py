"""Our own files: damaged, of another version, half written; written and read by many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_bootstate.cli.main import main
from tests.scenarios.test_commands import SCHEMA, Shell

A = "0000:17:00.0"
CONFIG = f"""version: v1
gpus:
  - match: {{pci: "{A}"}}
    profile: {{mig: {{1g.18gb: 2}}, vgpus: {{H200X-1-18C: 2}}}}
"""
FILES = (
    "run/gpu-bootstate/status.json",
    "run/gpu-bootstate/ready",
    f"run/gpu-bootstate/gpus/{A}.json",
    "run/gpu-bootstate/owed.json",
    "var/lib/gpu-bootstate/last-run.json",
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


class Commands:
    """In this process, on a node that has had its run."""

    def __init__(self, directory: Path) -> None:
        config = directory / "config.yaml"
        config.write_text(CONFIG, encoding="utf-8")
        self.root = directory / "sim/root"
        self._words = ["--simulate", "hgx-h200-8", "--sim-dir", str(directory / "sim")]
        self._words += ["--config", str(config)]
        assert self.run("apply").exit_code == 0
        self.good = {
            name: json.loads((self.root / name).read_text(encoding="utf-8"))
            for name in FILES
            if (self.root / name).exists()
        }
        boot_id = self.good[FILES[0]]["boot_id"]
        self.good["run/gpu-bootstate/owed.json"] = {
            "boot_id": boot_id,
            "persistence": [A],
            "units": ["nvidia-dcgm.service"],
        }

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*self._words, *words])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("node"))


def assert_answered(result: Result) -> None:
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert 0 <= result.exit_code <= 6


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], junk: Any, *, drop: bool) -> Any:
    if not path:
        return junk
    copy = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and drop:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], junk, drop=drop)
    return copy


@settings(
    max_examples=int(os.environ.get("EXAMPLES", "20")),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_or_one_of_another_version_is_never_fatal(
    commands: Commands, name: str, data: st.DataObject
) -> None:
    path = commands.root / name
    good = commands.good[name]
    at = data.draw(st.sampled_from(list(places(good))))
    value = changed(good, at, data.draw(JUNK), drop=data.draw(st.booleans()))
    path.write_text(json.dumps(value), encoding="utf-8")
    for words in (["status"], ["status", "--format", "json"], ["gate", "--hold"], ["plan"]):
        assert_answered(commands.run(*words))
    result = commands.run("apply")
    assert result.exit_code == 0, result.output
    assert (commands.root / FILES[1]).exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"\0" * 4096])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_json_is_never_fatal(
    commands: Commands, name: str, content: bytes
) -> None:
    (commands.root / name).write_bytes(content)
    assert_answered(commands.run("status"))
    assert_answered(commands.run("gate", "--hold"))
    assert commands.run("apply").exit_code == 0


def test_that_a_damaged_record_is_ignored_is_said_once(commands: Commands) -> None:
    (commands.root / FILES[0]).write_text("{", encoding="utf-8")
    for words in (["status"], ["status", "--wait", "--timeout", "1"]):
        assert commands.run(*words).output.count("it is ignored") == 1
    assert commands.run("apply").exit_code == 0
    assert "it is ignored" not in commands.run("status").output


def test_twenty_applies_at_once_end_in_one_state(tmp_path: Path) -> None:
    """Each waits for its turn; meanwhile nobody reads half a file."""
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    shell = Shell(tmp_path / "sim", "hgx-h200-8", config)
    shell.run("simulate", "new")
    status = tmp_path / "sim/root/run/gpu-bootstate/status.json"
    torn: list[str] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            if status.exists():
                text = status.read_text(encoding="utf-8")
                try:
                    json.loads(text)
                except ValueError:
                    torn.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    runs = [shell.start("apply", "--wait-lock", "300") for _ in range(20)]
    ended = [run.communicate() for run in runs]
    over.set()
    reader.join()
    assert [run.returncode for run in runs] == [0] * 20, ended
    assert torn == []
    # One of them did the work, and nobody did any of it again.
    made = [(call["verb"], call["target"], call["arguments"]) for call in shell.trace]
    assert len([call for call in made if call[0] == "create_gpu_instance"]) == 2
    assert len([call for call in made if call[0] == "sriov_manage"]) == 1
    last = shell.data("status")
    jsonschema.validate(last, SCHEMA)
    assert last["condition"] == "converged"


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root's rights away, so it has to have them")
def test_without_root_reads_work_and_changes_say_what_is_missing(public: Path) -> None:
    config = public / "config.yaml"
    config.write_text(CONFIG, encoding="utf-8")
    shell = Shell(public / "sim", "hgx-h200-8", config)
    shell.run("apply")
    # The hardware is everybody's, our files are root's.
    for path in (public / "sim", *(public / "sim").glob("*.*"), public / "sim/lock"):
        os.chown(path, 65534, 65534)
    root = public / "sim/root"
    for name in FILES[:3]:
        assert (root / name).stat().st_mode & 0o777 == 0o644, name
        assert (root / name).parent.stat().st_mode & 0o777 == 0o755, name

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        # Once as root, since nobody else may read this Python's libraries here.
        drop = (
            "import os, sys; from click.testing import CliRunner; "
            "from gpu_bootstate.cli.main import main; CliRunner().invoke(main, sys.argv[1:]); "
            "os.setgroups([]); os.setgid(65534); os.setuid(65534); main()"
        )
        return subprocess.run(  # noqa: S603
            [sys.executable, "-c", drop, *shell.words[3:], *words],
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("status").returncode == 0
    assert run("plan").returncode == 0
    done = run("apply")
    assert done.returncode == 1
    assert "needs root" in done.stderr
    done = run("gate")
    assert done.returncode == 1
    assert "needs root" in done.stderr
