"""`publish`: tell the cluster what this node is, as information; nothing here decides anything."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import click

from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.kubernetes.cri import stop_older_containers
from gpu_bootstate.kubernetes.features import remove_features, write_features
from gpu_bootstate.kubernetes.publish import NodeApi, Publisher, Unanswered
from gpu_bootstate.kubernetes.said import Said, said_now
from gpu_bootstate.lock import Busy, acquire
from gpu_bootstate.model import Kubernetes, Policy
from gpu_bootstate.paths import Paths
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition

_GRACE_S = 30.0  # one request has its own limits


@click.command(name="publish")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long an API server that does not answer is tried.",
)
@click.pass_obj
def command(where: Where, *, timeout: float) -> None:
    """Write labels, an annotation and a Condition to this Node, Events where something failed, and
    a feature file for node-feature-discovery: what `kubernetes:` of the configuration asks for.

    Exits with 0 when the cluster has been told what is true now, with 1 when not, with 3 when
    another one is at work.
    """
    try:
        wishes = load(where.paths, where.config).kubernetes
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    with where.hardware(Policy()) as hw:
        boot_id = hw.boot_id()
    # What the client has put into files, keys among it, is removed when Python ends in good order.
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _out_of_time)
    try:
        with acquire(where.paths, file=where.paths.publish_lock):
            # A plugin that gets a token, or a server that answers a byte a minute, has no limit.
            signal.setitimer(signal.ITIMER_REAL, timeout + _GRACE_S)
            whole = _publish(where, wishes, boot_id, timeout)
    except Busy as busy:
        _say(f"another `publish` is at work (pid {busy.pid}); it tells what there is")
        raise SystemExit(Condition.REFUSED.exit_code) from None
    except OSError as err:
        _say(f"{err}: telling the cluster needs root")
        whole = False
    raise SystemExit(0 if whole else Condition.FAILED.exit_code)


def _publish(where: Where, wishes: Kubernetes, boot_id: str, timeout_s: float) -> bool:
    features = _Features(where.paths)
    written: Said | None = None

    def look() -> Said:
        """Also to node-feature-discovery, which does not wait for the API server to answer us."""
        nonlocal written
        said = said_now(where.paths, boot_id)
        if wishes.features and said != written:
            features.write(said)
            written = said
        return said

    if not wishes.features:
        features.remove()
    look()
    if not wishes.publish:
        click.echo("`kubernetes: publish` is off: the API server is told nothing")
        return features.good
    publisher = Publisher(
        wishes,
        look=look,
        connect=lambda: connect(where, wishes),
        tell=_say,
        now=time.monotonic,
        sleep=time.sleep,
        wall_time=time.time,
        offline=lambda said: stop_older_containers(where.paths, wishes.restart, said, _say),
    )
    if not publisher.until_told(timeout_s):
        return False
    said = look()
    click.echo(f"told: {said.state}, {'ready' if said.ready else 'not ready'}")
    return features.good


class _Features:
    """The feature file. One that cannot be written keeps nobody from telling the API server."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self.good = True

    def write(self, said: Said) -> None:
        self._try(lambda: write_features(self._paths, said, time.time()))

    def remove(self) -> None:
        self._try(lambda: remove_features(self._paths))

    def _try(self, change: Callable[[], object]) -> None:
        try:
            change()
        except OSError as err:
            if self.good:
                _say(f"the feature file cannot be written: {err.strerror}: {err.filename}")
            self.good = False


def _end(_signal: int, _frame: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _out_of_time(_signal: int, _frame: object) -> None:
    _say("given up for now: the API server, or the program that gets its token, takes too long")
    raise SystemExit(Condition.FAILED.exit_code)


def _say(text: str) -> None:
    click.echo(f"gpu-bootstate: {text}", err=True)


def connect(where: Where, wishes: Kubernetes) -> NodeApi:
    """Anew for each try: the kubelet renews its certificate, and may not have it at first."""
    from gpu_bootstate.kubernetes.credentials import NoCredentials, find

    try:
        kubelet = find(where.paths.root, kubeconfig=wishes.kubeconfig, node_name=wishes.node_name)
    except NoCredentials as err:
        raise Unanswered(str(err)) from err
    if kubelet.node_name is None:
        message = f"{kubelet.kubeconfig} does not say which Node this is; set `node-name`"
        raise Unanswered(message)
    try:
        from gpu_bootstate.kubernetes.api import Api
    except ModuleNotFoundError as err:
        raise click.ClickException(
            f"the Python module {err.name} is missing: install python3-kubernetes, or "
            "gpu-bootstate[kubernetes]"
        ) from None
    return Api(kubelet.kubeconfig, kubelet.node_name)
