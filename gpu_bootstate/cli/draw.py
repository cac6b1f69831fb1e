"""`show`: the node as a picture, as it is and as the configuration would have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpu_bootstate import picture
from gpu_bootstate.cli.check import on_board
from gpu_bootstate.cli.look import look_anyway, remembered_cards
from gpu_bootstate.cli.show import told_when_unwritable
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition


@click.command(name="show")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--board", metavar="BOARD", help="Draw what it would be on this board, from bare.")
@click.option(
    "--svg",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Draw to FILE; `-`: print it.",
)
@click.pass_obj
def command(where: Where, *, file: Path | None, board: str | None, svg: Path | None) -> None:
    """Draw each GPU: memory slices, GPU instances, VFs with their vGPU types; what they are, and
    what `apply` would make of them. Changes nothing.

    FILE is read in the place of the configuration in /etc.
    """
    if file is not None:
        where = replace(where, config=file)
    try:
        desired = load(where.paths, where.config)
        if board is not None:
            view = on_board(desired, board)
        else:
            with where.hardware(desired.policy) as hw:
                view = look_anyway(hw, desired, remembered_cards(where.paths))
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    except ValueError as err:  # UnknownBoard
        raise click.BadParameter(str(err), param_hint="--board") from None
    for problem in view.resolution.problems:
        click.echo(str(problem), err=True)
    gpus = picture.pictures(view.node, view.plan)
    if svg is not None:
        with told_when_unwritable(str(svg)), click.open_file(str(svg), "w", atomic=True) as stream:
            stream.write(picture.svg(gpus))
    else:
        click.echo(picture.text(gpus) or "There is no NVIDIA GPU here.\n", nl=False)
