"""`check`: whether the configuration can work, on a board, on all, on this node, or by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from gpu_bootstate import report, sarif
from gpu_bootstate.cli.configured import configured, imported_with
from gpu_bootstate.cli.look import View, look, remembered_cards
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.model import Bdf, DesiredState, GpuTarget, MatchKind, Mode
from gpu_bootstate.placement import Layout, solve
from gpu_bootstate.problems import ConfigInvalid, Problem
from gpu_bootstate.reasons import Condition, Finding

_NO_FILE = "no configuration file"


@dataclass(frozen=True, slots=True)
class Checked:
    """One configuration: what is wrong with it, or what it comes to. ``view`` None: on no GPU."""

    condition: Condition
    text: str
    data: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    findings: tuple[tuple[Finding, GpuTarget | None], ...] = ()


@click.command(name="check")
@click.argument(
    "files", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path, dir_okay=False)
)
@click.option("--board", metavar="BOARD", help="Check against this board, e.g. hgx-h200-8.")
@click.option("--all-boards", is_flag=True, help="Check against every board that is known.")
@click.option("--format", "form", type=click.Choice(["text", "json", "sarif"]), default="text")
@imported_with
@click.pass_obj
def command(
    where: Where,
    *,
    files: tuple[Path, ...],
    board: str | None,
    all_boards: bool,
    form: str,
    source: Path | None,
    select: str | None,
) -> None:
    """Read the configuration (or each FILE by itself) and say whether it can work; changes
    nothing.

    With --board no GPU is needed: names, layouts and counts are checked against that board, and
    the addresses of the file are taken for its slots; with --all-boards it has to fit one of them.
    Without either, against the GPUs of this node.
    """
    if board is not None and all_boards:
        raise click.UsageError("--board and --all-boards exclude each other")
    if source is not None:
        where = replace(where, imported=(source, select))
    try:
        found = [
            _check(replace(where, config=file) if file else where, board, all_boards=all_boards)
            for file in files or (None,)
        ]
    except ValueError as err:  # UnknownBoard
        raise click.BadParameter(str(err), param_hint="--board") from None
    if form == "text":
        click.echo("".join(each.text for each in found), nl=False)
    elif form == "json":
        data = found[0].data if len(found) == 1 else {"files": [each.data for each in found]}
        click.echo(json.dumps(data, indent=2))
    else:
        problems = [problem for each in found for problem in each.problems]
        findings = [pair for each in found for pair in each.findings]
        click.echo(json.dumps(sarif.log(problems, findings), indent=2))
    # A file that is wrong is worse than one that does not fit here.
    bad = [each.condition for each in found if each.condition is not Condition.CONVERGED]
    worst = Condition.BAD_CONFIG if Condition.BAD_CONFIG in bad else next(iter(bad), None)
    raise SystemExit(worst.exit_code if worst else 0)


def _check(where: Where, board: str | None, *, all_boards: bool) -> Checked:
    """Raises UnknownBoard."""
    try:
        desired = configured(where, board)
        if all_boards:
            return _on_all_boards(desired)
        view = on_board(desired, board) if board else _on_node(where, desired)
    except ConfigInvalid as invalid:
        return _refused(invalid)
    return _accepted(desired, view)


def _on_all_boards(desired: DesiredState) -> Checked:
    from gpu_bootstate.catalog.reader import node_names

    sources = ", ".join(desired.sources) or _NO_FILE
    boards: list[dict[str, Any]] = []
    for name in node_names():
        try:
            checked = _accepted(desired, on_board(desired, name))
            lines = [line.strip() for line in checked.text.splitlines()[1:]]
            fits = checked.condition is Condition.CONVERGED
            why = None if fits else " ".join(lines)
        except ConfigInvalid as invalid:
            # Without the place: the same file is meant for other boards, too.
            lines, fits = [], False
            told = [f"{each.path}: {each.message}" for each in invalid.problems]
            more = f" (and {len(told) - 2} more)" if len(told) > 2 else ""
            why = "; ".join(told[:2]) + more
        boards.append({"board": name, "fits": fits, "layout": lines if fits else [], "why": why})
    good = any(each["fits"] for each in boards)
    condition = Condition.CONVERGED if good else Condition.BAD_CONFIG
    verdict = "fits" if good else "fits no board that is known"
    text = f"{sources}: {verdict}\n"
    for each in boards:
        text += f"  {each['board']}: {'fits' if each['fits'] else 'no: ' + str(each['why'])}\n"
        text += "".join(f"      {line}\n" for line in each["layout"])
    data = {"ok": good, "condition": condition.value, "boards": boards}
    return Checked(condition, text, data)


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


def _refused(invalid: ConfigInvalid) -> Checked:
    data = {
        "ok": False,
        "condition": Condition.BAD_CONFIG.value,
        "problems": [_problem(problem) for problem in invalid.problems],
    }
    text = "".join(f"{problem}\n" for problem in invalid.problems)
    return Checked(Condition.BAD_CONFIG, text, data, problems=tuple(invalid.problems))


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


def _accepted(desired: DesiredState, view: View | None) -> Checked:
    sources = ", ".join(desired.sources) or _NO_FILE
    if view is None:
        text = (
            f"{sources}: well formed. There is no NVIDIA GPU here, so the layouts are not checked; "
            "name the board with --board.\n"
        )
        return Checked(
            Condition.CONVERGED, text, {"ok": True, "condition": "converged", "gpus": None}
        )
    found = tuple(_findings(view))
    findings = [finding for finding, _ in found]
    # In use or held: that is the node's state of the moment and no fault of the file.
    bad = {f.condition for f in findings} - {Condition.CONVERGED, Condition.REFUSED}
    condition = Condition.of_all(bad, changed=False)
    data = {
        "ok": not bad,
        "condition": condition.value,
        "gpus": [_gpu(view, target) for target in view.resolution.targets],
        "findings": [report.finding_dict(finding) for finding in findings],
    }
    return Checked(condition, _text(sources, data, findings), data, findings=found)


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


def _findings(view: View) -> Iterator[tuple[Finding, GpuTarget | None]]:
    """Each with the target that it is about."""
    targets = {target.pf: target for target in view.resolution.targets}
    if view.node.driver.problem is not None:
        yield view.node.driver.problem, None
    for notice in view.resolution.notices:
        yield notice, None
    for gpu in view.plan.gpus:
        if gpu.refusal is not None:
            yield gpu.refusal, targets.get(gpu.pf)
    for missing in view.plan.missing:
        yield missing, None


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
