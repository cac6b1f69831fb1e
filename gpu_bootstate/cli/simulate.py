"""`simulate`: what happens to a simulated node from outside: a reboot, a fault, a VM."""

from __future__ import annotations

import shutil

import click

from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.simulator.faults import parse_fault
from gpu_bootstate.simulator.state import GpuState, HolderState


@click.group(name="simulate")
@click.pass_obj
def command(where: Where) -> None:
    """Work on the simulated node that --simulate names."""
    if where.board is None:
        raise click.UsageError("this needs --simulate BOARD before the command")


@command.command()
@click.option("--pace", type=float, default=0.0, help="Real seconds per simulated second.")
@click.option("--boot-id", default="", help="Of its first boot, as in /proc, for use with --root.")
@click.pass_obj
def new(where: Where, pace: float, boot_id: str) -> None:
    """Throw the node away and make a just booted one."""
    shutil.rmtree(where.simulated_dir, ignore_errors=True)
    with where.store().change() as node:
        node.state.pace = pace
        node.state.boot_id = boot_id
    click.echo(f"{where.board}: a just booted node in {where.simulated_dir}")


@command.command()
@click.pass_obj
def reboot(where: Where) -> None:
    """Reboot the node: volatile state is gone, /run is empty."""
    where.store().reboot()
    click.echo(f"{where.board}: rebooted")


@command.command(name="reload-driver")
@click.pass_obj
def reload_driver(where: Where) -> None:
    """Reload the driver, as a driver pod's restart does: the same boot, and the state is gone."""
    with where.store().change() as node:
        node.reload_driver()
    click.echo(f"{where.board}: driver reloaded")


@command.command()
@click.argument("text", nargs=-1)
@click.option("--clear", is_flag=True, help="Take all faults back.")
@click.pass_obj
def fault(where: Where, text: tuple[str, ...], *, clear: bool) -> None:
    """Plant a fault: VERB [PF] [nth=N] [times=N] EFFECT.

    For example: sriov_manage 0000:17:00.0 nth=1 noop
    """
    with where.store().change() as node:
        if clear:
            node.state.faults.clear()
        if text:
            try:
                node.state.faults.append(parse_fault(" ".join(text)))
            except ValueError as err:
                raise click.BadParameter(str(err)) from None
    for planted in node.state.faults:
        pf = planted.pf or "any GPU"
        click.echo(f"{planted.verb} on {pf}, from occurrence {planted.nth}: {planted.effect}")


@command.command()
@click.argument("pf")
@click.option("--stop", is_flag=True, help="Stop the VMs of this GPU instead.")
@click.pass_obj
def vm(where: Where, pf: str, *, stop: bool) -> None:
    """Start a VM on the first vGPU of a GPU."""
    with where.store().change() as node:
        gpu = next((gpu for gpu in node.state.gpus if gpu.bdf == pf), None)
        if gpu is None:
            raise click.BadParameter(f"no GPU at {pf}")
        gpu.holders = [holder for holder in gpu.holders if holder.vf is None]
        if not stop:
            gpu.holders.append(_vm(gpu))
    click.echo(f"{pf}: VM {'stopped' if stop else 'running'}")


def _vm(gpu: GpuState) -> HolderState:
    vf = next((vf for vf in gpu.vfs if vf.type_id), None)
    if vf is None:
        raise click.ClickException(f"{gpu.bdf} has no vGPU for a VM")
    return HolderState(
        pid=4127,
        name="qemu-system-x86",
        command="/usr/bin/qemu-system-x86_64 -name guest=db-1",
        kind="vm",
        device="/dev/vfio/devices/vfio3",
        vf=vf.bdf,
        vm="db-1",
    )


@command.command()
@click.option("--trace", is_flag=True, help="Every call that changed something, oldest first.")
@click.pass_obj
def show(where: Where, *, trace: bool) -> None:
    """Show what the node is."""
    store = where.store()
    if trace:
        for call in store.trace:
            failed = "" if call["ok"] else "  FAILED"
            click.echo(
                f"{call['time_s']:9.3f}  {call['verb']:<22} {call['target']}  "
                f"{call['arguments']}{failed}"
            )
        return
    for gpu in store.node.state.gpus:
        mig = f"MIG {'on' if gpu.mig_current else 'off'}"
        if gpu.mig_current != gpu.mig_pending:
            mig += f" ({'on' if gpu.mig_pending else 'off'} pending)"
        typed = sum(bool(vf.type_id) for vf in gpu.vfs)
        click.echo(
            f"{gpu.bdf}  {gpu.model:<14} driver {gpu.driver or 'none':<12} {mig}, "
            f"{len(gpu.vfs)} VFs, {len(gpu.instances)} GPU instances, {typed} vGPUs"
        )
