"""The image of the boot tests, and one line in the output for each thing that they have shown."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.boot.machine import Machine
from tests.boot.node import Node

REPO = Path(__file__).parents[2]
HERE = Path(__file__).parent
_NEEDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "cpio": "cpio",
    "dpkg-deb": "dpkg",
}
_SHOWN = "shown by booting"


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian 12 with our package installed and enabled."""
    if os.environ.get("SKIP_BOOT_TESTS") == "1":
        pytest.skip("SKIP_BOOT_TESTS=1")
    missing = [package for tool, package in _NEEDS.items() if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(
            f"The boot tests need root and: apt-get install {' '.join(_NEEDS.values())}. "
            "SKIP_BOOT_TESTS=1 leaves them out.",
            pytrace=False,
        )
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    # Processes that test side by side make it once.
    with (shared / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        packages = shared / "packages"
        if not packages.exists():
            _run(str(REPO / "packaging" / "build"), "deb", str(packages))
            made = [str(path) for path in packages.glob("*.deb")]
            _run(str(HERE / "make-image"), str(REPO / "build" / "boot"), *made)
    return REPO / "build" / "boot"


def _run(*command: str) -> None:
    # The system's own Python may have no pip; the one that runs the tests has.
    env = {**os.environ, "PYTHON": sys.executable}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def node(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with Machine(image, tmp_path_factory.mktemp("node")) as machine:
        yield Node(machine)


@pytest.fixture
def shows(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Notes what has just been shown, for the transcript at the end."""

    def note(text: str) -> None:
        record_property(_SHOWN, text)

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for each in terminalreporter.stats.values() for report in each]
    shown = [
        str(text)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == _SHOWN
    ]
    if shown:
        terminalreporter.section("shown by booting")
        for text in shown:
            terminalreporter.write_line(f"  {text}")
