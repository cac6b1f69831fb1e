"""`apply`: the main job, from the configuration to a verified node and its gate."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from gpu_bootstate import report
from gpu_bootstate.cli.configured import configured, imported_with
from gpu_bootstate.cli.look import View, config_finding, look, look_anyway, remembered_cards
from gpu_bootstate.cli.show import show, text_for, told_when_unwritable
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.deadline import Deadline, RunEnded
from gpu_bootstate.execute import execute
from gpu_bootstate.failures import of_the_node
from gpu_bootstate.files import read_json, write_json
from gpu_bootstate.gate import Gate, GateError
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.lock import Busy, acquire
from gpu_bootstate.model import Bdf, Card, DesiredState, Plan, Policy, RunOutcome
from gpu_bootstate.notify import Notifier
from gpu_bootstate.owed import Owed
from gpu_bootstate.paths import Paths
from gpu_bootstate.preflight import wait_until_ready
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.progress import Listener, NotifyListener, Several, listener_on
from gpu_bootstate.reasons import Code, Condition, Finding
from gpu_bootstate.reboot import reboot_if_allowed


@click.command(name="apply")
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; same as `plan`.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--wait-lock",
    type=float,
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for another run to end (default: refuse at once).",
)
@imported_with
@click.pass_obj
def command(
    where: Where,
    *,
    dry_run: bool,
    form: str,
    wait_lock: float,
    source: Path | None,
    select: str | None,
) -> None:
    """Bring every GPU that the configuration names to what it says, and open the gate.

    A GPU that is not named is never touched; one that is already right sees no call.
    """
    if source is not None:
        where = replace(where, imported=(source, select))
    if dry_run:
        from gpu_bootstate.cli.plan import show_plan

        raise SystemExit(show_plan(where, form))
    try:
        with told_when_unwritable("GPUs and the gate"), acquire(where.paths, wait_s=wait_lock):
            result = _apply(where)
    except Busy as busy:
        who = f"pid {busy.pid}" if busy.pid else "it has not said its pid"
        click.echo(f"gpu-bootstate: another run is at work ({who}); nothing was done.", err=True)
        click.echo("  Wait for it (`gpu-bootstate status --wait`) or use --wait-lock.", err=True)
        raise SystemExit(Condition.REFUSED.exit_code) from None
    _tell_systemd(result)
    show(result, form, text_for(sys.stdout))
    raise SystemExit(result["exit_code"])


def _apply(where: Where) -> dict[str, Any]:
    try:
        desired = configured(where)
    except ConfigInvalid as invalid:
        return _bad_config(where, invalid)
    with where.hardware(desired.policy) as hw:
        listeners = [
            listener_on(sys.stderr, hw.now),
            NotifyListener(Notifier(), hw.now, desired.policy),
        ]
        run = Run(where.paths, hw, desired, Several(listeners))
        with ending_on_signals(run):
            return run.whole()


def _tell_systemd(result: dict[str, Any]) -> None:
    """What stays in `systemctl status` after the end; READY=1 is for units of Type=notify."""
    notifier = Notifier(patience_s=1.0)
    summary, condition = result["summary"], Condition(result["condition"])
    if condition is not Condition.CONVERGED:
        summary = f"{condition.value.replace('-', ' ').capitalize()}: {summary}"
    notifier.status(summary)
    if result["gate"]["open"]:
        notifier.ready()


def _bad_config(where: Where, invalid: ConfigInvalid) -> dict[str, Any]:
    """The configuration is wrong, and that is all we know: no GPU and no gate is touched."""
    for problem in invalid.problems:
        click.echo(str(problem), err=True)
    with where.hardware(Policy()) as hw:
        start = report.RunStart(hw.boot_id(), os.getpid(), hw.wall_time())
        result = report.finished(
            start,
            _ended(hw, config_finding(invalid), gate_open=_is_open(where.paths, start.boot_id)),
            wall_s=hw.wall_time(),
            desired=None,
            node=None,
        )
    write_json(where.paths.status, result)
    return result


@dataclass(slots=True)
class Run:
    """One apply under the lock: files before, work, files after."""

    paths: Paths
    hw: Hardware
    desired: DesiredState
    listener: Listener
    signal_name: str | None = None
    view: View | None = None
    _seen: dict[Bdf, Card] = field(default_factory=dict)
    _remembered: dict[Bdf, Card] = field(default_factory=dict)

    def whole(self) -> dict[str, Any]:
        start = report.RunStart(
            self.hw.boot_id(), os.getpid(), self.hw.wall_time(), now_s=self.hw.now()
        )
        # The result is of this boot and this run: a run that dies leaves "running" behind.
        write_json(self.paths.status, report.running(start))
        self._remembered = remembered_cards(self.paths)
        try:
            outcome = self._outcome(start.boot_id)
            outcome = self._last_resort(outcome)
        except GateError as err:
            outcome = _refused_gate(self, err)
        except HardwareError as err:
            finding = of_the_node(err)
            self.listener.said(finding)
            outcome = _ended(self.hw, finding, gate_open=_is_open(self.paths, start.boot_id))
        except Exception as err:
            detail = f"{type(err).__name__}: {err}"
            outcome = _ended(self.hw, Finding.of(Code.INTERNAL, detail=detail), gate_open=False)
            self._record(start, outcome)
            raise
        return self._record(start, outcome)

    def _outcome(self, boot_id: str) -> RunOutcome:
        policy = self.desired.policy
        deadline = Deadline.after(self.hw, policy.deadline_s, lambda: self.signal_name)
        if not self.desired.entries:
            gate = self._gate(boot_id, ())
            gate.discard_stale()
            return _ended(self.hw, None, gate_open=gate.update_node())
        try:
            missing = wait_until_ready(self.hw, policy, deadline, self.listener)
            self.view = look(self.hw, self.desired, self._remembered)
        except RunEnded as ended:
            return self._ended_early(boot_id, ended.finding)
        except ConfigInvalid as invalid:
            # The file is right and this node is not what it says: nothing is touched.
            for problem in invalid.problems:
                click.echo(str(problem), err=True)
            self.listener.said(config_finding(invalid))
            gate_open = _is_open(self.paths, boot_id)
            return _ended(self.hw, config_finding(invalid), gate_open=gate_open)
        plan = self.view.plan
        gate = self._gate(boot_id, tuple(gpu.pf for gpu in plan.gpus), absent=self.view.absent)
        gate.discard_stale()
        if missing is not None:
            plan = _refused(plan, missing)
        return execute(
            self.hw,
            plan,
            replan=self._replan,
            verified=self._verified,
            policy=policy,
            gate=gate,
            owed=Owed(self.paths, boot_id),
            listener=self.listener,
            deadline=deadline,
        )

    def _last_resort(self, outcome: RunOutcome) -> RunOutcome:
        finding = reboot_if_allowed(self.hw, self.paths, self.desired, outcome)
        if finding is None:
            return outcome
        self.listener.said(finding)
        return replace(outcome, findings=(*outcome.findings, finding))

    def _ended_early(self, boot_id: str, finding: Finding) -> RunOutcome:
        self.listener.said(finding)
        return _ended(self.hw, finding, gate_open=_is_open(self.paths, boot_id))

    def _gate(self, boot_id: str, configured: tuple[Bdf, ...], absent: int = 0) -> Gate:
        return Gate(
            self.paths,
            boot_id,
            configured=configured,
            files=self.desired.gate_files,
            policy=self.desired.policy.gate,
            absent=absent,
            digest=self.desired.digest,
            wall_time=self.hw.wall_time,
        )

    def _replan(self) -> Plan:
        assert self.view is not None  # noqa: S101  # execute asks only after a look
        # A card that NVML loses sight of in the middle is still the one that was there before.
        seen = {gpu.pf: gpu.facts for gpu in self.view.node.gpus if gpu.facts}
        self._seen |= {pf: Card(facts.uuid, facts.serial) for pf, facts in seen.items()}
        self.view = look_anyway(self.hw, self.desired, {**self._remembered, **self._seen})
        return self.view.plan

    def _verified(self, pf: Bdf) -> Mapping[str, object]:
        assert self.view is not None  # noqa: S101  # execute asks only after a look
        return {"digest": self.desired.digest, **self.view.verified(pf)}

    def _record(self, start: report.RunStart, outcome: RunOutcome) -> dict[str, Any]:
        result = report.finished(
            start,
            outcome,
            wall_s=self.hw.wall_time(),
            desired=self.desired,
            node=self.view.node if self.view else None,
        )
        write_json(self.paths.status, result)
        cards = {
            str(pf): {"uuid": card.uuid, "serial": card.serial}
            for pf, card in self._remembered.items()
        }
        for gpu in result["gpus"]:
            if gpu["condition"] == Condition.CONVERGED.value and gpu["uuid"]:
                cards[gpu["pf"]] = {"uuid": gpu["uuid"], "serial": gpu["serial"]}
        try:
            write_json(self.paths.last_run, {**result, "cards": cards})
        except OSError as err:
            # A full or read-only /var costs the memory of this run, not the node.
            click.echo(f"gpu-bootstate: {self.paths.last_run} is not written: {err}", err=True)
        return result


def _refused(plan: Plan, finding: Finding) -> Plan:
    gpus = tuple(replace(gpu, steps=(), refusal=gpu.refusal or finding) for gpu in plan.gpus)
    return replace(plan, gpus=gpus, stop_units=(), refusal=finding)


def _ended(hw: Hardware, finding: Finding | None, *, gate_open: bool) -> RunOutcome:
    """A run in which no GPU was worked on."""
    return RunOutcome(
        condition=finding.condition if finding else Condition.CONVERGED,
        gpus=(),
        findings=(finding,) if finding else (),
        gate_open=gate_open,
        started_s=hw.now(),
        duration_s=0.0,
        phase_s=(),
    )


def _is_open(paths: Paths, boot_id: str) -> bool:
    return (read_json(paths.ready) or {}).get("boot_id") == boot_id


def _refused_gate(outcome_of: Run, error: GateError) -> RunOutcome:
    """The files cannot be trusted; nothing that hangs on them may be said to be released."""
    outcome_of.listener.said(error.finding)
    return _ended(outcome_of.hw, error.finding, gate_open=False)


def ending_on_signals(run: Run) -> ExitStack:
    """SIGTERM and SIGINT end the run at the next safe point, and every wait soon."""

    def stop(number: int, _frame: FrameType | None) -> None:
        run.signal_name = signal.Signals(number).name
        run.hw.cancel_waits()

    stack = ExitStack()
    for number in (signal.SIGTERM, signal.SIGINT):
        stack.callback(signal.signal, number, signal.signal(number, stop))
    return stack
