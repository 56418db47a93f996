"""GLOO_SOCKET_IFNAME names an interface that does not exist on the host or that other hosts can't reach.

What it means: gloo does not support prefixes, "^" or "=". With a value copied from NCCL_SOCKET_IFNAME, the job might
therefore fail with "Unable to find address for: =eth0". torch uses gloo for CPU tensors, and many jobs use gloo for
barriers.

A rank advertises the first address of the interface in GLOO_SOCKET_IFNAME, and its peers connect to that address. The
interfaces docker0 and lo are wrong choices because they usually have the same addresses on every host.

How we know: the value of GLOO_SOCKET_IFNAME that the job will use is compared with the host's interfaces that have an
address. A comma-separated list names several interfaces, each of which must exist. Routes, duplicate addresses and the
connections of the port test show whether the other hosts can reach an address. In a log, the message "unsupported gloo
device" has another cause: torch has no gloo transport with the name in GLOO_DEVICE_TRANSPORT, or no gloo transport at
all, as in torch 2.8 and 2.9 on Windows.

Fix: set the complete name of the interface, without "=" or "^". If the log says "unsupported gloo device", unset
GLOO_DEVICE_TRANSPORT.

See gloo/transport/tcp/device.cc (lookupAddrForIface), and torch's ProcessGroupGloo.cpp and GlooDeviceFactory.cpp.
"""

from collections.abc import Collection, Mapping
from functools import partial

from nccl_doctor.checks.nccl_choice import good_interfaces
from nccl_doctor.checks.own_names import is_without_gpus
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, ifname_command
from nccl_doctor.model.base import known
from nccl_doctor.model.effect import DIALS, LOST, WAITS, Effect, Reach
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.gloo import GLOO_SOCKET_IFNAME, gloo_devices, lost_to
from nccl_doctor.nccl.interfaces import NcclFailure
from nccl_doctor.nccl.reachability import Peers, Reachable, reach
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.text.hostlist import fold, quoted
from nccl_doctor.text.inet import address_of

GLOO = Effect(
    ("gloo-ifname-invalid", "hostname-loopback", *WAITS, LOST, "peer-died"),
    Reach.OWN,
    "gloo can't create its device, and the rank raises gloo's error (gloo/transport/tcp/device.cc, lookupAddrForIface)",
    ("gloo",),
)


GIVEN = Effect(
    (*DIALS, *WAITS, LOST, "peer-died", "wrong-interface", "hostname-loopback"),
    Reach.MEETS,
    "other ranks connect to the address of a rank's gloo device (gloo/transport/tcp/address.cc)",
    ("gloo",),
)


@check(
    "NCD210",
    phrase="GLOO_SOCKET_IFNAME is invalid",
    severity=Severity.ERROR,
    needs=("interfaces", "env"),
    explains=(GLOO, GIVEN),
)
def gloo_ifname_invalid(view: View) -> Findings:
    yield from _unreachable(view)
    failed: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for host, facts in view.facts:
        env = known(facts.env)
        interfaces = known(facts.interfaces)
        value = {**env, **host.node.env}.get(GLOO_SOCKET_IFNAME, "")
        outcome = gloo_devices(interfaces, {GLOO_SOCKET_IFNAME: value}, None)
        if isinstance(outcome, NcclFailure):
            failed.setdefault(value, {})[host.name] = outcome.reason
            names[host.name] = ", ".join(dict.fromkeys(entry.interface for entry in interfaces.addresses))
    for value, hosts in failed.items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"On {fold(hosts)}, {GLOO_SOCKET_IFNAME}={quoted(value)} names an interface that does not exist or "
            "has no address, so gloo will not start.",
            evidence=folded((host, f"{reason}; with an address: {names[host]}") for host, reason in hosts.items()),
            facts={GLOO_SOCKET_IFNAME: value},
            fix=_fix(view, hosts),
        )


def _fix(view: View, hosts: Collection[str]) -> Fix:
    good = good_interfaces(view.nccl)
    if good.keys() >= set(hosts):
        summary = "Set the whole name in the job's environment (the hosts file's env)."
        return setting(summary, GLOO_SOCKET_IFNAME, {host: good[host] for host in hosts})
    return Fix(summary=f"Set {GLOO_SOCKET_IFNAME} to the whole name of the interface that leads to the other hosts.")


def _may(reaches: Mapping[str, bool], peer: str, _address: str) -> bool:
    return reaches[peer]


def _unreachable(view: View) -> Findings:
    """Yield findings for each GLOO_SOCKET_IFNAME that makes gloo advertise an address which peers can't reach."""
    nccl = view.nccl
    lost: dict[tuple[str, str], dict[str, tuple[str, str, tuple[str, ...]]]] = {}
    values: dict[str, str] = {}
    addresses: dict[str, str] = {}
    for host, facts in view.facts:
        host_nccl = nccl.by_host.get(host.name)
        value = {**known(facts.env), **host.node.env}.get(GLOO_SOCKET_IFNAME, "")
        devices = gloo_devices(known(facts.interfaces), {GLOO_SOCKET_IFNAME: value}, None)
        if host_nccl is None or isinstance(devices, NcclFailure):
            continue
        if devices is not None:
            values[host.name], addresses[host.name] = value, devices[0].address
        elif host_nccl.chosen is not None:
            addresses[host.name] = host_nccl.chosen.address
    for name, value in values.items():
        address, host_nccl = addresses[name], nccl.by_host[name]
        if host_nccl.chosen is not None and host_nccl.chosen.address == address:
            continue  # other checks judge NCCL's own choice
        verdicts = {
            peer.host: reach(peer, host_nccl, address, nccl.mesh)
            for peer in Peers(nccl.by_host, nccl.mesh).of(name, address)
        }
        reaches = {peer: verdict.answer is not Reachable.NO for peer, verdict in verdicts.items()}
        asked = {peer: addresses[peer] for peer in (name, *verdicts) if peer in addresses}
        missing = lost_to(name, asked, partial(_may, reaches))
        target = address_of(address)
        foreign = [peer for peer in missing if address_of(asked[peer]).version != target.version]
        missing = tuple(peer for peer in missing if peer not in foreign)
        # without GLOO_SOCKET_IFNAME, gloo uses the address of the host's own name, which can be of another family
        foreign = [peer for peer in foreign if peer in values]
        if foreign:
            fault, missing = f"but gloo uses IPv{address_of(asked[foreign[0]]).version} on {{}}", tuple(foreign)
            why = "gloo can't mix address families"
        elif missing:
            why = "it leads every host to itself" if target.is_loopback else verdicts[missing[0]].why
            why = f"{fold(missing)} dial{'s' * (len(missing) == 1)} it: {why}"
            fault = "which {} can't reach" if any(reaches.values()) else "which no other host can reach"
        else:
            continue
        lost.setdefault((value, fault), {})[name] = address, why, missing
    for (value, fault), hosts in lost.items():
        targets = ", ".join(dict.fromkeys(address for address, _, _ in hosts.values()))
        peers = {missing for _, _, missing in hosts.values()}
        yield Finding(
            hosts=tuple(hosts),
            message=f"On {fold(hosts)}, {GLOO_SOCKET_IFNAME}={quoted(value)} makes gloo advertise {targets}, "
            f"{fault.format(fold(*peers) if len(peers) == 1 else 'some other hosts')}.",
            evidence=folded((host, f"{address}: {why}") for host, (address, why, _) in hosts.items()),
            facts={GLOO_SOCKET_IFNAME: value},
            # beside NCCL, gloo may only be used for small messages
            severity=None if is_without_gpus(view) else Severity.WARNING,
            fix=_fix(view, hosts),
        )


_NO_TRANSPORT = r"makeDeviceFor(?:Interface|Hostname)\(\): unsupported gloo device"
"""Pattern for torch's error if it has no gloo transport (GlooDeviceFactory.cpp)."""


def _advice(case: Case) -> Advice:
    if case.first.wording == _NO_TRANSPORT:
        return advise(
            f"torch found no gloo transport on {case.who}: GLOO_DEVICE_TRANSPORT names one that this torch lacks, or "
            "this torch has none.",
            "Unset GLOO_DEVICE_TRANSPORT, or set it to TCP. On Windows, some versions of torch, such as 2.8 and 2.9, "
            "have no gloo transport: use another version.",
        )
    name = case.address.iface or case.address.ip or "the name that it was given"
    return advise(
        f"gloo finds no address for {name} on {case.who}: GLOO_SOCKET_IFNAME must be the exact name of an interface, "
        "and the host's own name must resolve to one of its addresses.",
        "Set GLOO_SOCKET_IFNAME to the plain name of the interface, without = and ^. See which one:",
        ifname_command(case),
    )


# gloo finds no address for the given interface name, or torch has no gloo transport.
RULES = (
    root(
        r"Unable to find address for:? ?(?P<iface>[A-Za-z0-9._=^,@-]+)",
        "RuntimeError: [enforce fail at ../gloo/transport/tcp/device.cc:83] ifa != nullptr. Unable to find address "
        "for: eth9",
        unless=r"rp != nullptr",
    ),
    root(
        r"Unable to find interface for: ?(?P<ip>[0-9a-fA-F.:]+)",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:208] rv != -1. Unable to find interface for: "
        "10.2.0.9",
    ),
    root(_NO_TRANSPORT, "RuntimeError: makeDeviceForInterface(): unsupported gloo device"),
)

SIGNS = LogSigns(RULES, _advice)
