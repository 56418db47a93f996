"""The master address is a loopback address, and the job has more than one host.

What it means: on every host, 127.0.0.1, ::1 and "localhost" refer to that host itself. The ranks on the other hosts
look for the master on their own machine, where connections are refused or fail with "The client socket has timed out".

How we know: `master_addr` in the hosts file is a loopback address, or resolves to a loopback address on some hosts.

Fix: set `master_addr` to the address of the first host's network interface. On the first host itself, it does no harm
if the master's name resolves to 127.0.1.1 (the default of Debian and Ubuntu), because rank 0 listens on all addresses.
"""

from nccl_doctor.checks.effects import MASTER
from nccl_doctor.checks.view import Findings, View, check, failed_by
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.snapshot.network import Names
from nccl_doctor.text.hostlist import fold
from nccl_doctor.text.inet import is_loopback


@check(
    "NCD201",
    phrase="master address is a loopback address",
    severity=Severity.ERROR,
    needs=("resolution",),
    explains=("port-unreachable", MASTER),
)
def master_addr_loopback(view: View) -> Findings:
    nodes = view.snapshot.cluster.nodes
    if len({node.address for node in nodes}) < 2:
        return
    address = view.snapshot.cluster.master_addr
    is_local = is_loopback(address) or address.split(".")[0] == "localhost"  # on every host (RFC 6761, 6.3)
    answers: list[tuple[str, str]] = []
    for host, facts in view.facts:
        resolution = facts.resolution.get(address) if isinstance(facts.resolution, Names) else None
        serves = host.node.node_rank == 0 and not is_local
        if resolution and resolution.addresses and is_loopback(resolution.addresses[0]) and not serves:
            answers.append((host.name, resolution.addresses[0]))
    if not answers and not is_local:
        return
    master = nodes[0]
    hosts = tuple(name for name, _ in answers)
    lost = [node.name for node in nodes] if is_local else hosts
    better = "" if is_loopback(master.address) else f', for example "{master.address}"'
    fix = f"Set master_addr in the hosts file to an address of {master.name} that all reach{better}."
    if view.snapshot.cluster.variables.get("master_addr") == "MASTER_ADDR":
        option = "" if is_loopback(master.address) else f", or give --master-addr {master.address}, which wins"
        fix = f"The environment here says so: `unset MASTER_ADDR`{option}."
    if master.address == address:
        fix = f"Write {master.name} in the list of hosts by a name or an address by which the others reach it."
    yield Finding(
        hosts=hosts or (master.name,),
        message=f'The master address "{address}" is a loopback address, so hosts other than the master would connect '
        "to themselves."
        if is_local
        else f'On {fold(hosts)}, the master address "{address}" resolves to a loopback address, so ranks there would '
        "connect to their own host instead of the master.",
        evidence=tuple(f"{name}: {address} is {answer}" for name, answer in answers if answer != address),
        facts={"master_addr": address},
        details=Details(failed=failed_by(view, address, lost)),
        fix=fix,
    )
