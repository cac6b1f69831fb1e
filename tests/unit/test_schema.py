"""The JSON Schema says what the parser says, wherever a schema can say it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpu_bootstate.schema import schema
from tests.support import documents
from tests.support.documents import BEYOND_A_SCHEMA, compare

REPO = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(4))
def test_parser_and_schema_agree_on_ten_thousand_documents(seed: int) -> None:
    found = compare(2500, seed)
    assert found.apart == []
    assert found.accepted > 800
    assert found.refused > 800


def test_each_rule_that_is_left_out_of_the_comparison_is_met() -> None:
    """A rule that nothing meets would hide a disagreement."""
    met = set(compare(2500, seed=9).beyond)
    assert len(met & set(BEYOND_A_SCHEMA)) >= 3, met


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("definitions/policy/properties/attempts", {"maximum": 99}),
        ("definitions/policy", {"additionalProperties": True}),
        ("definitions/match", {"oneOf": [{}]}),
        ("definitions/match", {"dependencies": {}}),
        ("definitions/profile", {"else": {}}),
        ("definitions/profile", {"then": {}}),
        ("definitions/profile/properties/mig", {"minProperties": 0}),
        ("definitions/profile/properties/vgpus", {"propertyNames": {}}),
        ("definitions/gate/properties/preset", {"enum": ["none"]}),
        ("definitions/kubernetes/properties/operands", {"items": {}}),
        ("definitions/entry", {"required": ["match"]}),
        ("", {"required": []}),
    ],
)
def test_a_schema_that_says_something_else_is_noticed(
    monkeypatch: pytest.MonkeyPatch, path: str, change: dict[str, Any]
) -> None:
    other = deepcopy(schema())
    place = other
    for part in filter(None, path.split("/")):
        place = place[part]
    place.update(change)
    monkeypatch.setattr(documents, "validator", lambda: jsonschema.Draft7Validator(other))
    assert compare(20_000, to_the_first=True).apart


def test_the_file_is_what_the_command_prints() -> None:
    """`gpu-bootstate schema > config/gpu-bootstate.schema.json` writes it anew."""
    done = subprocess.run(
        [sys.executable, "-m", "gpu_bootstate", "schema"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPO,
    )
    assert done.stdout == (REPO / "config" / "gpu-bootstate.schema.json").read_text()


def test_it_is_a_schema_and_every_key_is_described() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    bare = [path for path, key in _keys(schema(), "") if "description" not in key]
    assert bare == []


def _keys(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    definitions = schema()["definitions"]
    if isinstance(part, dict):
        for name, key in part.get("properties", {}).items():
            if not set(key) <= {"enum", "const"}:  # a condition, in `if`
                reference = key.get("$ref", "").rpartition("/")[2]
                yield f"{path}/{name}", definitions[reference] if reference else key
        for name, value in part.items():
            yield from _keys(value, f"{path}/{name}")
    elif isinstance(part, list):
        for number, value in enumerate(part):
            yield from _keys(value, f"{path}/{number}")


def test_the_example_is_valid_and_names_its_schema_for_editors() -> None:
    text = (REPO / "config" / "config.yaml").read_text()
    jsonschema.validate(yaml.safe_load(text), schema(), jsonschema.Draft7Validator)
    installed = "/usr/share/gpu-bootstate/gpu-bootstate.schema.json"
    assert f"# yaml-language-server: $schema=file://{installed}\n" in text
    assert installed.lstrip("/").rpartition("/")[0] in (REPO / "packaging" / "install").read_text()


def test_defaults_are_the_parsers() -> None:
    """A default that an editor offers is one that changes nothing when it is written out."""
    from gpu_bootstate.config import parse

    policy = schema()["definitions"]["policy"]["properties"]
    written = {key: value["default"] for key, value in policy.items()}
    told = parse(yaml.safe_dump({"version": "v1", "policy": written}), "x")
    assert told.policy == parse("version: v1\n", "x").policy
