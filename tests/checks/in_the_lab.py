"""What tests of checks on the lab's hosts share: one run with settings, and what it prints, put in the hosts file."""

from __future__ import annotations

import shlex
from typing import Any

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab

Env = dict[str, dict[str, str]]
"""Variables by host."""

ALL = ["node1", "node2", "node3"]


def everywhere(**settings: str) -> Env:
    """The same settings on all hosts."""
    return {name: dict(settings) for name in ALL}


def check(lab: Lab, env: Env | None = None, *, by_address: bool = False, **change: Any) -> Run:
    """A preflight without the all-reduce, each host with its ``env`` in the hosts file; ``change`` are keys of that."""
    hosts = [
        {
            "name": host.name,
            **({"address": host.address} if by_address else {}),
            "env": dict((env or {}).get(host.name, {})),
        }
        for host in lab.hosts
    ]
    return doctor(lab, "check", "--no-smoke", hosts=lab.hosts_file(hosts=hosts, **change))


def is_healthy(run: Run) -> None:
    """Nothing was found, and nothing was left unjudged."""
    assert (run.names, run.code) == ([], 0), run.report["diagnoses"] or run.stderr


def only(run: Run, name: str, hosts: list[str]) -> dict[str, Any]:
    """The one diagnosis of a run, which bears this name and these hosts."""
    assert run.names == [name], run.report["diagnoses"] or run.stderr
    assert run.first["hosts"] == hosts, run.first
    return run.first


def paste(lab: Lab, diagnosis: dict[str, Any]) -> None:
    """Pastes the lines of a diagnosis where they belong; there is at least one."""
    assert diagnosis["fix"]["commands"]
    for command in diagnosis["fix"]["commands"]:
        (lab.host(command["host"]) if command["host"] else lab.controller).run(command["command"])


def printed(diagnosis: dict[str, Any], env: Env) -> Env:
    """The settings with the printed exports over them; there is at least one."""
    after = {host: dict(settings) for host, settings in env.items()}
    assert diagnosis["fix"]["commands"]
    for command in diagnosis["fix"]["commands"]:
        word, setting = shlex.split(command["command"])
        assert word == "export"
        variable, _, value = setting.partition("=")
        after.setdefault(command["host"], {})[variable] = value
    return after


def fires_and_what_is_printed_ends_it(
    lab: Lab, name: str, hosts: list[str], env: Env | None = None, *, by_address: bool = False
) -> dict[str, Any]:
    """One diagnosis, gone once its exports stand in the hosts file."""
    found = only(check(lab, env, by_address=by_address), name, hosts)
    is_healthy(check(lab, printed(found, env or {}), by_address=by_address))
    return found
