"""The master port is already in use on the master.

What it means: rank 0 can't open torch's TCPStore and exits with "Address already in use" (EADDRINUSE). The other ranks
wait for rank 0 until they time out.

How we know: on the master, nccl-doctor tried to bind the master port with SO_REUSEADDR and to listen on it, as torch's
TCPStore does. If the attempt fails, the kernel's socket tables show the cause:

- `listener`: a process, such as a stale rank, a second job or another service, listens on the port, at one address or
  at all addresses.
- `bound`: a process has bound the port but does not listen, so `ss -l` does not show the socket.
- `outbound`: a connection uses the port. If `ip_local_port_range` contains the master port, the kernel might have
  assigned the port to an outgoing connection. Otherwise, the connection is usually an incoming one, whose process has
  closed the listening socket.
- `time-wait`: a connection of a program that does not set SO_REUSEADDR ended less than a minute ago. TIME_WAIT sockets
  of torch's own connections do not prevent torch from binding the port, so they are not reported.

Fix: `nccl-doctor fix-port` shows which process occupies the port and which job this process belongs to. If the job that
occupies the port is yours, has no launcher and makes no progress, `nccl-doctor fix-port --kill` ends this job.
`nccl-doctor fix-port --hosts hosts.yaml --next --write` finds another port and writes it into the hosts file. If an
outgoing connection uses the port (`outbound`) and the kernel assigned the port, add the port to the
`net.ipv4.ip_local_reserved_ports` sysctl. If only a closed connection occupies the port (`time-wait`), wait until the
port is free (`nccl-doctor fix-port --wait`).

References: ip(7) and socket(7) on SO_REUSEADDR; torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp.
"""

import re
from collections.abc import Iterator
from pathlib import PurePath

from nccl_doctor.checks.ports.port_in_ephemeral_range import reserving
from nccl_doctor.checks.view import Findings, View, check, endable, ending, fix_port
from nccl_doctor.firewall.route_lookup import DEFAULT_RANGE
from nccl_doctor.logs.rule import likely, root, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.base import known
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.effect import DIALS, GIVING_UP, Effect, Reach
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.model.ports import age_words
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.network import PortRange, PortTrial
from nccl_doctor.text.hostlist import capital
from nccl_doctor.text.shell import line

MEANS = {
    "listener": "a process is listening on it",
    "bound": "a process has bound the port but is not listening on it",
    "outbound": "a connection uses it",
    "time-wait": "a connection has just closed, and the kernel still holds the port (TIME_WAIT)",
    "unknown": "it is held by a process that the job's user can't see",
}

TAKEN = Effect(
    ("port-in-use", "no-store", "no-group", *DIALS, *GIVING_UP, "world-size-mismatch"),
    Reach.ALL,
    "rank 0 can't open torch's TCPStore, so other ranks wait for the store or connect to another program",
)


@check(
    "NCD304",
    phrase="master port is busy",
    severity=Severity.ERROR,
    needs=("master_port",),
    explains=("stale-process", "gpu-in-use", TAKEN),
    scope="master",
    in_logs=("master-addr-not-local",),
    row="processes",
    row_suffices=True,
    errors=("EADDRINUSE",),
)
def port_in_use(view: View) -> Findings:
    """If torch could not bind the master port because the port is busy, yield a finding that shows the reason."""
    for host, facts in view.facts:
        trial = known(facts.master_port)
        if trial.free or trial.error == "EACCES":
            continue
        cause = trial.cause or "unknown"
        means = "an outgoing connection uses it" if _is_outgoing(host, trial) else MEANS[cause]
        yield Finding(
            hosts=(host.name,),
            message=f"Port {trial.port} on {host.name} is busy: "
            f"{'a container publishes it' if _published(trial) else means}.",
            evidence=tuple(_evidence(trial)),
            facts={"port": trial.port, "cause": cause, "holders": [holder.model_dump() for holder in trial.holders]},
            details=Details(pids=tuple(holder.pid for holder in trial.holders)),
            fix=_stop_container(host, trial) if _published(trial) else _fix(view.snapshot.cluster, host, trial),
        )


def _evidence(trial: PortTrial) -> Iterator[str]:
    yield f"bind to port {trial.port} as torch's TCPStore does: {trial.error}"
    for holder in trial.holders:
        left = ", orphaned" if holder.orphan else ""
        yield f"pid {holder.pid} of {holder.user}, started {age_words(holder.age_s)} ago{left}: {holder.command}"
    for sock in trial.sockets[:4]:
        remote = f" to {sock.remote_address}:{sock.remote_port}" if sock.remote_port else ""
        yield f"socket {sock.local_address}:{sock.local_port}{remote}, {sock.state}"
    if trial.time_wait_s is not None:
        yield f"free again in {trial.time_wait_s:.0f} s"
    if trial.hint:
        yield trial.hint


def _port_range(host: Host) -> PortRange | None:
    ports = host.facts.port_range if host.facts is not None else None
    return ports if isinstance(ports, PortRange) else None


def _is_outgoing(host: Host, trial: PortTrial) -> bool:
    """Return whether a connection uses the port, and the kernel can assign the port to outgoing connections."""
    ports = _port_range(host)
    return trial.cause == "outbound" and ports is not None and ports.gives(trial.port)


def _published(trial: PortTrial) -> bool:
    """Return whether docker-proxy is the only program that occupies the port.

    docker-proxy publishes the ports of containers (libnetwork/portmapper).
    """
    programs = [PurePath((holder.command.split() or [""])[0]).name for holder in trial.holders]
    return bool(programs) and set(programs) == {"docker-proxy"}


MOVE = "set another master_port in the hosts file (fix-port --next finds one)"


def _stop_container(host: Host, trial: PortTrial) -> Fix:
    return Fix(
        summary=f"Stop that container (docker stop), publish another port, or {MOVE}. Its name and image:",
        commands=on(host.name, line("docker ps --filter {publish}", publish=f"publish={trial.port}")),
    )


def _fix(cluster: Cluster, host: Host, trial: PortTrial) -> Fix:
    if trial.cause == "time-wait":
        wait = fix_port(cluster, host.node, line("{port} --wait", port=trial.port))
        seconds = f"{trial.time_wait_s or 60:.0f} seconds"
        return Fix(summary=f"The kernel frees it in {seconds}. Wait for that:", commands=wait)
    ports = _port_range(host)
    if trial.cause == "outbound" and ports is None:
        return Fix(summary=f"Wait until that connection has ended, or {MOVE}.")
    if ports is not None and _is_outgoing(host, trial):
        return Fix(
            summary="Wait until that connection has ended, and reserve the port (for good: the same setting in a "
            f".conf file in /etc/sysctl.d); or {MOVE}:",
            needs_root=True,
            commands=on(host.name, reserving(ports, trial.port)),
        )
    # a line for the job of each holder, if all of them are proven leftovers
    pids = {holder.pid for holder in trial.holders}
    first = [holder for holder in trial.holders if holder.ppid not in pids]
    endings = tuple(command for holder in first for command in ending(cluster, host.node, holder, trial.port))
    if endings and all(map(endable, trial.holders)):
        summary = f"The process is yours and was left behind: no launcher supervises it. {capital(MOVE)}, or end it:"
        return Fix(summary=summary, risk="disruptive", commands=endings)
    refusal = next((holder.refusal for holder in trial.holders if holder.refusal is not None), "")
    why = f"{capital(refusal)}. " if refusal else ""
    is_own = trial.holders and all(holder.own for holder in trial.holders)
    who = "end it where it was started" if is_own else "ask the holder's owner to end it"
    by_option = cluster.origins.get("master_port") == "--master-port"  # it takes precedence over the hosts file
    if by_option or (ClusterSource(cluster).file or "").endswith((".yaml", ".yml")):
        summary = f"{why}Write a port that is free on all hosts into the hosts file, or {who}:"
        if by_option:
            summary = f"{why}Give --master-port another port, or {who}. This finds one that is free on all hosts:"
        what = line("--next") if by_option else line("--next --write")
        return Fix(summary=summary, commands=fix_port(cluster, host.node, what))
    return Fix(summary=f"{why}{capital(MOVE)}, or {who}.")


_SERVER = re.compile(r"error while attempting to bind on address|[Uu]vicorn|[Gg]unicorn|HTTPServer")
"""Pattern for messages in which an HTTP server, rather than torch or NCCL, reports a busy port."""


def _advice(case: Case) -> Advice:
    port = case.port
    if _SERVER.search(case.first.text):
        return advise(
            f"Port {port}, on which a server of {case.who if case.hosts or case.ranks else 'the host'} tried to "
            "listen, is busy. It is not a port that the ranks use.",
            "See who holds it, then end that process or give the server another port (--port):",
            on(None, line("nccl-doctor fix-port {*port}", port=[port] if port else [])),
        )
    if port is not None and DEFAULT_RANGE[0] <= port <= DEFAULT_RANGE[1]:
        who = case.who if case.hosts or case.ranks else "the host"
        return advise(
            f"Port {port} was busy on {who}: a leftover process or another job holds it, or another process or an "
            "outgoing connection took it after an engine or a launcher had chosen it as free.",
            "If you set the port yourself, end the process that holds it or use another port. If an engine or a "
            "launcher chose it, start again: another port will be chosen. If it happens again, give each engine on a "
            "host its own port below the ephemeral range (vLLM: VLLM_PORT, --master-port; SGLang: --dist-init-addr, "
            "--nccl-port), reserve theirs (net.ipv4.ip_local_reserved_ports), or start them one after the other. To "
            "see who holds it now:",
            on(None, line("nccl-doctor fix-port {port}", port=port)),
        )
    return advise(
        f"{f'Port {port}' if port else 'The master port'} is busy on {case.who if case.hosts else 'the master'}: it "
        "is held by a leftover process, another job, or a second rank that also acts as the master.",
        "See who holds it, then end that process or use another port (on the master):",
        on(None, line("nccl-doctor fix-port {*port}", port=[port] if port else [])),
    )


# Messages of torch, accelerate and Ray for EADDRINUSE (98; macOS 48, Windows 10048).
RULES = (
    *roots(
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(errno: (?:98|48) - ",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already "
        "in use).",
        r"server socket has failed to (?:bind|listen).*port: (?P<port>\d+), .*EADDRINUSE",
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        r"server socket has failed to (?:bind|listen) .*:(?P<port>\d+) \(system error: 10048\b",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to [::]:29500 (system error: 10048 - Only one "
        "usage of each socket address is normally permitted.).",
        r"ZMQError: Address already in use \(addr='tcp://(?P<ip>[0-9a-fA-F.:]+):(?P<port>\d+)'",
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.12:40043')",
        r"(?:EADDRINUSE|\[Errno (?:98|48)\]|errno: (?:98|48)\b)",
        "OSError: [Errno 98] Address already in use",
    ),
    likely(
        r"(?:Error|error|bind|listen|failed|Failed|FATAL|store|c10d).*[Aa]ddress already in use",
        "RuntimeError: Address already in use",
    ),
    root(
        r"(?:communication|launch\S*|listen\S*|bind) on port `?(?P<port>\d+)`?,? but another process",
        "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is "
        "utilizing it.",
    ),
    root(
        r"\b[Pp]ort `?'?(?P<port>\d{1,5})`?'? (?:is|was) (?:already )?(?:in use|occupied|taken|being used)",
        "ERROR: port 29500 is already in use by pid 4242",
        unless=r"(?i:trying|using|moving on to|falling back to) (?:the )?(?:port|another|next)",
    ),
    root(
        r"trying to use a port number (?P<port>\d+) that is used by",
        "ValueError: Ray component gcs_server is trying to use a port number 6379 that is used by other components.",
    ),
)

SIGNS = LogSigns(RULES, _advice)
