"""`make fuzz`: coverage-guided fuzzing of the configuration's parser.

Whatever the bytes are, the parser ends within its limits, either with a configuration or with
problems that each have a place and a text. What libFuzzer finds it leaves in build/fuzz.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["gpu_bootstate"]):
    from gpu_bootstate.config import parse
    from gpu_bootstate.problems import ConfigInvalid


def one(data: bytes) -> None:
    try:
        desired = parse(data.decode("utf-8", errors="surrogateescape"), "config.yaml")
    except ConfigInvalid as invalid:
        if not invalid.problems:
            raise AssertionError("refused without a reason") from None
        for problem in invalid.problems:
            listed = "not listed" not in problem.message
            if listed and not str(problem).startswith("config.yaml:"):
                raise AssertionError(f"without a place: {problem}") from None
            if len(str(problem)) > 5000:
                raise AssertionError("a message that nobody can read") from None
    else:
        hash(desired)  # data, and nothing else


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
