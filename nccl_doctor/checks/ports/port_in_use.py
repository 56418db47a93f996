"""The master port on the master is taken.

What it means: rank 0 can't open torch's TCPStore and ends with "Address already in use" (EADDRINUSE); the other ranks
wait for it until they time out.

How we know: the very bind that torch's TCPStore makes (SO_REUSEADDR set, then listen) was tried on the first host. The
socket tables then explain its answer:

- `listener`: a process listens there, on all addresses or on one: a stale rank, a second job, another service.
- `bound`: a process has bound the port and does not listen; `ss -l` does not show it.
- `outbound`: the port is the source port of somebody's outgoing connection, since `ip_local_port_range` covers it.
- `time-wait`: a connection of a program without SO_REUSEADDR has ended less than a minute ago. A TIME_WAIT that torch
  itself left does not keep torch from the port, and is not reported.

Fix: `nccl-doctor fix-port` shows the holder with its whole job, and ends that with `--kill` or finds another port with
`--next`; `nccl-doctor fix-port --hosts hosts.yaml --next --write` puts it into the hosts file. For `outbound`, reserve
the port (`net.ipv4.ip_local_reserved_ports`); for `time-wait`, wait.

References: ip(7) and socket(7) on SO_REUSEADDR; torch/csrc/distributed/c10d/TCPStoreLibUvBackend.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.checks.job_words import fix_port
from nccl_doctor.checks.registry import Unjudged, View, check
from nccl_doctor.model import Command, Finding, Fix, Severity
from nccl_doctor.port_model import GRACE_S, age_words
from nccl_doctor.snapshot import PortTrial, Process

MEANS = {
    "listener": "a process listens on it",
    "bound": "a process has bound it, without listening",
    "outbound": "it is the source port of an outgoing connection",
    "time-wait": "a connection on it has just ended and the kernel keeps the port",
    "unknown": "nobody that we may see holds it",
}

MOVE = "nccl-doctor fix-port --next finds one that is free on every host"


@check(
    "NCD304",
    severity=Severity.ERROR,
    needs=("master_port",),
    explains=("stale-process", "gpu-in-use", "allreduce-failed", "allreduce-timeout"),
    scope="master",
)
def port_in_use(view: View) -> Iterator[Finding | Unjudged]:
    """Fires where torch would not get the master port, and says who has it."""
    for host, facts in view.facts:
        trial = facts.master_port
        assert isinstance(trial, PortTrial)
        if trial.free or trial.error == "EACCES":
            continue
        cause = trial.cause or "unknown"
        yield Finding(
            hosts=(host.name,),
            message=f"Port {trial.port} on {host.name} is taken: {MEANS[cause]}.",
            evidence=tuple(_evidence(trial)),
            facts={
                "port": trial.port,
                "cause": cause,
                "holders": [holder.model_dump() for holder in trial.holders],
                "pids": [holder.pid for holder in trial.holders],
            },
            fix=_remedy(trial, fix_port(view.snapshot.cluster, host.node, str(trial.port))),
        )


def _evidence(trial: PortTrial) -> Iterator[str]:
    yield f"bind to port {trial.port} as torch's TCPStore does: {trial.error}"
    for holder in trial.holders:
        yield _holder(holder)
    for sock in trial.sockets[:4]:
        remote = f" to {sock.remote_address}:{sock.remote_port}" if sock.remote_port else ""
        yield f"socket {sock.local_address}:{sock.local_port}{remote}, {sock.state}"
    if trial.time_wait_s is not None:
        yield f"free again in {trial.time_wait_s:.0f} s"
    if trial.hint:
        yield trial.hint


def _holder(holder: Process) -> str:
    left = ", orphaned" if holder.orphan else ""
    return f"pid {holder.pid} of {holder.user}, {age_words(holder.age_s)} old{left}: {holder.command}"


def _remedy(trial: PortTrial, ending: Command) -> Fix:
    if trial.cause == "time-wait":
        return Fix(summary=f"Wait {trial.time_wait_s or 60:.0f} seconds, or set another master_port in the hosts file.")
    if trial.cause == "outbound":
        return Fix(
            summary="Set another master_port in the hosts file, outside of ip_local_port_range; or have root reserve "
            f"this one for good: net.ipv4.ip_local_reserved_ports = {trial.port}."
        )
    own = all(holder.own for holder in trial.holders)
    if not trial.holders or not own:
        return Fix(summary=f"Set another master_port in the hosts file ({MOVE}), or ask the holder's owner to end it.")
    if all(holder.orphan and holder.age_s >= GRACE_S for holder in trial.holders):
        return Fix(
            summary=f"It is a leftover of yours: nothing watches over it. End it, or move away ({MOVE}):",
            risk="disruptive",
            commands=(ending,),
        )
    look = ending.command.replace(" --yes", "")
    return Fix(summary=f"If it is a leftover of yours, end it ({look}); else set another master_port ({MOVE}).")
