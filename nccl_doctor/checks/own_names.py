"""What hosts make of their own names, which gloo listens on; three diagnoses share this."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass

from nccl_doctor.hostlist import quoted
from nccl_doctor.model import Finding, Fix, Severity
from nccl_doctor.nccl.exact_names import gloo_devices
from nccl_doctor.nccl.interfaces import Failure
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.registry import View
from nccl_doctor.snapshot import Resolution, known

VARIABLE = "GLOO_SOCKET_IFNAME"


@dataclass(frozen=True)
class OwnName:
    """A host's own name, what it makes of it, and the address that gloo would give to the others."""

    host: str
    name: str
    resolution: Resolution
    gloo: str

    @property
    def is_loopback(self) -> bool:
        """Whether the name itself gives gloo a loopback address, so that the others look for it on themselves."""
        return self.gloo in self.resolution.addresses and ipaddress.ip_address(self.gloo.partition("%")[0]).is_loopback

    @property
    def is_stale(self) -> bool:
        """Whether the name gives addresses of which the host has none, so that gloo falls back to 127.0.0.1."""
        return bool(self.resolution.addresses) and self.gloo not in self.resolution.addresses


def own_names(view: View) -> Iterator[OwnName]:
    """The hosts whose own name matters: there are others, and GLOO_SOCKET_IFNAME does not take its place."""
    if len({node.address for node in view.snapshot.cluster.nodes}) < 2:
        return
    for host, facts in view.facts:
        resolved = known(facts.resolution)
        env = known(facts.env)
        interfaces = known(facts.interfaces)
        identity = known(facts.identity)
        resolution = resolved.get(identity.hostname)
        if resolution is None or len({**env, **host.node.env}.get(VARIABLE, "")) > 1:
            continue
        devices = gloo_devices(interfaces, {}, resolution)
        if devices and not isinstance(devices, Failure):
            yield OwnName(host.name, identity.hostname, resolution, devices[0].address)


def finding(view: View, caught: list[OwnName], message: str) -> Finding:
    """The finding for some of them: GLOO_SOCKET_IFNAME is the remedy where a good interface is known for each."""
    nccl = view.nccl
    good = {
        name: one.chosen.name
        for name, one in nccl.pictures.items()
        if one.chosen is not None and not nccl.bootstrap[name].is_lost and not nccl.is_idle(name)
    }
    if nccl.suggestion is not None:
        good = {**nccl.suggestion.interfaces, **good}
    summary = (
        "Set this in the job's environment (the hosts file's env), or give each host's name its real address in "
        "/etc/hosts there."
    )
    names = {own.host: good[own.host] for own in caught if own.host in good}
    return Finding(
        hosts=tuple(own.host for own in caught),
        message=message,
        evidence=tuple(
            f"{own.host}: {quoted(own.name)}: {', '.join(own.resolution.addresses) or own.resolution.error}"
            for own in caught
        ),
        facts={own.host: list(own.resolution.addresses) for own in caught},
        fix=setting(summary, VARIABLE, names) if len(names) == len(caught) else Fix(summary=summary),
        severity=Severity.ERROR if is_without_gpus(view) else None,
    )


def is_without_gpus(view: View) -> bool:
    """Whether the job can't be NCCL's: no host shows a GPU."""
    return all(facts.gpus == () for _, facts in view.facts)
