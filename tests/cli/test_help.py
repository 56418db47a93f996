"""What ``--help`` shows: summaries whole, options by theme, in a terminal of 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from nccl_doctor import __version__
from nccl_doctor.cli.main import COMMANDS, app
from nccl_doctor.cli.output import Out, exit_code_of
from nccl_doctor.errors import UsageError
from nccl_doctor.model.engine import kinds

RUNNER = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


def words(text: str) -> str:
    """Without the breaks of lines, which also stand behind hyphens."""
    return " ".join(re.sub(r"-\n\s+", "-", text).split())


def test_the_summary_of_each_command_is_whole() -> None:
    shown = words(RUNNER.invoke(app(), ["--help"]).output)
    commands = get_command(app()).commands  # type: ignore[attr-defined]  # it is a group
    assert list(commands) == list(COMMANDS)
    for name, command in commands.items():
        assert words(f"{name} {command.callback.__doc__.partition(chr(10))[0]}") in shown


@pytest.mark.parametrize("command", ["check", "smoke", "hang"])
def test_options_stand_by_theme(command: str) -> None:
    shown = RUNNER.invoke(app(command), [command, "--help"]).output
    for theme, option in (("Hosts", "--user NAME"), ("Output", "--output-file FILE"), ("Output", "--save SNAPSHOT")):
        panel = shown.partition(f"\n{theme}:\n")[2].partition("\n\n")[0]
        assert option in panel


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("diff", "[OPTIONS] A B"),
        ("logs", "[OPTIONS] FILE… | -"),
        ("launch", "[OPTIONS] [HOSTS -- SCRIPT [ARGS]...]"),
        ("explain", "[OPTIONS] [CODE|TOPIC]..."),
    ],
)
def test_brackets_stand_around_what_may_be_left_out_alone(command: str, usage: str) -> None:
    shown = RUNNER.invoke(app(command), [command, "--help"], prog_name="nccl-doctor").output
    assert shown.startswith(f"Usage: nccl-doctor {command} {usage}\n")


def test_examples_come_first_and_what_few_need_last() -> None:
    shown = RUNNER.invoke(app("check"), ["check", "--help"]).output
    order = (
        "check hosts.yaml\n",
        "\nHosts:",
        "\nJob:",
        "\nWhat to check:",
        "\nOutput:",
        "\nSlurm and Kubernetes:",
        "--kube",
    )
    places = [re.sub(r" +\n", "\n", shown).find(one) for one in order]
    assert places == sorted(places)
    assert -1 not in places


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_has_a_metavar_and_no_type_of_python(command: str) -> None:
    shown = RUNNER.invoke(app(command), [command, "--help"]).output
    assert f"\n  nccl-doctor {command} " in shown
    assert not re.search(r"<|(?<!--)\b(str|bool|int|float|list|TEXT|INTEGER|FLOAT|BOOLEAN)\b", shown)
    for parameter in get_command(app(command)).commands[command].params:  # type: ignore[attr-defined]  # it is a group
        assert parameter.is_flag if parameter.metavar is None else parameter.metavar.strip(), parameter.name
        assert (parameter.help or "").endswith("."), parameter.name


@pytest.mark.parametrize("command", COMMANDS)
def test_an_argument_stands_in_brackets_once(command: str) -> None:
    (usage,) = re.findall(r"Usage: .*", RUNNER.invoke(app(command), [command, "--help"]).output)
    assert "[[" not in usage
    assert command != "fix-port" or "fix-port [OPTIONS] [PORT] [HOSTS]" in usage


def test_lines_to_paste_stand_below_the_sentence_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        error = UsageError("2 jobs run: name one:")
        error.commands = ("nccl-doctor hang --pid 7", "nccl-doctor hang --pid 9")
        raise error

    assert exit_code_of(Out("hang"), work) == 2
    assert capsys.readouterr().err == (
        "2 jobs run: name one:\n\nnccl-doctor hang --pid 7\n\nnccl-doctor hang --pid 9\n"
    )


def test_an_error_stays_one_plain_line() -> None:
    result = RUNNER.invoke(app("check"), ["check", "--nope"])
    assert result.exit_code == 2
    assert "Error: No such option: --nope" in result.output.splitlines()[-1]


def test_a_transport_that_nobody_knows_is_refused_with_those_there_are() -> None:
    result = RUNNER.invoke(app("check"), ["check", "--transport", "pigeon"])
    assert result.exit_code == 2
    assert f"'--transport': 'pigeon' is not one of {', '.join(map(repr, kinds()))}." in " ".join(result.output.split())


def test_a_check_reads_nothing_that_only_other_commands_need() -> None:
    code = "import sys, nccl_doctor.cli.main, nccl_doctor.cli.run; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    others = ("snapshot.hang", "hang", "model.documents", "snapshot.redact", "logs", "report.human", "report.html")
    assert {f"nccl_doctor.{name}" for name in others}.isdisjoint(told.stdout.split())


def test_the_table_of_commands_loads_neither_models_nor_a_way_to_hosts() -> None:
    code = "import sys, nccl_doctor.cli.main as main; main.app(); print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"nccl_doctor.cli.check", "nccl_doctor.model.engines.ssh"} <= set(told.stdout.split())
    assert {"pydantic", "paramiko", "rich", "nccl_doctor.model.cluster"}.isdisjoint(told.stdout.split())


def test_the_module_starts_the_tool_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nccl_doctor", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"nccl-doctor {__version__}\n"
