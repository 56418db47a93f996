"""The job can't open an active RDMA device, or the InfiniBand fabric has no subnet manager.

What it means: /sys shows the device, but the device file /dev/infiniband/uverbsN is missing, or the job's user has no
permission to open it. NCCL omits devices that it can't open from its device list, and prints "Unable to open device" in
some cases. If NCCL can't open any RDMA device, it uses TCP sockets. If a device is missing from one host's list, the
following devices in this list are paired with the wrong devices of the other hosts.

How we know: the check opens each device node as libibverbs does, as the job's user and in the job's container. ENOENT
means that the device node is missing, for example because it was not passed to the container or pod. EACCES means that
the mode of the device node denies access to the user, and EPERM means that the container's device rules deny access.
Without the ib_uverbs kernel module, no RDMA device has a device node. Devices that NCCL_IB_HCA excludes, and devices
whose ports are down, are ignored. An InfiniBand port in the INIT or ARMED state has a link, but no subnet manager has
activated the port. NCCL uses only ACTIVE ports (`ncclIbInit` in src/transport/net_ib.cc).

Fix: with Docker or Podman, start the container with `--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`.
On Kubernetes, request the resource that the RDMA device plugin provides. On the host, run `modprobe ib_uverbs`, and
make the mode of the device nodes 0666, which is the kernel's default: look in /etc/udev/rules.d for a rule that
restricts the mode. An InfiniBand fabric needs a subnet manager, either opensm on a host or the subnet manager of a
managed switch.
"""

from nccl_doctor.checks.nccl_choice import NEEDS
from nccl_doctor.checks.rdma.rdma_hca_no_match import EXPLAINS, end, gravity
from nccl_doctor.checks.view import Findings, View, check, folded, on_each, pasted
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Fix, Severity
from nccl_doctor.model.operations.system import ModuleLoad
from nccl_doctor.nccl.rdma import LAYERS
from nccl_doctor.nccl.rdma_pairs import RdmaSide
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.text.hostlist import fold, grouped

NO_MODULE = "no ib_uverbs"
LOAD = ModuleLoad("ib_uverbs")


@check(
    "NCD406",
    phrase="RDMA devices can't be opened",
    severity=Severity.WARNING,
    needs=("rdma", *NEEDS),
    needs_nccl=True,
    explains=("rdma-pair-unreachable", "rdma-mismatch", *EXPLAINS),
)
def rdma_device_inaccessible(view: View) -> Findings:
    rdma = view.nccl.rdma
    yield from _unmanaged(view)
    facts = {host.name: host_facts for host, host_facts in view.facts}
    closed = {name: side for name, side in rdma.sides.items() if side.rdma.closed and name in facts}
    reasons = ((side.rdma.closed[0].problem or "", name) for name, side in closed.items())
    for problem, names in grouped(reasons).items():
        without = [name for name in names if not rdma.sides[name].rdma.entries]
        what = end(view, without) if without else "NCCL skips them"
        devices = ((name, _nodes(closed[name])) for name in names)
        yield Finding(
            hosts=tuple(names),
            message=f"NCCL can't open active RDMA devices on {fold(names)} ({_words(problem)}), so {what}.",
            evidence=folded(devices),
            facts={"problem": problem},
            severity=gravity(view, without) if without else None,
            fix=_fix(problem, names, _contained(facts[names[0]])),
        )


def _unmanaged(view: View) -> Findings:
    """Yield one finding for all InfiniBand ports that are waiting for a subnet manager."""
    rdma = view.nccl.rdma
    waiting = {
        name: ports
        for name, side in rdma.sides.items()
        if (ports := [pair for pair in side.rdma.down if pair[1].link_layer == LAYERS[0] and pair[1].state in WAITING])
    }
    if waiting:
        without = [name for name in waiting if not rdma.sides[name].rdma.entries]
        what = end(view, without) if without else "NCCL skips them"
        shown = (
            (name, ", ".join(f"{d.name} port {p.number}: {p.state}" for d, p in pairs))
            for name, pairs in waiting.items()
        )
        yield Finding(
            hosts=tuple(waiting),
            message=f"InfiniBand ports on {fold(waiting)} have a link, but no subnet manager has activated them, so "
            f"{what}.",
            evidence=folded(shown),
            facts={"problem": "no subnet manager"},
            severity=gravity(view, without) if without else None,
            fix=Fix(
                summary="Start the fabric's subnet manager: opensm on one host, or that of a managed switch or UFM. "
                "If one is running, find out why it leaves these ports out (ibdiagnet, partitions, the switch's log)."
            ),
        )


WAITING = ("INIT", "ARMED")
"""States of a port that has a link but has not yet been activated by a subnet manager (InfiniBand spec., 14.3)."""


def _nodes(side: RdmaSide) -> str:
    paths = (f"{device.name} (/dev/infiniband/uverbs{device.verbs})" for device in side.rdma.closed)
    names = (device.name for device in side.rdma.closed)
    return ", ".join(names if any(device.verbs is None for device in side.rdma.closed) else paths)


def _words(problem: str) -> str:
    return "the ib_uverbs kernel module is not loaded" if problem == NO_MODULE else problem


def _contained(facts: HostFacts) -> bool:
    return not isinstance(facts.identity, Unknown) and facts.identity.container is not None


def _fix(problem: str, names: list[str], contained: bool) -> Fix:
    if problem == NO_MODULE and not contained:
        listed = "Load the module (and list it in a .conf file in /etc/modules-load.d):"
        return pasted(listed, on_each(names, LOAD), needs_root=True)
    if contained:
        no_module = problem == NO_MODULE
        first = (
            "On the container's host, load the module (modprobe ib_uverbs, and list it in a .conf file in "
            "/etc/modules-load.d). "
        )
        return Fix(
            summary=f"{first if no_module else ''}Pass the RDMA devices to the container: for docker and podman, with "
            "--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1; for a pod, with the RDMA device "
            "plugin's resource.",
            needs_root=no_module,
        )
    if problem == "ENOENT":
        return Fix(
            summary="Create the device nodes with mknod -m 666 (/sys/class/infiniband_verbs/uverbs*/dev has their "
            "numbers), or reboot: the kernel creates them in the devtmpfs on /dev.",
            needs_root=True,
        )
    return Fix(
        summary="Let the job's user open /dev/infiniband/uverbs*: mode 0666 is the kernel's default, so look for a "
        "udev rule (/etc/udev/rules.d) that restricts it.",
        needs_root=True,
    )
