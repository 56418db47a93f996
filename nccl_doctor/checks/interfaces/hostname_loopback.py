"""A host's own name resolves to a loopback address on that host.

What it means: gloo listens on the address to which the host's own name resolves, and advertises this address. The
installers of Debian and Ubuntu map the host's name to 127.0.1.1 in /etc/hosts. If gloo advertises 127.0.1.1, the other
hosts connect to themselves and fail with "Gloo connectFullMesh failed" or "Connection refused, remote=[127.0.1.1]:…".
NCCL's own connections are not affected. torchrun's c10d rendezvous is affected if its endpoint is an IP address of the
host: torchrun does not recognize the address as the host's own, so no host runs the rendezvous' store, and all hosts
time out. With --rdzv-conf=is_host=1, torchrun runs the store on that host.

Between two hosts, gloo connects from the host with the higher address to the host with the lower address. With peers in
10.0.0.0/8, whose addresses are lower than 127.0.1.1, a single host with a loopback address can still connect, so the
diagnosis is only a note. If two hosts have loopback addresses, or the peers of a host with a loopback address are in
192.168.0.0/16, gloo can't connect. If gloo can't connect, the diagnosis is a warning, or an error if no host has GPUs.

How we know: nccl-doctor resolves each host's own name, and applies gloo's rule that the order of two addresses
determines which host connects. If the name resolves to ::1 but the other hosts have IPv4 addresses, gloo aborts
immediately ("ss1.ss_family == ss2.ss_family").

Fix: set GLOO_SOCKET_IFNAME, or map the host's name to its real address in /etc/hosts.

See gloo/transport/tcp/device.cc and torch's ProcessGroupGloo.cpp (createDefaultDevice).
"""

from nccl_doctor.checks.effects import NAMES
from nccl_doctor.checks.own_names import CHANCE, finding, own_names
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise, having
from nccl_doctor.model.finding import Severity
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import numeric


@check(
    "NCD203",
    phrase="own name is a loopback address",
    severity=Severity.WARNING,
    needs=("resolution", "identity", "interfaces", "env"),
    explains=(NAMES,),
    in_logs=("no-route-to-host", "wrong-interface"),
)
def hostname_loopback(view: View) -> Findings:
    caught = [entry for entry in own_names(view) if entry.is_loopback]
    if caught:
        hosts = tuple(entry.host for entry in caught)
        what = ", which gloo advertises to the other hosts" if any(entry.lost for entry in caught) else CHANCE
        yield finding(view, caught, f"On {fold(hosts)}, the hostname resolves to a loopback address{what}.")


def _advice(case: Case) -> Advice:
    if any(event.wording == _FALLBACK for event in case.cause.events):
        return advise(
            f"gloo on {case.who} found no address for the host's own name and used 127.0.0.1, at which no other host "
            "can reach it; the other hosts are waiting for it.",
            "Set GLOO_SOCKET_IFNAME on every host to the interface of the job's network, or make each host's name "
            "known to itself (/etc/hosts). See which:",
            case.check(command="ifname"),
        )
    return advise(
        f"gloo connected to {case.target if case.address.ip else 'a loopback address'} instead of another host: a "
        "host's own name resolves to 127.x there, and the host advertised that address.",
        "In /etc/hosts, map the host's name to its real address instead of 127.0.1.1, or set GLOO_SOCKET_IFNAME on "
        "every host. To see which:",
        case.check(),
    )


_FALLBACK = r"Unable to resolve hostname to a \(?local\)? address\. Using the loopback"
"""Pattern for torch's message that gloo uses a loopback address (ProcessGroupGloo.cpp); harmless on a single host."""

# Gloo dials 127.x, which a peer advertised as its address.
RULES = (
    hint(
        _FALLBACK,
        "[rank9]:[W815 02:20:05.663137385 ProcessGroupGloo.cpp:524] Warning: Unable to resolve hostname to a (local) "
        "address. Using the loopback address as fallback. Manually set the network interface to bind to with "
        "GLOO_SOCKET_IFNAME. (function operator())",
    ),
    root(
        r"connectFullMesh failed with .*(?:no error|remote=\[127\.|remote=\[::1\])",
        "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error",
    ),
    root(
        r"(?:SO_ERROR: Connection refused|timed out connecting).*remote=\[(?:127\.|::1\])",
        "RuntimeError: [gloo/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: Connection refused, "
        "remote=[127.0.1.1]:17308",
    ),
)


def _own_name(scene: Scene) -> list[Event]:
    """Return the events, with gloo's failed connections to loopback addresses attributed to the hosts' own names."""
    dials = having(Role.DIALS)

    def failed(event: Event) -> bool:
        return event.name in dials and event.grade > Grade.HINT and "gloo" in event.text and _of_gloo(event)

    return scene.renamed("hostname-loopback", Grade.ROOT, failed)


def _within_host(scene: Scene) -> list[Event]:
    """Return the events, treating gloo's failed loopback connections as symptoms if gloo had already lost a peer."""
    events = scene.events
    lost = min((e.order for e in events if e.name == "peer-died" and _of_gloo(e)), default=None)
    first = min((e.order for e in events if e.name == "hostname-loopback"), default=0)
    if lost is None or lost > first:
        return events
    return scene.renamed(
        "connection-refused", Grade.SYMPTOM, lambda event: event.name == "hostname-loopback" and _of_gloo(event)
    )


def _of_gloo(event: Event) -> bool:
    address = numeric(event.address.ip or "")
    return address is not None and address.is_loopback and "loo" in event.text


SIGNS = LogSigns(
    RULES,
    _advice,
    roles=frozenset({Role.NETWORK}),
    hint=Grade.LIKELY,
    hint_beside=(
        "collective-timeout",
        "connection-refused",
        "connection-timed-out",
        "hostname-loopback",
        "rendezvous-timeout",
    ),
    passes={PassStage.MEANING: _own_name, PassStage.RECOVERY: _within_host},
)
