"""Asks the libnccl of the development requirements, on this machine's own loopback."""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor import probe
from nccl_doctor.probe.facts.libnccl import _ANSWER, address_in, spell, understand
from nccl_doctor.probe.facts.software import Interpreter
from nccl_doctor.probe.tools import Unavailable
from tests.patience import LONG_S, crowd

PACKAGE = "nvidia-nccl-cu13"
LIBRARY = str(importlib.metadata.distribution(PACKAGE).locate_file("nvidia/nccl/lib/libnccl.so.2"))
VERSION = importlib.metadata.version(PACKAGE)
OK = b"2.21.5\x0010.0.0.5\0"


@pytest.fixture(autouse=True)
def _none_of_our_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)


def ask(library: str, env: dict[str, str], seconds: float = LONG_S) -> dict[str, Any]:
    child = Interpreter(env, time.monotonic() + seconds)
    child.decide(library)
    answer = child.nccl()
    assert answer is not None
    return answer


def test_libnccl_tells_interface_and_address() -> None:
    answer = ask(LIBRARY, {"NCCL_SOCKET_IFNAME": "^docker"})
    assert answer == {"version": VERSION, "interface": "lo", "address": "127.0.0.1", "error": None}


def test_libnccls_own_words_where_it_finds_none() -> None:
    answer = ask(LIBRARY, {"NCCL_SOCKET_IFNAME": "=nosuch0"})
    assert answer["error"] == "Bootstrap : no socket interface found"
    assert (answer["version"], answer["interface"], answer["address"]) == (VERSION, None, None)


def test_with_comm_id_it_tells_the_local_address() -> None:
    answer = ask(LIBRARY, {"NCCL_COMM_ID": "127.0.0.77:29600"})
    assert (answer["interface"], answer["address"]) == ("lo", "127.0.0.1")


def test_the_users_debug_settings_neither_hide_the_answer_nor_leave_a_file(tmp_path: Path) -> None:
    log = tmp_path / "nccl.log"
    env = {"NCCL_DEBUG_FILE": str(log), "NCCL_DEBUG_SUBSYS": "COLL", "NCCL_SOCKET_IFNAME": "=lo"}
    assert ask(LIBRARY, env)["interface"] == "lo"
    assert not log.exists()


def test_a_library_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    text = tmp_path / "libnccl.so.2"
    text.write_text("no library")
    for path in (str(tmp_path / "missing.so"), str(text)):
        answer = ask(path, {})
        assert answer["version"] is None
        assert answer["error"].startswith("libnccl can't be loaded: ")


def test_the_deadline_ends_it(tmp_path: Path) -> None:
    """A library whose file never opens, as on a file server that is gone."""
    os.mkfifo(tmp_path / "libnccl.so.2")
    began = time.monotonic()
    answer = ask(str(tmp_path / "libnccl.so.2"), {}, 0.5)
    assert "gave no answer in time" in answer["error"]
    assert time.monotonic() - began < 2 * crowd()


@pytest.mark.parametrize(
    ("line", "interface", "address"),
    [
        ("Bootstrap : Using eth0:10.0.0.5<0>", "eth0", "10.0.0.5"),
        ("Bootstrap: Using eth0:10.0.0.5<0>", "eth0", "10.0.0.5"),
        ("Bootstrap : Using [0]eth0:10.0.0.5<0> [1]eth1:10.0.1.5<0>", "eth0", "10.0.0.5"),
        ("Bootstrap: Using eth0:1:10.0.0.5<0>", "eth0:1", "10.0.0.5"),
        ("Bootstrap: Using ib1:fe80::966d:ae03:b2:62c4%ib1<0>", "ib1", "fe80::966d:ae03:b2:62c4"),
    ],
)
def test_the_line_in_every_form(line: str, interface: str, address: str) -> None:
    output = f"host:1:1 [0] NCCL INFO {line}\n".encode() + _ANSWER + OK
    answer = understand(output)
    assert (answer["interface"], answer["address"]) == (interface, address)


def test_a_child_that_died_is_told_with_its_last_words() -> None:
    assert "Illegal instruction" in understand(b"noise\nIllegal instruction\n")["error"]
    assert "no output" in understand(b"")["error"]


def test_the_address_in_the_id_by_version() -> None:
    plain = socket.AF_INET.to_bytes(2, "little") + b"\x30\x39" + bytes([10, 0, 0, 5]) + bytes(120)
    six = (
        socket.AF_INET6.to_bytes(2, "little")
        + b"\x30\x39"
        + bytes(4)
        + socket.inet_pton(socket.AF_INET6, "2001:db8::5")
    )
    assert address_in(plain, 21505) == "10.0.0.5"
    assert address_in(bytes(range(8)) + plain, 21602) == "10.0.0.5"
    assert address_in(bytes(8) + six + bytes(92), 22809) == "2001:db8::5"
    assert address_in(bytes(128), 22809) is None


@pytest.mark.parametrize(("number", "text"), [(2708, "2.7.8"), (20806, "2.8.6"), (22809, "2.28.9"), (21201, "2.12.1")])
def test_versions_are_spelt_out(number: int, text: str) -> None:
    assert spell(number) == text


def test_it_also_runs_from_memory_as_on_a_host() -> None:
    folder = Path(probe.__file__).parent
    names = ("facts.libnccl", "facts.software", "children", "tools")
    sources = {"nccl_doctor.__init__": b"", "nccl_doctor.probe.__init__": b"", "nccl_doctor.probe.facts.__init__": b""}
    sources |= {f"nccl_doctor.probe.{name}": (folder / f"{name.replace('.', '/')}.py").read_bytes() for name in names}
    modules = {name: (zlib.compress(source), b"") for name, source in sources.items()}
    code = f"""{(folder / "bootstrap.py").read_text()}
import time
sys.meta_path.insert(0, MemoryImporter({modules!r}, False))
from nccl_doctor.probe.facts.software import Interpreter
from nccl_doctor.probe.tools import Unavailable
child = Interpreter({{"NCCL_SOCKET_IFNAME": "=lo"}}, time.monotonic() + 300)
child.decide({LIBRARY!r})
print(json.dumps(child.nccl()))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-"], input=code, capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout)["interface"] == "lo"


def test_where_no_process_can_be_started_only_its_answers_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    child = Interpreter({}, time.monotonic() + LONG_S)
    with pytest.raises(Unavailable, match=r"did not say where torch is: .*temporarily unavailable"):
        child.torch()
    child.decide(None)
    assert child.nccl() is None
