from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings

from nccl_doctor.model import report as nouns
from nccl_doctor.model.base import Observed
from nccl_doctor.model.report import Report
from tests.report.reports import ALL, healthy, host_away, log, render
from tests.report.strategies import REPORTS

KEPT = Path(__file__).with_name("schema.json")


BOUNDS = {"maxLength", "maximum", "minimum", "pattern", "propertyNames"}


def unbounded(tree: Any) -> Any:
    if isinstance(tree, list):
        return [unbounded(inner) for inner in tree]
    return {key: unbounded(it) for key, it in tree.items() if key not in BOUNDS} if isinstance(tree, dict) else tree


def schema() -> dict[str, Any]:
    """The models' schema: every field is there but ``entities`` and ``page``, which some lack, and more may come.

    Bounds of what hosts tell are those of our own trust, and more outcomes and stages may come: none are promised.
    """
    exported = Report.model_json_schema(mode="serialization")
    for name in [name for name in exported["$defs"] if issubclass(getattr(nouns, name, Report), Observed)]:
        exported["$defs"][name] = unbounded(exported["$defs"][name])
    del exported["$defs"]["FailedDial"]["properties"]["outcome"]["enum"]
    del exported["$defs"]["RankReport"]["properties"]["stage"]["enum"]
    for noun in (exported, *exported["$defs"].values()):
        if "properties" in noun:
            noun["required"] = [field for field in noun["properties"] if field not in ("entities", "page")]
            del noun["additionalProperties"]
    return exported


def document(report: Report) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(render(report, "json"))
    return parsed


def test_the_kept_schema_is_the_models() -> None:
    assert json.loads(KEPT.read_text()) == schema(), "the JSON has changed: fields may be added, never changed"


@pytest.mark.parametrize("name", ALL)
def test_documents_are_valid(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(document(ALL[name]()), json.loads(KEPT.read_text()), jsonschema.Draft202012Validator)


def test_a_document_without_a_promised_field_is_not_valid() -> None:
    lacking = document(healthy())
    del lacking["complete"]
    with pytest.raises(jsonschema.ValidationError, match="'complete' is a required property"):
        jsonschema.validate(lacking, json.loads(KEPT.read_text()), jsonschema.Draft202012Validator)


def test_the_promised_fields_are_there() -> None:
    promised = "schema version command status complete hosts diagnoses checks mesh smoke load timings"
    assert set(promised.split()) <= set(document(healthy()))
    found = document(host_away())["diagnoses"][0]
    assert list(found) == ["code", "name", "severity", "hosts", "message", "evidence", "facts", "fix", "explains"]
    assert list(found["fix"]) == ["summary", "risk", "needs_root", "commands", "variables"]
    assert document(host_away())["checks"][0]["reason"] is None
    assert document(healthy())["hosts"][0]["nccl_interface"] == {
        "name": "eno1",
        "address": "10.0.0.1",
        "nccl_version": "2.27.7",
        "source": "libnccl",
    }


def test_a_log_s_diagnosis_has_its_entities_and_lines() -> None:
    found = document(log())["diagnoses"][0]
    assert found["entities"] == {"host": "gpu02", "rank": 8}
    assert set(found["evidence"][0]) == {"file", "line", "text"}


def test_numbers_that_json_does_not_know_are_null() -> None:
    assert document(healthy().model_copy(update={"timings": {"total": float("inf")}}))["timings"] == {"total": None}


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS)
def test_the_document_holds_the_whole_report_in_ascii(report: Report) -> None:
    text = render(report, "json")
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    assert Report.model_validate_json(text) == report
