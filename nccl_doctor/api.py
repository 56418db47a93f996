"""The public functions of nccl-doctor.

All other functions might change in any release.

The public functions print nothing. A :class:`~nccl_doctor.model.report.Report` has the fields of the JSON document
(``nccl-doctor explain json``). An invalid argument raises :class:`~nccl_doctor.errors.DoctorError`, whose message is
one sentence.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from nccl_doctor.cli.join import JoinedJob
from nccl_doctor.cli.options import HostOptions, ReachOptions, SelectOptions, among
from nccl_doctor.cli.output import Out, exit_code
from nccl_doctor.cli.run import Request, look_and_judge
from nccl_doctor.collect.smoke.plan import SmokeLimits
from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import joined, values
from nccl_doctor.inventory.build import Overrides
from nccl_doctor.inventory.sources import SourceLocation
from nccl_doctor.logs.run import LogsRun
from nccl_doctor.model.cluster import DEFAULT_MASTER_PORT, Cluster
from nccl_doctor.model.finding import Severity
from nccl_doctor.model.report import Report
from nccl_doctor.transport.joined.meeting import JoinedTransport

LogReport = Report
"""The report of :func:`read_log`, which has the same form as the report of :func:`check`."""
_OUT = Out("check", quiet=True)
AGENT = "TORCHELASTIC_RUN_ID"
"""Environment variable that torchrun sets for its workers.

The torchrun agent on node 0 listens on the master port.
"""


class PreflightError(RuntimeError):
    """The preflight found a fault; ``report`` is the full report, and the message names the first fault."""

    def __init__(self, report: Report) -> None:
        self.report = report
        grave = (item for item in report.diagnoses if item.severity is Severity.ERROR)
        words = next((f"{item.name} ({item.code}): {item.message} {item.fix.summary}" for item in grave), "an error")
        super().__init__(words)


def check(  # noqa: PLR0913 - each is an option of the command
    hosts: str | os.PathLike[str] | Sequence[str] | None = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    smoke: bool = True,
    sudo: bool = False,
    python: str | None = None,
    timeout_s: float | None = None,
) -> Report:
    """Check hosts and return the report.

    Args:
        hosts: path of a hosts file, or a list of host names; None means the current Slurm job or this machine.
        only: codes, names, or categories of the checks to run; an empty sequence selects all checks.
        skip: codes, names, or categories of the checks to skip.
        smoke: whether to run the all-reduce test.
        sudo: whether to read firewall rules with ``sudo -n``.
        python: Python interpreter that training uses on every host.
        timeout_s: time limit for the whole run in seconds.
    """
    names = None if hosts is None or isinstance(hosts, str | os.PathLike) else list(hosts)
    path = None if hosts is None or names is not None else os.fspath(hosts)  # type: ignore[arg-type]  # names are lists
    request = Request(
        which=HostOptions(where=names, hosts=path),
        chosen=SelectOptions(only=list(only), skip=list(skip)),
        timeout_s=timeout_s,
        reached=ReachOptions(),
        overrides=Overrides(python=python),
        sudo=sudo,
        smoke=smoke,
        smoke_limits=SmokeLimits(budget_s=1.0, plateau=True),
        isolate=True,
    )
    return _judged(request)


def _judged(request: Request) -> Report:
    result = look_and_judge(request, request.chosen.codes(), _OUT)
    if result.interrupted:
        raise KeyboardInterrupt
    return result.report


def read_log(*paths: str | os.PathLike[str], only: Sequence[str] = (), skip: Sequence[str] = ()) -> LogReport:
    """Diagnose the training and NCCL logs of one job in files and directories, as ``nccl-doctor logs`` does."""
    began = time.monotonic()
    session = LogsRun(tuple(os.fspath(path) for path in paths), None, follow=False)
    session.begin()
    from nccl_doctor.logs.verdict import report  # while other processes read

    verdict = session.read()
    made = report(verdict, time.monotonic() - began, among(SelectOptions(list(only), list(skip)).codes()))
    session.drain()
    return made


def preflight(
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    port: int = 29499,
    timeout_s: float = 300.0,
    smoke: bool = True,
    python: str | None = None,
) -> Report:
    """Check all nodes of the current job before training starts, and return the same report in every rank.

    Call this function at the top of a training script, before CUDA or ``torch.distributed`` is initialized. One process
    of each node takes part in the check, and the other processes wait. The node ranks come from the launcher's
    environment variables, as with ``check --join``.

    Args:
        token: secret that all nodes of the job share; by default, the secret in ``token_file`` or ``NCDOCTOR_TOKEN``.
        token_file: path of a file that contains the token.
        port: port on which node 0 waits for the other nodes.
        timeout_s: time in seconds within which all nodes must join.
        smoke: whether to run the all-reduce test.
        python: Python interpreter that training uses on this node; by default, the current interpreter.

    Raises:
        PreflightError: the check found an error on at least one node.
        DoctorError: an argument is invalid, or this process could not take part in the check.

    If some checks could not be completed, the report is returned with ``report.complete`` set to False.
    """
    here = joined.place(os.environ)
    file = None if token_file is None else Path(token_file)
    secret = joined.token({joined.TOKEN: token} if token is not None else os.environ, file)
    port = values.port(str(port), SourceLocation("port", is_file=False))
    # torchrun's nodes have met at the master port already, and its agent still listens there
    other = next(value for value in range(port + 1, port + 3) if value != _number("MASTER_PORT", DEFAULT_MASTER_PORT))
    by_agent = bool(os.environ.get(AGENT))
    overrides = Overrides(
        python=python or sys.executable,
        master_port=other if by_agent else None,
        nproc_per_node=_number("LOCAL_WORLD_SIZE", 0) or None,
    )
    job = JoinedJob(here, secret, overrides, port)

    def work(cluster: Cluster, transport: JoinedTransport) -> tuple[int, Report]:
        limits = SmokeLimits(budget_s=1.0, plateau=True)
        # the launcher's own variables are right, also where the port that is tested is another one
        chosen = SelectOptions(skip=["job-variable-conflict"] if by_agent else None)
        request = Request(
            HostOptions(), chosen, smoke=smoke, smoke_limits=limits, isolate=True, known=cluster, connections=transport
        )
        report = _judged(request)
        return exit_code(report, "error"), report

    if here.leads:
        code, final_report = job.lead(timeout_s, work, lambda _words: None)
    else:
        result = job.follow(timeout_s, lambda _words: None, wants_report=True)
        code, final_report = result.code, _report(result.report)
    if final_report is None:
        raise DoctorError(f"the preflight ended on node 0 with exit code {code}, without a report")
    if code == 1:
        raise PreflightError(final_report)
    return final_report


def _report(document: str) -> Report | None:
    try:
        return Report.model_validate_json(document) if document else None
    except ValidationError as error:
        raise DoctorError("node 0 sent what is no report") from error


def _number(variable: str, otherwise: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise
