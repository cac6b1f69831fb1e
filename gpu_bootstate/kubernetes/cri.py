"""Starts a consumer's containers again without the API server, through the container runtime.

The kubelet starts them anew, with its back-off. Init containers do not run again, which is no loss:
the gate that they wait for is open. Source: operator-path.md 3.3; crictl's own help and JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import datetime
from typing import Any

from gpu_bootstate.files import read_json, write_json
from gpu_bootstate.hardware.protocol import ErrorKind, HardwareError
from gpu_bootstate.hardware.runner import Runner
from gpu_bootstate.kubernetes.said import Said
from gpu_bootstate.paths import Paths

_LIMIT_S = 30.0
_NONSENSE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
_NANO = 1_000_000_000
# Where the distributions put it beside the usual places.
_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ":/var/lib/rancher/rke2/bin:/opt/bin"
)


def stop_older_containers(
    paths: Paths, selectors: tuple[str, ...], said: Said, tell: Callable[[str], None]
) -> None:
    """Once for each release, whatever the clocks say. What fails is told and left."""
    if not selectors or said.released_at is None:
        return
    release = {"boot_id": said.boot_id, "release": said.release}
    record = paths.run_dir / "restarted.json"
    if read_json(record) == release:
        return
    crictl = shutil.which("crictl", path=_PATH)
    if crictl is None:
        tell("there is no crictl: consumers that read the vGPUs too early wait for the API server")
        return
    released = datetime.fromisoformat(said.released_at.replace("Z", "+00:00")).timestamp()
    runner = Runner()
    try:
        for selector in selectors:
            for pod in _asked(runner, [crictl, "pods", "--label", selector], "items"):
                words = [crictl, "ps", "--pod", str(pod["id"])]
                for container in _asked(runner, words, "containers"):
                    if int(container["createdAt"]) >= (released + 1) * _NANO:
                        continue
                    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                    tell(
                        f"{name} read the vGPUs before {said.released_at}: its container is stopped"
                    )
                    _run(runner, [crictl, "stop", str(container["id"])])
    except HardwareError as err:
        tell(f"crictl: {err}")
        return
    except _NONSENSE as err:
        tell(f"what crictl says is not understood ({type(err).__name__})")
        return
    try:
        write_json(record, release)
    except OSError as err:
        tell(f"{record} cannot be written ({err.strerror}): the containers may be stopped again")


def _asked(runner: Runner, words: list[str], key: str) -> list[dict[str, Any]]:
    found = json.loads(_run(runner, [*words, "-o", "json"]))[key]
    return [each for each in found or () if isinstance(each, dict)]


def _run(runner: Runner, words: list[str]) -> str:
    done = runner.run(words, timeout_s=_LIMIT_S)
    if done.timed_out or done.exit_code != 0:
        raise HardwareError(ErrorKind.UNKNOWN, " ".join(words[:3]), detail=done.text)
    return done.stdout
