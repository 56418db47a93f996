"""Words for interfaces, names, ports and connections."""

from __future__ import annotations

import shlex
from collections.abc import Callable

from nccl_doctor.commands import on
from nccl_doctor.logs.case import Case
from nccl_doctor.logs.words import Said, said
from nccl_doctor.model import Command
from nccl_doctor.shell import line


def _no_route(case: Case) -> Said:
    return said(
        f'{case.who} could not reach {case.target}. "No route to host" between hosts that can ping each other is a '
        "firewall's REJECT, or an interface on another net.",
        "Find the rule or the route that does it:",
        case.check(),
    )


def _refused(case: Case) -> Said:
    return said(
        f"{case.who} was refused by {case.target}: nothing listened there. Its process had ended or not yet begun, "
        "or the address belongs to no host of this job.",
        "Look for the first error on that host, check the master address, and test the ports:",
        case.check(),
    )


def _timed_out(case: Case) -> Said:
    return said(
        f"{case.who} got no answer from {case.target}: a firewall or a cloud's security group drops the packets, or "
        "the address lies on a net that this host does not reach.",
        "NCCL draws its ports from the whole ephemeral range, so one open master port is not enough. Test all:",
        case.check(),
    )


def _ports_few(case: Case) -> Said:
    return said(
        f"{case.who} found no free port in the kernel's ephemeral range, from which NCCL draws one for each listener.",
        "Widen net.ipv4.ip_local_port_range on every host, and let NCCL use fewer connections (leave PXN on).",
        case.check(),
    )


def _neighbours(case: Case) -> Said:
    return said(
        f"The kernel of {case.who} keeps fewer neighbours' addresses than there are hosts on the net, and drops "
        "packets to the rest.",
        "Raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 well above the number of hosts, on every host:",
        case.check(),
    )


def _wrong_interface(case: Case) -> Said:
    entities = case.entities()
    iface, ip = entities.get("iface"), entities.get("ip")
    used = f"{iface} ({ip})" if iface and ip else iface or ip or "an interface that the peers do not reach"
    return said(
        f"NCCL uses {used} on {case.who}, which the other hosts do not reach by that address.",
        "See which interface is right on each host, then set NCCL_SOCKET_IFNAME to it, with = in front:",
        _ifname(case),
    )


def _ifname(case: Case) -> tuple[Command, ...]:
    return case.check(command="ifname") or on(None, line("nccl-doctor ifname"))


def _no_match(case: Case) -> Said:
    value = case.log.facts.ifname
    setting = f"NCCL_SOCKET_IFNAME={shlex.quote(value)} fits" if value else "NCCL_SOCKET_IFNAME fits"
    return said(
        f"{setting} no interface on {case.who} (a name that differs between hosts, a space behind a comma, an "
        "interface that is down).",
        "Names are prefixes; = in front means exactly this name, ^ means all but these. See what there is:",
        _ifname(case),
    )


def _gloo_name(case: Case) -> Said:
    name = case.address.iface or case.address.ip or "the name that it was given"
    return said(
        f"gloo finds no address for {name} on {case.who}: GLOO_SOCKET_IFNAME must be the exact name of an interface, "
        "and the host's own name must give one of its addresses.",
        "Set GLOO_SOCKET_IFNAME to the plain name of the interface, without = and ^. See which one:",
        _ifname(case),
    )


def _name_loopback(case: Case) -> Said:
    return said(
        f"gloo connected to {case.target if case.address.ip else 'a loopback address'} instead of another host: a "
        "host's own name gives 127.x there, and that is what it told its peers.",
        "Take the host's name out of the 127.0.1.1 line of /etc/hosts, or set GLOO_SOCKET_IFNAME on every host. See "
        "which:",
        case.check(),
    )


def _unresolvable(case: Case) -> Said:
    name = case.address.host
    return said(
        f"{case.who} could not resolve {name or 'the name of another host'}.",
        "Use the master's address instead of its name, or put the name into DNS or /etc/hosts on every host. In "
        "Kubernetes the service's record may come later than the pod: wait for it before the start.",
        case.check(),
    )


def _port_in_use(case: Case) -> Said:
    port = case.port
    place = f"port {port}" if port else "the master port"
    return said(
        f"{place[0].upper()}{place[1:]} is taken on {case.who if case.hosts else 'the master'}: by a process left "
        "over, by another job, or by a second rank that also believes it is the master.",
        "See who holds it, end that or move away (on the master):",
        on(None, line("nccl-doctor fix-port {*port}", port=[port] if port else [])),
    )


def _privileged(case: Case) -> Said:
    port = f" {case.port}" if case.port else ""
    return said(
        f"Port{port} may not be opened by this user: ports below net.ipv4.ip_unprivileged_port_start need root.",
        "Take a port above 1024 as master port.",
    )


def _not_local(case: Case) -> Said:
    return said(
        f"{case.who} should be the master but does not have the address {case.address.ip or 'that it was given'}: it "
        "is another host's, or behind a NAT.",
        "Set MASTER_ADDR to an address of the host that runs node rank 0:",
        case.check(),
    )


def _rendezvous(case: Case) -> Said:
    return said(
        f"{case.who} waited for the master at {case.target} or for other ranks until the time ran out.",
        "Not every rank came: a host that did not start, another master address or port, a firewall. Test the hosts:",
        case.check(),
    )


def _ssh(why: str, summary: str) -> Callable[[Case], Said]:
    def words(case: Case) -> Said:
        host = case.address.host or case.address.ip or next(iter(case.hosts), "a host")
        return said(f"The launcher could not log in to {host} by SSH: {why}.", summary, case.check())

    return words


ADVICE = {
    "no-route-to-host": _no_route,
    "connection-refused": _refused,
    "connection-timed-out": _timed_out,
    "ephemeral-ports-few": _ports_few,
    "neighbour-table-small": _neighbours,
    "wrong-interface": _wrong_interface,
    "ifname-no-match": _no_match,
    "gloo-ifname-invalid": _gloo_name,
    "hostname-loopback": _name_loopback,
    "hostname-unresolvable": _unresolvable,
    "port-in-use": _port_in_use,
    "port-privileged": _privileged,
    "master-addr-not-local": _not_local,
    "rendezvous-timeout": _rendezvous,
    "ssh-unreachable": _ssh("it does not answer", "Start sshd there and open its port, or correct the name:"),
    "ssh-auth-failed": _ssh(
        "no key was accepted", "Put the public key of the launching host into authorized_keys there:"
    ),
    "ssh-host-key-unknown": _ssh(
        "its host key is not known", "Compare its fingerprint, then add the key to known_hosts:"
    ),
    "ssh-host-key-changed": _ssh("its host key has changed", "Find out why before you remove the old key:"),
}
