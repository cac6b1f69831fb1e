"""Data on standard output, in the form that was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import click


def show(data: Mapping[str, Any], form: str, text: Callable[[Mapping[str, Any]], str]) -> None:
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(text(data), nl=False)
