"""`gate`: hold the readiness gate to what is true now, without touching any GPU."""

from __future__ import annotations

import click

from gpu_bootstate.cli.look import look, remembered_cards
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.gate import Gate, GateError
from gpu_bootstate.lock import Busy, acquire
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition


@click.command(name="gate")
@click.pass_obj
def command(where: Where) -> None:
    """Verify every configured GPU afresh; open the gate where that holds, close it where not.

    For when somebody deletes the gate's files: they come back only if they are still true. Exits
    with 0 when the gate is open, with 1 when it is closed.
    """
    try:
        desired = load(where.paths, where.config)
        with acquire(where.paths), where.hardware(desired.policy) as hw:
            view = look(hw, desired, remembered_cards(where.paths))
            gate = Gate(
                where.paths,
                view.node.boot_id,
                configured=tuple(gpu.pf for gpu in view.plan.gpus),
                files=desired.gate_files,
                policy=desired.policy.gate,
                absent=view.absent,
                digest=desired.digest,
                wall_time=hw.wall_time,
            )
            gate.discard_stale()
            for plan in view.plan.gpus:
                if plan.steps or plan.refusal:
                    gate.close_gpu(plan.pf)
                else:
                    gate.open_gpu(plan.pf, {"digest": desired.digest, **view.verified(plan.pf)})
            is_open = gate.update_node()
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
    for plan in view.plan.gpus:
        if plan.refusal is not None:
            click.echo(f"{plan.pf}: {plan.refusal.message}", err=True)
        elif plan.steps:
            click.echo(f"{plan.pf}: not as configured: {plan.steps[0].summary}", err=True)
    click.echo(f"the gate is {'open' if is_open else 'closed'}")
    raise SystemExit(0 if is_open else Condition.FAILED.exit_code)
