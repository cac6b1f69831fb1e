"""`gate`: hold the readiness gate to what is true now, without touching any GPU."""

from __future__ import annotations

import time

import click

from gpu_bootstate.cli.look import look, remembered_cards
from gpu_bootstate.cli.show import told_when_unwritable
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.files import read_json
from gpu_bootstate.gate import Gate, GateError
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.lock import Busy, acquire
from gpu_bootstate.model import Bdf, DesiredState, GatePolicy
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition

# systemd forgets what happens to a watched path while the service that it woke is at work, so that
# looks again until nothing has happened for so long.
_CALM_S = 1.0


@click.command(name="gate")
@click.option("--close", is_flag=True, help="Take all of the gate's files away; look at nothing.")
@click.option(
    "--hold",
    is_flag=True,
    help="Wait for a run that is at work; verify only where somebody changed the files after the "
    "last run of this boot had opened the gate. Exits with 0 whether it is open or closed.",
)
@click.pass_obj
def command(where: Where, *, close: bool, hold: bool) -> None:
    """Verify every configured GPU afresh; open the gate where that holds, close it where not.

    For when somebody deletes the gate's files: they come back only if they are still true. Exits
    with 0 when the gate is open, with 1 when it is closed.
    """
    if close and hold:
        raise click.UsageError("--close and --hold exclude each other")
    try:
        with told_when_unwritable("the gate"):
            if close:
                is_open = _close(where)
            else:
                desired = load(where.paths, where.config)
                is_open = _hold(where, desired) if hold else _verify(where, desired)
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    except GateError as err:
        click.echo(f"{err.finding.message} {err.finding.remedy}", err=True)
        raise SystemExit(Condition.FAILED.exit_code) from None
    except Busy as busy:
        click.echo(f"gpu-bootstate: a run is at work (pid {busy.pid}); it holds the gate", err=True)
        raise SystemExit(Condition.REFUSED.exit_code) from None
    click.echo(f"the gate is {'open' if is_open else 'closed'}")
    raise SystemExit(0 if is_open or hold or close else Condition.FAILED.exit_code)


def _close(where: Where) -> bool:
    try:
        files = load(where.paths, where.config).gate_files
    except ConfigInvalid:
        files = ()  # `ready` itself says which files it was released with
    with acquire(where.paths):
        Gate(where.paths, "", configured=(), files=files, policy=GatePolicy.ALL).close()
    return False


def _hold(where: Where, desired: DesiredState) -> bool:
    """Whether the gate is open when nobody has disturbed it for a moment."""
    verified = False
    while True:
        with acquire(where.paths, wait_s=None), where.hardware(desired.policy) as hw:
            gate = _gate(where, desired, hw, ())
            # What was verified here is a release too, whatever the last run's record says.
            released = verified or _released(where, hw.boot_id())
            if not gate.is_disturbed(released=released):
                return gate.is_open
            click.echo("somebody changed the gate's files; looking at the GPUs afresh", err=True)
            if not _verify_with(where, desired, hw):
                return False
            verified = True
        time.sleep(_CALM_S)


def _released(where: Where, boot_id: str) -> bool:
    """Whether the last run of this boot left the gate open; its record in /run may be gone too."""
    for path in (where.paths.status, where.paths.last_run):
        record = read_json(path)
        if record is not None and record.get("boot_id") == boot_id:
            gate = record.get("gate")
            return isinstance(gate, dict) and gate.get("open") is True
    return False


def _verify(where: Where, desired: DesiredState) -> bool:
    with acquire(where.paths), where.hardware(desired.policy) as hw:
        return _verify_with(where, desired, hw)


def _verify_with(where: Where, desired: DesiredState, hw: Hardware) -> bool:
    try:
        view = look(hw, desired, remembered_cards(where.paths))
    except HardwareError:
        _gate(where, desired, hw, ()).close()  # what cannot be looked at is not verified
        raise
    pfs = tuple(gpu.pf for gpu in view.plan.gpus)
    gate = _gate(where, desired, hw, pfs, absent=view.absent)
    gate.discard_stale()
    for plan in view.plan.gpus:
        if plan.steps or plan.refusal:
            gate.close_gpu(plan.pf)
        else:
            gate.open_gpu(plan.pf, {"digest": desired.digest, **view.verified(plan.pf)})
        if plan.refusal is not None:
            click.echo(f"{plan.pf}: {plan.refusal.message}", err=True)
        elif plan.steps:
            click.echo(f"{plan.pf}: not as configured: {plan.steps[0].summary}", err=True)
    return gate.update_node()


def _gate(
    where: Where, desired: DesiredState, hw: Hardware, pfs: tuple[Bdf, ...], *, absent: int = 0
) -> Gate:
    return Gate(
        where.paths,
        hw.boot_id(),
        configured=pfs,
        files=desired.gate_files,
        policy=desired.policy.gate,
        absent=absent,
        digest=desired.digest,
        wall_time=hw.wall_time,
    )
