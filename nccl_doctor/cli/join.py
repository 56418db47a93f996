"""Runs ``check --join``, in which node 0 waits for the other nodes and checks all nodes."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from nccl_doctor.cli.options import JoinOptions
from nccl_doctor.cli.output import Out
from nccl_doctor.cli.run import Request, check_cluster
from nccl_doctor.crew.follow import JoinResult, Meets, follow, release
from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.inventory import joined, values
from nccl_doctor.inventory.build import Overrides, own_name, training_python
from nccl_doctor.inventory.joined import Arrival, JobPlace
from nccl_doctor.inventory.load import load
from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT, Cluster
from nccl_doctor.model.report import Report
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.text.secrets import hide_secrets
from nccl_doctor.text.shell import clean
from nccl_doctor.transport.joined.handshake import Introduction
from nccl_doctor.transport.joined.meeting import JoinedTransport, Meeting, listen


def check_joined(request: Request, options: JoinOptions, out: Out) -> int:
    """Take part in the check of a job's nodes, and return the exit code of node 0."""
    _refuse_other_hosts(request)
    request.chosen.codes()  # a wrong word is refused before anybody waits
    here = joined.place(os.environ, options.nnodes, options.node_rank, request.overrides.master_addr)
    job = JoinedJob(here, joined.token(os.environ, options.token_file), request.overrides, options.join_port)
    os.environ.pop(joined.TOKEN, None)  # no process that is started from here needs it
    say = _silent if out.quiet or not here.takes_part else _say

    def work(cluster: Cluster, transport: JoinedTransport) -> tuple[int, Report | None]:
        reports: list[Report] = []
        code = check_cluster(replace(request, known=cluster, connections=transport, on_report=reports.append), out)
        return code, reports[0] if reports else None

    if here.leads:
        return job.lead(options.join_timeout, work, say)[0]
    result = job.follow(options.join_timeout, say)
    if here.takes_part and not out.quiet:  # a document has one author, node 0
        stream = sys.stdout if out.form == "human" else sys.stderr
        stream.write(clean(out.hidden(result.words)) + "\n")
    return result.code


JoinedCheck = Callable[[Cluster, JoinedTransport], tuple[int, Report | None]]
"""A function that checks the nodes that joined and returns the exit code and, if available, the report."""


class JoinedJob:
    """A job in which every node runs ``check --join``.

    Args:
        here: the rank of this node, the number of nodes, and the master of the job.
        token: the secret that all nodes of the job share, which can be empty if all nodes are on this machine.
        overrides: settings of the job, including the interpreter that training uses on this node.
        port: the port on which node 0 waits for the other nodes.

    Raises UsageError if a token is needed but missing, or if ``port`` is the master port.
    """

    def __init__(self, here: JobPlace, token: bytes, overrides: Overrides, port: int) -> None:
        if not token and here.nodes > 1 and not is_loopback(here.master):
            raise UsageError(
                f"--join needs a token in {joined.TOKEN} or --token-file, which must be the same on all nodes (openssl "
                "rand -hex 16 generates a token)"
            )
        variable = SourceLocation("MASTER_PORT", is_file=False)
        text = os.environ.get("MASTER_PORT")
        self._master_port = overrides.master_port or (values.port(text, variable) if text else DEFAULT_MASTER_PORT)
        if self._master_port == port:
            raise UsageError(f"--join-port: {port} is the master port, which is also tested; choose a different port")
        self._here, self._token, self._port = here, token, port
        self._meets_at = "127.0.0.1" if here.nodes == 1 else here.master
        self._python = overrides.python or training_python(os.environ)[0]
        self._overrides = replace(overrides, python=None)  # each node has its own

    def follow(self, timeout_s: float, say: Callable[[str], None], *, wants_report: bool = False) -> JoinResult:
        """Join node 0 within ``timeout_s`` seconds, and take part in the check until node 0 has the result."""
        here = self._here
        who = Introduction(
            here.rank,
            here.nodes,
            own_name(),
            self._python,
            release(),
            waits=not here.takes_part,
            wants_report=wants_report,
            processes=here.processes,
            master_port=self._master_port,
        )
        at = Meets(self._meets_at, self._port, time.monotonic() + timeout_s)
        env = {name: value for name, _, value in (entry.partition("=") for entry in self._overrides.env)}
        return follow(who, self._token, at, env, say)

    def lead(self, timeout_s: float, work: JoinedCheck, say: Callable[[str], None]) -> tuple[int, Report | None]:
        """Wait up to ``timeout_s`` for the other nodes, check the nodes that joined, and send them the result."""
        here, until, code, report = self._here, time.monotonic() + timeout_s, 3, None
        address = "" if self._token and here.nodes > 1 else self._meets_at
        words = f"port {self._port} is in use, probably by another check with --join; waiting until it is free"
        listener = listen(address, self._port, until, lambda: say(words))
        meeting = Meeting(listener, self._token, here.nodes, release(), self._master_port)
        try:
            meeting.gather(until, lambda present: say(f"{present} of {plural(here.nodes, 'node')} joined"))
            cluster = self._cluster(meeting, say)
            where = partial(joined.output_of, environ=os.environ, hostname=socket.gethostname())
            code, report = work(cluster, JoinedTransport(meeting, timeout_s, where))
        except KeyboardInterrupt:
            code = 130
            raise
        except DoctorError as error:
            code = error.exit_code
            raise
        finally:
            for refused, count in meeting.refused.most_common(5):
                say(f"refused: {refused}{f' ({count} times)' if count > 1 else ''}")
            with suppress(KeyboardInterrupt):
                document = hide_secrets(report).model_dump_json(by_alias=True) if report is not None else ""
                processes = here.processes if report is not None else None
                meeting.end(code, _lines(report, code), _end(code), document, processes)
        return code, report

    def _cluster(self, meeting: Meeting, say: Callable[[str], None]) -> Cluster:
        here, others = self._here, sorted({**meeting.left, **meeting.members}.items())
        came = [
            Arrival(0, own_name(), here.master, self._python),
            *(Arrival(rank, member.who.host, member.address, member.who.python) for rank, member in others),
        ]
        if len(came) < here.nodes:
            say(f"{len(came)} of {plural(here.nodes, 'node')} joined; not {joined.missing(here, came)}")
        parsed = joined.arrived(here, came, self._port)
        return load(None, where=None, exclude=None, environ=os.environ, overrides=self._overrides, parsed=parsed)


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


def _lines(report: Report | None, code: int) -> dict[int, str]:
    """Return a line for each node, keyed by rank, with the node's own diagnoses and the exit code of the check."""
    lines = {}
    for rank, host in enumerate(report.hosts if report is not None else ()):
        names = [f"{item.name} ({item.code})" for item in report.diagnoses if host.name in item.hosts] if report else []
        lines[rank] = f"{host.name}: {', '.join(names) or 'no fault found here'}; {_end(code)}"
    return lines


def _end(code: int) -> str:
    return f"the check ended on node 0 with exit code {code}"
