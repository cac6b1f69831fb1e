"""The command `gpu-bootstate`: global options, and commands that are imported when they are run."""

from __future__ import annotations

import importlib
from pathlib import Path

import click

from gpu_bootstate import __version__
from gpu_bootstate.cli.wiring import Where
from gpu_bootstate.failures import of_the_node
from gpu_bootstate.hardware.protocol import HardwareError

# name -> (module, attribute, help); each module is imported only when its command is run, since
# this is the boot path.
_COMMANDS = {
    "apply": ("gpu_bootstate.cli.apply", "Bring the node to what the configuration says."),
    "check": ("gpu_bootstate.cli.check", "Say whether the configuration can work."),
    "convert": ("gpu_bootstate.cli.convert", "Print another tool's file as a configuration."),
    "export": ("gpu_bootstate.cli.export", "Print a configuration that describes the live state."),
    "fleet": ("gpu_bootstate.cli.fleet", "Bring the node to the profile that the cluster names."),
    "gate": ("gpu_bootstate.cli.gate", "Verify afresh and hold the readiness gate accordingly."),
    "plan": ("gpu_bootstate.cli.plan", "Show what `apply` would do, and why."),
    "publish": ("gpu_bootstate.cli.publish", "Tell the cluster what this node is."),
    "schema": ("gpu_bootstate.cli.schema", "Print the JSON Schema of the configuration."),
    "show": ("gpu_bootstate.cli.draw", "Draw the GPUs as they are and as they would be."),
    "simulate": ("gpu_bootstate.cli.simulate", "Work on the simulated node of --simulate."),
    "status": ("gpu_bootstate.cli.status", "Show the result of this boot and what is there now."),
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(_COMMANDS[cmd_name][0])
        command = module.command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except HardwareError as err:
            finding = of_the_node(err)
            click.echo(f"{finding.message} {finding.remedy}", err=True)
            ctx.exit(finding.condition.exit_code)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpu-bootstate")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Read this file instead of /etc/gpu-bootstate/config.yaml and its drop-ins.",
)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="Take /sys, /proc, /etc, /run and /var from below this directory; with --simulate /etc, "
    "/run and /var (default: a tree of the simulated node's own).",
)
@click.option("--simulate", "board", metavar="BOARD", help="Use a simulated node, e.g. hgx-h200-8.")
@click.option(
    "--sim-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the simulated node lives (default: a directory of yours under /tmp).",
)
@click.pass_context
def main(
    ctx: click.Context,
    config: Path | None,
    root: Path | None,
    board: str | None,
    sim_dir: Path | None,
) -> None:
    """Bring the vGPU state of a GPU node back after a reboot, in the right order, verified.

    Exit codes: 0 converged, 1 failed, 2 degraded, 3 refused (in use), 4 bad configuration,
    5 driver or hardware not available, 6 deadline.
    """
    ctx.obj = Where(root=root, config=config, board=board, sim_dir=sim_dir)


if __name__ == "__main__":
    main()
