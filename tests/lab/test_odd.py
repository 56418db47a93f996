"""The table of odd hosts: each line with what ``ssh HOST true`` does there, beside healthy neighbours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path

import pytest

from tests.cli.doctor import doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults.ssh import stop_sshd
from tests.lab.kills import kills
from tests.lab.odd import lists, machines, pythons, shells, standing, users, ways
from tests.lab.odd.row import Row, judge
from tests.lab.warm import interpreter, plain
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

GROUPS = {
    "users": (users.ROWS, ()),
    "rules": (users.DROPS, ("--sudo",)),
    "shells": (shells.ROWS, ()),
    "machines": (machines.ROWS, ()),
    "ways": (ways.ROWS, ()),
    "pythons": (pythons.ROWS, pythons.OPTIONS),
}
FORKED = ("users", "rules", "ways")
"""Groups whose probes may be forks: of machines, shells and interpreters these would not have the odd ways."""
SLOW = (*shells.SLOW, *pythons.HANGS)
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_in_one_run(make_lab: MakeLab, group: str) -> None:
    rows, options = GROUPS[group]
    _judged(make_lab, rows, *options, python=plain() if group in FORKED else sys.executable)


def test_what_only_a_deadline_ends(make_lab: MakeLab) -> None:
    _judged(make_lab, SLOW, "--connect-timeout", "2")


def test_lists(lab: Lab) -> None:
    """On healthy hosts, which tests share."""
    wrong = []
    for one in lists.LISTS:
        for path, text in one.files.items():
            lab.controller.write(f"/root/{path}", text)
        run = doctor(lab, "check", "--no-smoke", *one.options, hosts=one.text(lab))
        lab.controller.run("rm -rf group_vars host_vars")
        found = [(each["name"], " ".join(sorted(each["hosts"]))) for each in run.report["diagnoses"]]
        text = str(run.report["diagnoses"]) + run.stderr
        name, *words = one.says or ("",)
        refused = name == "2"
        expected = [] if refused or not name else [name]
        if [each for each, _ in found] != expected or (run.code == 2) is not refused:
            wrong.append(f"{one.setup}: {run.code} {found} {run.stderr[-300:]}")
        elif not refused and not run.report["complete"]:
            wrong.append(f"{one.setup}: {[each for each in run.report['checks'] if each['outcome'] == 'unknown']}")
        missing = [each for each in words if each not in text and (name, each) not in found]
        wrong += [f"{one.setup}: {each!r} is not in {found}: {text[:1500]}" for each in missing]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("read", ["nccl-doctor check - <{file}", "bash -c 'nccl-doctor check <(cat {file})'"])
def test_the_line_to_start_with_starts_what_a_pipe_said(lab: Lab, read: str) -> None:
    """Once the pipe is gone, hosts, port, interpreter and the ranks that were counted are still known."""
    lab.controller.write(
        "/root/piped.yaml", lab.hosts_file(master_port=29777, env={"NCCL_DEBUG": "WARN"}, python=sys.executable)
    )
    checked = lab.controller.run(read.replace("check", "check --no-smoke", 1).format(file="piped.yaml"))
    (line,) = [
        one.partition(":")[2] for one in checked.stdout.splitlines() if one.startswith("To get the launch commands:")
    ]
    started = lab.controller.run(line).stdout
    assert f"NCCL_DEBUG=WARN {sys.executable} -m torch.distributed.run --nnodes=3 --node_rank=2" in started
    assert "--master_port=29777" in started


def test_the_all_reduce_on_machines_where_little_can_be_written(make_lab: MakeLab) -> None:
    rows = [row for row in machines.ROWS if row.setup in machines.LITTLE]
    lab = make_lab(len(rows) + 1)
    entries: list[dict[str, object]] = [{"name": "node1"}]
    for row, host in zip(rows, lab.hosts[1:], strict=True):
        row.make(lab, host)
        entries.append({"name": host.name, **deepcopy(row.entry)})
    timeouts = ("--timeout", str(LONG_S), "--smoke-timeout", str(LONG_S / 2))
    run = doctor(lab, "check", *timeouts, hosts=lab.hosts_file(hosts=entries, python=interpreter()))
    assert (set(run.names) - {"disk-full"}, run.code) == (set(), 0), run.stderr
    assert run.report["smoke"]["ok"]


def test_forty_hosts_of_which_ten_are_down(make_lab: MakeLab) -> None:
    """Half of them answer that nobody listens, half not at all: two findings, and the others are judged."""
    lab = make_lab(40)
    refusing, silent = lab.hosts[5:10], lab.hosts[20:25]
    for host in refusing:
        stop_sshd(host)
    for host in silent:
        lab.kill(host)
    run = doctor(lab, "check", "--no-smoke", "--connect-timeout", "4")
    found = [(one["name"], one["hosts"]) for one in run.report["diagnoses"]]
    expected = [("ssh-unreachable", [host.name for host in hosts]) for hosts in (refusing, silent)]
    assert (sorted(found, key=str), run.code) == (sorted(expected, key=str), 1)
    assert run.report["mesh"]["tested"] == 30 * 29
    assert run.report["mesh"]["failed"] == []


def test_killed_at_random_moments_it_leaves_nothing() -> None:
    assert [one for one in kills(3, seed=3, within_s=4.0) if one.left] == []


def test_the_table_is_long_and_what_it_names_is_there() -> None:
    own = [*(row.setup for rows, _ in GROUPS.values() for row in rows), *(one.setup for one in lists.LISTS)]
    setups = [*own, *(row.setup for row in SLOW), *(one.setup for one in standing.LINES)]
    assert len(setups) >= 80
    assert sorted({one for one in setups if setups.count(one) > 1}) == []
    for line in standing.LINES:
        file, _, test = line.test.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(), line


def _judged(make_lab: MakeLab, rows: Sequence[Row], *options: str, python: str = sys.executable) -> None:
    lab = make_lab(len(rows) + 2)
    lab.controller.write("/root/.ssh/config", "Include of/*\n", 0o600)
    wrong = judge(lab, rows, *options, python=python)
    assert not wrong, "\n\n".join(wrong)
