from __future__ import annotations

from importlib import import_module

import pytest
import typer

from nccl_doctor.cli.main import app
from nccl_doctor.cli.output import Out, exit_code_of
from nccl_doctor.report.render import FORMS


def test_every_command_has_its_forms_and_no_form_is_without_a_command() -> None:
    assert {name.partition(" ")[0] for name in FORMS} == set(typer.main.get_command(app()).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("command", "form"), [(command, form) for command, forms in FORMS.items() for form in forms])
def test_every_form_is_there(command: str, form: str) -> None:
    module, function = FORMS[command][form].split(":")
    assert callable(getattr(import_module(f"nccl_doctor.report.{module}"), function))


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        ("check", "human, json, junit, prometheus, html or github"),
        ("diff", "human, json or html"),
        ("launch", "shell, json, ssh or slurm"),
    ],
)
def test_a_form_that_a_command_has_not_is_refused_before_any_work(
    command: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> int:
        raise AssertionError("work was begun")

    assert exit_code_of(Out(command, "xml"), work) == 2
    assert capsys.readouterr().err == f"{command} prints {allowed}, not 'xml'\n"
