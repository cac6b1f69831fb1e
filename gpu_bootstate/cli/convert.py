"""`convert`: a file of mig-parted, vgpu-device-manager or mdevctl as a configuration of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.conversion import UnknownName, converted
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.importers import Card, read_layouts
from gpu_bootstate.model import Policy
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition


@click.command(name="convert")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--select", metavar="NAME", help="The layout that the GPUs are to have.")
@click.option("--board", metavar="BOARD", help="For this board, not for the GPUs of this node.")
@click.pass_obj
def command(where: Where, *, file: Path, select: str | None, board: str | None) -> None:
    """Print FILE as a configuration: mig-parted's `mig-configs`, vgpu-device-manager's
    `vgpu-configs`, a ConfigMap with either, or mdevctl's JSON (`mdevctl list --dumpjson`).

    Every layout becomes a profile; with --select `gpus` has the GPUs that it names. What cannot be
    carried over is a comment. Changes nothing.
    """
    click.echo(conversion_of(where, file, select, board), nl=False)


def conversion_of(where: Where, file: Path, select: str | None, board: str | None) -> str:
    """Ends the command where the file is wrong."""
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or "it is not UTF-8"
        click.echo(f"gpu-bootstate: {file} cannot be read: {reason}", err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    try:
        cards = _of_board(board) if board is not None else _of_node(where)
        layouts = read_layouts(text, str(file), cards)
        return converted(layouts, select, cards, str(file))
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
    except UnknownName as err:
        click.echo(f"{file}: {err}", err=True)
    raise SystemExit(Condition.BAD_CONFIG.exit_code)


def _of_node(where: Where) -> tuple[Card, ...]:
    with where.hardware(Policy()) as hw:
        return _cards(hw)


def _of_board(board: str) -> tuple[Card, ...]:
    from gpu_bootstate.catalog.reader import UnknownBoard
    from gpu_bootstate.simulator.hardware import SimHardware
    from gpu_bootstate.simulator.node import new_node

    try:
        return _cards(SimHardware(new_node(board)))
    except UnknownBoard as err:
        raise click.BadParameter(str(err), param_hint="--board") from None


def _cards(hw: Hardware) -> tuple[Card, ...]:
    cards = []
    for pf in hw.pfs():
        try:
            types = tuple((each.vgpu_type_id, each.name) for each in hw.vgpu_types(pf.bdf))
        except HardwareError:
            types = ()  # names of mdev types are not to be had, and the rest does not need them
        vfs = tuple(vf.bdf for vf in sorted(hw.vfs(pf.bdf), key=lambda vf: vf.index))
        cards.append(Card(pf.bdf, pf.device_id, pf.subsystem_id, vfs, types))
    return tuple(cards)
