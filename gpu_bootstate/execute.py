"""Plan -> outcomes, phase by phase. The one place that lets anything be changed.

The order is the hardware's: what must go, MIG mode, VFs, GPU instances, vGPU types, gate. Between
phases stands a barrier, after which the plan is made again from what is then there. One GPU's
failure takes that GPU out and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpu_bootstate.deadline import Deadline, RunEnded
from gpu_bootstate.failures import explain, of_the_node
from gpu_bootstate.gate import Gate
from gpu_bootstate.hardware.protocol import Hardware, HardwareError
from gpu_bootstate.in_use import is_held_by_persistence
from gpu_bootstate.model import (
    AwaitVfs,
    Bdf,
    DisableVfs,
    EnableVfs,
    GpuOutcome,
    GpuPlan,
    LowerPersistence,
    Phase,
    Plan,
    Policy,
    ResetGpu,
    RunOutcome,
    Step,
    StepOutcome,
    StepStatus,
)
from gpu_bootstate.owed import Owed
from gpu_bootstate.progress import Listener
from gpu_bootstate.reasons import Code, Condition, Finding
from gpu_bootstate.side_by_side import side_by_side
from gpu_bootstate.steps.context import StepContext, StepFailed
from gpu_bootstate.steps.perform import perform
from gpu_bootstate.steps.vfs import vfs_appear

HARDWARE_PHASES = (
    Phase.PREFLIGHT,
    Phase.REMOVALS,
    Phase.MIG_MODE,
    Phase.VFS,
    Phase.GPU_INSTANCES,
    Phase.VGPU_TYPES,
)

# A second pass takes up what a first could not know: a GPU that had to be bound before it could
# be read, instances that the driver brought back by itself. A third would be a fight.
_PASSES = 2

_POLL_S = 0.25


@dataclass(slots=True)
class _Gpu:
    """Where one GPU of the config stands in this run."""

    plan: GpuPlan
    ctx: StepContext
    model: int  # PCI device id: cards of one model share the vendor tool's binding list
    outcomes: list[StepOutcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failure: Finding | None = None
    stopped_in: Phase | None = None
    changed: bool = False

    def stop(self, finding: Finding, phase: Phase) -> None:
        if self.failure is None:
            self.failure = finding
            self.stopped_in = phase


def execute(
    hw: Hardware,
    plan: Plan,
    *,
    replan: Callable[[], Plan],
    verified: Callable[[Bdf], Mapping[str, object]],
    policy: Policy,
    gate: Gate,
    owed: Owed,
    listener: Listener,
    deadline: Deadline,
) -> RunOutcome:
    """Bring the plan about. ``replan`` observes and plans anew; ``verified`` says for a GPU whose
    plan came out empty what was seen, for its gate file.

    Never raises for the hardware's sake; an unexpected error closes the gates of all GPUs that
    were being changed and goes on up.
    """
    run = _Run(hw, replan, verified, policy, gate, owed, listener, deadline)
    return run.whole(plan)


@dataclass(slots=True)
class _Run:
    hw: Hardware
    replan: Callable[[], Plan]
    verified: Callable[[Bdf], Mapping[str, object]]
    policy: Policy
    gate: Gate
    owed: Owed
    listener: Listener
    deadline: Deadline
    gpus: dict[Bdf, _Gpu] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    stopped_units: list[str] = field(default_factory=list)
    phase_s: dict[Phase, float] = field(default_factory=dict)

    def whole(self, plan: Plan) -> RunOutcome:
        started_s = self.hw.now()
        plan = self._wait_out_passing_clients(plan)
        self._enroll(plan)
        self._say(plan)
        try:
            if not plan.is_empty or self.owed:
                self._change(plan)
        except BaseException:
            for gpu in self.gpus.values():
                if gpu.changed:
                    self.gate.close_gpu(gpu.plan.pf)
            raise
        gate_open = self._gate()
        return self._outcome(plan, started_s, gate_open=gate_open)

    # ------------------------------------------------------------------ before

    def _enroll(self, plan: Plan) -> None:
        models = {pci.bdf: pci.device_id for pci in self.hw.pfs()}
        configured = frozenset(gpu.pf for gpu in plan.gpus)
        for gpu in plan.gpus:
            model = models.get(gpu.pf, -1)
            ctx = StepContext(
                self.hw,
                self.policy,
                self.deadline,
                self.listener,
                model_pfs=tuple(pf for pf, device_id in models.items() if device_id == model),
                configured=configured,
            )
            self.gpus[gpu.pf] = _Gpu(gpu, ctx, model, findings=list(gpu.notes))
            if gpu.refusal is not None:
                self.gpus[gpu.pf].stop(gpu.refusal, Phase.PREFLIGHT)

    def _say(self, plan: Plan) -> None:
        self.findings += [*plan.notes, *plan.missing]
        for finding in (*plan.notes, *plan.missing):
            self.listener.said(finding)
        for gpu in plan.gpus:
            for finding in (*gpu.notes, *((gpu.refusal,) if gpu.refusal else ())):
                self.listener.said(finding)

    def _wait_out_passing_clients(self, plan: Plan) -> Plan:
        """A client that merely polls the GPU (DCGM, nvidia-smi) is gone in a moment."""
        pause = self.policy.backoff_s
        for _ in range(self.policy.attempts - 1):
            held = [
                gpu.refusal
                for gpu in plan.gpus
                if gpu.refusal is not None and gpu.refusal.code is Code.HELD
            ]
            if not held or self.hw.now() >= self.deadline.at_s:
                break
            held_by = held[0].fact("holder")
            self.listener.waiting(f"{held_by} to let go of the GPU", self.hw.now() + pause)
            self.hw.sleep(self.deadline.remaining(pause))
            pause = min(2 * pause, self.policy.backoff_max_s)
            plan = self.replan()
        return plan

    # ------------------------------------------------------------------ the phases

    def _change(self, plan: Plan) -> None:
        for gpu in self._alive():
            if gpu.plan.steps:
                self._close_gate(gpu)
        try:
            self._stop_units(plan.stop_units)
            for _ in range(_PASSES):
                for phase in HARDWARE_PHASES:
                    self._phase(phase)
                if not any(gpu.plan.steps for gpu in self._alive()):
                    break
            for gpu in self._alive():
                if gpu.plan.steps:
                    self._not_verified(gpu)
        except RunEnded as ended:
            for gpu in self._alive():
                if gpu.plan.steps:
                    gpu.stop(ended.finding, gpu.plan.steps[0].phase)
            self.listener.said(ended.finding)
        except HardwareError as err:
            finding = of_the_node(err)
            for gpu in self._alive():
                if gpu.plan.steps:
                    gpu.stop(finding, gpu.plan.steps[0].phase)
            self.listener.said(finding)
        finally:
            self._restore_persistence()
            self._start_units()

    def _phase(self, phase: Phase) -> None:
        # A GPU with something left of an earlier phase waits for the next pass: no VFs before
        # its MIG mode is committed, no instance before its VFs.
        taking_part = [
            gpu for gpu in self._alive() if gpu.plan.steps and gpu.plan.steps[0].phase is phase
        ]
        if not taking_part:
            return
        started_s = self.hw.now()
        self.listener.phase_started(phase, tuple(gpu.plan.pf for gpu in taking_part))
        if phase is Phase.VFS:
            self._vfs_phase(taking_part)
        else:
            self._side_by_side(_chains(taking_part, phase), lambda gpu: self._steps(gpu, phase))
        self._replan(phase)
        wall_s = self.hw.now() - started_s
        self.phase_s[phase] = self.phase_s.get(phase, 0.0) + wall_s
        self.listener.phase_finished(phase, wall_s)

    def _vfs_phase(self, gpus: Sequence[_Gpu]) -> None:
        """The vendor tool runs for one card of a model at a time; the VFs' slow registration
        with the vGPU manager is waited for afterwards, on all cards at once.
        """
        self._side_by_side(
            _chains(gpus, Phase.VFS),
            lambda gpu: self._steps(gpu, Phase.VFS, only=EnableVfs),
        )
        late: list[_Gpu] = []

        def wait(gpu: _Gpu) -> None:
            for step in gpu.plan.in_phase(Phase.VFS):
                if isinstance(step, AwaitVfs) and not self._appeared(gpu, step):
                    late.append(gpu)

        self._side_by_side([[gpu] for gpu in gpus], wait)
        still = [gpu for gpu in late if gpu.failure is None]
        if still:
            # What was planned as a wait takes the GPU to itself from here on.
            self._stop_units(self.policy.stop_units)
            for gpu in still:
                self._lower_persistence(gpu)
        self._side_by_side(_by_model(still), lambda gpu: self._steps(gpu, Phase.VFS, only=AwaitVfs))

    def _appeared(self, gpu: _Gpu, step: AwaitVfs) -> bool:
        """True when nothing is left to do about the step, be it done or failed."""
        started_s = self.hw.now()
        self.listener.step_started(step)
        gpu.ctx.begin()
        try:
            if not vfs_appear(gpu.ctx, step):
                return False
            self._record(gpu, step, StepStatus.DONE, started_s)
        except HardwareError as err:
            self._record(gpu, step, StepStatus.FAILED, started_s, explain(err, step.pf))
        return True

    def _lower_persistence(self, gpu: _Gpu) -> None:
        pf = gpu.plan.pf
        try:
            held = is_held_by_persistence(self.hw.facts(pf), self.hw.holders(pf))
        except HardwareError as err:
            self._take_out(gpu, explain(err, pf), Phase.VFS)
            return
        if held:
            self._step(gpu, LowerPersistence(pf, "persistence mode holds the GPU open"))

    def _side_by_side(self, chains: Sequence[Sequence[_Gpu]], work: Callable[[_Gpu], None]) -> None:
        """Chains run at the same time, the GPUs of a chain one after the other. A barrier."""

        def run(chain: Sequence[_Gpu]) -> None:
            for gpu in chain:
                if gpu.failure is None:
                    work(gpu)

        if not chains:
            return
        self.deadline.check("the next step")
        tasks = [partial(run, chain) for chain in chains]
        errors = [
            error
            for error in side_by_side(tasks, limit=self.policy.parallel)
            if isinstance(error, BaseException)
        ]
        # The unexplained comes before a run that was only told to end.
        errors.sort(key=lambda error: isinstance(error, RunEnded))
        if errors:
            raise errors[0]

    def _steps(
        self, gpu: _Gpu, phase: Phase, *, only: type[Step] | tuple[type[Step], ...] = Step
    ) -> None:
        self._close_gate(gpu)
        steps = gpu.plan.in_phase(phase)
        gpu.ctx.commits_by_reset = any(isinstance(step, ResetGpu) for step in steps)
        for step in steps:
            if isinstance(step, only) and not self._step(gpu, step):
                return

    def _step(self, gpu: _Gpu, step: Step) -> bool:
        """False when it failed, which takes the GPU out."""
        self.listener.step_started(step)
        started_s = self.hw.now()
        # Noted before it is tried: half done or not, the mode is put back at the end.
        if isinstance(step, LowerPersistence):
            self.owed.lowers_persistence(gpu.plan.pf)
        try:
            status = perform(gpu.ctx, step)
        except StepFailed as failed:
            self._record(gpu, step, StepStatus.FAILED, started_s, failed.finding)
            return False
        except RunEnded as ended:
            self._record(gpu, step, StepStatus.FAILED, started_s, ended.finding)
            raise
        self._record(gpu, step, status, started_s)
        return True

    def _record(
        self,
        gpu: _Gpu,
        step: Step,
        status: StepStatus,
        started_s: float,
        failure: Finding | None = None,
    ) -> None:
        ctx = gpu.ctx
        met = failure or (ctx.notes[-1] if ctx.notes else None)
        outcome = StepOutcome(
            step,
            status,
            started_s,
            self.hw.now() - started_s,
            attempts=ctx.attempts,
            finding=met,
        )
        gpu.outcomes.append(outcome)
        gpu.findings += ctx.notes
        gpu.changed = gpu.changed or status is not StepStatus.SKIPPED
        if failure is not None:
            self._take_out(gpu, failure, step.phase)
        self.listener.step_finished(outcome)

    def _replan(self, phase: Phase) -> None:
        """Look again: what is left for each GPU, in the light of what is there now."""
        try:
            plan = self._wait_out_passing_clients(self.replan())
        except HardwareError as err:
            for gpu in self._alive():
                self._take_out(gpu, of_the_node(err), phase)
            return
        for gpu in self._alive():
            pf = gpu.plan.pf
            new = plan.gpu(pf)
            if new is None:
                gone = Finding.of(Code.GPU_LOST, pf=pf, operation="it left the PCI bus")
                self._take_out(gpu, gone, phase)
                continue
            gpu.plan = new
            if new.refusal is not None:
                self._take_out(gpu, new.refusal, phase)

    def _not_verified(self, gpu: _Gpu) -> None:
        left = gpu.plan.steps[0]
        finding = Finding.of(
            Code.NOT_VERIFIED, pf=gpu.plan.pf, phase=left.phase.value, still=left.summary
        )
        self._take_out(gpu, finding, left.phase)

    def _take_out(self, gpu: _Gpu, finding: Finding, phase: Phase) -> None:
        """Nothing more is done to it in this run, and the reason is said at once."""
        gpu.stop(finding, phase)
        self.listener.said(finding)

    # ------------------------------------------------------------------ put back

    def _stop_units(self, units: Iterable[str]) -> None:
        for unit in units:
            # One that the run before has just started opens the GPU in a moment.
            if self.hw.unit_state(unit).active_state not in ("active", "activating", "reloading"):
                continue
            # Noted first: whatever becomes of the stop, it is to run again afterwards.
            self.owed.stops(unit)
            if unit not in self.stopped_units:
                self.stopped_units.append(unit)
            try:
                self.hw.stop_unit(unit)
            except HardwareError:
                continue  # it is seen not to stop below, and to hold the GPU at the step
        until = self.hw.now() + self.policy.call_s
        for unit in self.stopped_units:
            while self.hw.unit_state(unit).active_state not in ("inactive", "failed"):
                if self.hw.now() >= until:
                    waited = f"{self.policy.call_s:g}"
                    self._find(Finding.of(Code.UNIT_NOT_STOPPED, unit=unit, waited_s=waited))
                    break
                self.deadline.check(f"{unit} to stop")
                self.listener.waiting(f"{unit} to stop", until)
                self.hw.sleep(_POLL_S)

    def _start_units(self) -> None:
        for unit in self.owed.units:
            try:
                self.hw.start_unit(unit)
                self.owed.unit_is_back(unit)
            except HardwareError as err:
                self._find(Finding.of(Code.UNIT_NOT_STARTED, unit=unit, detail=err.detail))

    def _restore_persistence(self) -> None:
        owed = self.owed.persistence
        for pf, gpu in self.gpus.items():
            # Of what a killed run lowered, a GPU that is no longer ours, or in use, stays owed.
            if pf not in owed or gpu.stopped_in is Phase.PREFLIGHT:
                continue
            detail = "the mode still reads off"
            try:
                self.hw.set_persistence(pf, enabled=True)
                if self.hw.facts(pf).persistence:
                    self.owed.persistence_is_back(pf)
                    continue
            except HardwareError as err:
                detail = err.detail
            finding = Finding.of(Code.PERSISTENCE_NOT_RESTORED, pf=pf, detail=detail)
            gpu.findings.append(finding)
            self.listener.said(finding)

    def _find(self, finding: Finding) -> None:
        self.findings.append(finding)
        self.listener.said(finding)

    # ------------------------------------------------------------------ gate and outcome

    def _close_gate(self, gpu: _Gpu) -> None:
        if gpu.changed:
            return
        was_open = self.gate.is_open
        self.gate.close_gpu(gpu.plan.pf)
        if was_open and not self.gate.is_open:
            self.listener.gate_moved(is_open=False, why=f"{gpu.plan.pf} is about to be changed")

    def _gate(self) -> bool:
        """Open what was verified, close what is not as it should be, leave what was not touched."""
        was_open = self.gate.is_open
        for gpu in self.gpus.values():
            pf = gpu.plan.pf
            if gpu.failure is None:
                self.gate.open_gpu(pf, self.verified(pf))
            elif gpu.changed or gpu.failure.condition not in _LEAVES_THE_GATE:
                self.gate.close_gpu(pf)
        is_open = self.gate.update_node()
        if is_open != was_open:
            why = "what it promises is verified" if is_open else "not all of it could be verified"
            self.listener.gate_moved(is_open=is_open, why=why)
        return is_open

    def _alive(self) -> list[_Gpu]:
        return [gpu for gpu in self.gpus.values() if gpu.failure is None]

    def _outcome(self, plan: Plan, started_s: float, *, gate_open: bool) -> RunOutcome:
        outcomes = tuple(_gpu_outcome(gpu) for gpu in self.gpus.values())
        for outcome in outcomes:
            self.listener.gpu_finished(outcome)
        conditions = [outcome.condition for outcome in outcomes]
        conditions += [finding.condition for finding in plan.missing]
        conditions += [f.condition for f in self.findings if f.code is Code.UNIT_NOT_STARTED]
        if plan.refusal is not None and not outcomes:
            # Without a driver it may be that no GPU could be told from another.
            self._find(plan.refusal)
            conditions.append(plan.refusal.condition)
        changed = any(gpu.changed for gpu in self.gpus.values())
        return RunOutcome(
            condition=Condition.of_all(conditions, changed=changed),
            gpus=outcomes,
            findings=tuple(self.findings),
            gate_open=gate_open,
            started_s=started_s,
            duration_s=self.hw.now() - started_s,
            phase_s=tuple(self.phase_s.items()),
            units_stopped=tuple(self.stopped_units),
            unclaimed=plan.unclaimed,
        )


# Refused before anything was touched: what was verified earlier in this boot still holds.
_LEAVES_THE_GATE = frozenset({Condition.REFUSED, Condition.BAD_CONFIG})


def _chains(gpus: Sequence[_Gpu], phase: Phase) -> list[list[_Gpu]]:
    """GPUs that call the vendor tool in this phase go one by one per model, others alone."""
    tool = [
        gpu
        for gpu in gpus
        if any(isinstance(step, EnableVfs | DisableVfs) for step in gpu.plan.in_phase(phase))
    ]
    return [*_by_model(tool), *([gpu] for gpu in gpus if gpu not in tool)]


def _by_model(gpus: Iterable[_Gpu]) -> list[list[_Gpu]]:
    chains: dict[int, list[_Gpu]] = {}
    for gpu in gpus:
        chains.setdefault(gpu.model, []).append(gpu)
    return list(chains.values())


def _gpu_outcome(gpu: _Gpu) -> GpuOutcome:
    spent: dict[Phase, float] = {}
    for outcome in gpu.outcomes:
        phase = outcome.step.phase
        spent[phase] = spent.get(phase, 0.0) + outcome.duration_s
    failure = (gpu.failure,) if gpu.failure else ()
    return GpuOutcome(
        pf=gpu.plan.pf,
        profile_name=gpu.plan.profile_name,
        condition=gpu.failure.condition if gpu.failure else Condition.CONVERGED,
        findings=(*failure, *gpu.findings),
        steps=tuple(gpu.outcomes),
        phase_s=tuple(spent.items()),
        stopped_in=gpu.stopped_in,
    )
