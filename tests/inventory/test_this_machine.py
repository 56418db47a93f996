from __future__ import annotations

import socket
import sys
from pathlib import Path

import netifaces
import psutil
import pytest

from nccl_doctor.inventory.build import ThisMachine, canonical, own_addresses, own_name, this_machine, training_python

NODE1 = ThisMachine(frozenset({"node1", "node1.lan"}), frozenset({"10.0.0.1", "fd00::1"}))


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("localhost", "a loopback address is this machine"),
        ("127.0.1.1", "a loopback address is this machine"),
        ("0::1", "a loopback address is this machine"),
        ("10.0.0.1", "one of this machine's addresses"),
        ("FD00:0::1%eth0", "one of this machine's addresses"),
        ("Node1", "this machine's name"),
        ("node1.lan", "this machine's name"),
        ("node1.wan", None),
        ("10.0.0.2", None),
    ],
)
def test_which_host_is_this_machine(host: str, why: str | None) -> None:
    assert NODE1.answers_to(host) == why


def test_own_addresses_are_those_that_the_kernel_has() -> None:
    families = (socket.AF_INET, socket.AF_INET6)
    addresses = psutil.net_if_addrs().values()
    assert own_addresses() == {canonical(a.address) for each in addresses for a in each if a.family in families}


def test_an_interface_that_went_away_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netifaces, "interfaces", lambda: ["gone", "lo"])
    assert "127.0.0.1" in own_addresses()


def test_own_names_come_from_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Node1.lan")
    assert this_machine().names == {"node1", "node1.lan"}
    assert own_name() == "Node1"
    monkeypatch.setattr(socket, "gethostname", lambda: "-x")
    assert own_name() == "localhost"


def test_the_interpreter_that_training_here_would_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = (sys.executable, "default: the environment that nccl-doctor runs in")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert training_python({}) == ours
    assert training_python({"VIRTUAL_ENV": ""}) == ours
    assert training_python({"VIRTUAL_ENV": "/v"}) == training_python({"CONDA_PREFIX": "/c"}) == ("python3", "default")
    (tmp_path / "uv-receipt.toml").touch()
    assert training_python({}) == ("python3", "default")
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert training_python({}) == ("python3", "default")
