"""An engine such as Ray or vLLM advertises an address at which other hosts can't reach the engine's host.

What it means: engines such as Ray, vLLM and SGLang advertise one address for each host, usually the source address of
the default route. If the advertised address belongs to another network or host, or if several hosts advertise the same
address, the job can't start. With a wrong address, workers can't be placed on a node, sockets can't be bound, or peers
connect to an address where no process listens.

How we know: on each host, `check` reads the environment variables and the host's own name, and asks the kernel for the
route to 8.8.8.8 (without sending packets). From the variables, the name and the route, `check` determines which address
the installed version of each engine will choose. If an engine is named (--engine, or engine: in the hosts file), the
other hosts connect to the address that this engine advertises, and a wrong address is reported as an error. Engines
that are not named are checked if they are installed or if their variables are set, and wrong addresses of these engines
are reported only with the severity "info". Typical messages in a log are vLLM's "Every node should have a unique IP
address. Got 2 nodes … and 1 unique IP addresses", a Ray placement group that waits for an unknown "node:ADDRESS", and
ZMQ's "Cannot assign requested address (addr='tcp://…')" for an address that the host does not have.

Fix: give every host its own address on the job's network. For vLLM, set VLLM_HOST_IP to a different address on each
host, before `ray start` and in the engine's environment. For SGLang, set SGLANG_HOST_IP. For NIXL, set
VLLM_NIXL_SIDE_CHANNEL_HOST. For Ray, use `ray start --node-ip-address`. For DeepSpeed, set the master's address with
`deepspeed --master_addr`. Except for the master's address, do not set the same address on all hosts, for example
through a shared env file. `nccl-doctor ifname --engine NAME` shows the address that each host advertises and the
addresses at which the hosts reach each other.

References: vllm/v1/executor/ray_utils.py and ray_executor.py; vllm/utils/network_utils.py (get_ip);
sglang/srt/utils/network.py (get_local_ip_auto); ray/src/ray/util/network_util.cc; zmq_bind(3).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from nccl_doctor.checks.nccl_choice import good_interfaces
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import LaunchLine, line_to_judge
from nccl_doctor.logs.log import Event, Log
from nccl_doctor.logs.rule import Grade, clue, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Scene, advise, ifname_command
from nccl_doctor.model.base import Unknown, unknown
from nccl_doctor.model.finding import Command, Finding, Fix, Severity, export, on
from nccl_doctor.model.register import Absent, Unjudged
from nccl_doctor.nccl.host_nccl import HostNccl
from nccl_doctor.nccl.reachability import LossCause, Reachable, reachability
from nccl_doctor.servers.advertise import (
    PROGRAMS,
    TELLING,
    Advertised,
    Side,
    advertised,
    programs,
    side_of,
    variable_of,
)
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Names
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.inet import Address, address_of, endpoint, numeric
from nccl_doctor.text.shell import line

_JUDGED_ELSEWHERE = ("gloo", "torchrun")
"""Programs whose addresses are examined by the checks for other diagnoses, such as hostname-loopback."""


@dataclass(frozen=True)
class Misled:
    """A host on which a program advertises a wrong address to its peers.

    Attributes:
        fault: phrase to follow "vLLM on node1 ", identical for all hosts with this fault.
        better: address at which the other hosts reach the host, or None if no such address is known.
    """

    host: str
    given: Advertised
    fault: str
    evidence: str
    better: str | None


@check(
    "NCD222",
    phrase="wrong address advertised",
    severity=Severity.ERROR,
    in_logs=("rendezvous-timeout", "script-failed"),
)
def advertised_address_wrong(view: View) -> Findings:
    cluster = view.snapshot.cluster
    if len(cluster.nodes) < 2:
        yield Absent("one host has no peers that it tells an address")
        return
    if cluster.engine is not None and cluster.engine not in TELLING:
        yield Absent(f"{PROGRAMS[cluster.engine].title} tells its peers the address that it is given")
        return
    results = dict(_sides(view))
    sides = {name: side for name, side in results.items() if isinstance(side, Side)}
    for name, why in results.items():
        if isinstance(why, Unknown) and cluster.engine is not None:
            yield Unjudged((name,), why.reason)
    meant = {name: {*programs(side), cluster.engine} for name, side in sides.items()}
    wanted = [key for key in TELLING if key not in _JUDGED_ELSEWHERE and any(key in there for there in meant.values())]
    if cluster.engine is None and not wanted:
        yield Absent("no engine is named (--engine) or installed")
        return
    for (severity, those), which in grouped(_faults(view, wanted, meant, sides)).items():
        yield _finding(view, severity, those, which, sides)


def _sides(view: View) -> Iterator[tuple[str, Side | Unknown]]:
    for host, _ in view.facts:
        side = side_of(view.snapshot.cluster, host)
        lacks = host.name not in view.nccl.by_host
        yield host.name, unknown(view.nccl.unknown.get(host.name, "not examined")) if lacks else side


def _faults(
    view: View, wanted: list[str], meant: Mapping[str, set[str | None]], sides: Mapping[str, Side]
) -> Iterator[tuple[tuple[Severity, tuple[Misled, ...]], str]]:
    """Yield the severity of each fault, the hosts that have the fault, and the affected program."""
    engine = view.snapshot.cluster.engine
    for program in wanted:
        hosts = {name: side for name, side in sides.items() if program in meant[name]}
        if program == "deepspeed":  # its launcher runs on the first host, and advertises that host's address
            hosts = {name: side for name, side in hosts.items() if side.is_first}
        misled = [entry for name, side in hosts.items() if (entry := _judge(view, program, name, side)) is not None]
        for alike in grouped((entry.fault, entry) for entry in misled).values():
            beside = engine is not None and program in PROGRAMS[engine].beside and alike[0].given.by is not None
            yield (Severity.ERROR if program == engine or beside else Severity.INFO, tuple(alike)), program


def _judge(view: View, program: str, name: str, side: Side) -> Misled | None:
    advert, host_nccl = _by_line(view, program, name) or advertised(program, side), view.nccl.by_host[name]
    better, listed = _right_address(view, name, host_nccl)
    address = _numeric(view, name, side, advert)
    fault = _fault(view, host_nccl, advert, address, {better, *listed})
    known = side.engines.ray_nodes
    if fault is None and program == "vllm" and known and advert.address not in known:
        fault = "will advertise a different address from the one that Ray uses for this host"
        better = known[0]
    if fault is None:
        return None
    at = f" ({side.interface(address)})" if address is not None and host_nccl.owns(address) else ""
    right = f"; the other hosts reach it at {better}" if better is not None else ""
    phrase = "no address" if advert.address is None else f"{advert.address}{at}"
    why = "" if "which has the route" in fault else f", for {advert.why}"
    return Misled(name, advert, fault, f"{name}: {phrase}{why}{right}", better)


def _by_line(view: View, program: str, name: str) -> Advertised | None:
    """Return the address that the launch command passes to the program on this host, or None if it passes none."""
    with suppress(ValueError, UsageError):
        line, option = line_to_judge(view.snapshot), PROGRAMS[program].option
        if line is None or option is None or line.launcher != program:
            return None
        address = line.options.get(option)
        if not address or (program == "ray" and not _is_meant(view, line, name, address)):
            return None
        flag = f"--{option.replace('_', '-')}"
        return Advertised(address, f"{flag} says so", flag)
    return None


def _is_meant(view: View, line: LaunchLine, name: str, address: str) -> bool:
    """Return whether a ``ray start`` command, which applies to a single host, applies to the named host."""
    owners = [other for other, host_nccl in view.nccl.by_host.items() if host_nccl.owns(address)]
    is_first = name == view.snapshot.cluster.nodes[0].name
    return name in owners if owners else is_first == ("head" in line.options)


def _fault(
    view: View, host_nccl: HostNccl, advertised: Advertised, address: str | None, right: set[str | None]
) -> str | None:
    """Return the fault as a phrase to follow the program's name, or None if peers can reach the host at the address."""
    if advertised.address is None:
        return "finds no address to advertise and will exit"
    parsed = numeric(address or "")
    if address is None or parsed is None:
        return f"will advertise {advertised.address}, which does not resolve on that host"
    if parsed.is_unspecified:
        why = f"{advertised.by} is set to this address" if advertised.by else "the host has no route to 8.8.8.8"
        return f"will advertise {advertised.address}, an unusable address, because {why}"
    if parsed.is_loopback:
        return "will advertise a loopback address, at which every host reaches only itself"
    return _of_peers(view, host_nccl, advertised, address, right)


def _of_peers(
    view: View, host_nccl: HostNccl, advertised: Advertised, address: str, right: set[str | None]
) -> str | None:
    entry = next((entry for entry in host_nccl.interfaces.addresses if entry.address == address), None)
    if entry is None:
        return "is configured to advertise an address that does not belong to the host"
    standing = reachability(host_nccl, address, view.nccl.peers.of(host_nccl.host, address), view.nccl.mesh)
    mesh = view.snapshot.mesh
    unmet = mesh.unmet.get(host_nccl.host, {}).get(address, {}) if isinstance(mesh, Mesh) else {}
    sources = {verdict.source for verdict in standing.verdicts if verdict.answer is Reachable.YES}
    fault = None
    nets = [net for candidate in right if candidate is not None for net in host_nccl.networks(candidate)]
    if LossCause.OWN_ADDRESS in standing.causes:
        fault = "will advertise an address that is also an address of other hosts, so each host would connect to itself"
    elif (unmet and not sources - unmet.keys()) or standing.is_lost:
        fault = f"will advertise an address of {entry.interface}, which the other hosts can't reach"
    elif advertised.by is None and address not in right and not any(address_of(address) in net for net in nets):
        used = next((e.interface for e in host_nccl.interfaces.addresses if e.address in right), None)
        way = ", which has the route to the internet" if "begins at" in advertised.why else ""
        fault = f"will advertise an address of {entry.interface}{way}, but the cluster uses {used or 'another subnet'}"
    return fault


def _numeric(view: View, name: str, side: Side, advertised: Advertised) -> str | None:
    if advertised.address is None or numeric(advertised.address) is not None:
        return advertised.address
    if advertised.address == "localhost":
        return "127.0.0.1"
    facts = next(host.facts for host in view.snapshot.hosts if host.name == name)
    names = facts.resolution if facts is not None and isinstance(facts.resolution, Names) else None
    answer = (
        side.own
        if advertised.address == side.hostname
        else names.get(advertised.address)
        if names is not None
        else None
    )
    return answer.addresses[0] if answer is not None and answer.addresses else None


def _right_address(view: View, name: str, host_nccl: HostNccl) -> tuple[str | None, list[str]]:
    """Return the host's address on the best interface for NCCL, and the host's addresses from the hosts file."""
    host = next(host for host in view.snapshot.hosts if host.name == name)
    names = host.facts.resolution if host.facts is not None and isinstance(host.facts.resolution, Names) else None
    answer = names.get(host.node.address) if names is not None else None
    listed = [ip for ip in (host.node.address, *(answer.addresses if answer is not None else ())) if host_nccl.owns(ip)]
    listed = [ip for ip in listed if not ip.startswith("127.") and ip != "::1"]
    interface = good_interfaces(view.nccl).get(name)
    there = [e.address for e in host_nccl.interfaces.addresses if e.interface.partition(":")[0] == interface]
    return next((ip for ip in (*listed, *there) if ip in there), next(iter(listed), None)), listed


def _finding(
    view: View, severity: Severity, those: tuple[Misled, ...], which: list[str], sides: Mapping[str, Side]
) -> Finding:
    hosts = tuple(item.host for item in those)
    who = " and ".join(PROGRAMS[program].title for program in which)
    fault = those[0].fault if len(which) == 1 else those[0].fault.replace("will advertise", "will each advertise", 1)
    better = {item.host: item.better for item in those if item.better is not None}
    commands = tuple(command for program in which for command in _commands(view, program, better, sides))
    restarts = "ray" in which and any(sides[host].engines.ray_nodes for host in better)
    summary = "Start it with the cluster's address."
    if restarts:
        summary = "Stop the running Ray node, which ends its tasks, and start it with the cluster's address."
    if "deepspeed" in which:
        summary = f"Give it the cluster's address: deepspeed --master_addr {better.get(hosts[0], 'ADDRESS')}."
    elif not commands:
        summary = "On each host, give it that host's own address on the cluster's network."
    variables = {
        host: {variable: address for program in which if (variable := variable_of(program, sides[host])) is not None}
        for host, address in better.items()
    }
    return Finding(
        hosts=hosts,
        message=f"{who} on {fold(hosts)} {fault}.",
        evidence=tuple(item.evidence for item in those),
        facts={"engines": which, "addresses": {item.host: item.given.address for item in those}, "reached_by": better},
        fix=Fix(
            summary=summary,
            risk="disruptive" if restarts else "safe" if commands else "manual",
            commands=commands,
            variables={host: settings for host, settings in variables.items() if settings},
        ),
        severity=severity,
    )


def _commands(view: View, program: str, better: Mapping[str, str], sides: Mapping[str, Side]) -> Iterator[Command]:
    cluster = view.snapshot.cluster
    for host, address in better.items():
        if program == "ray" and sides[host].engines.ray_nodes:
            yield from on(host, line("ray stop"))
        if (variable := variable_of(program, sides[host])) is not None:
            yield from on(host, export(variable, address))
        elif program == "ucx":
            there = view.nccl.by_host[host].interfaces.addresses
            device = next(entry.interface for entry in there if entry.address == address)
            yield from on(host, export("UCX_NET_DEVICES", device))
        elif program == "ray" and host == cluster.nodes[0].name:
            yield from on(host, line("ray start --head --node-ip-address={address} --port=6379", address=address))
        elif program == "ray":
            holes = {"head": endpoint(cluster.master_addr, 6379), "address": address}
            yield from on(host, line("ray start --address={head} --node-ip-address={address}", **holes))


_COUNTED = re.compile(r"Got (\d{1,6}) nodes? .{0,2000}?and (\d{1,6}) unique IP addresses")
_NODE = r"'node:(?P<ip>[0-9a-fA-F.:]+)'"
_UNIQUE = r"Every node should have a unique IP address\. Got "
_NOT_OWN = r"Cannot assign requested address \(addr='tcp://(?P<ip>[0-9a-fA-F.:]+):(?P<port>\d+)'"
_NOWHERE = r"No available node types can fulfill resource request .*" + _NODE
_HEAD = r"Connecting to existing Ray cluster at address: (?P<ip>[0-9a-fA-F.:]+):(?P<port>\d+)"
_WAITS = r"Waiting for creating a placement group .*" + _NODE


def _advice(case: Case) -> Advice:
    return advise(
        f"{_message(case)}.",
        "Give every host its own address on the job's network: VLLM_HOST_IP, a different one on each host, before ray "
        "start and in the engine's environment (ray start --node-ip-address; VLLM_NIXL_SIDE_CHANNEL_HOST for NIXL; "
        "SGLANG_HOST_IP for SGLang). The hosts reach each other at these addresses:",
        ifname_command(case),
    )


def _message(case: Case) -> str:
    first, ip = case.first, case.address.ip
    counted = _COUNTED.search(first.text)
    if counted is not None:
        nodes, addresses = map(int, counted.groups())
        few = addresses < nodes
        why = "several hosts give the same address" if few else "a host gives two, one of them on another network"
        phrase = f"{addresses} {'address' if addresses == 1 else 'addresses'} for {plural(nodes, 'host')}"
        return f"vLLM found {phrase}: {why} (VLLM_HOST_IP, or the default route's)"
    if first.wording == _UNIQUE:
        return "vLLM found other than one address for each host (VLLM_HOST_IP, or the default route's)"
    if first.wording == _NOT_OWN:
        host_ip = first.prefix.ip
        known = f"; Ray knows that host as {host_ip}" if host_ip and host_ip != ip else ""
        return f"{ip} is not an address of the host where the engine was to listen on it{known}"
    head = next((f": its head is at {head_ip}" for head_ip in _heads(case.log) if head_ip != ip), "")
    return f"The engine waits for a node at {ip}, and no node of the Ray cluster has that address{head}"


def _heads(log: Log) -> list[str]:
    events = (event for reading in log.readings for event in reading.events)
    return [event.address.ip for event in events if event.wording == _HEAD and event.address.ip]


RULES = (
    root(
        _UNIQUE,
        "RuntimeError: Every node should have a unique IP address. Got 2 nodes with node ids ['5d1c', 'a8f6'] and 1 "
        "unique IP addresses {'10.0.0.11'}. Please check your network configuration.",
    ),
    root(_NOT_OWN, "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.0.0.21:13345')"),
    clue(_HEAD, "INFO worker.py:1821 -- Connecting to existing Ray cluster at address: 192.168.201.10:6379..."),
    hint(
        _NOWHERE,
        "(autoscaler +12s) Error: No available node types can fulfill resource request {'GPU': 1.0, "
        "'node:192.168.50.192': 0.001}. Add suitable node types to this cluster to resolve this issue.",
    ),
    hint(
        _WAITS,
        "INFO 05-02 10:14:19 [ray_utils.py:230] Waiting for creating a placement group of specs for 10 seconds. "
        "specs=[{'GPU': 1.0, 'node:192.168.50.192': 0.001}, {'GPU': 1.0}].",
    ),
)


def _weigh(event: Event, scene: Scene) -> Grade:
    """Grade messages about a missing node address as likely causes, or as hints if the node might still appear."""
    if scene.log.facts.serving:
        return Grade.HINT
    if event.wording != _WAITS:
        return Grade.LIKELY
    heads, wanted = [numeric(ip) for ip in _heads(scene.log)], numeric(event.address.ip or "")
    apart = bool(heads) and wanted is not None and not any(head and _net(head) == _net(wanted) for head in heads)
    return Grade.LIKELY if apart or any(entry.wording == _NOWHERE for entry in scene.events) else Grade.HINT


def _net(address: Address) -> bytes:
    return address.packed[:3] if address.version == 4 else address.packed[:8]


SIGNS = LogSigns(RULES, _advice, weigh=_weigh)
