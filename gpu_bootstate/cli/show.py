"""What commands say: data in the form that was asked for, and why our files cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import click

from gpu_bootstate import report
from gpu_bootstate.reasons import Code, Condition, Finding


def show(data: Mapping[str, Any], form: str, text: Callable[[Mapping[str, Any]], str]) -> None:
    if form == "json":
        click.echo(json.dumps(data, indent=2))
    else:
        click.echo(text(data), nl=False)


def text_for(stream: TextIO) -> Callable[[Mapping[str, Any]], str]:
    """The report in words, with colours on a terminal; NO_COLOR (no-color.org) is honoured."""
    color = stream.isatty() and not os.environ.get("NO_COLOR")
    return lambda data: report.text(data, color=color)


@contextmanager
def told_when_unwritable(what: str) -> Iterator[None]:
    """Ends the command with a sentence where this user may not change ``what``, or where there is
    no room for it.
    """
    try:
        yield
    except PermissionError as err:
        click.echo(f"gpu-bootstate: {err}: changing {what} needs root.", err=True)
        raise SystemExit(Condition.FAILED.exit_code) from None
    except OSError as err:  # /run is full or read-only
        finding = Finding.of(Code.GATE_FAILED, path=err.filename, detail=err.strerror)
        click.echo(f"gpu-bootstate: {finding.message} {finding.remedy}", err=True)
        raise SystemExit(finding.condition.exit_code) from None
