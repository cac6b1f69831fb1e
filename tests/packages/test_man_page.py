"""The man page says what the commands are: no option more, none less, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpu_bootstate.cli.main import main
from gpu_bootstate.reasons import Condition

REPO = Path(__file__).parents[2]
PAGE = (REPO / "packaging/man/gpu-bootstate.8").read_text(encoding="utf-8")

# The word that a reader sees first for each.
EXIT_STATUS = {
    Condition.CONVERGED: "Converged",
    Condition.FAILED: "Failed",
    Condition.DEGRADED: "Degraded",
    Condition.REFUSED: "Refused",
    Condition.BAD_CONFIG: "Bad configuration",
    Condition.UNAVAILABLE: "Driver or hardware not available",
    Condition.DEADLINE: "A deadline passed",
}

Command = tuple[str, ...]  # ("simulate", "new"); (): what stands before the command


def commands() -> Iterator[tuple[Command, click.Command, click.Context]]:
    def walk(
        path: Command, command: click.Command, parent: click.Context | None
    ) -> Iterator[tuple[Command, click.Command, click.Context]]:
        name = path[-1] if path else "gpu-bootstate"
        context = click.Context(command, parent, name, **command.context_settings)
        yield path, command, context
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from walk((*path, name), below, context)

    return walk((), main, None)


def options_of(command: click.Command, context: click.Context) -> set[str]:
    """All of its options; that help is there for each command is said once."""
    return {
        name
        for parameter in command.get_params(context)
        if isinstance(parameter, click.Option)
        for name in (*parameter.opts, *parameter.secondary_opts)
        if not context.parent or name not in context.help_option_names
    }


def plain(roff: str) -> str:
    roff = re.sub(r"\\f.", "", roff).replace("\\-", "-").replace('"', "")
    return re.sub(r"^\.(?:BR|BI|IR|RB|IB|B|I) ", "", roff, flags=re.MULTILINE)


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


def section(name: str) -> str:
    found = re.search(rf"^\.SH {name}\n(.*?)(?=^\.SH |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


def headings(text: str) -> list[str]:
    """What is explained: the line after each .TP."""
    return [plain(line) for line in re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE)]


def explained() -> dict[Command, set[str]]:
    found: dict[Command, set[str]] = {(): options_in(" ".join(headings(section("OPTIONS"))))}
    for part in re.split(r"^\.SS ", section("COMMANDS"), flags=re.MULTILINE)[1:]:
        name, _, text = part.partition("\n")
        if name == "simulate":
            found["simulate",] = set()
            for heading in headings(text):
                found["simulate", heading.split()[0]] = options_in(heading)
        else:
            found[name,] = options_in(" ".join(headings(text)))
    return found


def synopsis() -> dict[str, set[str]]:
    found = {}
    for part in re.split(r"^\.B gpu-bootstate\n", section("SYNOPSIS"), flags=re.MULTILINE)[1:]:
        before, _, after = plain(part).partition("[OPTIONS] ")
        words = after.split()
        found[words[0]] = options_in(" ".join([before, *words[1:]]))
    return found


def test_every_command_and_option_is_explained_and_no_other() -> None:
    is_there = {path: options_of(command, context) for path, command, context in commands()}
    assert explained() == is_there


def test_the_synopsis_has_every_command_with_its_options() -> None:
    is_there = {
        path[0]: options_of(command, context)
        for path, command, context in commands()
        if len(path) == 1
    }
    is_there["simulate"] = {"--simulate"}  # what it cannot do without, before it
    assert synopsis() == is_there


def test_arguments_are_in_the_synopsis() -> None:
    for path, command, _ in commands():
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        if arguments and len(path) == 1:
            line = next(
                plain(part) for part in section("SYNOPSIS").split(".br\n") if path[0] in part
            )
            for argument in arguments:
                assert argument.make_metavar(click.Context(command)).strip("[]") in line.split()[-1]


def test_no_option_is_mentioned_that_there_is_not() -> None:
    every = {option for _, c, context in commands() for option in options_of(c, context)}
    of_systemctl = {"--now"}
    assert options_in(plain(PAGE.partition("\n")[2])) - of_systemctl - every == set()


def test_every_exit_code_is_there_with_its_meaning() -> None:
    assert set(EXIT_STATUS) == set(Condition)
    rows = re.findall(r"^\.TP\n\.B (\d+)\n(.+)$", section("EXIT STATUS"), re.MULTILINE)
    said = dict(rows)
    assert len(rows) == len(said)
    assert {int(code) for code in said} == {condition.exit_code for condition in Condition}
    for condition, words in EXIT_STATUS.items():
        assert re.match(rf"{words}\b", said[str(condition.exit_code)])


def test_help_and_the_man_page_agree_on_exit_codes() -> None:
    context = click.Context(main, info_name="gpu-bootstate")
    text = " ".join(main.get_help(context).split()).partition("Exit codes: ")[2]
    said = {int(code): words for code, words in re.findall(r"(\d) ([a-z ]+\w)", text)}
    assert {c.exit_code for c in Condition} == set(said)
    for condition, words in EXIT_STATUS.items():
        short = said[condition.exit_code]
        assert short.lower() in words.lower(), (condition, short)


@pytest.mark.parametrize("unit", sorted(p.name for p in (REPO / "systemd").glob("gpu-*.*[!d]")))
def test_every_unit_is_named(unit: str) -> None:
    assert unit in section("THE UNITS")
