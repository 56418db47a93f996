"""NCCL uses sockets although RDMA is available, or shared memory although NVLink is available.

What it means: the job runs, but at a fraction of the possible speed. NCCL falls back without an error if libibverbs is
missing from the training environment, no device matches `NCCL_IB_HCA`, or a container does not expose the devices. The
variables `NCCL_IB_DISABLE`, `NCCL_NET` and `NCCL_P2P_DISABLE` can also cause the fallback.

How we know: NCCL's log lines from the all-reduce ("Using network Socket", "Channel … via SHM") are compared with the
hosts' devices. RDMA counts as available if every host has active ports under /sys/class/infiniband. NVLink counts as
available if there are NVSwitches on the PCI bus.

Fix: if the diagnosis names a variable, unset the variable. If no variable is named, read the "NET/IB" lines in the
ranks' logs (`nccl-doctor smoke --save-logs DIR`), and run `ibv_devinfo` in the training environment.
"""

from collections.abc import Iterator

from nccl_doctor.checks.allreduce.link import machines
from nccl_doctor.checks.allreduce.symptoms import everywhere
from nccl_doctor.checks.effects import SLOW
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import Host
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import fold, listed

NET_OFF = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_IB_HCA")
P2P_OFF = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL")


@check("NCD705", severity=Severity.WARNING, needs=("smoke",), explains=(SLOW,))
def transport_fallback(view: View) -> Findings:
    smoke = view.smoke
    if smoke.backend != "nccl":
        return
    if machines(view.snapshot) > 1:
        yield from _sockets(view, smoke)
    by_memory = {rank.host for rank in smoke.ranks if any(way.startswith("SHM") for way in rank.transports)}
    pcis = {host.name: host.facts.pci for host in view.hosts if host.facts}
    switched = {name for name, pci in pcis.items() if not isinstance(pci, Unknown) and pci.nvswitches > 0}
    shared = [host for host in view.hosts if host.name in by_memory & switched]
    if names := [host.name for host in shared]:
        yield Finding(
            hosts=tuple(names),
            message=f"Ranks on {fold(names)} communicate through shared memory, although NVSwitch connects their GPUs.",
            evidence=tuple(_reasons(shared, P2P_OFF)) or (f"channels go via SHM on {fold(names)}",),
            facts={"transport": "SHM"},
            symptoms=(everywhere("no-p2p", names, smoke),),
            fix=_fix(shared, P2P_OFF, "see whether the GPUs' fabric is up (nvidia-smi topo -p2p n) and IPC is allowed"),
        )


def _sockets(view: View, smoke: Smoke) -> Iterator[Finding | Unjudged]:
    on = [host for host in view.hosts if any(r.network == "Socket" for r in smoke.ranks if r.host == host.name)]
    unknown = tuple(host.name for host in view.hosts if host.facts and isinstance(host.facts.rdma, Unknown))
    if on and unknown:
        yield Unjudged(unknown, "whether there are RDMA devices is not known")
    if not on or unknown or not all(_active(host) for host in view.hosts):
        return
    names = [host.name for host in on]
    devices = sorted({device for host in on for device in _active(host)})
    yield Finding(
        hosts=tuple(names),
        message=f"NCCL uses TCP sockets on {fold(names)}, although every host has active RDMA devices.",
        evidence=(
            f"{fold(names)}: NCCL said: Using network Socket",
            f"active RDMA devices: {', '.join(devices)}",
            *_reasons(on, NET_OFF),
        ),
        facts={"transport": "Socket", "devices": devices},
        symptoms=(everywhere("transport-fallback", names, smoke),),
        fix=_fix(on, NET_OFF, "see whether ibv_devinfo works in the environment of the job"),
    )


def _active(host: Host) -> list[str]:
    if host.facts is None or isinstance(host.facts.rdma, Unknown):
        return []
    return [device.name for device in host.facts.rdma if any(port.state == "ACTIVE" for port in device.ports)]


def _reasons(hosts: list[Host], variables: tuple[str, ...]) -> Iterator[str]:
    for variable in variables:
        for value in dict.fromkeys(host.node.env[variable] for host in hosts if variable in host.node.env):
            names = [host.name for host in hosts if host.node.env.get(variable) == value]
            yield f"the hosts file sets {variable}={value} for {fold(names)}"


def _fix(hosts: list[Host], variables: tuple[str, ...], otherwise: str) -> Fix:
    named = [variable for variable in variables if any(variable in host.node.env for host in hosts)]
    if named:
        return Fix(summary=f"Remove {listed(named)} from env in the hosts file, unless this is intended.")
    return Fix(summary=f"On {fold([host.name for host in hosts])}: {otherwise}.")
