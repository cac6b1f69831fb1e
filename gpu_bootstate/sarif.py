"""What is wrong with a configuration, as SARIF 2.1.0: what code review and CI show at its line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from gpu_bootstate import __version__
from gpu_bootstate.model import GpuTarget, Mark
from gpu_bootstate.problems import Problem
from gpu_bootstate.reasons import REASONS, Code, Condition, Finding

_FACT = re.compile(r"\{\w+\}")
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def log(
    problems: Iterable[Problem], findings: Iterable[tuple[Finding, GpuTarget | None]]
) -> dict[str, Any]:
    """One run. A finding is shown where its GPU's entry stands."""
    results = [_result(problem.code, "error", str(problem), problem.mark) for problem in problems]
    for finding, target in findings:
        level = "note" if finding.condition is Condition.CONVERGED else "warning"
        text = " ".join(part for part in (finding.message, finding.remedy) if part)
        results.append(_result(finding.code, level, text, target.mark if target else None))
    rules = list(dict.fromkeys(result["ruleId"] for result in results))
    for result in results:
        result["ruleIndex"] = rules.index(result["ruleId"])
    driver = {
        "name": "gpu-bootstate",
        "version": __version__,
        "rules": [_rule(Code(rule)) for rule in rules],
    }
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(code: Code, level: str, text: str, mark: Mark | None) -> dict[str, Any]:
    result: dict[str, Any] = {"ruleId": code.value, "level": level, "message": {"text": text}}
    if mark is not None:
        region = {"startLine": mark.line, "startColumn": mark.column}
        artifact = {"uri": _uri(mark.file)}
        place = {"artifactLocation": artifact, "region": region}
        result["locations"] = [{"physicalLocation": place}]
    return result


def _uri(file: str) -> str:
    """Relative where the file was named so: to the repository, for who shows it there."""
    path = quote(file)
    return f"file://{path}" if PurePosixPath(file).is_absolute() else path


def _rule(code: Code) -> dict[str, Any]:
    reason = REASONS[code]
    return {
        "id": code.value,
        "shortDescription": {"text": code.value.replace("-", " ")},
        "help": {"text": _FACT.sub("...", reason.cause or reason.sentence)},
    }
