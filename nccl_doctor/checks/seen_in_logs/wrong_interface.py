"""NCCL uses an interface that the other hosts can't reach.

What it means: NCCL advertised the address of a loopback, container, bridge or link-local interface, or of an interface
in a different network from the other hosts.

How we know: The log names the interface and its address, such as docker0:172.17.0.1<0>, in NCCL's Bootstrap or
NET/Socket message. The interface is considered to be at fault if connections to its address fail, or if the ranks of
several hosts never connect.

Fix: Set NCCL_SOCKET_IFNAME on every host to the name of the right interface, with a leading = for an exact match. A
list that begins with ^ excludes only the interfaces that it names, so `^docker0` allows the loopback interface lo.
`nccl-doctor ifname` shows which interface NCCL chooses, and why.

References: NCCL's src/misc/socket.cc (ncclFindInterfaces).
"""

import ipaddress
from dataclasses import replace

from nccl_doctor.logs import signs
from nccl_doctor.logs.blame import faults
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import CHOSEN, Grade, clue, failed_connects, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise, ifname_command, on_the_way
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import fold, grouped, listed
from nccl_doctor.text.inet import numeric

from_logs(__name__, "NCD901", explains=("hostname-loopback", "no-route-to-host"))

_VIRTUAL = (
    r"(?:lo|docker\d*|virbr\d*|veth\w*|br-\w+|lxc\w*|lxdbr\d*|cni\d*|flannel\S*|cali\w*|tailscale\d*|wg\d*|tun\d*"
    r"|tap\d*|podman\d*|vmnet\d*)"
)
"""Pattern for interfaces that other hosts can't reach, or can reach only at another address."""


def _advice(case: Case) -> Advice:
    chosen = dict.fromkeys(
        (event.address.iface, event.address.ip, event.prefix.host)
        for event in case.cause.events
        if event.wording in (CHOSEN, _CHOSEN_VIRTUAL)
    )
    used = grouped((f"{iface} ({ip})", host) for iface, ip, host in chosen if host)
    places = listed([f"{name} on {fold(hosts)}" for name, hosts in used.items()], 4)
    if len({_network(address) for _, ip, host in chosen if host and (address := numeric(ip or ""))}) > 1:
        message = f"NCCL uses {places}, in different networks."
    elif used:
        at = "at addresses" if len(used) > 1 else "at an address"
        message = f"NCCL uses {places}, {at} that the other hosts can't reach."
    elif not chosen and case.first.address.ip and "onnect" in case.first.text:  # the address of the other end
        peer = case.first.address.ip
        processes = case.log.facts.processes.values()
        owners = [p.host for p in processes for nic in p.interfaces if nic.address.partition("%")[0] == peer]
        owned = f" ({case.interface_of(peer)} on {fold(owners)})" if owners else ""
        message = f"A rank uses the address {peer}{owned}, at which {case.who} can't reach it."
    else:
        entities = case.entities(_interface)
        iface, ip = entities.get("iface"), entities.get("ip")
        name = f"{iface} ({ip})" if iface and ip else iface or ip or "an interface that the peers do not reach"
        message = f"NCCL uses {name} on {case.who}, at an address that the other hosts can't reach."
    return advise(
        message,
        "Set NCCL_SOCKET_IFNAME to the right interface of each host, with a leading =. To find it:",
        ifname_command(case),
    )


_CHOSEN_VIRTUAL = (
    r"(?:Bootstrap ?: Using|NET(?:/Socket)? ?: Using(?: interface)?|; OOB) (?:\[0\])?(?P<iface>"
    + _VIRTUAL
    + r"):(?P<ip>[0-9a-fA-F.:]+)"
)

RULES = (
    hint(_CHOSEN_VIRTUAL, "n1:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>"),
    root(
        r"set of common (?:task-to-task|routable|driver|network|NICs).*interface",
        "Exception: Unable to find a set of common task-to-task communication interfaces: [(0, {'lo'}), (1, {'eth1'})]",
    ),
    root(
        r"Socket creation failed ?: ?Address family not supported",
        "g7:4:4 [0] include/socket.h:318 NCCL WARN Net : Socket creation failed : Address family not supported by "
        "protocol",
    ),
    *failed_connects(Grade.LIKELY, r"(?:Software caused connection abort|Invalid argument)", "Invalid argument"),
    clue(CHOSEN, "n1:1:2 [0] NCCL INFO Bootstrap : Using eno1:10.0.0.1<0>"),
)

_NETS = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16"))
)


def _network(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    return next((str(net) for net in _NETS if address in net), "public")


_ENDED = frozenset({"killed", "peer-died"})
"""Faults that do not show that connections failed."""


def _apart(scene: Scene) -> list[Event]:
    """Add events for hosts whose interfaces are in different subnets, if failed connections are the only faults.

    A connection that was closed or reset existed before, so its address can be reached.
    """
    names = faults(scene.events)
    if scene.log.facts.came_together or not names <= on_the_way() or (names and names <= _ENDED):
        return scene.events
    chosen: dict[str, Event] = {}
    for event in (event for reading in scene.log.readings for event in reading.events):
        if event.wording == CHOSEN and event.prefix.host:
            chosen.setdefault(event.prefix.host, event)
    reached = {event.address.ip for event in scene.events if event.name == "peer-died" and event.grade > Grade.HINT}
    if reached & {event.address.ip for event in chosen.values()} - {None}:
        return scene.events
    addresses = (numeric(event.address.ip or "") for event in chosen.values())
    some = [ip for ip in addresses if ip is not None and ip.version == 4 and not ip.is_loopback]
    nets = {_network(ip) for ip in some}
    if len(nets) <= 1 and not (len(chosen) > 1 and str(_NETS[-1]) in nets):
        return scene.events
    return [*(replace(event, name="wrong-interface", grade=Grade.ROOT) for event in chosen.values()), *scene.events]


def _nowhere(scene: Scene) -> list[Event]:
    return scene.renamed("wrong-interface", Grade.ROOT, _leads_nowhere)


def _leads_nowhere(event: Event) -> bool:
    """Return whether a connection failed because its address can't belong to another host."""
    address = numeric(event.address.ip or "")
    if address is None or event.name not in signs.having(signs.Role.DIALS) or event.grade <= Grade.HINT:
        return False
    if address.is_loopback and "gloo" in event.text:  # the host's name is the fault
        return False
    of_nccl = event.prefix.level is not None or "onnect to" in event.message
    docker = address in ipaddress.ip_network("172.17.0.0/16")
    return address.is_link_local or docker or (address.is_loopback and of_nccl)


def _weigh(event: Event, scene: Scene) -> Grade:
    """Grade an event about an interface that other hosts can't reach.

    Without another fault, the event matters only in a job with several hosts.
    """
    names, facts = scene.names | scene.stuck, scene.log.facts
    several = len(facts.hosts) > 1 or (facts.nodes or 1) > 1
    if names:
        matters = names <= on_the_way() and (bool(names & signs.having(signs.Role.RETRIED)) or several)
    else:
        matters = several and "Bootstrap" in event.message and not facts.came_together
    return Grade.ROOT if matters else Grade.HINT


def _interface(case: Case) -> str | None:
    return case.address.iface or case.interface_of(case.address.ip)


SIGNS = LogSigns(
    RULES, _advice, weigh=_weigh, passes={PassStage.MEANING: _nowhere, PassStage.PLACES: _apart}, interface=_interface
)
