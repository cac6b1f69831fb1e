"""`fleet`: bring this node to the profile that its label in the cluster names, step by step."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import click

from gpu_bootstate.cli.look import look, remembered_cards
from gpu_bootstate.cli.publish import connect
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load, load_with
from gpu_bootstate.files import read_json, write_atomic
from gpu_bootstate.hardware.protocol import Hardware
from gpu_bootstate.kubernetes.fleet import Fleet, InvalidProfile, Outlook, Result, RunAtWork
from gpu_bootstate.kubernetes.publish import Conflict, Forbidden, Gone, Unanswered
from gpu_bootstate.kubernetes.said import said_now
from gpu_bootstate.lock import Busy, acquire, holder_pid
from gpu_bootstate.model import DesiredState, Kubernetes, Plan, Policy
from gpu_bootstate.paths import Paths
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition

_UNIT = "gpu-bootstate.service"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # as a label's value
_MAX_SIZE = 1 << 20  # of a ConfigMap, and of a configuration file
_ENDS = frozenset(condition.value for condition in Condition)
_ATTEMPTS, _PAUSE_S = 5, 1.0


@click.command(name="fleet")
@click.pass_obj
def command(where: Where) -> None:
    """Bring this node to the profile that the label `gpu-bootstate/config` of its Node names.

    Takes the next step and ends; gpu-bootstate-fleet.timer calls again. Exits with 0 when the
    profile is applied or on its way, or when none is meant for this node, with 1 when not.
    """
    wishes = _wishes(where)
    with where.hardware(Policy()) as hw:
        boot_id = hw.boot_id()
    host = FleetHost(where.paths, where.hardware, boot_id)
    for attempt in range(_ATTEMPTS):
        try:
            fleet = Fleet(connect(where, wishes), host, boot_id=boot_id, tell=_say, now=time.time)
            verdict = fleet.step()
        except Conflict:
            time.sleep(_PAUSE_S * attempt)
            continue  # somebody has changed the Node meanwhile: look again
        except (Unanswered, Forbidden, Gone) as err:
            _say(f"{err}; the next pass tries again")
            raise SystemExit(Condition.FAILED.exit_code) from None
        except (AttributeError, KeyError, TypeError):
            _say("the API server's answer is not understood; the next pass tries again")
            raise SystemExit(Condition.FAILED.exit_code) from None
        click.echo(verdict.message or "no profile is meant for this node")
        raise SystemExit(Condition.FAILED.exit_code if verdict.state == "failed" else 0)
    _say("the Node changes all the time; the next pass tries again")
    raise SystemExit(Condition.FAILED.exit_code)


def _wishes(where: Where) -> Kubernetes:
    """Where the credentials are. A broken file is no reason to stay away: the cluster is told."""
    try:
        return load(where.paths, where.config).kubernetes
    except ConfigInvalid:
        return Kubernetes()


def _say(text: str) -> None:
    click.echo(f"gpu-bootstate: {text}", err=True)


class FleetHost:
    """A fleet.Host: profiles in /etc/gpu-bootstate/fleet, the drop-in, and the unit."""

    def __init__(
        self,
        paths: Paths,
        hardware: Callable[[Policy], AbstractContextManager[Hardware]],
        boot_id: str,
    ) -> None:
        self._paths = paths
        self._hardware = hardware
        self._boot_id = boot_id

    def profiles(self) -> tuple[str, ...]:
        try:
            names = os.listdir(self._paths.fleet_dir)  # noqa: PTH208 -- names are what is wanted
        except OSError:
            return ()
        stems = (name.removesuffix(".yaml") for name in names if name.endswith(".yaml"))
        return tuple(sorted(stem for stem in stems if _NAME.fullmatch(stem)))

    def profile(self, name: str) -> str | None:
        if not _NAME.fullmatch(name):
            return None
        path = self._paths.fleet_dir / f"{name}.yaml"
        try:
            return _text(path)
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as err:
            reason = getattr(err, "strerror", None) or "it is not UTF-8"
            raise InvalidProfile(f"{path} cannot be read: {reason}.") from err

    def is_installed(self, name: str, text: str) -> bool:
        try:
            return _text(self._paths.fleet_drop_in) == _installed(name, text)
        except (OSError, UnicodeDecodeError):
            return False

    def outlook(self, name: str, text: str) -> Outlook:
        desired = self._desired(name, text)
        try:
            # Our own NVML session would stop a run's reset: never beside a run.
            with acquire(self._paths), self._hardware(desired.policy) as hw:
                return _outlook(look(hw, desired, remembered_cards(self._paths)).plan)
        except Busy as busy:
            raise RunAtWork from busy
        except ConfigInvalid as invalid:
            return Outlook(changes=False, problem=_first(invalid))

    def install(self, name: str, text: str) -> None:
        write_atomic(self._paths.fleet_drop_in, _installed(name, text))

    def apply(self) -> None:
        with self._hardware(Policy()) as hw:
            hw.reload_unit(_UNIT)

    def result(self) -> Result | None:
        if holder_pid(self._paths) is not None:
            raise RunAtWork
        try:
            digest = load(self._paths).digest
        except ConfigInvalid as invalid:
            raise InvalidProfile(_first(invalid)) from invalid
        status = read_json(self._paths.status) or {}
        config = status.get("config")
        if not isinstance(config, dict) or config.get("digest") != digest:
            return None
        # The state of the last run is told as `publish` tells it.
        said = said_now(self._paths, self._boot_id)
        refused = Condition.REFUSED.value
        if said.state not in _ENDS:
            return None
        return Result(
            condition=Condition(said.state),
            gate_open=said.ready,
            message=said.message,
            refused=refused in (said.state, *(condition for _, condition in said.gpus)),
        )

    def _desired(self, name: str, text: str) -> DesiredState:
        shown = f"/etc/gpu-bootstate/fleet/{name}.yaml"
        try:
            return load_with(self._paths, self._paths.fleet_drop_in, text, shown)
        except ConfigInvalid as invalid:
            raise InvalidProfile(_first(invalid)) from invalid


def _outlook(plan: Plan) -> Outlook:
    if plan.refusal is not None and plan.refusal.condition is not Condition.REFUSED:
        return Outlook(changes=False, problem=f"{plan.refusal.message} {plan.refusal.remedy}")
    refusals = [plan.refusal, *(gpu.refusal for gpu in plan.gpus)]
    in_use = [each for each in refusals if each and each.condition is Condition.REFUSED]
    # What else is wrong with a GPU is no reason to keep the others waiting: the run will tell.
    return Outlook(changes=not plan.is_empty, in_use=tuple(finding.message for finding in in_use))


def _installed(name: str, text: str) -> str:
    head = f"# Profile {name} of the cluster, installed by `gpu-bootstate fleet`: edits are lost.\n"
    return head + text


def _text(path: Path) -> str:
    """Of a regular file of root's: what a pod has put there must not lead anywhere else.

    Raises OSError, UnicodeDecodeError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_uid not in (0, os.geteuid()):
            raise PermissionError(1, "it is no regular file of root's", str(path))
        if about.st_size > _MAX_SIZE:
            raise OSError(27, "it is larger than 1 MiB", str(path))
        return stream.read(_MAX_SIZE + 1).decode("utf-8")


def _first(invalid: ConfigInvalid) -> str:
    more = len(invalid.problems) - 1
    return f"{invalid.problems[0]}" + (f" (and {more} more)" if more else "")
