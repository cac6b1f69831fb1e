"""`python -m tests.chaos.mutations`: faults planted in our own code, and which test notices.

Each is a mistake that would break a promise of the README. It is put into a copy of the package,
one at a time, and the named tests, which pass on the copy as it was, have to fail. Exit code 1 when
one passes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).parents[2]
_COPIED = ("gpu_bootstate", "tests", "config", "docs", "pyproject.toml")


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str  # occurs once
    new: str
    tests: str  # what pytest is given


MUTATIONS = (
    Mutation(
        "the gate opens for a GPU that failed",
        "execute.py",
        "            if gpu.failure is None:\n                self.gate.open_gpu",
        "            if True:\n                self.gate.open_gpu",
        "tests/chaos tests/scenarios/test_properties.py",
    ),
    Mutation(
        "the gate stays open during changes",
        "execute.py",
        "        self.gate.close_gpu(gpu.plan.pf)\n        if was_open and",
        "        if was_open and",
        "tests/scenarios/test_gate_cases.py tests/scenarios/test_properties.py",
    ),
    Mutation(
        "a gate of the boot before counts as open",
        "gate.py",
        'return (read_json(path) or {}).get("boot_id") == self._boot_id',
        "return read_json(path) is not None",
        "tests/unit/test_gate.py tests/scenarios/test_gate_cases.py",
    ),
    Mutation(
        "users are not looked for again at the moment of acting",
        "steps/context.py",
        "        for user in users(holders):\n            raise",
        "        for user in ():\n            raise",
        "tests/scenarios/test_races.py",
    ),
    Mutation(
        "the lock keeps nobody out",
        "lock.py",
        "fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        "tests/unit/test_lock.py tests/scenarios/test_own_files.py",
    ),
    Mutation(
        "the number of VFs is not read back",
        "steps/vfs.py",
        "        if found == count:\n",
        "        if True:\n",
        "tests/scenarios/test_vf_cases.py",
    ),
    Mutation(
        "a GPU with VFs is reset",
        "steps/mig_mode.py",
        '    if ctx.hw.pf(pf).sriov_numvfs:\n        detail = "VFs are on again, and',
        '    if False:\n        detail = "VFs are on again, and',
        "tests/scenarios/test_races.py",
    ),
    Mutation(
        "a GPU that needs no reset gets one",
        "steps/mig_mode.py",
        "    if not _mig(ctx, pf).is_pending:\n        return StepStatus.SKIPPED\n",
        "",
        "tests/scenarios/test_mig_cases.py",
    ),
    Mutation(
        "a GPU does not wait in a phase for what it has left of an earlier one",
        "execute.py",
        "if gpu.plan.steps and gpu.plan.steps[0].phase is phase",
        "if gpu.plan.in_phase(phase)",
        "tests/scenarios/test_races.py",
    ),
    Mutation(
        "a card without a driver is captured by the vendor tool",
        "steps/vfs.py",
        "    _no_driverless_sibling(ctx, pf)\n",
        "",
        "tests/scenarios/test_races.py",
    ),
    Mutation(
        "a sick card takes the others of its model down",
        "steps/vfs.py",
        "if err.kind is ErrorKind.NOT_FOUND or sibling in ctx.configured:",
        "if False:",
        "tests/scenarios/test_races.py",
    ),
    Mutation(
        "what a killed run took down is forgotten",
        "execute.py",
        "            self.owed.lowers_persistence(gpu.plan.pf)\n",
        "            self.owed._persistence.append(gpu.plan.pf)\n",
        "tests/chaos/test_chaos.py",
    ),
    Mutation(
        "files are written in place",
        "files.py",
        '    temporary = path.parent / f".{path.name}.new"\n',
        "    temporary = path\n",
        "tests/scenarios/test_own_files.py tests/chaos/test_chaos.py tests/unit/test_files.py",
    ),
    Mutation(
        "a stop that systemd asks for is not heard",
        "deadline.py",
        "        if signal is not None:\n",
        "        if False:\n",
        "tests/chaos/test_chaos.py tests/scenarios/test_commands.py",
    ),
    Mutation(
        "configuration that everybody can write is obeyed",
        "config.py",
        "            elif status.st_mode & stat.S_IWOTH:",
        "            elif False:",
        "tests/unit/test_config.py",
    ),
    Mutation(
        "the node is rebooted over and over",
        "reboot.py",
        "    if desired.digest in done:",
        "    if False:",
        "tests/scenarios/test_reboot.py",
    ),
    Mutation(
        "the node is rebooted under a VM",
        "reboot.py",
        "            for holder in users(hw.holders(pci.bdf)):",
        "            for holder in ():",
        "tests/scenarios/test_reboot.py",
    ),
)


def failing(tests: Iterable[str], directory: Path) -> str:
    """The first of the tests that fails on the copy in the directory; empty when all pass."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "pytest", "-q", "-x", "-k", "not still_fits", *tests],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return failed[0].removeprefix("FAILED ").partition(" - ")[0] if failed else ""


def noticed(mutation: Mutation, directory: Path) -> bool:
    path = directory / "gpu_bootstate" / mutation.file
    good = path.read_text(encoding="utf-8")
    assert good.count(mutation.old) == 1, f"{mutation.name}: the code has changed"
    path.write_text(good.replace(mutation.old, mutation.new), encoding="utf-8")
    by = failing(mutation.tests.split(), directory)
    path.write_text(good, encoding="utf-8")
    print(f"{'noticed  ' if by else 'UNNOTICED'}  {mutation.name}  {by}", flush=True)
    return bool(by)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="only those whose name has one of these words")
    words = parser.parse_args().words
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    with tempfile.TemporaryDirectory(prefix="gpu-bootstate-mutations-") as name:
        directory = Path(name)
        for entry in _COPIED:
            source = REPO / entry
            if source.is_dir():
                shutil.copytree(
                    source, directory / entry, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(source, directory)
        tests = dict.fromkeys(name for m in chosen for name in m.tests.split())
        if by := failing(tests, directory):
            sys.exit(f"not even the good code passes {by}")
        unnoticed = [m.name for m in chosen if not noticed(m, directory)]
    print(f"{len(chosen)} faults planted, unnoticed: {len(unnoticed)}")
    sys.exit(bool(unnoticed))


if __name__ == "__main__":
    main()
