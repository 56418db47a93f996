"""The GID that NCCL would use on a RoCE port is missing, or has a different type from the GIDs of the other hosts.

What it means: for the link-local address and for each IP address, the GID table of a RoCE port contains one entry for
RoCE v1 and one entry for RoCE v2. NCCL chooses a GID index and sends the GID at that index to the peer. An empty GID
entry leads to "Call to ibv_modify_qp failed" with errno 61 (No data available) or 22 (Invalid argument), and to "local
GID ::" in the message. With RoCE v1 on one side and RoCE v2 on the other, the queue pair is established, but all
packets are dropped until completions fail with status 12.

If NCCL_IB_GID_INDEX is set, NCCL uses the GID at that index on every port of the job, without checking the entry.
Before version 2.21, NCCL uses index 0 if NCCL_IB_GID_INDEX is not set. From version 2.21 on, NCCL uses the first RoCE
v2 entry with an IPv4 address on each port if NCCL_IB_GID_INDEX is unset or negative. NCCL_IB_ADDR_FAMILY,
NCCL_IB_ADDR_RANGE and NCCL_IB_ROCE_VERSION_NUM affect the choice of a GID. If only RoCE v1 entries have an IPv4
address, NCCL uses the first of them. If no entry has an IPv4 address, NCCL uses the entry at index 0, which is normally
link-local. GID indexes might change after a reboot, or when an address, a bond or a VLAN is added.

How we know: the check reads each port's GID table in /sys/class/infiniband, and determines the index that the host's
NCCL version uses. The check reports a port whose GID entry at the index in use is empty. The check also reports a port
whose GID type differs from the type that most hosts use on the port at the same position in their device lists. Nothing
is reported if all RoCE ports use link-local GIDs of the same type, since these ports can communicate within a network
segment.

Fix: use NCCL 2.21 or later without NCCL_IB_GID_INDEX. If no GID entry has an IP address, assign an IP address to the
network interface of the port. Run containers in the host's network, because a container can't use the GIDs of another
network namespace.
"""

from nccl_doctor.checks.effects import RDMA
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.nccl.rdma import GID_CHOSEN, RdmaEntry, choose_gid, ip_of, is_usable
from nccl_doctor.nccl.rdma_pairs import ClusterRdma
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.text.hostlist import fold, listed

PIN = "NCCL_IB_GID_INDEX"


@check(
    "NCD404",
    phrase="RDMA GID is missing",
    severity=Severity.ERROR,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=("rdma-mismatch", RDMA),
)
def rdma_gid_missing(view: View) -> Findings:
    rdma = view.nccl.rdma
    faults = rdma.gid_faults
    if not faults:
        return
    hosts = tuple(dict.fromkeys(host for host, _, _ in faults))
    _, entry, kind = faults[0]
    ports = tuple(dict.fromkeys(str(port) for _, port, _ in faults))
    empty = (
        f"empty ({entry.gid.why})"
        if entry.gid.pinned or any(map(is_usable, entry.port.gids))
        else "missing: no entry in the GID table belongs to an IP address"
    )
    is_one = len(ports) == 1
    how = f"{'is' if is_one else 'are'} {empty}"
    if kind != "empty":
        has = "has" if is_one else "have"
        how = f"{has} the type {kind} (index {entry.gid.index}), unlike the GIDs of the other hosts"
    yield Finding(
        hosts=hosts,
        message=f"On {fold(hosts)}, the GID{'s' * (not is_one)} that NCCL would use for {listed(ports)} {how}.",
        evidence=tuple(
            f"{host}: {port}: index {port.gid.index} ({port.gid.why}): {what}; {_table(port)}"
            for host, port, what in faults
        )
        + tuple(
            f"{host}: the table of {short} has {short.port.gid_count} entries; so NCCL takes no RDMA device there"
            for host, side in rdma.sides.items()
            if (short := side.rdma.refused) is not None
        ),
        facts={
            "gids": [
                {"host": host, "device": port.label, "index": port.gid.index, "is": what} for host, port, what in faults
            ]
        },
        fix=_fix(rdma, faults),
    )


def _table(entry: RdmaEntry) -> str:
    held = [f"{gid.index} {gid.type or 'of unknown type'} {ip_of(gid)}" for gid in entry.port.gids if is_usable(gid)]
    return f"its table has {', '.join(held[:6])}" if held else "its table has no address"


def _fix(rdma: ClusterRdma, faults: tuple[tuple[str, RdmaEntry, str], ...]) -> Fix:
    pinned = [name for name, side in rdma.sides.items() if any(entry.gid.pinned for entry in side.rdma.entries)]
    free = {name: {PIN: "-1"} for name in pinned}
    if pinned and all(side.rdma.version >= GID_CHOSEN for side in rdma.sides.values()):
        result = rdma.with_variables(free)
        if not result.gid_faults:
            chosen = {
                host: sorted({entry.gid.index for entry in side.rdma.entries if entry.is_roce})
                for host, side in result.sides.items()
            }
            indexes = ", ".join(f"{', '.join(map(str, numbers))} on {host}" for host, numbers in [*chosen.items()][:4])
            summary = (
                f"Unset {PIN}, or set it to -1, which means the same: NCCL then finds the index itself ({indexes})."
            )
            return setting(summary, PIN, dict.fromkeys(pinned, "-1"))
    common = set.intersection(
        *(_whole(entry) for side in rdma.sides.values() for entry in side.rdma.entries if entry.is_roce)
    )
    for index in sorted(common):
        values = dict.fromkeys(rdma.sides, str(index))
        if rdma.with_variables({name: {PIN: value} for name, value in values.items()}).works:
            return setting("Set the index at which all ports have a GID of the same type:", PIN, values)
    old = any(side.rdma.version < GID_CHOSEN for side in rdma.sides.values())
    if old and all(is_usable(choose_gid(entry.port, {}, GID_CHOSEN).entry) for _, entry, _ in faults):
        return Fix(summary=f"Use NCCL 2.21 or later on all hosts, without {PIN}: NCCL then finds the index itself.")
    lacking = ", ".join(dict.fromkeys(f"{entry.netdev or entry} on {host}" for host, entry, _ in faults))
    return Fix(summary=f"Give {lacking} an IPv4 address in the network of the other hosts' ports.")


def _whole(entry: RdmaEntry) -> set[int]:
    return {gid.index for gid in entry.port.gids if is_usable(gid) and gid.type == "RoCE v2"}
