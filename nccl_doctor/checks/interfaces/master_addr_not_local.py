"""The master address is not an address of the first host.

What it means: rank 0 runs on the first host of the hosts file and opens the TCPStore on that host. The other ranks
connect to the master address, which belongs to another machine or to no machine. The connections of these ranks are
refused or fail with "The client socket has timed out".

How we know: the first host resolved the master address, and none of the host's interfaces has the resulting address. A
translated address (a cloud's public address, NAT) is also reported. With a translated address, the job works only if
the translation leads the first host's own ranks back to that host, which is rare.

Fix: put the master first in the hosts file, or set `master_addr` to an address that `ip addr` shows on the first host.
"""

from nccl_doctor.checks.effects import MASTER
from nccl_doctor.checks.view import Findings, View, check, failed_by
from nccl_doctor.logs.rule import likely, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.text.inet import is_loopback


@check(
    "NCD202",
    phrase="wrong master address",
    severity=Severity.ERROR,
    needs=("resolution", "interfaces"),
    explains=("port-unreachable", "port-in-use", MASTER),
    scope="master",
    errors=("EADDRNOTAVAIL",),
)
def master_addr_not_local(view: View) -> Findings:
    address = view.snapshot.cluster.master_addr
    everyone = [node.name for node in view.snapshot.cluster.nodes]
    for host, facts in view.facts:
        interfaces = known(facts.interfaces)
        resolution = known(facts.resolution).get(address)
        if resolution is None:
            yield Unjudged((host.name,), f"the probe did not resolve {address}")
            continue
        own_addresses = [entry.address for entry in interfaces.addresses]
        if any(target in own_addresses or is_loopback(target) for target in resolution.addresses):
            continue
        became = ", ".join(resolution.addresses) or f"nothing ({resolution.error})"
        outward = [e for e in interfaces.addresses if not (is_loopback(e.address) or e.address.startswith("fe80:"))]
        shown = ", ".join(f"{entry.address} ({entry.interface})" for entry in outward)
        replaced = () if became == address else (f"{host.name} takes {address} for {became}",)
        verb = "resolve to an address of" if replaced else "belong to"
        yield Finding(
            hosts=(host.name,),
            message=f"The master address {address} does not {verb} {host.name}, where rank 0 will run.",
            evidence=(*replaced, f"its own: {shown}"),
            facts={"master_addr": address, "own": own_addresses},
            details=Details(failed=failed_by(view, address, everyone)),
            fix=f"Set master_addr in the hosts file to one of {host.name}'s own addresses, or put the host "
            f"that has {address} first in the list.",
        )


def _advice(case: Case) -> Advice:
    if all(event.wording == _ANY_SOCKET for event in case.cause.events):
        return advise(
            f"{case.who} tried to bind or connect to an address that is not available on its host (errno 99).",
            "See which call failed (the traceback above the error): MASTER_ADDR or a server's host option might name "
            "another host's address, localhost might resolve to ::1 on a host without IPv6, or no source port might be "
            "free.",
            case.check(),
        )
    return advise(
        f"{case.who} should be the master but does not have the address {case.address.ip or 'that it was given'}: the "
        "address belongs to another host, or is behind a NAT.",
        "Set MASTER_ADDR to an address of the host that runs node rank 0.",
        case.check(),
    )


_ANY_SOCKET = r"(?:bind|listen|OSError).*(?:\[Errno 99\]|errno=99|[Cc]annot assign requested address)"
"""Pattern for EADDRNOTAVAIL of any program; torch's own master has a different wording."""

# A bind to an address that this host does not have (EADDRNOTAVAIL, 99).
RULES = (
    root(
        r"server socket has failed to (?:bind|listen).*(?::(?P<port>\d+) \(errno: 99 - |EADDRNOTAVAIL)",
        "[W socket.cpp:426] [c10d] The server socket has failed to bind to 10.0.0.9:29500 (errno: 99 - Cannot assign "
        "requested address).",
    ),
    likely(
        _ANY_SOCKET,
        "OSError: [Errno 99] Cannot assign requested address",
        unless=r"NCCL (?:WARN|INFO)",  # NCCL binds addresses of its own interfaces, not the master address
    ),
)

SIGNS = LogSigns(RULES, _advice)
