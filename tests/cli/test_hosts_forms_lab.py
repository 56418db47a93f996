"""Every form of HOSTS with every command that takes hosts: the same hosts, or the same sentence about what is wrong."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import run
from tests.lab.cluster import Lab
from tests.lab.warm import interpreter

NAMES = "node1,node2"
FORMS = {
    "a hosts file": "{} hosts.yaml {}",
    "a pipe": "cat hosts.yaml | {} - {}",
    "a process substitution": "{} <(cat hosts.yaml) {}",
    "names": f"{{}} -w {NAMES} {{}}",
    "an MPI hostfile": "{} hostfile {}",
    "an inventory": "{} inventory.ini {}",
}
COMMANDS = {
    "check": ("--no-smoke -v", 0),
    "fix": ("--no-smoke --dry-run", 0),
    "smoke": ("--max-bytes 1024", 0),
    "hang": ("--no-stacks", 3),  # no job is running
    "ifname": ("-o json", 0),
    "hosts": ("-o json", 0),
    "launch": ("-- train.py", 0),
    "fix-port": ("", 0),
}
WRONG = {
    "a file that is missing": ("nosuch.yaml", "nosuch.yaml: no such file"),
    "a folder": (".", ".: is a directory; a hosts file is a plain file"),
    "a device": ("/dev/null", "/dev/null: is a device or socket; a hosts file is a plain file"),
    "a program": ("/bin/true", "/bin/true:1: a NUL byte: not a UTF-8 text file"),
}


@pytest.fixture(scope="module")
def two() -> Iterator[Lab]:
    with Lab.up(2) as lab:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        lab.controller.write("/root/hostfile", "node1 slots=1\nnode2 slots=1\n")
        lab.controller.write("/root/inventory.ini", "[train]\nnode1\nnode2\n")
        yield lab


@pytest.mark.lab
@pytest.mark.parametrize("command", COMMANDS)
def test_every_form_names_the_same_hosts(two: Lab, command: str) -> None:
    options, code = COMMANDS[command]
    for form, line in FORMS.items():
        takes_python = command != "fix-port" and "hosts.yaml" not in line
        python = f"--python {shlex.quote(interpreter())}" if takes_python else ""
        words = f"nccl-doctor {command}"
        if command == "fix-port" and "-w" not in line:
            words += " --hosts"
        named = line.replace(NAMES, "node1") if command == "fix-port" else line  # it looks at one host
        script = named.format(words, f"{python} {options}".strip())
        done = two.controller.run(f"cd /root && bash -c {shlex.quote(script)}", check=False)
        assert (form, done.returncode) == (form, code), done.stderr
        if command == "hang":
            assert "No running job was found" in done.stdout, form
        elif command == "fix-port":
            assert "port 29500 on node1 is free" in done.stdout, form
        elif command == "fix":
            assert "There is no command to run" in done.stdout, form
        else:
            assert "node1" in done.stdout, form
            assert "node2" in done.stdout or "2 hosts" in done.stdout, form


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_the_same_of_a_wrong_hosts_file(tmp_path: Path, command: str) -> None:
    for name, sentence in WRONG.values():
        words = [command, *(["--hosts"] if command == "fix-port" else []), name]
        done = run(*words, *(["--", "train.py"] if command == "launch" else []), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines()[-1] == sentence
