from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.cli.output import Out
from nccl_doctor.model.finding import Command, Consequence, Fix, LogLine, Severity
from nccl_doctor.model.report import AllReduceReport, RankReport, Report
from nccl_doctor.report.human import by_place
from nccl_doctor.text.shell import clean, pasteable
from tests.report.reports import ALL, FIREWALL, STALE, UNREACHABLE, healthy, host_away, log, one_fault, render
from tests.report.strategies import REPORTS

GOLDEN = Path(__file__).parent / "golden"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def screen(report: Report, *, verbose: bool = False, quiet: bool = False) -> str:
    return render(report, "human", color=False, verbose=verbose, quiet=quiet)


@pytest.mark.parametrize("name", ALL)
def test_the_screen_is_the_golden_text(name: str) -> None:
    assert screen(ALL[name]()) == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", ALL)
def test_the_screen_of_a_terminal_of_120_columns_is_the_golden_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    shown = render(ALL[name](), "human", color=False, width=Out("check").width)
    assert shown == (GOLDEN / f"{name}_120.txt").read_text()


def test_the_verbose_screen_is_the_golden_text() -> None:
    assert screen(one_fault(), verbose=True).replace(interfaces(), "") == (GOLDEN / "one_fault_verbose.txt").read_text()


def interfaces() -> str:
    """The rows of the checks that passed, of which there are too many for a golden text."""
    return "".join(f"NCD{200 + n}  {f'fault-{n}':<20}  pass\n" for n in range(56))


def test_the_verbose_screen_has_the_bandwidths() -> None:
    assert "64 MiB  25.50 ms  2.63 GB/s  4.6 GB/s" in screen(healthy(), verbose=True)


def test_the_verbose_screen_tells_how_far_each_rank_came() -> None:
    error = "No module named 'torch'"
    ranks = (
        RankReport(rank=0, host="node1", local_rank=0, stage="allreduce", ok=False),
        RankReport(rank=1, host="node2", local_rank=0, stage="started", ok=False, error=error),
    )
    failed = AllReduceReport(backend="gloo", world_size=2, ok=False, outcome="failed", ranks=ranks)
    report = healthy().model_copy(update={"smoke": failed})
    assert "1     node2  started     No module named 'torch'\n" in screen(report, verbose=True)


def test_quiet_has_nothing_to_say_of_a_healthy_cluster() -> None:
    assert not screen(healthy(), quiet=True)


def test_quiet_has_no_more_than_the_diagnoses() -> None:
    _title, diagnosis, command, _summary = screen(log()).split("\n\n")
    assert screen(log(), quiet=True) == f"{diagnosis}\n\n{command}\n"


def test_quiet_still_says_what_could_not_be_judged() -> None:
    assert screen(host_away(), quiet=True).startswith("Could not be judged:\n  node[2,4]: rules not readable")


def test_the_gravest_comes_last_and_the_first_of_equals() -> None:
    second = UNREACHABLE.model_copy(update={"code": "NCD102"})
    note = STALE.model_copy(update={"severity": Severity.INFO, "code": "NCD603"})
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE, second, STALE, note)})
    codes = re.findall(r"^(?:error|warning|info)  (NCD\d+)", screen(report), re.MULTILINE)
    assert codes == ["NCD603", "NCD601", "NCD102", "NCD101"]


def test_hosts_that_do_not_fit_beside_the_name_stand_below() -> None:
    names = tuple(f"{word}-{number}" for word in ("alpha", "beta", "gamma", "delta") for number in (1, 3, 5))
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"hosts": names}),)})
    assert "error  NCD101 ssh-unreachable\n  alpha-[1,3,5],beta-[1,3,5]," in screen(report)


def test_many_lines_of_evidence_are_cut() -> None:
    report = healthy().model_copy(
        update={"diagnoses": (UNREACHABLE.model_copy(update={"evidence": tuple(f"line {n}" for n in range(25))}),)}
    )
    assert "    line 9\n    … and 15 more (shown with -v)\n" in screen(report)
    assert "    line 24\n" in screen(report, verbose=True)


def test_a_long_log_line_is_cut() -> None:
    evidence = (LogLine(file="a.log", line=7, text="word " * 100),)
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"evidence": evidence}),)})
    lines = screen(report).split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith("    a.log:7  word"))
    assert lines[first + 2].endswith("word …")
    assert lines[first + 3].startswith("  Look whether")
    assert screen(report, verbose=True).count("word") == 100


def test_a_logs_path_is_given_once() -> None:
    lines = [
        LogLine(file=file, line=line, text="x") for file, line in (("/r/a.log", 1), ("/r/a.log", 5), ("/s/a.log", 2))
    ]
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"evidence": (*lines,)}),)})
    assert "    /r/a.log:1  x\n    a.log:5  x\n    /s/a.log:2  x\n" in screen(report)


def test_many_consequences_are_cut() -> None:
    explains = tuple(Consequence(code=f"NCD70{n}", name="x", hosts=(), message=f"Effect {n}.") for n in range(5))
    report = healthy().model_copy(update={"diagnoses": (FIREWALL.model_copy(update={"explains": explains}),)})
    assert "  Same cause: Effect 2. (NCD702 x)\n  … and 2 more (shown with -v)\n" in screen(report)


@pytest.mark.parametrize(
    ("commands", "root", "text"),
    [
        ([(None, "a")], False, "  Do.\n\na\n"),
        ([(None, "a")], True, "  Do.\n  On this machine, as root:\n\na\n"),
        ([("n1", "a"), ("n1", "b")], False, "  Do.\n  On n1:\n\na\nb\n"),
        ([("n1", "a"), ("n2", "a")], True, "  Do.\n  On each of n[1-2], as root:\n\na\n"),
        ([("n1", "a"), (None, "a")], False, "  Do.\n  On n1 and on this machine:\n\na\n"),
        ([("n1", "a"), (None, "b")], False, "  Do.\n  On n1:\n\na\n\n  On this machine:\n\nb\n"),
        ([("n1", "a"), ("n2", "b"), ("n1", "c")], False, "  Do.\n  On n1:\n\na\nc\n\n  On n2:\n\nb\n"),
    ],
)
def test_commands_stand_under_the_place_where_they_run(
    commands: list[tuple[str | None, str]], root: bool, text: str
) -> None:
    fix = Fix(summary="Do.", needs_root=root, commands=tuple(Command(host=h, command=c) for h, c in commands))
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"fix": fix}),)})
    assert text + "\n1 error" in screen(report)


def test_a_command_with_a_hidden_character_is_refused() -> None:
    fix = Fix(summary="Do.", commands=(Command(host=None, command="rm '\u202e'"), Command(host=None, command="ls")))
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"fix": fix}),)})
    assert "so it is not shown here" in " ".join(screen(report).split())
    assert "\nrm" not in screen(report)
    assert "\nls\n" not in screen(report), "half of what belongs together would do something else"


def test_a_command_is_never_wrapped() -> None:
    command = "echo " + "x" * 300
    fix = Fix(summary="Do.", commands=(Command(host="node1", command=command),))
    report = healthy().model_copy(update={"diagnoses": (UNREACHABLE.model_copy(update={"fix": fix}),)})
    assert f"\n{command}\n" in screen(report)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("verbose", [False, True])
def test_colour_adds_nothing_but_colour(name: str, verbose: bool) -> None:
    report = ALL[name]()
    coloured = render(report, "human", color=True, verbose=verbose)
    assert "\x1b[" in coloured
    assert SGR.sub("", coloured) == screen(report, verbose=verbose)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS, st.booleans(), st.booleans())
def test_whatever_the_text_the_screen_is_safe(report: Report, verbose: bool, quiet: bool) -> None:
    text = screen(report, verbose=verbose, quiet=quiet)
    assert all(clean(line) == line for line in text.split("\n"))
    commands = {command.command for found in report.diagnoses for command in found.fix.commands}
    commands.update((report.next_step or "").splitlines())
    assert all(cell_len(line) <= 80 for line in text.split("\n") if line not in commands)
    assert SGR.sub("", render(report, "human", color=True, verbose=verbose, quiet=quiet)) == text


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(REPORTS)
def test_commands_stand_verbatim_on_their_own_line(report: Report) -> None:
    lines = screen(report).split("\n")
    for found in report.diagnoses:
        for host in {command.host for command in found.fix.commands}:
            own = [command.command for command in found.fix.commands if command.host == host]
            if all(map(pasteable, own)):
                assert set(own) <= set(lines)


def test_the_verbose_screen_has_the_mesh_and_what_hosts_told() -> None:
    report = one_fault()
    told = {"limits": "nofile 65536, memlock unlimited", "routes": "10.0.0.0/24 eno1"}
    hosts = tuple(host.model_copy(update={"seen": told}) for host in report.hosts)
    checks = tuple(check.model_copy(update={"looked_at": "interfaces of node[1-4]"}) for check in report.checks[:1])
    text = screen(report.model_copy(update={"hosts": hosts, "checks": checks}), verbose=True)
    assert (
        "from \\ to  0123   + reached  x failed\n0 node1    .+++\n1 node2    x.++\n2 node3    x+.+\n3 node4    x++.\n"
        in text
    )
    assert "limits  node[1-4]  nofile 65536, memlock unlimited\n" in text
    assert "NCD200  fault-0  pass     interfaces of node[1-4]\n" in text
    assert "    port: 29500\n    manager: firewalld\n    from: node2, node3, node4\n" in text
    assert "{" not in text
    many = tuple(hosts[0].model_copy(update={"name": f"n{n}", "node_rank": n}) for n in range(33))
    assert "from \\ to" not in screen(report.model_copy(update={"hosts": many}), verbose=True)


def test_the_mesh_of_long_names_is_never_wider_than_the_screen() -> None:
    report = one_fault()
    many = tuple(
        report.hosts[0].model_copy(update={"name": f"gpu-{rank:02}." + "x" * 60, "node_rank": rank})
        for rank in range(32)
    )
    lines = screen(report.model_copy(update={"hosts": many})).split("\n")
    head = next(line for line in lines if line.startswith("from \\ to"))
    assert head.endswith(("0123456789" * 4)[:32])
    assert "+ reached  x failed" in lines
    assert max(map(len, lines)) <= 80


def test_failed_pairs_of_a_large_cluster_are_not_drawn() -> None:
    report = one_fault()
    many = tuple(
        host.model_copy(update={"name": f"n{rank}", "node_rank": rank}) for rank, host in enumerate(report.hosts * 9)
    )
    assert "from \\ to" in screen(report)
    assert "from \\ to" not in screen(report.model_copy(update={"hosts": many}))


def test_a_command_for_a_container_says_on_which_side_it_is_run() -> None:
    sides = ('in the Docker container "train"', 'outside the Docker container "train"')
    nodes = ("node1", "node2")
    commands = tuple(Command(host=node, command="export A=b", place=side) for side in sides for node in nodes)
    places = [place for place, _, _ in by_place(Fix(summary="Set it:", commands=commands))]
    assert places == [f"On each of node[1-2], {side}:" for side in sides]
