"""The schema that ``nccl-doctor schema`` prints: documents fit it, and so will those with more fields."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from nccl_doctor.judge.pages import find_pages
from nccl_doctor.report.render import render as rendered
from nccl_doctor.report.schema import DOCUMENTS, schema_of
from tests.cli.program import run
from tests.report.reports import ALL, healthy, log, render


@pytest.mark.parametrize("command", DOCUMENTS)
def test_each_command_has_a_schema_that_is_one(command: str, tmp_path: Path) -> None:
    made = schema_of(command)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$id"] == f"urn:nccl-doctor:schema:{command}:1"
    assert made["title"] == f"nccl-doctor {command} {'--format' if command == 'launch' else '-o'} json, schema 1"
    assert json.loads(run("schema", command, cwd=tmp_path).stdout) == made


@pytest.mark.parametrize("name", ALL)
def test_reports_fit(name: str) -> None:
    command = "logs" if ALL[name]().command == "logs" else "check"
    jsonschema.validate(json.loads(render(ALL[name](), "json")), schema_of(command), jsonschema.Draft202012Validator)


@pytest.mark.parametrize("words", ["NCD301", "slurm", ""])
def test_pages_fit(words: str) -> None:
    (page,) = find_pages(words)
    jsonschema.validate(json.loads(rendered("explain", "json", page)), schema_of("explain"))


def test_more_fields_fit_and_less_do_not() -> None:
    document = json.loads(render(healthy(), "json"))
    more = copy.deepcopy(document) | {"later": 1}
    jsonschema.validate(more, schema_of("check"))
    del more["complete"]
    with pytest.raises(jsonschema.ValidationError, match="'complete' is a required property"):
        jsonschema.validate(more, schema_of("check"))
    assert "entities" in json.loads(render(log(), "json"))["diagnoses"][0]


def test_another_word_is_refused(tmp_path: Path) -> None:
    done = run("schema", "chekc", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('"chekc" prints no JSON; these do: check, smoke,')
