"""`plan`: what `apply` would do, from the same code, reading only."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpu_bootstate import report
from gpu_bootstate.cli.configured import configured, imported_with
from gpu_bootstate.cli.look import look, remembered_cards
from gpu_bootstate.cli.show import show
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition

_DRIFT = 2


@click.command(name="plan")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--exit-code", is_flag=True, help="Exit with 2 when there is something to do (drift)."
)
@imported_with
@click.pass_obj
def command(
    where: Where, *, form: str, exit_code: bool, source: Path | None, select: str | None
) -> None:
    """Show each step that `apply` would take, with its reason and what is checked around it.

    Exits with what `apply` would come to as far as can be seen now: 0, or 3 when a GPU is in use,
    5 when driver or hardware are not available, and so on.
    """
    if source is not None:
        where = replace(where, imported=(source, select))
    raise SystemExit(show_plan(where, form, drift=exit_code))


def show_plan(where: Where, form: str, *, drift: bool = False) -> int:
    try:
        desired = configured(where)
        with where.hardware(desired.policy) as hw:
            plan = look(hw, desired, remembered_cards(where.paths)).plan
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
        return Condition.BAD_CONFIG.exit_code
    show(report.plan_dict(plan), form, lambda _: report.plan_text(plan))
    condition = report.plan_condition(plan)
    if condition is Condition.CONVERGED and drift and not plan.is_empty:
        return _DRIFT
    return condition.exit_code
