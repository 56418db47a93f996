"""Determines the address that each program advertises to its peers, in the same way as the program itself.

The steps for vLLM 0.11 to 0.33 follow ``get_ip`` in vllm/utils/network_utils.py. The steps for SGLang 0.4.6, 0.5.5 and
0.5.23 follow ``get_local_ip_auto`` in srt/utils/network.py. The steps for Ray follow ray/_private/services.py (2.44)
and src/ray/util/network_util.cc (2.60). Further sources are DeepSpeed 0.19 (launcher/runner.py) and torch 2.13
(elastic/agent/server/api.py, ProcessGroupGloo.cpp). The remaining sources are the NIXL code in vLLM 0.33 and ai-dynamo
1.6, and the code of Mooncake 0.3 and UCX 1.22.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nccl_doctor.model.base import Unknown, known, unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.nccl.gloo import GLOO_SOCKET_IFNAME, gloo_devices
from nccl_doctor.nccl.interfaces import NcclFailure
from nccl_doctor.snapshot.hosts import Host, Snapshot
from nccl_doctor.snapshot.network import Engines, Interfaces, Names, Resolution
from nccl_doctor.text.inet import is_loopback

if TYPE_CHECKING:
    from nccl_doctor.model.documents import InterfaceAnswers

WILDCARD = "0.0.0.0"  # noqa: S104 - what vLLM tells
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Advertised:
    """The address that a program advertises to its peers.

    Attributes:
        address: an address, or a name that the peers resolve; None if the program exits without an address.
        why: a phrase for the step that led to the address.
        by: the variable or option that sets the address; None if the program chooses the address itself.
    """

    address: str | None
    why: str
    by: str | None = None


@dataclass(frozen=True)
class Side:
    """A host as seen by the programs that run on the host.

    ``towards`` is the host's source address for packets to the master, or None if that address is unknown.
    """

    hostname: str
    engines: Engines
    interfaces: Interfaces
    variables: Mapping[str, str]
    own: Resolution | None
    is_first: bool
    towards: str | None

    def version(self, package: str) -> tuple[int, ...] | None:
        """Return a package's version as a tuple, or None if the package is not installed.

        The tuple is empty if the version is a branch name.
        """
        known = {} if isinstance(self.engines.packages, Unknown) else self.engines.packages
        return tuple(map(int, re.findall(r"\d+", known[package])[:3])) if package in known else None

    def interface(self, address: str) -> str:
        """Return the name of the interface to which an address is assigned, or the phrase "no interface of its own"."""
        return next((e.interface for e in self.interfaces.addresses if e.address == address), "no interface of its own")


AddressStep = Callable[[Side], Advertised | None]


def _variable(name: str) -> AddressStep:
    def read(side: Side) -> Advertised | None:
        value = side.variables.get(name)
        return Advertised(value, f"{name} says so", name) if value else None

    return read


def _nic(side: Side) -> Advertised | None:
    """Return the address of the interface named by SGLANG_LOCAL_IP_NIC.

    The result is None for an unknown interface, which SGLang ignores.
    """
    name = side.variables.get("SGLANG_LOCAL_IP_NIC")
    if not name:
        return None
    if side.version("sglang") and not side.version("netifaces"):
        return Advertised(None, "SGLANG_LOCAL_IP_NIC needs the package netifaces, which is not installed")
    entries = sorted((e for e in side.interfaces.addresses if e.interface == name), key=lambda entry: entry.family)
    unusable = (LOOPBACK, WILDCARD, "::1")
    addresses = (e.address for e in entries if e.address not in unusable and not e.address.startswith("fe80::"))
    address = next(addresses, None)
    why, by = f"SGLANG_LOCAL_IP_NIC names {name}", "SGLANG_LOCAL_IP_NIC"
    return Advertised(address, why, by) if address is not None else None


def _route(side: Side) -> Advertised | None:
    return _by_way(side, side.engines.route, "8.8.8.8")


def _route6(side: Side) -> Advertised | None:
    return _by_way(side, side.engines.route6, "2001:4860:4860::8888")


def _by_way(side: Side, address: str | None, there: str) -> Advertised | None:
    return None if address is None else Advertised(address, f"its way to {there} begins at {side.interface(address)}")


def _towards(side: Side) -> Advertised | None:
    """Return the source address that Ray uses for packets to 8.8.8.8 (head node) or to the head node (worker nodes)."""
    if side.is_first:
        return _route(side)
    way = f"its way to the master begins at {side.interface(side.towards)}" if side.towards is not None else ""
    return Advertised(side.towards, way) if side.towards is not None else None


def _head6(side: Side) -> Advertised | None:
    return _route6(side) if side.is_first else None


def _running(side: Side) -> Advertised | None:
    nodes = side.engines.ray_nodes
    return Advertised(nodes[0], "the Ray node that runs there is known by it", "--node-ip-address") if nodes else None


def _named(pick: Callable[[Side], str | None], refused: tuple[str, ...] = ()) -> AddressStep:
    def by_name(side: Side) -> Advertised | None:
        address = pick(side)
        usable = address is not None and address not in refused
        return Advertised(address, f"its own name, {side.hostname}, resolves to it") if usable else None

    return by_name


def _configured(side: Side) -> str | None:
    return next(iter(side.engines.configured), None)


def _inet_first(side: Side) -> str | None:
    return next((address for address in side.engines.configured if ":" not in address), _configured(side))


def _first(side: Side) -> Advertised | None:
    """Return the first address in the output of ``hostname -I``, which omits loopback and link-local addresses."""
    there = (e.address for e in side.interfaces.addresses if not is_loopback(e.address))
    address = next((candidate for candidate in there if not candidate.startswith("fe80:")), None)
    return None if address is None else Advertised(address, "hostname -I gives it first")


def _gloo(side: Side) -> Advertised | None:
    devices = gloo_devices(side.interfaces, side.variables, side.own)
    if devices is None:
        return None
    if isinstance(devices, NcclFailure):
        return Advertised(None, devices.reason)
    by = GLOO_SOCKET_IFNAME if len(side.variables.get(GLOO_SOCKET_IFNAME, "")) > 1 else None
    return Advertised(devices[0].address, devices[0].reason, by)


def _full_name(side: Side) -> Advertised | None:
    return Advertised(side.engines.fqdn, "its own full name, which the others resolve") if side.engines.fqdn else None


def _dynamo(side: Side) -> Advertised | None:
    """Return the address that dynamo.vllm uses for NIXL. Unlike vLLM, dynamo.vllm tries the host's own name first."""
    if side.version("ai_dynamo") is None:
        return None
    ips = {entry.address for entry in side.interfaces.addresses}
    there = [ip for ip in side.engines.configured if ip in ips and not is_loopback(ip) and ip[:5] != "fe80:"]
    named = _named(lambda _side: next(iter(there), None))(side)
    nothing = Advertised(None, "dynamo.vllm finds no routable address for NIXL, and ends")
    return named or _route(side) or _route6(side) or nothing


def _by_metadata(side: Side) -> Advertised | None:
    """Return the address that Mooncake uses with a metadata server, or None if no such server is configured."""
    if side.variables.get("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE") == "P2PHANDSHAKE":
        return None
    running = {link.name for link in side.interfaces.links if {"up", "running"} <= {*link.flags} and link.name != "lo"}
    there = (entry for entry in side.interfaces.addresses if entry.interface in running and entry.family == "inet")
    first = next(there, None)
    why = "with a metadata server, the first interface that runs is taken"
    return _variable("MC_TCP_BIND_ADDRESS")(side) or (Advertised(first.address, why) if first is not None else None)


def _store(side: Side) -> Advertised | None:
    """Return the address that the installed engine passes to Mooncake's store, or None if the engine passes none.

    If vLLM and SGLang are both installed or both missing, the variables of both engines count.
    """
    names: tuple[str, ...] = (_SGLANGS_STORE[0], _VLLMS_STORE, _SGLANGS_STORE[1])
    if _is_only_engine(side, "vllm"):
        names = (_VLLMS_STORE,)
    elif _is_only_engine(side, "sglang"):
        names = _SGLANGS_STORE
    named = next((advert for name in names if (advert := _variable(name)(side)) is not None), None)
    return named or (advertised("vllm", side) if _is_only_engine(side, "vllm") else None)


def _is_only_engine(side: Side, engine: str) -> bool:
    return [name for name in ("vllm", "sglang") if side.version(name) is not None] == [engine]


def variable_of(program: str, side: Side) -> str | None:
    """Return the environment variable that sets the address of a program on a host, or None."""
    if program == "mooncake" and _is_only_engine(side, "vllm"):
        return _VLLMS_STORE
    return PROGRAMS[program].export


def ucx_interfaces(side: Side) -> tuple[str, ...]:
    """Return the interfaces to which UCX_NET_DEVICES restricts UCX.

    The result is empty if UCX uses RDMA or all devices.
    """
    named = side.variables.get("UCX_NET_DEVICES", "all").split(",")
    return () if "all" in named or any(":" in name or not name for name in named) else tuple(named)


def _ucx(side: Side) -> Advertised | None:
    named = ucx_interfaces(side)
    there = [entry.address for entry in side.interfaces.addresses if entry.interface in named]
    if not there:
        return Advertised(None, f"UCX_NET_DEVICES names {','.join(named)}, which have no address there")
    # it advertises the addresses of all its devices, of which the peers use one that they can reach
    best = side.towards if side.towards in there else there[0]
    return Advertised(best, f"UCX_NET_DEVICES names {side.interface(best)}", "UCX_NET_DEVICES")


def _else(address: str | None, why: str) -> AddressStep:
    return lambda _side: Advertised(address, why)


_NOTHING: AddressStep = _else(LOOPBACK, "neither a way out nor its own name tells another")
_NO_WAY = "it has no way to 8.8.8.8"
_OWN = (LOOPBACK, WILDCARD, "::1")
_ANYWHERE = (_variable("SGLANG_HOST_IP"), _variable("HOST_IP"), _nic, _route)
_SGLANGS_STORE = ("MOONCAKE_LOCAL_HOSTNAME", "LOCAL_HOSTNAME")
_VLLMS_STORE = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"


@dataclass(frozen=True)
class Ports:
    """A range of ports that a program uses in addition to the ports on its command line.

    Attributes:
        last: the last port of the range that begins at ``first``.
        of: the name of the component that uses the ports, in the possessive form, such as "its dashboard's".
        by: the option or variable that changes the ports.
        only_with: the command-line option that makes the program use the ports, or "" if the ports are always used.
    """

    first: int
    last: int
    of: str
    by: str
    only_with: str = ""


@dataclass(frozen=True)
class Program:
    """A program that advertises an address to its peers.

    Attributes:
        steps: for each version that changed how the program finds its address, the version number and the steps. The
            oldest version comes first.
        variables: environment variables that imply that the program is used, even if no installation of the program was
            found.
        export: the environment variable that sets the address, or None; for Mooncake's store, SGLang's variable (see
            :func:`variable_of`).
        option: the name (with underscores) of the launch command's option that sets the address, or None.
        package: the program's Python package if the names of the program and the package differ.
        ports: the program's default ports in vLLM 0.22 and later, SGLang 0.5 or Ray 2; vLLM versions before 0.22 used
            port 5557 for NIXL.
        beside: the other programs that the program uses; a wrong setting for any of these programs is an error.
        always: whether the program's address is determined on every host, even if the program is not installed.
        syntax: the versions for which ``launch --engine`` prints valid commands; "" if the program is not a valid
            engine.
        starts: the argument that follows the launch command, such as "train.py".
        sizes: the options that set the number of GPUs over which a model is split.
    """

    title: str
    steps: tuple[tuple[tuple[int, ...], tuple[AddressStep, ...]], ...] = ()
    variables: tuple[str, ...] = ()
    export: str | None = None
    option: str | None = None
    package: str | None = None
    ports: tuple[Ports, ...] = ()
    beside: tuple[str, ...] = ()
    always: bool = False
    syntax: str = ""
    starts: str = "train.py"
    sizes: tuple[str, ...] = ()

    @property
    def is_server(self) -> bool:
        """True if the launch command for each host contains the host's own address, as for vLLM."""
        return self.always and bool(self.syntax)


PROGRAMS = {
    "vllm": Program(
        "vLLM",
        (((0,), (_variable("VLLM_HOST_IP"), _route, _route6, _else(WILDCARD, _NO_WAY))),),
        variables=("VLLM_HOST_IP",),
        export="VLLM_HOST_IP",
        ports=(
            Ports(29550, 29550, "its data parallel handshake's", "--data-parallel-rpc-port", "data"),
            Ports(5600, 5615, "its NIXL side channels'", "VLLM_NIXL_SIDE_CHANNEL_PORT", "kv_transfer_config"),
            Ports(8998, 8998, "its Mooncake bootstrap's", "VLLM_MOONCAKE_BOOTSTRAP_PORT", "kv_transfer_config"),
            Ports(15000, 17000, "Mooncake's transfer engine's", "MC_MIN_RPC_PORT", "kv_transfer_config"),
        ),
        beside=("nixl", "mooncake", "ucx"),
        always=True,
        syntax="vLLM 0.22 and later (0.11 has no --nnodes)",
        starts="MODEL",
        sizes=("-tp", "--tensor-parallel-size", "-pp", "--pipeline-parallel-size", "-dp", "--data-parallel-size"),
    ),
    "sglang": Program(
        "SGLang",
        (
            ((0,), (*_ANYWHERE[:2], _route, _route6, _else(WILDCARD, _NO_WAY))),
            ((0, 5), (*_ANYWHERE, _named(lambda side: side.engines.by_inet, _OWN), _route6)),
            ((0, 5, 6), (*_ANYWHERE, _route6, _named(_configured, _OWN))),
        ),
        variables=("SGLANG_HOST_IP", "SGLANG_LOCAL_IP_NIC"),
        export="SGLANG_HOST_IP",
        ports=(
            Ports(29600, 29600, "its own store's", "SGLANG_TCP_STORE_PORT"),
            Ports(8998, 8998, "its bootstrap server's", "--disaggregation-bootstrap-port", "disaggregation_mode"),
            Ports(15000, 17000, "Mooncake's transfer engine's", "MC_MIN_RPC_PORT", "disaggregation_mode"),
        ),
        beside=("mooncake", "ucx"),
        always=True,
        syntax="SGLang 0.4.6 and later",
        starts="MODEL",
        sizes=("--tp", "--tp-size", "--tensor-parallel-size", "--pp-size", "--dp-size"),
    ),
    "ray": Program(
        "Ray",
        (
            ((0,), (_running, _towards, _named(lambda side: side.engines.by_fqdn), _NOTHING)),
            ((2, 50), (_running, _towards, _head6, _named(_inet_first), _NOTHING)),
        ),
        option="node_ip_address",
        ports=(
            Ports(8265, 8265, "its dashboard's", "--dashboard-port"),
            Ports(10001, 10001, "its client server's", "--ray-client-server-port"),
            Ports(10002, 19999, "its workers'", "--min-worker-port and --max-worker-port"),
            Ports(52365, 52365, "its agent's", "--dashboard-agent-listen-port"),
        ),
        always=True,
        syntax="Ray 2.44 and later",
        starts="",
    ),
    "gloo": Program("gloo", (((0,), (_gloo,)),), always=True),
    "torchrun": Program("torchrun", (((0,), (_variable("PET_LOCAL_ADDR"), _full_name)),), always=True),
    "deepspeed": Program(
        "DeepSpeed", (((0,), (_first,)),), option="master_addr", syntax="DeepSpeed 0.15 and later (--no_ssh)"
    ),
    "accelerate": Program("Accelerate", syntax="Accelerate 1.x"),
    "nixl": Program(
        "vLLM's NIXL connector",
        (((0,), (_variable("VLLM_NIXL_SIDE_CHANNEL_HOST"), _dynamo, _else("localhost", "vLLM's default for NIXL"))),),
        variables=("VLLM_NIXL_SIDE_CHANNEL_HOST",),
        export="VLLM_NIXL_SIDE_CHANNEL_HOST",
    ),
    "mooncake": Program(
        "Mooncake's store",
        (((0,), (_by_metadata, _store, _else("localhost", "its default"))),),
        variables=(_SGLANGS_STORE[0], _VLLMS_STORE, "MC_TCP_BIND_ADDRESS"),
        export=_SGLANGS_STORE[0],
        package="mooncake_transfer_engine",
    ),
    "ucx": Program("UCX", (((0,), (_ucx,)),), variables=("UCX_NET_DEVICES",)),
}
"""All programs by name, in the order in which they are shown."""
TELLING = tuple(name for name, program in PROGRAMS.items() if program.steps)
"""The names of the programs that choose their own addresses."""


def side_of(cluster: Cluster, host: Host) -> Side | Unknown:
    """Return the :class:`Side` of a host, or Unknown with a reason if facts are missing."""
    facts = host.facts
    if facts is None:
        return unknown(f"{host.name} was not reached")
    if facts.engines is None:
        return unknown("ways out and own names were not asked for")
    for fact in (facts.engines, facts.interfaces, facts.env, facts.identity):
        if isinstance(fact, Unknown):
            return fact
    hostname = known(facts.identity).hostname
    names = facts.resolution if isinstance(facts.resolution, Names) else Names(own={})
    way = names.get(cluster.master_addr)
    return Side(
        hostname=hostname,
        engines=known(facts.engines),
        interfaces=known(facts.interfaces),
        variables={**known(facts.env), **host.node.env},
        own=names.get(hostname),
        is_first=host.node.node_rank == 0,
        towards=way.source if way is not None else None,
    )


def advertised(program: str, side: Side) -> Advertised:
    """Return the address that a program's installed version advertises.

    If no version is installed, the newest version is assumed.
    """
    version = side.version(PROGRAMS[program].package or program)
    fitting = [steps for since, steps in PROGRAMS[program].steps if not version or since <= version]
    results = (step(side) for step in fitting[-1])
    return next((result for result in results if result is not None), Advertised(None, "it finds none, and ends"))


def programs(side: Side) -> Iterator[str]:
    """Yield the programs that are installed on the host or whose variables are set."""
    for name in TELLING:
        program = PROGRAMS[name]
        meant = any(side.variables.get(variable) for variable in program.variables)
        if (meant and (name != "ucx" or ucx_interfaces(side))) or side.version(program.package or name) is not None:
            yield name


def tell(snapshot: Snapshot, answers: InterfaceAnswers) -> InterfaceAnswers:
    """Return the output of ``nccl-doctor ifname`` with the address that each program would advertise."""
    from nccl_doctor.model.documents import AdvertisedAddress

    def of_host(host: Host) -> dict[str, AdvertisedAddress]:
        side = side_of(snapshot.cluster, host)
        if isinstance(side, Unknown):
            return {}
        always = [name for name in TELLING if PROGRAMS[name].always]
        named = (snapshot.cluster.engine,) if snapshot.cluster.engine in TELLING else ()
        addresses = {name: advertised(name, side) for name in dict.fromkeys((*always, *named, *programs(side)))}
        return {name: AdvertisedAddress(address=item.address, why=item.why) for name, item in addresses.items()}

    by_host = {host.name: of_host(host) for host in snapshot.hosts}
    hosts = tuple(item.model_copy(update={"advertises": by_host[item.name]}) for item in answers.hosts)
    return answers.model_copy(update={"hosts": hosts, "engine": snapshot.cluster.engine})
