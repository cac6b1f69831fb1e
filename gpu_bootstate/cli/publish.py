"""`publish`: tell the cluster what this node is, as information; nothing here decides anything."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from gpu_bootstate.cli.show import told_when_unwritable
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.config import load
from gpu_bootstate.kubernetes.cri import stop_older_containers
from gpu_bootstate.kubernetes.features import remove_features, write_features
from gpu_bootstate.kubernetes.publish import NodeApi, Publisher, Unanswered
from gpu_bootstate.kubernetes.said import Said, said_now
from gpu_bootstate.model import Kubernetes, Policy
from gpu_bootstate.problems import ConfigInvalid
from gpu_bootstate.reasons import Condition


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

    Exits with 0 when the cluster has been told what is true now, with 1 when not.
    """
    try:
        wishes = load(where.paths, where.config).kubernetes
    except ConfigInvalid as invalid:
        for problem in invalid.problems:
            click.echo(str(problem), err=True)
        raise SystemExit(Condition.BAD_CONFIG.exit_code) from None
    with where.hardware(Policy()) as hw:
        boot_id = hw.boot_id()

    written: Said | None = None

    def look() -> Said:
        """Also to node-feature-discovery, which does not wait for the API server to answer us."""
        nonlocal written
        said = said_now(where.paths, boot_id)
        if wishes.features and said != written:
            write_features(where.paths, said, time.time())
            written = said
        return said

    with told_when_unwritable("the feature file"):
        if not wishes.features:
            remove_features(where.paths)
        look()
        _publish(where, wishes, look, timeout)


def _publish(where: Where, wishes: Kubernetes, look: Callable[[], Said], timeout_s: float) -> None:
    if not wishes.publish:
        click.echo("`kubernetes: publish` is off: the API server is told nothing")
        return
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
        raise SystemExit(Condition.FAILED.exit_code)
    click.echo(f"told: {look().state}, {'ready' if look().ready else 'not ready'}")


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
