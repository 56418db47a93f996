"""What to do about a port that is held, as lines to paste."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.ports import HolderJob, PortReport
from nccl_doctor.report.cells import wrap
from nccl_doctor.report.safe import pasteable
from nccl_doctor.text.inet import endpoint
from nccl_doctor.text.secrets import LEFT_OUT
from nccl_doctor.text.shell import Line, line, script, words


def ways_out(report: PortReport) -> Iterator[list[str]]:
    """A block of lines for each: to end what holds the port, to look, to wait, to keep it free, another port."""
    if report.free or (report.port is None and report.ended):
        return
    call = words(["nccl-doctor", "fix-port", *report.arguments], {})
    yield from _end_it(report, call)
    if report.error == "EADDRINUSE" and not report.jobs and report.cause != "time-wait":
        yield ["To see who it is, as root:"]
        yield [command(sockets_of(report.port))]
    if report.cause == "time-wait":
        yield ["Wait for it:"]
        yield [command(script("{call} --wait", call=call))]
    if report.cause == "outbound":
        kept = ",".join(filter(None, (report.reserved, str(report.port))))
        yield [
            *wrap("So that no outgoing connection takes it again, reserve it (as root, and in /etc/sysctl.d to last):")
        ]
        yield [command(line("sysctl -w net.ipv4.ip_local_reserved_ports={kept}", kept=kept))]
    yield from _move_away(report)


def sockets_of(port: int | None) -> Line | None:
    """The line that shows a port's sockets and who has them."""
    return None if port is None else line("ss -tanp 'sport = :{port}'", port=port)


def _end_it(report: PortReport, call: list[Line]) -> Iterator[list[str]]:
    """A line to paste for each job, where all are shown to be leftovers; else why not, and no line."""
    refusal = next((job.refusal for job in report.jobs if job.refusal), None)
    if refusal is None and report.jobs:
        yield ["It is your own and nothing watches over it. End it:"]
        yield [command(script("{call} --pid {job} --kill", call=call, job=_identity(job))) for job in report.jobs]
    elif refusal is not None and report.refused is None:
        lifted = "" if any(job.final for job in report.jobs) else " (--force ends it all the same.)"
        yield [*wrap(f"It will not be ended: {refusal}.{lifted}")]


def _identity(job: HolderJob) -> Line:
    """The job's root as the command takes it, so that no other process that has got its PID since is ended."""
    started = next(member.started for member in job.members if member.pid == job.root)
    return script("{pid}@{started}", pid=job.root, started=started)


def _move_away(report: PortReport) -> Iterator[list[str]]:
    found = report.suggestion
    if found is None or report.port is None:
        return
    hosts = [name for name in found.hosts if name]
    where = f"all {len(hosts)} hosts" if len(hosts) > 1 else "".join(hosts) or "this machine"
    yield [*wrap(f"Or start on port {found.port}, which is free on {where}:")]
    yield [found.command]
    yield [
        f"torchrun --master_port {found.port} …",
        f"python -m torch.distributed.launch --master_port {found.port} …",
        f"init_method=tcp://{endpoint(found.master or report.host, found.port)}",
    ]


def command(made: Line | None) -> str:
    """A line as it is shown, or why it can't be pasted."""
    text = "" if made is None else made.text
    if LEFT_OUT in text:
        return "(a word in it looks like a secret; --show-secrets shows the line)"
    return text if pasteable(text) else "(a name in it holds characters that a terminal hides or obeys)"
