"""`check`: whether the configuration can work, on a board, on this node, or by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpu_bootstate import report
from gpu_bootstate.cli.look import View, look, remembered_cards
from gpu_bootstate.cli.show import show
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.model import Bdf, DesiredState, GpuTarget, MatchKind, Mode
from gpu_bootstate.placement import Layout, solve
from gpu_bootstate.problems import ConfigInvalid, Problem
from gpu_bootstate.reasons import Condition, Finding

_NO_FILE = "no configuration file"


@click.command(name="check")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--board", metavar="BOARD", help="Check against this board, e.g. hgx-h200-8.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def command(where: Where, *, file: Path | None, board: str | None, form: str) -> None:
    """Read the configuration (or FILE) and say whether it can work; changes nothing.

    With --board no GPU is needed: names, layouts and counts are checked against that board, and
    the addresses of the file are taken for its slots. Without it, against the GPUs of this node.
    """
    if file is not None:
        where = replace(where, config=file)
    try:
        desired = load(where.paths, where.config)
        view = on_board(desired, board) if board else _on_node(where, desired)
    except ConfigInvalid as invalid:
        _refused(invalid, form)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    except ValueError as err:  # UnknownBoard
        raise click.BadParameter(str(err), param_hint="--board") from None
    raise SystemExit(_accepted(desired, view, form))


def _on_node(where: Where, desired: DesiredState) -> View | None:
    with where.hardware(desired.policy) as hw:
        if not hw.pfs():
            return None
        return look(hw, desired, remembered_cards(where.paths))


def on_board(desired: DesiredState, board: str) -> View:
    """The board's slots take the names of the file: what is checked is the geometry."""
    from gpu_bootstate.simulator.hardware import SimHardware
    from gpu_bootstate.simulator.node import new_node

    node = new_node(board)
    items = [item for entry in desired.entries for item in entry.match]
    here = {gpu.bdf for gpu in node.state.gpus}
    named = {str(item.value) for item in items if item.kind is MatchKind.PCI}
    free = [gpu for gpu in node.state.gpus if gpu.bdf not in named]
    for item in items:
        if item.kind is MatchKind.PCI and str(item.value) not in here and free:
            free.pop(0).bdf = str(item.value)
        elif item.kind is MatchKind.UUID and free:
            free.pop(0).uuid = str(item.value)
        elif item.kind is MatchKind.SERIAL and free:
            free.pop(0).serial = str(item.value)
    node.state.gpus.sort(key=lambda gpu: Bdf.parse(gpu.bdf))
    return look(SimHardware(node), desired, {})


def _refused(invalid: ConfigInvalid, form: str) -> None:
    data = {
        "ok": False,
        "condition": Condition.BAD_CONFIG.value,
        "problems": [_problem(problem) for problem in invalid.problems],
    }
    show(data, form, lambda _: "".join(f"{problem}\n" for problem in invalid.problems))


def _problem(problem: Problem) -> dict[str, object]:
    mark = problem.mark
    return {
        "file": mark.file if mark else None,
        "line": mark.line if mark else None,
        "column": mark.column if mark else None,
        "key": problem.path,
        "reason": problem.code.value,
        "message": problem.message,
        "expected": problem.want or None,
        "nearest": problem.nearest,
    }


def _accepted(desired: DesiredState, view: View | None, form: str) -> int:
    sources = ", ".join(desired.sources) or _NO_FILE
    if view is None:
        text = (
            f"{sources}: well formed. There is no NVIDIA GPU here, so the layouts are not checked; "
            "name the board with --board.\n"
        )
        show({"ok": True, "condition": "converged", "gpus": None}, form, lambda _: text)
        return Condition.CONVERGED.exit_code
    findings = list(_findings(view))
    # In use or held: that is the node's state of the moment and no fault of the file.
    bad = {f.condition for f in findings} - {Condition.CONVERGED, Condition.REFUSED}
    condition = Condition.of_all(bad, changed=False)
    data = {
        "ok": not bad,
        "condition": condition.value,
        "gpus": [_gpu(view, target) for target in view.resolution.targets],
        "findings": [report.finding_dict(finding) for finding in findings],
    }
    show(data, form, lambda _: _text(sources, data, findings))
    return condition.exit_code


def _gpu(view: View, target: GpuTarget) -> dict[str, Any]:
    gpu = view.node.gpu(target.pf)
    layout = solve(gpu.gi_profiles, target.instances) if gpu else None
    names = {p.gi_profile_id: p.name for p in gpu.gi_profiles} if gpu else {}
    return {
        "pf": str(target.pf),
        "profile": target.profile_name,
        "mode": target.mode.value,
        "mig": [
            {"profile": names[placed.gi_profile_id], "start": placed.placement.start}
            for placed in (layout.placed if isinstance(layout, Layout) else ())
        ],
        "vgpus": {str(v.vf_index): v.type_name for v in target.vgpus},
    }


def _findings(view: View) -> Iterator[Finding]:
    if view.node.driver.problem is not None:
        yield view.node.driver.problem
    yield from view.resolution.notices
    yield from (gpu.refusal for gpu in view.plan.gpus if gpu.refusal is not None)
    yield from view.plan.missing


def _text(sources: str, data: Mapping[str, Any], findings: Sequence[Finding]) -> str:
    verdict = "good" if data["ok"] else "well formed, but this node cannot take it"
    if sources == _NO_FILE:
        verdict = "there is nothing to do, and the gate stays closed"
    lines = [f"{sources}: {verdict}"]
    alike: dict[str, list[str]] = {}
    for gpu in data["gpus"]:
        alike.setdefault(f"{gpu['profile']}: {_geometry(gpu)}", []).append(gpu["pf"])
    lines += [f"  {what}  ({', '.join(pfs)})" for what, pfs in alike.items()]
    for finding in findings:
        lines.append(f"  {finding.message}")
        if finding.condition is not Condition.CONVERGED:
            lines.append(f"      to do:  {finding.remedy}")
    return "\n".join(lines) + "\n"


def _geometry(gpu: Mapping[str, Any]) -> str:
    if gpu["mode"] != Mode.VGPU.value:
        return f"bare ({gpu['mode']})"
    words = [f"{placed['profile']} at {placed['start']}" for placed in gpu["mig"]]
    kinds = Counter(gpu["vgpus"].values())
    words += [f"{count} x {name}" for name, count in kinds.items()]
    return ", ".join(words) or "VFs only"
