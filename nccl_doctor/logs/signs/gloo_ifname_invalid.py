"""How logs show gloo-ifname-invalid: gloo finds no address for the name that it was given."""

from __future__ import annotations

from nccl_doctor.logs.case import Case
from nccl_doctor.logs.rule import LogSigns, root
from nccl_doctor.logs.words import Advice, advise, ifname_command


def advice(case: Case) -> Advice:
    """The name that gloo does not find, and how to see the right one."""
    name = case.address.iface or case.address.ip or "the name that it was given"
    return advise(
        f"gloo finds no address for {name} on {case.who}: GLOO_SOCKET_IFNAME must be the exact name of an interface, "
        "and the host's own name must give one of its addresses.",
        "Set GLOO_SOCKET_IFNAME to the plain name of the interface, without = and ^. See which one:",
        ifname_command(case),
    )


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

SIGNS = LogSigns(RULES, advice)
