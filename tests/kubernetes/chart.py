"""The Helm chart, rendered with Helm's own template libraries (Go's text/template and sprig).

`python -m tests.kubernetes.chart` writes the plain manifests in packaging/kubernetes anew.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).parents[2]
PACKAGING = REPO / "packaging" / "kubernetes"
CHART = PACKAGING / "chart"
NAMESPACE = "gpu-bootstate"
_GO = {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOFLAGS": "", "CGO_ENABLED": "0"}


class NotRendered(Exception):
    pass


@cache
def _renderer() -> Path:
    program = REPO / "build" / "render-chart"
    program.parent.mkdir(exist_ok=True)
    environment = {**os.environ, **_GO, "GOCACHE": str(program.parent / "go-cache")}
    source = Path(__file__).parent / "render" / "main.go"
    beside = program.with_name(f"{program.name}.{os.getpid()}")
    subprocess.run(["go", "build", "-o", beside, source], check=True, env=environment)  # noqa: S603, S607
    return beside.replace(program)


def render(values: Mapping[str, Any] | None = None, chart: Path = CHART) -> str:
    """``values`` go over those of values.yaml, table by table. Raises NotRendered."""
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    merged = _merged(defaults, values or {})
    done = subprocess.run(  # noqa: S603
        [_renderer(), chart, NAMESPACE],
        input=json.dumps(merged),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotRendered(done.stderr)
    return done.stdout


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        table = under.get(key)
        both = isinstance(table, dict) and isinstance(value, dict)
        merged[key] = _merged(table, value) if both and table else value
    return merged


def objects(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def plain(part: str) -> str:
    """What `kubectl apply -f` takes: one of fleet and taint, with the namespace."""
    head = (
        "# Made from the chart beside it by `python -m tests.kubernetes.chart`.\n"
        f"apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n"
    )
    documents = render({"taint": {"enabled": part == "taint"}}).split("---\n")
    found = [each for each in documents if f"name: gpu-bootstate-{part}" in each]
    # The profiles are the user's own; applying this again must not take them away.
    ours = [each for each in found if "name: gpu-bootstate-fleet\n" not in each or "Daemon" in each]
    return head + "".join(f"---\n{each}" for each in ours)


if __name__ == "__main__":
    for name in ("fleet", "taint"):
        (PACKAGING / f"{name}.yaml").write_text(plain(name), encoding="utf-8")
