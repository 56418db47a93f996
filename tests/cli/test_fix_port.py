"""fix-port's own command line, on this machine and without a lab."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import run_on

DOCTOR = str(Path(sys.executable).parent / "nccl-doctor")


def fix_port(*words: str, text: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return run_on(text, "fix-port", *words, cwd=Path.cwd(), **env)


@pytest.fixture
def held() -> Iterator[int]:
    """A port that the test's own process holds."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_hosts_file_may_stand_alone_or_behind_the_port(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("master_prot: 29500\nhosts: [node1]\n")
    for words in ((), ("29500",)):
        done = fix_port(*words, str(tmp_path / "hosts.yaml"), "--next")
        assert (done.returncode, 'unknown key "master_prot"' in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("0",), 'PORT: "0" is not a valid port'),
        (("65536",), 'PORT: "65536" is not a valid port'),
        (("many",), 'PORT: "many" is not a valid port'),
        (("",), 'PORT: "" is not a valid port'),
        (("--log", ""), "can't be read"),
        (("--host", "a b"), '--host: "a b" is not a host name'),
        (("--log", "/nowhere/x.log"), "/nowhere/x.log: can't be read"),
        (("--write",), "--write, which writes the port to the hosts file, requires --next and --hosts FILE"),
        (("--next", "--kill"), "--next chooses another port"),
        (("-o", "junit"), "fix-port prints human or json"),
        (("--hosts", "/nowhere/hosts.yaml"), "/nowhere/hosts.yaml: no such file"),
        (("29500", "/nowhere/hosts.yaml"), "/nowhere/hosts.yaml: no such file"),
        (("29500", "/nowhere/hosts.yaml", "--hosts", "a.yaml"), "are both hosts files; give one of them"),
        (("-w", "a b"), '--host: "a b" is not a host name'),
    ],
)
def test_wrong_usage_is_one_sentence_and_2(words: tuple[str, ...], says: str) -> None:
    done = fix_port(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_wrong_port_is_json_too() -> None:
    done = fix_port("99999", "-o", "json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["command"] == "fix-port"


def test_a_log_names_the_port(held: int, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"[W] The server socket has failed to bind to [::]:{held} (errno: 98 - Address already in use).\n")
    done = fix_port("--log", str(log), "-o", "json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["port"], document["cause"]) == (1, held, "listener")
    assert document["holders"][0]["pid"] == os.getpid()


@pytest.mark.parametrize("words", [(), ("-",), ("--log", "-")])
def test_an_error_without_a_port_on_stdin_means_master_port(held: int, words: tuple[str, ...]) -> None:
    done = fix_port(*words, "-o", "json", text="RuntimeError: Address already in use\n", MASTER_PORT=str(held))
    assert (done.returncode, json.loads(done.stdout)["port"]) == (1, held)
    shown = fix_port(*words, text="RuntimeError: Address already in use\n", MASTER_PORT=str(held)).stdout
    assert "stdin has no port in it; MASTER_PORT" in shown


def test_a_log_without_a_port_asks_for_it(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: Address already in use\n")
    done = fix_port("--log", str(log))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{log} has no port in it; give it: nccl-doctor fix-port PORT")


def test_nccls_own_bind_is_told_to_be_something_else() -> None:
    done = fix_port("-", text="n:1:2 [0] misc/socket.cc:1 NCCL WARN Call to bind failed : Address already in use\n")
    assert done.returncode == 2
    assert "NCCL's own bind" in done.stderr
    assert "ip_local_port_range" in done.stderr


def test_a_log_of_something_else_is_said() -> None:
    assert 'no "Address already in use" in it' in fix_port("-", text="loss 0.3\n").stderr


def test_a_foreign_pipe_and_no_port_is_torchs_default() -> None:
    done = fix_port("-o", "json", text="loss 0.3\n")
    assert json.loads(done.stdout)["port"] == 29500


def test_next_is_a_number_for_scripts(held: int) -> None:
    done = fix_port(str(held), "--next")
    assert done.returncode == 0
    told = json.loads(fix_port(str(held), "--next", "-o", "json").stdout)
    assert (told["host"], told["port"]) == (socket.gethostname(), int(done.stdout))
    with socket.socket() as trial:
        trial.bind(("", int(done.stdout)))


def test_quiet_says_nothing_of_a_free_port(held: int) -> None:
    port = fix_port(str(held), "--next").stdout.strip()
    assert (fix_port(port, "-q").stdout, fix_port(port).returncode) == ("", 0)


def test_a_process_that_is_not_there_is_no_error() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    done = fix_port("--pid", str(gone.pid), "--kill", "--yes")
    assert (done.returncode, "is not there" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--host", "node[1-3]"), "--host node[1-3] names 3 hosts; name one"),
        (("--hosts", "hosts.yaml", "--host", "node9"), "--host node9 is not a host of hosts.yaml"),
    ],
)
def test_a_host_has_to_be_one_of_the_file(
    words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.yaml").write_text("hosts: [node1, node2]\n")
    done = fix_port(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{says}\n")
