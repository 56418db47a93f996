"""A line of the table of odd hosts, and how a whole group of lines is judged by one run of the tool.

Each odd host stands beside healthy ones in one lab: the first, which is the master, and the last. Plain ``ssh`` is
tried first; then the tool is run once, and what it says of each host is compared with its line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from tests.cli.doctor import Run, doctor
from tests.lab.cluster import Lab
from tests.lab.host import LabHost
from tests.patience import LONG_S

Make = Callable[[Lab, LabHost], None]

PLAIN_S = 5
"""For plain ssh, where it hangs."""
HUNG = 124
"""The exit status of timeout(1)."""

PASSWORD = {"SSH_ASKPASS": "/root/askpass", "SSH_ASKPASS_REQUIRE": "force"}
"""What types the password that a pasted command asks for."""

READY: tuple[str, ...] = ()
"""Nothing is said of the host."""


def nothing(_lab: Lab, _host: LabHost) -> None:
    """The set-up is what the line's entry in the hosts file says."""


@dataclass(frozen=True)
class Row:
    """One odd host.

    Attributes:
        setup: what is odd, in words.
        says: :data:`READY`, or the name of the one diagnosis and words that stand in it.
        make: makes the host so.
        ssh: the exit status of ``ssh HOST true``, and words that it prints.
        entry: what the hosts file says of the host besides its name.
        mended: its commands, pasted, mend it.
        unknown: a check that has no verdict because of it, and words of its reason.
    """

    setup: str
    says: tuple[str, ...]
    make: Make = nothing
    ssh: tuple[int, str] = (0, "")
    entry: Mapping[str, Any] = field(default_factory=dict)
    mended: bool = False
    unknown: tuple[str, str] | None = None


def judge(lab: Lab, rows: Sequence[Row], *options: str, python: str) -> list[str]:
    """Makes the hosts, runs ssh and then the tool with this interpreter; what is not as the table has it, a line each."""
    healthy = [lab.hosts[0], lab.hosts[-1]]
    odd = dict(zip((host.name for host in lab.hosts[1:-1]), rows, strict=True))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: odd[name].make(lab, lab.host(name)), odd))
    wrong = plain_ssh(lab, odd)
    entries = [{"name": host.name, **deepcopy(odd[host.name].entry if host.name in odd else {})} for host in lab.hosts]
    run = doctor(lab, "check", "--no-smoke", *options, hosts=lab.hosts_file(hosts=entries, python=python))
    assert run.code != 2, run.stderr
    for name, row in odd.items():
        wrong += [f"{row.setup} ({name}): {what}" for what in differences(run, name, row)]
    wrong += [f"healthy {host.name}: {what}" for host in healthy for what in differences(run, host.name, WELL)]
    mended = [name for name, row in odd.items() if row.mended]
    if mended:
        them = [one for one in entries if one["name"] in (*mended, *(host.name for host in healthy))]
        wrong += _pasted(lab, mended, run)
        again = doctor(lab, "check", "--no-smoke", *options, hosts=lab.hosts_file(hosts=them, python=python))
        for name in mended:
            wrong += [f"{odd[name].setup} ({name}), mended: {what}" for what in differences(again, name, WELL)]
    return wrong


WELL = Row("healthy", READY)


def plain_ssh(lab: Lab, odd: Mapping[str, Row]) -> list[str]:
    """``ssh HOST true`` to all of them at once, and where it did other than the table says.

    A kernel that is busy may answer ARP too late: "No route to host", of which no line tells, is tried a second time.
    """
    lines = []
    for name, row in odd.items():
        ssh: Mapping[str, Any] = row.entry.get("ssh", {})
        patience = str(PLAIN_S if row.ssh[0] == HUNG else round(LONG_S))
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={patience}"]
        options += ["-p", str(ssh["port"])] if "port" in ssh else []
        options += ["-i", ssh["identity_file"], "-o", "IdentitiesOnly=yes"] if "identity_file" in ssh else []
        target = row.entry.get("address", name)
        login = f"{ssh['user']}@{target}" if "user" in ssh else target
        command = shlex.join(["timeout", patience, "ssh", "-n", *options, login, "true"])
        tried = f"{command} >/tmp/plain-{name} 2>&1; echo $? >/tmp/status-{name}"
        lines.append(f"( {tried}; if grep -q 'No route to host' /tmp/plain-{name}; then {tried}; fi ) &")
    shown = "printf '%s\\n' \"$(cat /tmp/status-$name) $(tr -cd ' -~' </tmp/plain-$name | tail -c 1000)\""
    lines += ["wait", f"for name in {shlex.join(odd)}; do {shown}; done"]
    answers = lab.controller.run("\n".join(lines)).stdout.splitlines()
    wrong = []
    for (name, row), (number, _, said) in zip(odd.items(), (one.partition(" ") for one in answers), strict=True):
        status = int(number)
        if status != row.ssh[0] or row.ssh[1] not in said:
            wrong.append(f"{row.setup} ({name}): plain ssh ended with {status}: {said[-500:]!r}")
    return wrong


def differences(run: Run, name: str, row: Row) -> list[str]:
    """What the report says of a host other than its line."""
    of_host = [one for one in run.report["diagnoses"] if name in one["hosts"]]
    unknown = [
        f"{one['name']}: {one['reason']}"
        for one in run.report["checks"]
        if one["outcome"] in ("unknown", "crash") and re.search(rf"\b{name}\b", one["reason"] or "")
    ]
    found = [one["name"] for one in of_host]
    if found != list(row.says[:1]):
        return [f"said {[(one['name'], one['message'], one['evidence']) for one in of_host]}; {unknown}"]
    text = " ".join(str(of_host)) if not of_host else _text(of_host[0])
    wrong = [f"{words!r} is not in: {text}" for words in row.says[1:] if words not in text]
    if row.unknown is None:
        return wrong + [f"without a verdict: {one}" for one in unknown]
    check, words = row.unknown
    return wrong + ([] if any(check in one and words in one for one in unknown) else [f"{row.unknown}: {unknown}"])


def _text(diagnosis: dict[str, Any]) -> str:
    fix = diagnosis["fix"]
    lines = [command["command"] for command in fix["commands"]]
    return "\n".join([diagnosis["message"], *diagnosis["evidence"], fix["summary"], *lines])


def _pasted(lab: Lab, mended: Sequence[str], run: Run) -> list[str]:
    """Pastes the commands of the lines that they are to mend; which have none."""
    of_mended = [one for one in run.report["diagnoses"] if set(mended) & set(one["hosts"])]
    wrong = [f"{one['hosts']}: no command" for one in of_mended if not one["fix"]["commands"]]
    for command in (command for one in of_mended for command in one["fix"]["commands"]):
        host = lab.controller if command["host"] is None else lab.host(command["host"])
        host.run(command["command"], env=PASSWORD)
    return wrong
