"""NCCL_IB_HCA matches no RDMA device of a host.

What it means: NCCL logs "No device found" and continues over TCP sockets, at about a tenth of the speed of RDMA. With
NCCL_NET=IB, the diagnosis is an error, because NCCL fails with "Failed to initialize any NET plugin" ("network IB not
found" before NCCL 2.27). If the job uses GPUs and other hosts use RDMA, the diagnosis is also an error, because sockets
can't connect to RDMA devices. With sockets on one side and RDMA on the other, a job with NCCL 2.16 to 2.30.4 fails with
"wrong type" (socketFinalizeAccept). With other versions, the job might hang; from 2.30.7 on, NCCL logs "wrong socket
type" at level INFO and discards the connection. If the job uses no GPUs and NCCL_NET=IB is not set, the diagnosis is a
warning, since the gloo backend does not use RDMA.

The value of NCCL_IB_HCA is a list of RDMA devices (mlx5_0, rocep1s0f0), not of network interfaces (eth0). An entry of
NCCL_IB_HCA matches every device whose name begins with that entry. A leading "=" means that names must match exactly,
and a leading "^" excludes the listed devices. A suffix such as ":1" selects a port by number, and the first port has
number 1. Spaces are significant, so the second entry of "mlx5_0, mlx5_1" matches only names that begin with a space. A
value of "^" alone matches no device.

How we know: the check matches the value of NCCL_IB_HCA, as NCCL does, against the devices in /sys/class/infiniband that
have ACTIVE ports. The check takes the value of NCCL_IB_HCA from the hosts file, the environment or NCCL's configuration
files.

Fix: set NCCL_IB_HCA to existing RDMA devices, or unset NCCL_IB_HCA.

References: NVIDIA/nccl issue 234 (two hosts hang, one with InfiniBand and one without), NVIDIA/nccl-tests issue 188
("wrong type").
"""

from nccl_doctor.checks.effects import RDMA, SLOW_SOCKETS, SOCKETS
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check, folded
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.rdma import RdmaList
from nccl_doctor.nccl.rdma_pairs import NAME, ClusterRdma
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.snapshot.hosts import gpu_wish
from nccl_doctor.text.hostlist import fold, grouped, quoted

EXPLAINS = (SOCKETS, SLOW_SOCKETS, RDMA)
"""Effects to expect if NCCL finds no RDMA device on a host."""


APART = "NCCL {uses} TCP sockets there, but RDMA on {others}. NCCL can't connect TCP sockets to RDMA"


@check(
    "NCD405",
    phrase="NCCL_IB_HCA matches no device",
    severity=Severity.WARNING,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=EXPLAINS,
)
def rdma_hca_no_match(view: View) -> Findings:
    """Yield one finding per value of NCCL_IB_HCA that matches no device."""
    rdma = view.nccl.rdma
    lists = {name: side.rdma for name, side in rdma.sides.items()}
    lost = {name: entry for name, entry in lists.items() if entry.off is None and entry.present and not entry.entries}
    for value, names in grouped((entry.variables.get("NCCL_IB_HCA", ""), name) for name, entry in lost.items()).items():
        there = {name: ", ".join(dict.fromkeys(device.name for device, _ in lost[name].present)) for name in names}
        yield Finding(
            hosts=tuple(names),
            message=f"NCCL_IB_HCA={quoted(value)} matches no RDMA device on {fold(names)}, so {end(view, names)}.",
            evidence=folded((name, f"ports are up on {devices}") for name, devices in there.items()),
            facts={"NCCL_IB_HCA": value, "devices": {name: devices.split(", ") for name, devices in there.items()}},
            severity=gravity(view, names),
            fix=_fix({name: lost[name] for name in names}),
        )


def gravity(view: View, names: list[str]) -> Severity | None:
    """Return Severity.ERROR if NCCL_NET requires RDMA, or if other hosts use RDMA and the job does not use gloo."""
    rdma = view.nccl.rdma
    return Severity.ERROR if _is_bound(rdma, names) or (rdma.having and not _over_gloo(view)) else None


def _over_gloo(view: View) -> bool:
    return all(facts.gpus == () and gpu_wish(host) is None for host, facts in view.facts)


def _is_bound(rdma: ClusterRdma, names: list[str]) -> bool:
    return any(rdma.sides[name].rdma.variables.get("NCCL_NET", "").lower() == "ib" for name in names)


def end(view: View, names: list[str]) -> str:
    """Describe whether NCCL fails or uses TCP sockets on hosts without RDMA devices."""
    rdma = view.nccl.rdma
    if _is_bound(rdma, names):
        return "NCCL fails, since NCCL_NET=IB forbids TCP sockets"
    others = fold(rdma.having)
    if not others:
        return "NCCL falls back to TCP sockets"
    if _over_gloo(view):
        return f"{APART.format(uses='would use', others=others)}. A job that uses gloo is not affected"
    return APART.format(uses="uses", others=others)


def _fix(lists: dict[str, RdmaList]) -> Fix:
    meant = {name: _meant(rdma) for name, rdma in lists.items()}
    names = {name for devices in meant.values() for name in devices}
    if not all(meant.values()) or not all(NAME.fullmatch(name) for name in names):
        return Fix(summary="Name existing devices in NCCL_IB_HCA, or unset it.")
    values = {name: f"={','.join(devices)}" for name, devices in meant.items()}
    return setting("Name existing devices, or unset NCCL_IB_HCA:", "NCCL_IB_HCA", values)


def _meant(rdma: RdmaList) -> list[str]:
    """Return the devices whose name begins with an entry of NCCL_IB_HCA, or whose interface is named in an entry.

    If no device matches, or if NCCL_IB_HCA excludes devices, return all devices.
    """
    items = [item.name.strip(" =\"'") for item in rdma.spec.items]
    there = [(device.name, {gid.interface for gid in port.gids}) for device, port in rdma.present]
    close = [
        name for name, netdevs in there if any(item and (name.startswith(item) or item in netdevs) for item in items)
    ]
    return list(dict.fromkeys(close if close and not rdma.spec.exclude else [name for name, _ in there]))
