"""Runs ``check --join``: node 0 waits for the other nodes and checks them all; the others take part until the end."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace

from nccl_doctor.cli.options import JoinOptions
from nccl_doctor.cli.output import Out
from nccl_doctor.cli.run import Request, check_cluster
from nccl_doctor.crew.follow import follow, release
from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import joined
from nccl_doctor.inventory.build import own_name, training_python
from nccl_doctor.inventory.joined import Arrival, Place
from nccl_doctor.inventory.load import load
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT
from nccl_doctor.model.report import Report
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.text.shell import clean
from nccl_doctor.transport.joined.handshake import Introduction
from nccl_doctor.transport.joined.meeting import JoinedTransport, Meeting, listen


def check_joined(request: Request, options: JoinOptions, out: Out) -> int:
    """Take part in the check of a job's nodes, and return the exit code of node 0."""
    _refuse_other_hosts(request)
    here = joined.place(os.environ, options.nnodes, options.node_rank, request.overrides.master_addr)
    token = joined.token(os.environ, options.token_file)
    os.environ.pop(joined.TOKEN, None)  # no process that is started from here needs it
    if not token and here.nodes > 1 and not is_loopback(here.master):
        raise UsageError(
            f"--join needs a secret that all nodes share: {joined.TOKEN} in the environment, or --token-file (made "
            "with openssl rand -hex 16)"
        )
    master_port = str(request.overrides.master_port or os.environ.get("MASTER_PORT") or DEFAULT_MASTER_PORT)
    if master_port == str(options.join_port):
        raise UsageError(f"--join-port: {master_port} is the master port, which is to be tested; give another one")
    until = time.monotonic() + options.join_timeout
    python = request.overrides.python or training_python(os.environ)[0]
    if here.rank == 0 and here.takes_part:
        return _lead(request, here, token, python, until, options, out)
    who = Introduction(here.rank, here.nodes, own_name(), python, release(), waits=not here.takes_part)
    quiet = out.quiet or not here.takes_part
    result = follow(who, token, (here.master, options.join_port), until, _say if not quiet else _silent)
    if here.takes_part and not out.quiet:
        sys.stdout.write(clean(out.hidden(result.words)) + "\n")
    return result.code


def _refuse_other_hosts(request: Request) -> None:
    which = request.which
    other = {
        "a hosts file": which.hosts,
        "-w": which.where,
        "-x": which.exclude,
        "--from": request.load_from,
        "--kube, --slurm-job and containers": which.engine,
        "--user and --port": request.overrides.user or request.overrides.port,
        "--inside": request.overrides.inside,
    }
    if named := [what for what, value in other.items() if value]:
        raise UsageError(f"--join checks the nodes that run it: leave out {', '.join(named)}")


def _say(words: str) -> None:
    sys.stderr.write(clean(words) + "\n")
    sys.stderr.flush()


def _silent(_words: str) -> None:
    """Print nothing."""


def _lead(
    request: Request, here: Place, token: bytes, python: str, until: float, options: JoinOptions, out: Out
) -> int:
    say = _silent if out.quiet else _say
    address = "" if token else here.master
    port = options.join_port
    listener = listen(
        address if token or is_loopback(here.master) else "127.0.0.1",
        port,
        until,
        lambda: say(f"port {port} is in use, probably by another check with --join: waiting for it"),
    )
    meeting, code, found = Meeting(listener, token, here.nodes, release()), 3, list[Report]()
    try:
        meeting.gather(until, lambda present: say(f"{present} of {plural(here.nodes, 'node')} joined"))
        own = Arrival(0, own_name(), here.master, python)
        others = [
            Arrival(rank, one.who.host, one.address, one.who.python) for rank, one in sorted(meeting.members.items())
        ]
        came = [own, *others]
        if len(came) < here.nodes:
            say(f"{len(came)} of {plural(here.nodes, 'node')} joined; not {joined.missing(here, came)}")
        parsed = joined.arrived(here, came, port)
        given = replace(request.overrides, python=None)  # each node has its own
        cluster = load(None, where=None, exclude=None, environ=os.environ, overrides=given, parsed=parsed)
        transport = JoinedTransport(meeting, options.join_timeout)
        code = check_cluster(replace(request, known=cluster, connections=transport, on_report=found.append), out)
    except KeyboardInterrupt:
        code = 130
        raise
    finally:
        for words, count in meeting.refused.most_common(5):
            say(f"refused: {words}{f' ({count} times)' if count > 1 else ''}")
        with suppress(KeyboardInterrupt):
            meeting.end(code, _lines(found, code), _end(code))
    return code


def _lines(found: list[Report], code: int) -> dict[int, str]:
    """Return the line of each node by its rank: its own diagnoses, or the end of the check."""
    lines = {}
    for report in found:
        for rank, host in enumerate(report.hosts):
            own = [f"{one.name} ({one.code})" for one in report.diagnoses if host.name in one.hosts]
            lines[rank] = f"{host.name}: {', '.join(own) or 'no fault found here'}; {_end(code)}"
    return lines


def _end(code: int) -> str:
    return f"the check ended on node 0 with exit code {code}"
