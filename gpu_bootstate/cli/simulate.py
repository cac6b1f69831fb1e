"""`simulate`: what happens to a simulated node from outside: a reboot, a fault, a VM."""

from __future__ import annotations

import shutil

import click

from gpu_bootstate.cli.wiring import Where


@click.group(name="simulate")
@click.pass_obj
def command(where: Where) -> None:
    """Work on the simulated node that --simulate names."""
    if where.board is None:
        raise click.UsageError("this needs --simulate BOARD before the command")


@command.command()
@click.option("--pace", type=float, default=0.0, help="Real seconds per simulated second.")
@click.pass_obj
def new(where: Where, pace: float) -> None:
    """Throw the node away and make a just booted one."""
    shutil.rmtree(where.simulated_dir, ignore_errors=True)
    with where.store().change() as node:
        node.state.pace = pace
    click.echo(f"{where.board}: a just booted node in {where.simulated_dir}")


@command.command()
@click.pass_obj
def reboot(where: Where) -> None:
    """Reboot the node: volatile state is gone, /run is empty."""
    where.store().reboot()
    click.echo(f"{where.board}: rebooted")
