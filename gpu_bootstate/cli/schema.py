"""`schema`: the configuration's JSON Schema, for editors and other tools."""

from __future__ import annotations

import json

import click


@click.command(name="schema")
def command() -> None:
    """Print the JSON Schema of the configuration, as it is in config/gpu-bootstate.schema.json."""
    from gpu_bootstate.schema import schema

    click.echo(json.dumps(schema(), indent=2))
