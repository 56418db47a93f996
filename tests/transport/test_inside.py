"""Getting into containers: the words that keep us out, and the line that gets us in."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.containers import InsideOptions, Runtime
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.containers.transport import ContainerEntry, InsideTransport, enter_line, failure
from nccl_doctor.transport.process import LocalTransport
from tests.patience import LONG_S, crowd

# what the programs say: podman 4.3 with crun 1.8, docker 20.10 and util-linux 2.38 as seen; nerdctl and apptainer were not run
SAID: list[tuple[Runtime, int, str, str, str]] = [
    ("docker", 1, "Error response from daemon: No such container: x", "missing", "the Docker container \"x\" does not exist (running containers: a and b)"),
    ("docker", 1, "Error: No such container: x", "missing", "the Docker container \"x\" does not exist (running containers: a and b)"),
    ("podman", 125, 'Error: no container with name or ID "x" found: no such container', "missing", "the Podman container \"x\" does not exist (running containers: a and b)"),
    ("nerdctl", 1, 'time="2026-01-01T00:00:00Z" level=fatal msg="no such container: x"', "missing", "the nerdctl container \"x\" does not exist (running containers: a and b)"),
    ("apptainer", 255, "FATAL:   no instance found with name x", "missing", "the Apptainer instance \"x\" does not exist (running containers: a and b)"),
    ("enter", 1, "/proc/7/: No such file or directory", "missing", "no process x is running on the host"),
    ("docker", 1, "Error response from daemon: container 5f2c8a6e9d01 is not running", "stopped", "the Docker container \"x\" is not running (running containers: a and b)"),
    ("docker", 1, "Error response from daemon: Container 5f2c is restarting, wait until the container is running", "stopped", "the Docker container \"x\" is not running (running containers: a and b)"),
    ("podman", 255, "Error: can only create exec sessions on running containers: container state improper", "stopped", "the Podman container \"x\" is not running (running containers: a and b)"),
    ("docker", 1, "Error response from daemon: Container x is paused, unpause the container before exec", "paused", "the Docker container \"x\" is paused"),
    ("docker", 1, "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: dial unix: connect: permission denied", "forbidden", "the user who logs in may not use docker, and said"),
    ("nerdctl", 1, 'level=fatal msg="rootless containerd not running? (hint: use `containerd-rootless-setuptool.sh install`)"', "no-daemon", "nerdctl has no service that answers, and said"),
    ("enter", 1, "/proc/1/: Permission denied", "forbidden", "the user who logs in may not enter the namespaces of process x"),
    ("enter", 1, "/proc/1/: Operation not permitted", "forbidden", "the user who logs in may not enter the namespaces of process x"),
    ("docker", 1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", "no-daemon", "docker has no service that answers, and said"),
    ("docker", 126, 'OCI runtime exec failed: exec failed: unable to start container process: exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown', "no-shell", "the Docker container \"x\" has no /bin/sh"),
    ("podman", 127, "Error: crun: executable file `/bin/sh` not found in $PATH: No such file or directory: OCI runtime attempted to invoke a command that was not found", "no-shell", "the Podman container \"x\" has no /bin/sh"),
    ("enter", 127, "/bin/sh: No such file or directory", "no-shell", "the namespaces of process x has no /bin/sh"),
    ("docker", 137, "the words of a release to come", "failed", 'docker did not get into the Docker container \"x\": it ended with status 137, and said "the words of'),
]  # fmt: skip


@pytest.mark.parametrize(("runtime", "status", "said", "problem", "detail"), SAID)
def test_why_a_container_was_not_entered(runtime: Runtime, status: int, said: str, problem: str, detail: str) -> None:
    found = failure(ContainerEntry(InsideOptions(runtime=runtime, name="x"), [said], status, ["a", "b"]))
    assert found.facts.model_extra == {"problem": problem, "runtime": runtime, "name": "x"}
    assert found.detail.startswith(detail)
    assert found.evidence == (said,)
    assert found.remedy
    assert "{" not in found.remedy


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh", "busybox sh"])
def test_a_runtime_that_is_not_there_and_a_hostile_python_in_every_shell(shell: str) -> None:
    """The line goes through the login shell of the host unharmed; where the program is missing, that is said."""
    program, *words = shell.split()
    assert shutil.which(program), f"the tests need {program}"
    options = InsideOptions(runtime="nerdctl", name="x")
    environment = {"PATH": "/nowhere", "HOME": "/nowhere"}
    line = enter_line(options, "echo 'hello $HOME' \"$HOME\"; exec /bin/echo '~/a b'")
    argv = [shutil.which(program) or "", *words, "-c"]
    absent = subprocess.run([*argv, line], env=environment, capture_output=True, text=True, check=False)
    said = (absent.stdout + absent.stderr).splitlines()
    assert failure(ContainerEntry(options, said, absent.returncode)).detail == "there is no program nerdctl"
    through = "exec /usr/bin/env -- " + line.removeprefix("exec nerdctl exec -i x ")
    done = subprocess.run([*argv, through], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "hello $HOME /nowhere\n~/a b\n"


def test_names_of_the_host_are_cut() -> None:
    options = InsideOptions(runtime="docker", name="x")
    names = [f"c{number}" for number in range(20)]
    found = failure(ContainerEntry(options, ["No such container: x"], 1, names))
    assert found.detail.endswith("running containers: c0, c1, c2, c3, c4, c5, c6, c7 and 12 more)")
    assert failure(ContainerEntry(options, ["No such container: x"], 1, [])).detail.endswith(
        " (the user who logs in has no running containers)"
    )


def test_the_line_quotes_once_more() -> None:
    line = enter_line(InsideOptions(runtime="docker", name="train"), "exec '/opt/my py' -c \"print('x')\"")
    assert shlex.split(line) == [
        "exec",
        "docker",
        "exec",
        "-i",
        "train",
        "/bin/sh",
        "-c",
        "exec '/opt/my py' -c \"print('x')\"",
    ]


def test_what_a_runtime_says_while_it_stops_a_container_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words are of all kinds in that moment; the ones that follow are known."""
    told = tmp_path / "told"
    program = tmp_path / "podman"
    program.write_text(
        f"#!/bin/sh\n[ $1 = exec ] || exit 1\nif [ ! -e {told} ]; then : > {told}; echo strange >&2; exit 137; fi\n"
        "echo 'Error: can only create exec sessions on running containers: container state improper' >&2; exit 255\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    access = {"inside": {"runtime": "podman", "name": "train"}}
    node = Node.model_validate({"name": "x", "address": "x", "node_rank": 0, "access": access})
    with pytest.raises(AccessError) as caught:
        InsideTransport(LocalTransport()).open(node, "true", time.monotonic() + LONG_S)
    assert caught.value.failure.detail == 'the Podman container "train" is not running'


@pytest.mark.parametrize("seconds", [1.9, LONG_S], ids=["soon-over", "then-silent"])
def test_the_first_words_are_told_where_a_later_try_does_not_explain_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """The runtime takes half a second for strange words, and is silent when it is asked again."""
    told = tmp_path / "told"
    program = tmp_path / "podman"
    program.write_text(
        f"#!/bin/sh\n[ ! -e {told} ] || exec sleep 600\n: > {told}; sleep 0.5; echo strange >&2; exit 137\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    access = {"inside": {"runtime": "podman", "name": "train"}}
    node = Node.model_validate({"name": "x", "address": "x", "node_rank": 0, "access": access})
    now = time.monotonic()
    with pytest.raises(AccessError) as caught:
        InsideTransport(LocalTransport()).open(node, "true", now + min(LONG_S, seconds * crowd()), now + 5 * crowd())
    assert caught.value.failure.detail.endswith('it ended with status 137, and said "strange"')
