"""Data on standard output, in the form that was asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import click

from gpu_bootstate import report


def show(data: Mapping[str, Any], form: str, text: Callable[[Mapping[str, Any]], str]) -> None:
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(text(data), nl=False)


def text_for(stream: TextIO) -> Callable[[Mapping[str, Any]], str]:
    """The report in words, with colours on a terminal; NO_COLOR (no-color.org) is honoured."""
    color = stream.isatty() and not os.environ.get("NO_COLOR")
    return lambda data: report.text(data, color=color)
