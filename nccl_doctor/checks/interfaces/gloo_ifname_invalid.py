"""GLOO_SOCKET_IFNAME names an interface that the host does not have, or one without an address.

What it means: gloo knows neither prefixes nor "^" nor "=": a value copied from NCCL_SOCKET_IFNAME ends the job with
"Unable to find address for: =eth0". torch uses gloo for CPU tensors, and in many jobs for a barrier beside NCCL.

How we know: the host's interfaces with an address, and the variable as the job will have it. A list with commas means
several devices, each of which must be there.

Fix: give the whole name of the interface, without any sign.

See gloo/transport/tcp/device.cc (lookupAddrForIface) and torch's ProcessGroupGloo.cpp.
"""

from nccl_doctor.checks.nccl_choice import good_interfaces
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise, ifname_command
from nccl_doctor.model.base import known
from nccl_doctor.model.effect import LOST, WAITS, Effect, Reach
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.gloo import gloo_devices
from nccl_doctor.nccl.interfaces import Failure
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.text.hostlist import fold, quoted

VARIABLE = "GLOO_SOCKET_IFNAME"


GLOO = Effect(
    ("gloo-ifname-invalid", "hostname-loopback", *WAITS, LOST, "peer-died"),
    Reach.OWN,
    "gloo makes no device, and the rank raises what it says (gloo/transport/tcp/device.cc, lookupAddrForIface)",
    ("gloo",),
)


@check("NCD210", severity=Severity.ERROR, needs=("interfaces", "env"), explains=(GLOO,))
def gloo_ifname_invalid(view: View) -> Findings:
    """Yields one finding for each value that names no interfaces there."""
    failed: dict[str, dict[str, str]] = {}
    names: dict[str, str] = {}
    for host, facts in view.facts:
        env = known(facts.env)
        interfaces = known(facts.interfaces)
        value = {**env, **host.node.env}.get(VARIABLE, "")
        outcome = gloo_devices(interfaces, {VARIABLE: value}, None)
        if isinstance(outcome, Failure):
            failed.setdefault(value, {})[host.name] = outcome.reason
            names[host.name] = ", ".join(dict.fromkeys(entry.interface for entry in interfaces.addresses))
    good = good_interfaces(view.nccl) if failed else {}
    for value, hosts in failed.items():
        fix = Fix(summary=f"Set {VARIABLE} to the whole name of the interface that leads to the other hosts.")
        if good.keys() >= hosts.keys():
            summary = "Set the whole name in the job's environment (the hosts file's env)."
            fix = setting(summary, VARIABLE, {host: good[host] for host in hosts})
        yield Finding(
            hosts=tuple(hosts),
            message=f"{VARIABLE}={quoted(value)} names no interface of {fold(hosts)} that has an address: gloo will "
            "not start.",
            evidence=folded((host, f"{reason}; with an address: {names[host]}") for host, reason in hosts.items()),
            facts={VARIABLE: value},
            fix=fix,
        )


def _advice(case: Case) -> Advice:
    name = case.address.iface or case.address.ip or "the name that it was given"
    return advise(
        f"gloo finds no address for {name} on {case.who}: GLOO_SOCKET_IFNAME must be the exact name of an interface, "
        "and the host's own name must give one of its addresses.",
        "Set GLOO_SOCKET_IFNAME to the plain name of the interface, without = and ^. See which one:",
        ifname_command(case),
    )


# Gloo finds no address for the name that it was given.
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
    root(
        r"makeDeviceFor(?:Interface|Hostname)\(\): unsupported gloo device",
        "RuntimeError: makeDeviceForInterface(): unsupported gloo device",
    ),
)

SIGNS = LogSigns(RULES, _advice)
