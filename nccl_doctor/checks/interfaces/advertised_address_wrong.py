"""The address that an engine tells its peers is not one at which they find its host.

What it means: Ray, vLLM, SGLang and the like tell each other an address of every host, most often the one that the
default route leaves by. Where that is another net's, another host's or one address for several hosts, workers are
placed on no node at all, sockets can't be bound, and peers dial where nobody listens.

How we know: vLLM's "Every node should have a unique IP address. Got 2 nodes … and 1 unique IP addresses"; a placement
group of Ray's that waits for "node:ADDRESS" in a cluster in which no node has it; ZMQ's "Cannot assign requested
address (addr='tcp://…')", which is no address of the host that binds it.

Fix: Give every host its own address on the job's network: VLLM_HOST_IP for vLLM, other on each host, set before `ray
start` and in the engine's environment; `ray start --node-ip-address`; VLLM_NIXL_SIDE_CHANNEL_HOST for NIXL;
`--dist-init-addr` for SGLang. One value for all, as a shared env file gives, is wrong. `nccl-doctor ifname` shows the
addresses by which the hosts reach each other.

References: vllm/v1/executor/ray_utils.py and ray_executor.py; vllm/utils/network_utils.py (get_ip); zmq_bind(3).
"""

import re

from nccl_doctor.logs.log import Event, Log
from nccl_doctor.logs.rule import Grade, clue, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Scene, advise, ifname_command
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import Address, numeric

from_logs(__name__, "NCD222", explains=("rendezvous-timeout", "script-failed"))

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
        "--dist-init-addr for SGLang). The addresses by which the hosts reach each other:",
        ifname_command(case),
    )


def _message(case: Case) -> str:
    first, ip = case.first, case.address.ip
    counted = _COUNTED.search(first.text)
    if counted is not None:
        nodes, addresses = map(int, counted.groups())
        few = addresses < nodes
        why = "several hosts give one address" if few else "a host gives two, one of them of another net"
        found = f"{addresses} {'address' if addresses == 1 else 'addresses'} for {plural(nodes, 'host')}"
        return f"vLLM found {found}: {why} (VLLM_HOST_IP, or the default route's)"
    if first.wording == _UNIQUE:
        return "vLLM found other than one address for each host (VLLM_HOST_IP, or the default route's)"
    if first.wording == _NOT_OWN:
        own = first.prefix.ip
        known = f"; Ray knows that host as {own}" if own and own != ip else ""
        return f"{ip} is no address of the host where the engine was to listen on it{known}"
    head = next((f": its head is at {one}" for one in _heads(case.log) if one != ip), "")
    return f"The engine waits for a node at {ip}, and no node of the Ray cluster has that address{head}"


def _heads(log: Log) -> list[str]:
    """The addresses at which an engine met Ray."""
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
    """Weighs a wait for a node whose address no host has."""
    if scene.log.facts.serving:
        return Grade.HINT
    if event.wording != _WAITS:
        return Grade.LIKELY
    heads, wanted = [numeric(ip) for ip in _heads(scene.log)], numeric(event.address.ip or "")
    apart = bool(heads) and wanted is not None and not any(head and _net(head) == _net(wanted) for head in heads)
    return Grade.LIKELY if apart or any(one.wording == _NOWHERE for one in scene.events) else Grade.HINT


def _net(address: Address) -> bytes:
    """The part of an address that the hosts of one network share."""
    return address.packed[:3] if address.version == 4 else address.packed[:8]


SIGNS = LogSigns(RULES, _advice, weigh=_weigh)
