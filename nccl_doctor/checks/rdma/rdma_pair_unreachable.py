"""Two RDMA devices that NCCL connects share no network, or can't communicate for another reason.

What it means: NCCL connects each RDMA device in a host's list with the device at the same position in the next host's
list. NCCL does not check whether the two devices of a pair can reach each other. If two paired devices can't
communicate, the job hangs, or fails with "Call to ibv_modify_qp failed" and errno 110 (Connection timed out), 113 (No
route to host) or 101 (Network is unreachable). From NCCL 2.24 on, NCCL retries for a minute after errno 110 before the
job fails.

    node1 [0] mlx5_0  10.1.0.1  ----x----  node2 [0] mlx5_0  10.2.0.2
    node1 [1] mlx5_1  10.2.0.1  ----x----  node2 [1] mlx5_1  10.1.0.2

A host's list contains the ACTIVE ports that NCCL_IB_HCA accepts, in the kernel's order or, from NCCL 2.29.7 on, in the
order of PCI addresses. NCCL_IB_HCA only filters the device list, so the order of the names in NCCL_IB_HCA has no
effect. A port that is down is not in the list, so the following ports move up by one position. If each rail has its own
network, every port that follows the missing port in the list is then paired with a port of the wrong rail. From NCCL
2.20 on, the ports of one card count as one device. NCCL also pairs the ports of two such devices by their position: the
first with the first, and the second with the second.

How we know: the check computes each host's list of devices in the same way as the host's NCCL version. For RoCE, the
check compares the networks to which the addresses in the ports' GIDs belong. Only routes through the port's own network
interface count, since RoCE packets leave through no other interface. For InfiniBand, the check compares the subnet
prefixes and the partition keys at index NCCL_IB_PKEY. The port test connects the paired interfaces over TCP, with both
sockets bound to the interfaces' addresses. If two paired interfaces are in the same network but get no answer from each
other, the switch is dropping packets. If two paired interfaces are in different networks, an `ip rule` that matches
their addresses counts as a route. The check does not test whether a path through a default gateway works. Packet
filters are ignored, since RDMA packets bypass them.

Fix: cable the hosts in the same way, or assign addresses so that devices at the same position in the lists are in the
same network. If the network can't be changed, set NCCL_IB_HCA on each host to "=" followed by a list of only those
devices that can reach each other. From NCCL 2.30.7 on, NCCL_IB_SUBNET_AWARE_ROUTING=1 on all hosts makes NCCL pair
devices that are in the same network.
"""

from collections.abc import Iterator

from nccl_doctor.checks.effects import RDMA
from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.nccl.rdma_pairs import ClusterRdma, PairCause, RdmaPair
from nccl_doctor.nccl.suggest import setting
from nccl_doctor.nccl.variables import RAILS
from nccl_doctor.text.hostlist import fold

SUBNETS = "NCCL_IB_SUBNET_AWARE_ROUTING"
MOST_PAIRS = 8  # pairs shown in the evidence
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@check(
    "NCD403",
    phrase="RDMA devices can't reach each other",
    severity=Severity.ERROR,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=("rdma-mismatch", RDMA),
)
def rdma_pair_unreachable(view: View) -> Findings:
    """Yield one finding per host whose devices can't connect, or one for all hosts if the host at fault is unknown."""
    rdma = view.nccl.rdma
    untold = {name: side.rdma.untold for name, side in rdma.sides.items() if side.rdma.untold}
    if untold:
        for name, setting in untold.items():
            yield Unjudged((name,), f"the effect of {setting} on the order of RDMA devices is not known")
        return
    for hosts, pairs in rdma.at_fault:
        first = pairs[0]
        yield Finding(
            hosts=hosts,
            message=_message(rdma, first),
            evidence=tuple(_evidence(rdma, pairs)),
            facts={"pairs": [_fact(pair) for pair in pairs[:MOST_PAIRS]]},
            fix=_fix(rdma, hosts, first),
        )


def _message(rdma: ClusterRdma, pair: RdmaPair) -> str:
    place = _place(pair.place)
    pairing = "NCCL pairs the hosts' RDMA devices by their position in each host's list. However,"
    if pair.talk.cause is PairCause.NETWORK:
        nets = rdma.sides[pair.source].network(pair.here), rdma.sides[pair.target].network(pair.there)
        if all(nets):
            return (
                f"{pairing} {place} of {pair.source} ({pair.here}), in the network {nets[0]}, can't communicate "
                f"with {place} of {pair.target} ({pair.there}), in the network {nets[1]}."
            )
    return (
        f"{pairing} {place} of {pair.source} ({pair.here}) can't communicate with {place} of {pair.target} "
        f"({pair.there}): {pair.talk.why}."
    )


def _evidence(rdma: ClusterRdma, pairs: tuple[RdmaPair, ...]) -> Iterator[str]:
    for host in dict.fromkeys(name for pair in pairs for name in (pair.source, pair.target)):
        if down := _fallen(rdma, host):
            yield f"{host}: {', '.join(down)} is down, so the devices after it move up in the list"
    for pair in pairs[:MOST_PAIRS]:
        yield f"[{pair.place}] {pair.source} {pair.here} and {pair.target} {pair.there}: {pair.talk.why}"
    if len(pairs) > MOST_PAIRS:
        yield f"{len(pairs) - MOST_PAIRS} more pairs"


def _fallen(rdma: ClusterRdma, host: str) -> list[str]:
    others = [side.rdma.entries for name, side in rdma.sides.items() if name != host]
    up = {entry.device.name for entries in others for entry in entries}
    shorter = len(rdma.sides[host].rdma.entries) < max(map(len, others), default=0)
    return [device.name for device, _ in rdma.sides[host].rdma.down if shorter and device.name in up]


def _fix(rdma: ClusterRdma, hosts: tuple[str, ...], pair: RdmaPair) -> Fix:
    every = {name: {SUBNETS: "1"} for name in rdma.sides}
    if all(side.rdma.version >= RAILS for side in rdma.sides.values()) and rdma.with_variables(every).works:
        summary = (
            "Set this in the job's environment on every host: NCCL then chooses a device in the other one's network."
        )
        return setting(summary, SUBNETS, dict.fromkeys(rdma.sides, "1"))
    summary = _cure(rdma, hosts, pair)
    lists = rdma.lasting()
    if lists is None:
        return Fix(summary=summary)
    kept = min(value.count(",") + 1 for value in lists.values())
    most = max(len(side.rdma.entries) for side in rdma.sides.values())
    until = f"{summary} Until then, use {kept} of {most} devices:"
    return setting(until, "NCCL_IB_HCA", lists)


def _cure(rdma: ClusterRdma, hosts: tuple[str, ...], pair: RdmaPair) -> str:
    down = {host: fallen for host in rdma.sides if (fallen := _fallen(rdma, host))}
    if down:
        names = dict.fromkeys(name for fallen in down.values() for name in fallen)
        return f"Bring {', '.join(names)} on {fold(down)} up (cable, ip link set … up)."
    if pair.talk.cause is PairCause.LAYER:
        return "Name only InfiniBand devices or only RoCE devices in NCCL_IB_HCA."
    if pair.talk.cause is PairCause.PKEY:
        return "Give both ports the same partition key at the index NCCL_IB_PKEY, at least one as a full member."
    if pair.talk.cause is PairCause.SILENT:
        return (
            f"Check the switch and the cables between {pair.here} on {pair.source} and {pair.there} on {pair.target}."
        )
    if pair.here.is_roce and _crossed(rdma):
        subject = "one of them" if len(hosts) > 1 else hosts[0]
        return f"Swap the cables or the addresses of {subject}, so that devices at the same position share a network."
    ends = [(pair.target, pair.there.netdev or pair.there), (pair.source, pair.here.netdev or pair.here)]
    (stray, nic), (other, port) = ends if pair.target in hosts else ends[::-1]
    return (
        f"Give {nic} on {stray} an address in the network of {port} on {other}, or add routes between the two networks "
        "through these interfaces."
    )


def _crossed(rdma: ClusterRdma) -> bool:
    nets = [{side.network(entry) for entry in side.rdma.entries} for side in rdma.sides.values()]
    return all(networks == nets[0] for networks in nets)


def _place(place: int) -> str:
    return f"the {ORDINALS[place]} device" if place < len(ORDINALS) else f"device [{place}]"


def _fact(pair: RdmaPair) -> dict[str, object]:
    ends = {"src": pair.source, "dst": pair.target, "place": pair.place}
    return {**ends, "src_device": pair.here.label, "dst_device": pair.there.label, "why": pair.talk.why}
