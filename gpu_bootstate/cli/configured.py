"""The configuration that a command works by: that of /etc, or with another tool's geometry."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load, parse, with_geometry
from gpu_bootstate.model import DesiredState
from gpu_bootstate.reasons import Condition


def imported_with(command: Callable[..., None]) -> Callable[..., None]:
    """The options `--from` and `--select` of a command."""
    for option in (
        click.option("--select", metavar="NAME", help="With --from: the layout to take."),
        click.option(
            "--from",
            "source",
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            help="Take what the GPUs are to be from another tool's file, as `convert` reads it.",
        ),
    ):
        command = option(command)
    return command


def configured(where: Where, board: str | None = None) -> DesiredState:
    """The configuration, its GPUs those of another tool's file where one is named. Ends the command
    where that file is wrong. Raises ConfigInvalid.
    """
    desired = load(where.paths, where.config)
    if where.imported is None:
        return desired
    # On the boot path nobody names one.
    from gpu_bootstate.cli.convert import conversion_of

    file, select = where.imported
    text = conversion_of(where, file, select, board)
    found = parse(text, f"{file} as converted")
    if not found.entries:
        one = "" if select else " Select one of its layouts with --select."
        click.echo(f"gpu-bootstate: {file} names no GPU here.{one} `convert` says why.", err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code)
    return with_geometry(desired, found)
