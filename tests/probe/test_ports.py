"""Run as a program (``--torch``), this file also asks the real torch for each state of a port: see the last test."""

from __future__ import annotations

import errno
import fcntl
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from nccl_doctor.probe import netlink, procs
from nccl_doctor.probe.netlink import DiagSocket
from nccl_doctor.probe.ports import requests as ports
from nccl_doctor.snapshot.network import PortTrial
from tests.patience import LONG_S

KERNEL = tuple(int(part) for part in os.uname().release.split(".")[:2])
BOUND = "bound" if KERNEL >= (6, 8) else "unknown"  # older kernels list such a socket nowhere


def server(keep: ExitStack, port: int, *, reuse: bool, address: str = "127.0.0.1") -> socket.socket:
    listener = keep.enter_context(socket.socket())
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    listener.bind((address, port))
    listener.listen()
    return listener


def bound(keep: ExitStack, port: int, *, reuse: bool) -> None:
    holder = keep.enter_context(socket.socket())
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
    holder.bind(("127.0.0.1", port))


def outbound(keep: ExitStack, port: int) -> None:
    listener = server(keep, 0, reuse=True)
    client = keep.enter_context(socket.create_connection(listener.getsockname(), source_address=("127.0.0.1", port)))
    assert client.getsockname()[1] == port


def accepted(keep: ExitStack, port: int, *, reuse: bool) -> None:
    listener = server(keep, port, reuse=reuse)
    keep.enter_context(socket.create_connection(("127.0.0.1", port)))
    keep.enter_context(listener.accept()[0])
    listener.close()


def time_wait(keep: ExitStack, port: int, *, reuse: bool) -> None:
    listener = server(keep, port, reuse=reuse)
    with socket.create_connection(("127.0.0.1", port)) as client:
        listener.accept()[0].close()
        assert client.recv(1) == b""
    listener.close()
    deadline = time.monotonic() + LONG_S
    while [one.state for one in netlink.sockets_on(port)] != ["TIME_WAIT"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def only_ipv6(keep: ExitStack, port: int) -> None:
    listener = keep.enter_context(socket.socket(socket.AF_INET6))
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(("::", port))
    listener.listen()


class State(NamedTuple):
    """How a port is made to look, and what is then to be said of it."""

    make: Callable[[ExitStack, int], object]
    cause: str | None


STATES = {
    "nothing": State(lambda _keep, _port: None, None),
    "listener": State(lambda keep, port: server(keep, port, reuse=True), "listener"),
    "listener on another address": State(lambda k, p: server(k, p, reuse=True, address="127.0.0.2"), "listener"),
    "listener on IPv6 alone": State(only_ipv6, None),
    "bound": State(lambda keep, port: bound(keep, port, reuse=False), BOUND),
    "bound with SO_REUSEADDR": State(lambda keep, port: bound(keep, port, reuse=True), None),
    "source of a connection": State(outbound, "outbound"),
    "accepted, listener gone": State(lambda keep, port: accepted(keep, port, reuse=True), None),
    "accepted without SO_REUSEADDR": State(lambda keep, port: accepted(keep, port, reuse=False), "outbound"),
    "TIME_WAIT with SO_REUSEADDR": State(lambda keep, port: time_wait(keep, port, reuse=True), None),
    "TIME_WAIT without": State(lambda keep, port: time_wait(keep, port, reuse=False), "time-wait"),
}


def untouched(port: int) -> bool:
    """Whether nothing at all is on a port; without SO_REUSEADDR even a TIME_WAIT of an earlier test counts."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with socket.socket(family) as plain:
            try:
                plain.bind((address, port))
            except OSError:
                return False
    return True


@contextmanager
def port_in(state: str) -> Iterator[int]:
    """A port outside the ephemeral range, in that state; in TIME_WAIT it stays for a minute."""
    port = next(port for port in range(21000 + os.getpid() % 8000, 32000) if untouched(port))
    with ExitStack() as keep:
        STATES[state].make(keep, port)
        yield port


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_port_is_tried_and_explained(state: str) -> None:
    with port_in(state) as port:
        trial = PortTrial.model_validate(ports.try_port(port))
    assert (trial.free, trial.cause) == (STATES[state].cause is None, STATES[state].cause)
    assert trial.error == (None if trial.free else "EADDRINUSE")
    if trial.cause in ("listener", "bound", "outbound"):
        holder = next(process for process in trial.holders if process.pid == os.getpid())
        assert holder.own
        assert holder.ppid == os.getppid()
        assert 0 <= holder.age_s < 24 * 3600
        assert {(one.local_port, one.pid) for one in trial.sockets} == {(port, os.getpid())}
    if trial.cause == "time-wait":
        assert trial.time_wait_s is not None
        assert 0 < trial.time_wait_s <= 60
        assert trial.holders == ()


def test_a_socket_that_is_only_bound_has_its_own_state() -> None:
    with port_in("bound") as port:
        trial = PortTrial.model_validate(ports.try_port(port))
        if BOUND == "bound":
            assert [(one.state, one.local_address) for one in trial.sockets] == [("BOUND", "127.0.0.1")]
        else:
            assert str(os.getpid()) in (trial.hint or "")


def test_older_kernels_leave_a_hint_at_who_may_hold_a_bound_port(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = netlink.sockets_on

    def without_bound(port: int) -> list[DiagSocket]:
        return [one for one in complete(port) if one.state != "BOUND"]

    monkeypatch.setattr(netlink, "sockets_on", without_bound)
    with port_in("bound") as port:
        trial = ports.try_port(port)
    assert trial["cause"] == "unknown"
    assert trial["holders"] == []
    assert f"{os.getpid()}" in trial["hint"]


def test_every_process_that_inherited_the_socket_is_a_holder() -> None:
    with ExitStack() as keep:
        listener = server(keep, 0, reuse=True)
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[listener.fileno()])
        try:
            trial = ports.try_port(listener.getsockname()[1])
        finally:
            child.communicate(timeout=LONG_S)
    assert {process["pid"] for process in trial["holders"]} >= {os.getpid(), child.pid}


@pytest.mark.parametrize("state", ["listener", "source of a connection", "TIME_WAIT without"])
def test_without_sock_diag_proc_explains(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with port_in(state) as port:
        monkeypatch.setattr(netlink, "sockets_on", no_sock_diag)
        trial = PortTrial.model_validate(ports.try_port(port))
    assert trial.cause == STATES[state].cause
    if trial.cause == "time-wait":
        assert 0 < (trial.time_wait_s or 0) <= 60
    else:
        assert os.getpid() in {process.pid for process in trial.holders}


def test_without_any_table_the_trial_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netlink, "sockets_on", no_sock_diag)
    monkeypatch.setattr(netlink, "read_table", lambda: no_sock_diag(0))
    with port_in("listener") as port:
        trial = PortTrial.model_validate(ports.try_port(port))
    assert (trial.free, trial.cause) == (False, "unknown")
    assert trial.hint == "no process that this user can see has it; root can see all"


def test_the_holder_is_named() -> None:
    with port_in("listener") as port:
        trial = ports.try_port(port)
    assert (trial["cause"], [holder["pid"] for holder in trial["holders"]]) == ("listener", [os.getpid()])


def test_a_privileged_port_is_told_by_its_error() -> None:
    # root keeps everything but the right to low ports, so that the test needs no other user
    lesser = ["setpriv", "--inh-caps=-all", "--bounding-set=-net_bind_service"] if os.getuid() == 0 else []
    code = "import json; from nccl_doctor.probe.ports.requests import try_port; print(json.dumps(try_port(81)))"
    done = subprocess.run([*lesser, sys.executable, "-c", code], capture_output=True, text=True, check=True)
    trial = PortTrial.model_validate(json.loads(done.stdout))
    assert (trial.free, trial.error, trial.cause) == (False, "EACCES", "unknown")
    assert "1024" in (trial.hint or "")


def test_an_error_that_is_no_conflict_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "bind_error", lambda _port: errno.EMFILE)
    assert ports.try_port(29500)["error"] == "EMFILE"


def diag(state: str, inode: int = 7) -> DiagSocket:
    return DiagSocket(state, "127.0.0.1", 29500, "0.0.0.0", 0, inode, 0, None)


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        ([], "unknown"),
        ([diag("LISTEN"), diag("ESTABLISHED"), diag("TIME_WAIT", 0)], "listener"),
        ([diag("ESTABLISHED"), diag("BOUND")], "outbound"),
        ([diag("FIN_WAIT2")], "outbound"),
        ([diag("FIN_WAIT2", 0), diag("LAST_ACK", 0)], "time-wait"),
        ([diag("BOUND"), diag("TIME_WAIT", 0)], "bound"),
    ],
)
def test_what_blocks_most_surely_is_the_cause(found: list[DiagSocket], cause: str) -> None:
    assert ports.cause_of(found) == cause


def test_a_hint_says_whose_socket_it_is_where_the_process_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "pids_by_inode", lambda _inodes: ({}, True))
    hints = []
    with port_in("listener") as port:
        for uid in (1000, 0):
            monkeypatch.setattr(os, "getuid", lambda uid=uid: uid)
            trial = ports.try_port(port)
            assert trial["sockets"][0]["pid"] is None
            hints.append(trial["hint"])
    assert "that only root may look at" in hints[0]
    assert "look outside this container" in hints[1]


def no_sock_diag(_port: int) -> list[DiagSocket]:
    raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")


@pytest.mark.lab
def test_the_trial_agrees_with_torch_in_every_state() -> None:
    flags = "-n" if os.getuid() == 0 else "-rn"
    shell = 'ip link set lo up && exec "$0" "$1" --torch'
    done = subprocess.run(
        ["unshare", flags, "sh", "-c", shell, sys.executable, __file__],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    expected = {state: how.cause is None for state, how in STATES.items()}
    assert {state: answer["torch"] for state, answer in said.items()} == expected
    assert {state: answer["ours"] for state, answer in said.items()} == expected


def ask_torch() -> dict[str, dict[str, bool]]:
    """For each state, whether our trial and whether torch would get the port."""
    # by name: torch's own annotations leave TCPStore out
    distributed = importlib.import_module("torch.distributed")
    said = {}
    for state in STATES:
        with port_in(state) as port:
            ours = ports.try_port(port)["free"]
            refusal = None
            try:
                distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
            except distributed.DistNetworkError as error:
                refusal = str(error)
            assert refusal is None or "EADDRINUSE" in refusal
            said[state] = {"ours": ours, "torch": refusal is None}
    return said


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(ask_torch()) + "\n")


def test_a_holder_is_found_before_thousands_of_other_files_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user's process can have many files, and its socket behind all of them."""
    monkeypatch.setattr(procs, "FEW_FILES", 64)
    with socket.create_server(("127.0.0.1", 0)) as server:
        inode = os.fstat(server.fileno()).st_ino
        assert procs.pids_by_inode({inode}, 0)[0] == {inode: [os.getpid()]}
        high = fcntl.fcntl(server.fileno(), fcntl.F_DUPFD_CLOEXEC, 900)
        files = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
        server.close()
        assert procs.pids_by_inode({inode}, 0) == ({}, False)
        assert procs.pids_by_inode({inode}) == ({inode: [os.getpid()]}, True)
    for number in (high, *files):
        os.close(number)
