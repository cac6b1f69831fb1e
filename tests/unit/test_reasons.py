"""The one table of reasons, and what a node comes to from what its GPUs came to."""

from __future__ import annotations

import re

import pytest

from gpu_bootstate.reasons import REASONS, Code, Condition, Finding

CONV, FAIL, REFU = Condition.CONVERGED, Condition.FAILED, Condition.REFUSED
CONF, UNAV, DEAD = Condition.BAD_CONFIG, Condition.UNAVAILABLE, Condition.DEADLINE
DEGR = Condition.DEGRADED


@pytest.mark.parametrize(
    ("parts", "changed", "expected"),
    [
        ([], False, CONV),
        ([CONV, CONV], False, CONV),
        ([CONV, CONV], True, CONV),
        # none converged: all alike
        ([REFU, REFU], False, REFU),
        ([REFU, REFU], True, REFU),
        ([DEAD, DEAD], True, DEAD),
        ([UNAV], False, UNAV),
        ([CONF, CONF], False, CONF),
        ([FAIL], True, FAIL),
        # none converged, for different reasons
        ([FAIL, REFU], False, FAIL),
        ([DEAD, UNAV], True, FAIL),
        ([REFU, CONF], False, FAIL),
        # some converged
        ([CONV, FAIL], True, DEGR),
        ([CONV, DEAD], True, DEGR),
        ([CONV, CONF], False, DEGR),
        ([CONV, REFU, FAIL], False, DEGR),
        ([CONV, REFU], True, DEGR),
        # for nothing: who asked must know
        ([CONV, REFU, REFU], False, REFU),
    ],
)
def test_what_the_node_comes_to(
    parts: list[Condition],
    changed: bool,  # noqa: FBT001 -- a column of the table
    expected: Condition,
) -> None:
    assert Condition.of_all(parts, changed=changed) is expected
    assert Condition.of_all(reversed(parts), changed=changed) is expected


def test_exit_codes_are_distinct_and_stay_as_documented() -> None:
    assert {condition.value: condition.exit_code for condition in Condition} == {
        "converged": 0,
        "failed": 1,
        "degraded": 2,
        "refused": 3,
        "bad-config": 4,
        "unavailable": 5,
        "deadline": 6,
    }


def test_every_code_has_one_row_and_every_row_a_code() -> None:
    assert list(REASONS) == list(Code)


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_row_makes_whole_sentences_from_its_facts(code: Code) -> None:
    facts = {name: f"<{name}>" for name in REASONS[code].fields}
    finding = Finding.of(code, **facts)

    for text in (finding.message, finding.cause, finding.remedy):
        assert text == " ".join(text.split())
        assert re.match(r"[A-Z<]|nvidia-|sriov-manage|systemd|gpu-bootstate", text)
        assert text[-1] in ".>", "a sentence ends, unless a line from elsewhere ends it"
    told = f"{finding.message} {finding.cause} {finding.remedy}"
    assert "{" not in told.replace("{stop: [...]}", "")
    for value in facts.values():
        assert value in told


@pytest.mark.parametrize("code", Code, ids=lambda code: code.value)
def test_code_is_a_stable_word(code: Code) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", code.value)


def test_missing_fact_is_told_when_the_finding_is_made() -> None:
    with pytest.raises(TypeError, match=r"^held needs the facts \['wanted'\]$"):
        Finding.of(Code.HELD, pf="0000:17:00.0", holder="dcgm (pid 7)")


def test_facts_are_kept_as_text() -> None:
    finding = Finding.of(Code.GPU_LOST, pf="0000:17:00.0", operation="x", extra=3)

    assert finding.fact("extra") == "3"
    assert finding.fact("other") is None
    assert finding.message == "0000:17:00.0 is lost: the driver no longer reaches it (x)."
    assert finding.condition is FAIL
