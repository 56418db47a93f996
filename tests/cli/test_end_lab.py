"""Whatever ends the controller, nothing of ours stays on any host: no process, no file, no shared memory, no port."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest

from tests.cli.doctor import doctor, files, ours
from tests.cli.injected import inject
from tests.cli.program import Started, start_in
from tests.cli.smoking import all_reduce_processes, with_env
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import fault
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import crowd

pytestmark = pytest.mark.lab

PHASES = ("connecting", "dialling", "all-reduce")
PAUSE = "/run/pause"
"""On node1; its rank waits for the end of this file before the first all-reduce."""


@pytest.fixture
def fresh_lab(make_lab: MakeLab) -> Lab:
    """Two hosts for one test: each more is looked at as these are."""
    return make_lab(2)


def start_and_wait_for(lab: Lab, phase: str, *options: str, python: str | None = None) -> Started:
    """A check that has come to a phase and stays there: a host is cut off for the dials, a rank waits before the sum."""
    first = lab.host("node1")
    first.write(PAUSE, "")
    hosts = with_env(lab, "node1", inject(first, "pause", "group"))
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(python=python or interpreter(), hosts=hosts))
    process = start_in(lab.controller, "check", "hosts.yaml", *options)
    for line in process.stderr:
        if line.startswith(phase):
            break
    for host in lab.hosts if phase == "all-reduce" else ():
        host.wait_until(lambda host=host: len(all_reduce_processes(host)) > 1, "its rank")  # type: ignore[misc]
    return process


def assert_clean(lab: Lab, before: dict[str, set[str]], patience_s: float) -> None:
    def left(host: LabHost) -> tuple[list[tuple[int, str]], set[int]]:
        """Processes, and listeners: one that dies loses its command line before its sockets."""
        return ours(host), {port for _, port in host.listeners()} - {22}

    deadline = time.monotonic() + patience_s * crowd()
    while time.monotonic() < deadline and any(any(left(host)) for host in lab.hosts):
        time.sleep(0.05)
    assert {host.name: left(host) for host in lab.hosts} == {host.name: ([], set()) for host in lab.hosts}
    assert {host.name: files(host) - before[host.name] for host in lab.hosts} == {h.name: set() for h in lab.hosts}


@pytest.mark.parametrize("phase", PHASES)
def test_kill_9_of_the_controller_leaves_nothing_after_five_seconds(fresh_lab: Lab, phase: str) -> None:
    if phase == "dialling":
        fault("cut-off")(fresh_lab, fresh_lab.host("node2"))  # so that the dials last
    before = {host.name: files(host) for host in fresh_lab.hosts}
    process = start_and_wait_for(fresh_lab, phase, python=sys.executable)
    with process:
        if phase == "all-reduce":
            assert any(ours(host) for host in fresh_lab.hosts), "nothing ran yet, so this test shows nothing"
        process.kill()
    assert_clean(fresh_lab, before, 5)


def test_kill_9_leaves_nothing_of_the_ssh_program_here_either(fresh_lab: Lab) -> None:
    before = {host.name: files(host) for host in (*fresh_lab.hosts, fresh_lab.controller)}
    with start_and_wait_for(fresh_lab, "all-reduce", "--transport", "openssh") as process:
        process.kill()
    assert_clean(fresh_lab, before, 5)
    left = files(fresh_lab.controller) - before["ctl"]
    assert left == {"/root/hosts.yaml"}


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_at_once_with_130_and_leaves_nothing(fresh_lab: Lab, phase: str) -> None:
    if phase == "dialling":
        fault("cut-off")(fresh_lab, fresh_lab.host("node2"))
    before = {host.name: files(host) for host in fresh_lab.hosts}
    process = start_and_wait_for(fresh_lab, phase)
    with process:
        began = time.monotonic()
        process.signal(signal.SIGINT)
        assert process.wait() == 130
        assert time.monotonic() - began < 3 * crowd()
    assert_clean(fresh_lab, before, 1)


def test_a_whole_run_leaves_nothing(fresh_lab: Lab) -> None:
    before = {host.name: files(host) for host in fresh_lab.hosts}
    assert doctor(fresh_lab, "check", hosts=fresh_lab.hosts_file(python=interpreter())).code == 0
    assert_clean(fresh_lab, before, 1)


@pytest.mark.parametrize("phase", PHASES)
def test_a_closed_terminal_leaves_nothing(fresh_lab: Lab, phase: str) -> None:
    """SIGHUP, as when the laptop's window goes; a second signal on its heels changes nothing."""
    if phase == "dialling":
        fault("cut-off")(fresh_lab, fresh_lab.host("node2"))
    before = {host.name: files(host) for host in fresh_lab.hosts}
    with start_and_wait_for(fresh_lab, phase) as process:
        process.signal(signal.SIGHUP)
        process.signal(signal.SIGTERM)
        assert process.wait() not in (0, 1, 3), "a run that was ended has no verdict"
    assert_clean(fresh_lab, before, 5)


@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_twice_leaves_nothing_either(fresh_lab: Lab, phase: str) -> None:
    if phase == "dialling":
        fault("cut-off")(fresh_lab, fresh_lab.host("node2"))
    before = {host.name: files(host) for host in fresh_lab.hosts}
    with start_and_wait_for(fresh_lab, phase) as process:
        process.signal(signal.SIGINT)
        time.sleep(0.1)
        process.signal(signal.SIGINT)
        assert process.wait() in (130, -signal.SIGINT)
    assert_clean(fresh_lab, before, 5)


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_that_was_suspended_accuses_nobody(fresh_lab: Lab, phase: str) -> None:
    """Ctrl-Z, or a laptop asleep: the hosts let go of us within ten seconds, and then it goes on."""
    cut = phase == "dialling"
    if cut:
        fault("cut-off")(fresh_lab, fresh_lab.host("node2"))  # so that the dials last
    before = {host.name: files(host) for host in fresh_lab.hosts}
    options = ["--connect-timeout", "2", "-o", "json", "--output-file", "report.json"]
    options += ["--no-smoke"] if phase == "connecting" else []
    with start_and_wait_for(fresh_lab, phase, *options) as process:
        began = time.monotonic()
        process.signal(signal.SIGSTOP)
        assert_clean(fresh_lab, before, 10)
        time.sleep(max(0.0, 9 - (time.monotonic() - began)))
        fresh_lab.host("node1").run(["rm", PAUSE])
        process.signal(signal.SIGCONT)
        code = process.wait()
    report = json.loads(fresh_lab.controller.read("/root/report.json"))
    expected = (["port-unreachable"], 1) if cut else ([], 0)
    assert ([one["name"] for one in report["diagnoses"]], code) == expected, report["diagnoses"]
    assert_clean(fresh_lab, before, 5)


@pytest.mark.parametrize(
    ("killed", "transport"), [("ssh", "openssh"), ("probe", "auto"), ("sshd", "auto"), ("sshd", "openssh")]
)
def test_what_is_killed_under_a_run_is_named_and_leaves_nothing(fresh_lab: Lab, killed: str, transport: str) -> None:
    """The ssh program here, the probe there, the session's sshd there: node2's alone."""
    node, before = fresh_lab.host("node2"), {host.name: files(host) for host in fresh_lab.hosts}
    options = ["--transport", transport, "-o", "json", "--output-file", "report.json"]
    with start_and_wait_for(fresh_lab, "all-reduce", *options) as process:
        where, mark = {
            "ssh": (fresh_lab.controller, "-- node2 echo"),
            "probe": (node, "zlib.decompress"),
            "sshd": (node, "sshd: root@notty"),
        }[killed]
        (pid,) = [pid for pid, line in where.processes() if mark in line and not line.startswith(("bash -c", "sh -c"))]
        where.run(["kill", "-9", str(pid)])
        assert process.wait() == 1
    report = json.loads(fresh_lab.controller.read("/root/report.json"))
    assert [one["hosts"] for one in report["diagnoses"]] == [["node2"]], report["diagnoses"]
    assert_clean(fresh_lab, before, 10)


def test_after_a_pulled_link_nothing_runs_on(fresh_lab: Lab) -> None:
    """The interface of node2 is down in the midst of an all-reduce: neither end of the connection is told."""
    node, before = fresh_lab.host("node2"), {host.name: files(host) for host in fresh_lab.hosts}
    options = ["-o", "json", "--output-file", "report.json", "--smoke-timeout", "20"]
    with start_and_wait_for(fresh_lab, "all-reduce", *options) as process:
        assert ours(node), "nothing ran yet, so this test shows nothing"
        node.run(["ip", "link", "set", "eth0", "down"])
        deadline = time.monotonic() + 10 * crowd()
        while ours(node) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert ours(node) == []
        assert process.wait() == 1
    report = json.loads(fresh_lab.controller.read("/root/report.json"))
    assert [one["hosts"] for one in report["diagnoses"]] == [["node2"]], report["diagnoses"]
    assert_clean(fresh_lab, before, 10)
