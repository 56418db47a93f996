"""Renders the output of ``fix-port``: the process that uses the port, and the commands that free the port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from rich.cells import cell_len, set_cell_size

from nccl_doctor.model.ports import HolderJob, PortReport, TcpSocket, age_words
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import WIDTH, cut, wrap
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import endpoint
from nccl_doctor.text.secrets import LEFT_OUT
from nccl_doctor.text.shell import Line, clean, line, pasteable, script, words

_OWNER = 36  # least width of a holder's command, left of its owner and age
_SOCKETS = 4
_HOLDERS = 2
_PIDS = 12

_CAUSES = {
    "listener": "is in use",
    "bound": "is in use by a socket that does not listen (ss -l does not show it)",
    "outbound": "is in use by a connection",
    "time-wait": "is still held by the kernel after a connection closed (TIME_WAIT)",
    "unknown": "can't be bound",
}
_STATES = {"LISTEN": "listening", "BOUND": "bound, not listening", "TIME_WAIT": "TIME_WAIT"}


def render(report: PortReport, options: RenderOptions) -> str:
    """Return the output, or "" if the port is free and ``--quiet`` is set."""
    return "" if options.quiet and report.free else screen(report)


def screen(report: PortReport, *, asking: bool = False) -> str:
    """Return the output regardless of ``--quiet``.

    If ``asking`` is true, the remedies are left out, because a confirmation prompt follows the output.
    """
    place = f"on this machine ({report.host})" if report.here else f"on {report.host}"
    if report.port is None:
        state = "is running" if not report.free else "has been ended" if report.ended else "is not there"
        blocks = [[f"pid {report.pid} {place} {state}"]]
    else:
        blocks = [[f"port {report.port} {place} {'is free' if report.free else _CAUSES[report.cause or 'unknown']}"]]
    if report.ended:
        blocks += [[f"  ended     {_pids(report.ended)}"]]
    if report.left:
        # if something was refused, perhaps no SIGKILL was sent
        why = "" if report.refused else ": SIGKILL can't end a process that waits in the kernel (a driver, NFS)"
        blocks += [[f"  left      {_pids(report.left)}{why}"]]
    blocks += [list(_job(job, report)) for job in report.jobs] or [list(_sockets(report.sockets))]
    blocks += [list(_notes(report))]
    if report.refused:
        lifted = _lifted(report) if report.refused in {job.refusal for job in report.jobs} else ""
        blocks += [wrap(f"{'Not all' if report.ended else 'Nothing'} was ended: {report.refused}.{lifted}")]
    if not asking:
        blocks += _remedies(report)
    return "\n\n".join("\n".join(clean(line) for line in block) for block in blocks if block) + "\n"


def confirmation(jobs: tuple[HolderJob, ...]) -> str:
    pids = [member.pid for job in jobs for member in job.members]
    what = "this process" if len(pids) == 1 else f"these {len(pids)} processes"
    return clean(f"End {what} ({_pids(pids)})? [y/N] ")


def _job(job: HolderJob, report: PortReport) -> Iterator[str]:
    for holder in job.holders[:_HOLDERS]:
        owner = clean(f"{holder.user}, started {age_words(holder.age_s)} ago")
        room = max(WIDTH - cell_len(owner) - 2, _OWNER)
        yield f"{set_cell_size(cut(f'  pid {holder.pid:<7} {clean(holder.command)}', room), room)}  {owner}"
    if len(job.holders) > _HOLDERS:
        yield f"  and {len(job.holders) - _HOLDERS} more, which inherited it"
    first = job.holders[0]
    if first.cwd:
        yield f"    folder    {first.cwd}"
    if first.parent and not job.orphan:
        yield cut(f"    parent    {first.ppid} {first.parent}")
    yield f"    job       {_format_job(job)}"
    if job.unit:
        yield f"    in        {job.unit}"
    if job.gpus:
        memory = (
            "memory in use" if m is None else f"{m * 2**20 / 1e9:.1f} GB" for m in (g.memory_mib for g in job.gpus)
        )
        each = (f"{'?' if use.gpu is None else use.gpu}: {words}" for use, words in zip(job.gpus, memory, strict=True))
        yield cut(f"    GPU       {', '.join(each)}")
    pids = {member.pid for member in job.members}
    yield from _sockets(sock for sock in report.sockets if sock.pid in pids)


def _sockets(sockets: Iterable[TcpSocket]) -> Iterator[str]:
    """Yield a line for each of the first few sockets.

    A socket that several processes share is listed once.
    """
    shown: dict[str, None] = {}
    for sock in sockets:
        to = sock.remote_address and sock.remote_port and f" to {endpoint(sock.remote_address, sock.remote_port)}"
        state = _STATES.get(sock.state, sock.state)
        shown[f"    socket    {endpoint(sock.local_address, sock.local_port)}{to or ''}, {state}"] = None
    yield from islice(shown, _SOCKETS)
    if len(shown) > _SOCKETS:
        yield f"              and {len(shown) - _SOCKETS} more"


def _format_job(job: HolderJob) -> str:
    launchers = [member for member in job.members if member.launcher]
    ranks = [member for member in job.members if member.rank and not member.launcher]
    others = len(job.members) - len(launchers) - len(ranks)
    parts = [member.launcher or "" for member in launchers]
    parts += [plural(len(ranks), "rank")] if ranks else []
    parts += [f"{others} {'other ' if parts else ''}process{'es' * (others > 1)}"] if others else []
    gone = ", orphaned: its launcher has exited" if job.orphan else ""
    return f"{' and '.join(parts)} ({_pids([member.pid for member in job.members])}){gone}"


def _notes(report: PortReport) -> Iterator[str]:
    if report.time_wait_s is not None and not report.free:
        yield f"    free in   {report.time_wait_s:.0f} s"
    if report.source:
        yield from wrap(report.source, WIDTH, "    from      ")
    if report.hint and not report.free:
        yield from wrap(report.hint, WIDTH, "    note      ")
    for row in report.elsewhere[:_SOCKETS]:
        where = f" ({row.unit})" if row.unit else ""
        yield from wrap(f"In another network namespace{where}, pid {row.pid} has this port: {row.command}. A job that "
                         "runs in there can't bind it. To look from inside:")  # fmt: skip
        sudo, sockets = script("" if report.root else "sudo"), _list_sockets(report.port)
        yield _command(line("{sudo} nsenter -t {pid} -n {sockets}", sudo=sudo, pid=row.pid, sockets=sockets))


def _pids(pids: list[int] | tuple[int, ...]) -> str:
    shown = " ".join(map(str, pids[:_PIDS]))
    return f"{shown} …" if len(pids) > _PIDS else shown


def _remedies(report: PortReport) -> Iterator[list[str]]:
    """Yield a block of lines for each remedy, such as ending the process, waiting, or using another port."""
    if report.free and report.drawn and not report.ended:
        yield from _lost_draw(report)
    if report.free or (report.port is None and report.ended):
        return
    call = words(["nccl-doctor", "fix-port", *report.arguments], {})
    # a line for each job, if all are proven leftovers; otherwise the reason, and no line
    refusal = next((job.refusal for job in report.jobs if job.refusal), None)
    if refusal is None and report.jobs:
        yield ["It is your own leftover process: its launcher has exited. End it:"]
        ends = []
        for job in report.jobs:
            # with its start time, so that no later process with the same PID is ended
            started = next(member.started for member in job.members if member.pid == job.root)
            ends.append(script("{call} --pid {pid}@{started} --kill", call=call, pid=job.root, started=started))
        yield list(map(_command, ends))
    elif refusal is not None and report.refused is None:
        yield wrap(f"Not ended: {refusal}.{_lifted(report)}")
    yield from _of_container(report)
    if report.error == "EADDRINUSE" and not report.jobs and report.cause != "time-wait":
        quiet = (
            " (ss lists sockets that do not listen since iproute2 6.8)" if report.cause in ("bound", "unknown") else ""
        )
        yield [f"To see the holder, as root{quiet}:"]
        yield [_command(_list_sockets(report.port))]
    if report.ends_by_itself:
        yield ["Wait for it:"]
        yield [_command(script("{call} --wait", call=call))]
    if report.cause == "outbound":
        kept = ",".join(filter(None, (report.reserved, str(report.port))))
        yield wrap(
            "If the port is outside net.ipv4.ip_local_port_range, the connection is usually an incoming one whose "
            "listener has been closed. If the port is inside, keep outgoing connections off it by reserving it (as "
            "root; in a .conf file in /etc/sysctl.d to make it permanent):"
        )
        yield [_command(line("sysctl -w net.ipv4.ip_local_reserved_ports={kept}", kept=kept))]
    if not report.ends_by_itself or report.cause == "time-wait":
        yield from _move_away(report)


def _of_container(report: PortReport) -> Iterator[list[str]]:
    """Yield instructions for finding the container that publishes the port, if there is such a container."""
    publisher = next((job.publisher for job in report.jobs if job.publisher), None)
    if publisher is not None:
        yield ["A container publishes it. To see which, then stop it or publish another port:"]
        filtered = line("docker ps --filter {publish}", publish=f"publish={report.port}")
        yield [_command(filtered if publisher == "docker-proxy" else script("podman ps"))]


def _lifted(report: PortReport) -> str:
    """Return a note that ``--force`` overrides the refusal to end a job, or "" if nothing overrides the refusal."""
    if any(job.final for job in report.jobs):
        return ""
    may_signal = report.root or all(holder.own for job in report.jobs for holder in job.holders)
    return " (--force ends it anyway.)" if may_signal else " (Only root can end it, with --force.)"


def _lost_draw(report: PortReport) -> Iterator[list[str]]:
    """Yield lines that explain why a port that is now free could not be bound earlier, and how to reserve the port."""
    yield wrap(
        "No process holds it now, but it is an ephemeral port: an engine that picks a free port and binds it later "
        "(vLLM, SGLang, verl, accelerate with port 0) may have lost it to another process or to an outgoing "
        "connection. Give each engine its own port below that range (vLLM: VLLM_PORT, --master-port; "
        "SGLang: --nccl-port, --dist-init-addr). To keep this port, reserve it (as root; in a .conf file in "
        "/etc/sysctl.d to make it permanent):"
    )
    kept = ",".join(filter(None, (report.reserved, str(report.port))))
    yield [_command(line("sysctl -w net.ipv4.ip_local_reserved_ports={kept}", kept=kept))]


def _list_sockets(port: int | None) -> Line | None:
    return None if port is None else line("ss -tanp 'sport = :{port}'", port=port)


def _move_away(report: PortReport) -> Iterator[list[str]]:
    suggestion = report.suggestion
    if suggestion is None or report.port is None:
        return
    hosts = [name for name in suggestion.hosts if name]
    where = f"all {len(hosts)} hosts" if len(hosts) > 1 else "".join(hosts) or "this machine"
    yield wrap(f"Or start on port {suggestion.port}, which is free on {where}:")
    yield from in_ephemeral_range(report)
    yield [suggestion.command]
    yield [*suggestion.starts, f"init_method=tcp://{endpoint(suggestion.master or report.host, suggestion.port)}"]


def in_ephemeral_range(report: PortReport) -> Iterator[list[str]]:
    """Yield the command that reserves the suggested port, if only ports in the ephemeral range were reachable."""
    suggestion = report.suggestion
    if suggestion is not None and suggestion.reserve is not None:
        yield wrap(
            f"Only ports in the ephemeral range were reachable, where outgoing connections may take {suggestion.port}. "
            f"Reserve it on {report.host} (as root; in a .conf file in /etc/sysctl.d to make it permanent):"
        )
        yield [suggestion.reserve]


def _command(made: Line | None) -> str:
    """Return the command line to show, or a note on why the command can't be pasted."""
    text = "" if made is None else made.text
    if LEFT_OUT in text:
        return "(it contains what looks like a secret; --show-secrets shows it)"
    return text if pasteable(text) else "(it contains characters that a terminal hides or interprets)"
