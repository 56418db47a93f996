"""A host has fewer ephemeral ports than the job might need.

What it means: NCCL has no port setting, so every listener and every connection of every rank uses a port in
`net.ipv4.ip_local_port_range`. If the range is exhausted, NCCL fails with "Cannot assign requested address" or "Call to
bind failed: Address already in use". The error "Call to bind failed" does not concern the master port.

If a connection from the host failed with EADDRNOTAVAIL because all ports of the range were in use, the diagnosis is an
error instead of a warning. An IPv6 connection counts only if the host has an IPv6 address, because the error is the
same without an address.

How we know: the number of ports that the job needs is estimated from the world size, and compared with the number of
unreserved ports in the range. Each rank uses about six ports for itself (the bootstrap's listeners, the proxy, gloo).
In an all-to-all over the network, each rank needs two more ports for every other rank, one for listening and one for
connecting:

    ports needed on a host = ranks on the host * (6 + 2 * world size)

The diagnosis is a warning, because an all-reduce alone needs far fewer ports. An all-to-all among 256 hosts with 8
ranks each exhausts Linux's default range of 28,232 ports (NVIDIA/nccl issue 1882).

Fix: widen the range on every host. If the wider range contains the master port, the command for the master also
reserves this port. If the existing range is not part of the range from 15000 to 65000, no command is shown, because the
new range would lack some of the existing ports.
"""

from nccl_doctor.checks.ports.port_in_ephemeral_range import RESERVED
from nccl_doctor.checks.view import Findings, View, check, pairs_of, pasted
from nccl_doctor.firewall.route_lookup import may_lack_address
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, failed_connects, root
from nccl_doctor.logs.signs import LogSigns, PassStage, Role, Scene, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.effect import DIALS, WAITS, Effect, Reach
from nccl_doctor.model.finding import Command, Details, Finding, Fix, Severity, on
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.snapshot.hosts import Host, connections, rank_counts, world_size
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.text.hostlist import fold, nouns

FEW = Effect(
    ("port-in-use", "ephemeral-ports-few", *DIALS, *WAITS, "nccl-unknown-error"),
    Reach.OWN,
    "without a free ephemeral port, bind(2) fails with EADDRINUSE and connect(2) with EADDRNOTAVAIL (ip(7), "
    "ip_local_port_range)",
)
ANYWAY = ("port-in-use", "ifname-model-differs", FEW)
WIDE = (15000, 65000)
"""Range of 50,001 ports that does not contain the ports of most services."""
MOST = 65535 - 1024 + 1
"""Number of ports that do not need root privileges by default."""


@check(
    "NCD307",
    phrase="too few ephemeral ports",
    severity=Severity.WARNING,
    needs=("port_range",),
    explains=("port-unreachable", *ANYWAY),
)
def ephemeral_ports_few(view: View) -> Findings:
    world = world_size(view.snapshot)
    local = rank_counts(view.snapshot)
    failed = view.snapshot.mesh.failed if isinstance(view.snapshot.mesh, Mesh) else ()
    short: dict[tuple[int, int, int, int], list[Host]] = {}
    for host, facts in view.facts:
        span = known(facts.port_range)
        needed = connections(local[host.name], world)
        portless = [dial for dial in failed if dial.src == host.name and dial.outcome == "no-source-address"]
        dials = [dial for dial in portless if not may_lack_address(host, dial.address)]
        if dials:
            peers = fold(sorted({dial.dst for dial in dials}))
            widened = _widen(host, view.snapshot.cluster.master_port)
            for_good = "for good: the same settings in a .conf file in /etc/sysctl.d"
            widen = f", or widen the range ({for_good}):" if widened else "."
            yield Finding(
                hosts=(host.name,),
                message=f"{host.name} has no free ephemeral port: all ports from {span.low} to {span.high} are in use.",
                evidence=(f"{host.name} -> {peers}: no source port left (EADDRNOTAVAIL)",),
                facts={"low": span.low, "high": span.high, "size": span.size},
                details=Details(failed=pairs_of(dials)),
                fix=pasted(f"Find out who has taken them (`ss -tan`){widen}", widened, needs_root=bool(widened)),
                severity=Severity.ERROR,
            )
        elif needed > span.size:
            short.setdefault((span.low, span.high, span.size, needed), []).append(host)
    for (low, high, size, needed), hosts in short.items():
        yield Finding(
            hosts=tuple(host.name for host in hosts),
            message=f"On {fold(host.name for host in hosts)}, the ephemeral port range {low} to {high} has only "
            f"{size} {'unreserved ' * (size <= high - low)}{nouns(size, 'port')}, but the job might need "
            f"up to {needed}{' on each' * (len(hosts) > 1)}.",
            evidence=(f"{needed} = ranks on the host * (6 + 2 * {world}), if every rank talks to every other one",),
            facts={"low": low, "high": high, "size": size, "needed": needed, "world_size": world},
            explains=ANYWAY,  # no dial has failed because of it yet
            fix=_fix(hosts, needed, view.snapshot.cluster.master_port),
        )


def _fix(hosts: list[Host], needed: int, master_port: int) -> Fix:
    fewer = "let NCCL use fewer connections between hosts (PXN), or use RDMA"
    if needed > MOST:
        return Fix(summary=f"No port range is that large: {fewer}.")
    if needed > WIDE[1] - WIDE[0] + 1:
        return Fix(summary=f"A port range of that size would contain the ports of services: {fewer}.")
    widened = tuple(command for host in hosts for command in _widen(host, master_port))
    if not widened:
        return Fix(summary=f"Widen the range (net.ipv4.ip_local_port_range), reserve fewer of its ports, {fewer}.")
    summary = "Widen the range on every host (for good: the same settings in a .conf file in /etc/sysctl.d):"
    return pasted(summary, widened, needs_root=True)


def _widen(host: Host, master_port: int) -> tuple[Command, ...]:
    """Return the command that sets the range to WIDE, or nothing if WIDE lacks a port of the range or adds none."""
    assert host.facts
    span = known(host.facts.port_range)
    if not WIDE[0] <= span.low <= span.high <= WIDE[1] or (span.low, span.high) == WIDE:
        return ()
    settings, earlier = [("net.ipv4.ip_local_port_range", f"{WIDE[0]} {WIDE[1]}")], [f"{span.low} {span.high}"]
    if host.node.node_rank == 0 and WIDE[0] <= master_port <= WIDE[1] and master_port not in span.reserved_ports:
        settings.append((RESERVED, span.reserving(master_port)))
        earlier.append(span.reserved_text)
    return on(host.name, SysctlSet(tuple(settings), tuple(earlier)))


ADVICE = make_advice(
    "{who} found no free port in the kernel's ephemeral range, from which NCCL takes one for each listener.",
    "Widen net.ipv4.ip_local_port_range on every host, and let NCCL use fewer connections (leave PXN on).",
)

# A bind to port 0 or a connect without a free port.
RULES = (
    *failed_connects(Grade.ROOT, "Cannot assign requested address", "Cannot assign requested address"),
    root(
        r"NCCL WARN .*Call to bind failed ?: ?Address already in use",
        "n1:1:2 [0] misc/socket.cc:374 NCCL WARN Call to bind failed: Address already in use",
    ),
)


def _without_ras(scene: Scene) -> list[Event]:
    """Return the events, except failed binds of NCCL's RAS.

    A failed bind of NCCL's RAS does not end a job (src/ras/client_support.cc).
    """
    if not scene.log.facts.ras_failures:
        return scene.events
    return [event for event in scene.events if event.name != "ephemeral-ports-few"]


SIGNS = LogSigns(
    RULES, ADVICE, roles=frozenset({Role.NETWORK}), hint=Grade.ROOT, passes={PassStage.MEANING: _without_ras}
)
