"""The launch command after `--` can't work as written on the cluster's hosts.

What it means: torchrun or the script exits immediately, each host starts a separate job, or ranks wait for a master
that does not exist. A command copied from a guide contains the author's values, such as the numbers of nodes and ranks,
the master address, a loopback --dist-url and the batch size.

How we know: a log contains the launcher's error message ("torchrun: error: argument --nproc-per-node: expected one
argument"). Before the job starts, nccl-doctor parses the launch command as its launcher would, without running the
command. Supported launchers are torchrun, torch.distributed.launch, accelerate, deepspeed, mpirun and srun. The
commands of vLLM, SGLang and Ray are also checked. Options of the script, such as --dist-url, --rank, --batch-size and
--device, are also checked. The launch command is compared with the number of hosts, their GPUs, the tested master
address and port, and the options that each host's launcher accepts. The accepted options are read from the launcher's
source (torch/distributed/run.py), without running the launcher. A batch size that is not divisible by the number of
ranks yields only a warning, because some scripts apply the batch size to each rank.

Fix: run the corrected launch command that the report shows. If the hosts need different commands, the report shows one
command for each host.

References: torch/distributed/run.py, torch/distributed/rendezvous.py (env://, tcp://); accelerate launch; deepspeed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nccl_doctor.checks.environment import _launch_numbers as line_numbers
from nccl_doctor.checks.environment._launch_numbers import JudgedLine, LineFault
from nccl_doctor.checks.environment.job_variable_conflict import planned_nodes
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import (
    C10D_PORT,
    batch_notes,
    host_options,
    line_to_judge,
    meeting_name,
    own_lines,
    pasteable,
    read_line,
    split_endpoint,
)
from nccl_doctor.launch.plan import is_number
from nccl_doctor.logs.rule import USAGE, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Command, Finding, Severity
from nccl_doctor.model.register import Absent, Unjudged
from nccl_doctor.servers.advertise import PROGRAMS
from nccl_doctor.snapshot.hosts import gpu_counts
from nccl_doctor.snapshot.network import Engines, Interfaces, Names
from nccl_doctor.text.hostlist import capital, fold, grouped
from nccl_doctor.text.inet import is_loopback, numeric
from nccl_doctor.text.secrets import part


@check("NCD805", phrase="fault in the launch command", severity=Severity.ERROR, row="software")
def launch_line_wrong(view: View) -> Findings:
    cluster = view.snapshot.cluster
    try:
        line = line_to_judge(view.snapshot)
    except (ValueError, UsageError) as error:
        yield Unjudged((), f"the launch command can't be read: {error}")
        return
    if line is None:
        yield Absent("no launch command was given")
        return
    judged = JudgedLine(view, line, dict(planned_nodes(view.snapshot)))
    if line.unread is not None:
        yield Unjudged((), f"the launch command was not judged: {line.unread}")
    for name, typed in line.lost.items():
        if typed:
            option = line.table.written(name)
            yield Unjudged((), f"only the shell that runs the line knows the value of {typed} for {option}")
    faults = _faults(judged)
    yield from faults.gaps
    doubts = [*batch_notes(line.script, judged.world)[1], *line_numbers.idle(judged)]
    if faults.all or doubts:
        first, *others = *faults.all, *doubts
        programs = (line.launcher, *line.started[:1])  # as typed
        only_meeting = faults.all and faults.all == faults.meeting
        by_address = only_meeting and not line.is_of_c10d
        how = f"Give {view.snapshot.hosts[0].name}'s address:" if by_address else "Start it like this:"
        commands = () if faults.beyond_a_line or line.nested or line.started else _commands(judged, faults.meeting)
        yield Finding(
            hosts=(),
            message=f"{first if first.startswith(programs) else capital(first)}.",
            evidence=tuple(others),
            facts={"line": cluster.line, "launcher": line.launcher},
            severity=Severity.ERROR if faults.all else Severity.WARNING,
            fix=pasted(how, commands) if commands else faults.advice,
        )


@dataclass(frozen=True)
class Faults:
    """Faults in a launch command, grouped by subject, and the parts of the command that could not be checked."""

    all: list[str]
    meeting: list[str]
    devices: list[str]
    ports: list[str]
    ranks: list[str]
    gaps: list[Unjudged]
    lacks_gpus: bool

    @property
    def beyond_a_line(self) -> bool:
        """True if correcting the launch command is not sufficient, because ports conflict or GPUs are missing."""
        return bool(self.devices or self.ports or self.lacks_gpus)

    @property
    def advice(self) -> str:
        if self.ports:
            return "Give it another port."
        if self.ranks and not (self.devices or self.lacks_gpus):
            return "Start no more ranks than each host has GPUs."
        if self.devices or self.lacks_gpus:
            return "Ask for GPUs that every host has, or for the CPU."
        return "Correct the launch command."


_OF_MEETING = {"master_addr", "master_port", "rdzv_endpoint", "rdzv_backend", "rdzv_conf", "local_addr"}


def _faults(judged: JudgedLine) -> Faults:
    meeting_faults = () if judged.line.lost.keys() & _OF_MEETING else _meeting(judged)
    meeting, gaps = _apart((*meeting_faults, *_url(judged), *_by_hand(judged)))
    devices, of_devices = _apart(line_numbers.devices(judged))
    ports = list(_own_ports(judged))
    ranks, of_ranks = _apart((*line_numbers.ranks(judged), *line_numbers.sizes(judged)))
    started, of_started = _apart(line_numbers.started(judged))
    every = [
        *_unknown_options(judged),
        *line_numbers.nodes(judged),
        *line_numbers.own_ways(judged),
        *started,
        *ranks,
        *meeting,
        *ports,
        *_shared(judged),
        *devices,
    ]
    lacks = bool(ranks) and judged.line.options.get("nproc_per_node") == "gpu"
    return Faults(every, meeting, devices, ports, ranks, [*gaps, *of_devices, *of_ranks, *of_started], lacks)


def _apart(faults: Iterable[LineFault]) -> tuple[list[str], list[Unjudged]]:
    both = list(faults)
    return [fault for fault in both if isinstance(fault, str)], [fault for fault in both if isinstance(fault, Unjudged)]


def _commands(judged: JudgedLine, meeting: Sequence[str]) -> tuple[Command, ...]:
    """Return the corrected launch commands, or () if a fault remains.

    If one command suits all hosts, only this command is returned.
    """
    counts = {name: place.nproc for name, place in judged.places.items()}
    lacking = {option for option, _ in _lacking(judged)}
    line = replace(judged.line, own=tuple(option for option in judged.line.own if option.written not in lacking))
    gpus, cluster = gpu_counts(judged.view.snapshot), judged.view.snapshot.cluster
    lines = own_lines(line, cluster, counts, gpus, spelled_out=bool(meeting))
    return pasteable(lines) if all(_passes(judged, host_line) for host_line in lines.values()) else ()


def _passes(judged: JudgedLine, words: Sequence[str]) -> bool:
    """Return whether a corrected launch command has no faults and can therefore be printed."""
    again = replace(judged, line=read_line(words).in_cluster(judged.view.snapshot.cluster))
    return not _faults(again).all


def _unknown_options(judged: JudgedLine) -> Iterator[str]:
    for option in judged.line.unknown:
        near = judged.line.table.nearest(option)
        yield f"{judged.line.launcher} has no option {option}" + (
            f" (did you mean --{near}?)" if near and near != option.lstrip("-") else ""
        )
    for option, hosts in grouped(_lacking(judged)).items():
        some = f"{judged.line.launcher} on {fold(hosts)}"
        yield f"{some} has no option {option}, unlike on other hosts: its version is different there"


def _lacking(judged: JudgedLine) -> Iterator[tuple[str, str]]:
    """Yield each option (as written in the command) that a host's launcher does not support, and the host's name."""
    for host, known in host_options(judged.view.snapshot).items():
        yield from ((option.written, host) for option in judged.line.own if option.name not in known)


def _meeting(judged: JudgedLine) -> Iterator[LineFault]:
    line, options = judged.line, judged.line.options
    if line.launcher == "deepspeed" and judged.count > 1:
        yield from _deepspeed(judged)
    if not line.table.placed or judged.count == 1 or "standalone" in options:
        return
    if line.meets_elsewhere:
        where = options.get("rdzv_endpoint", "the default endpoint")
        yield Unjudged((), f"its ranks meet by {options['rdzv_backend']} at {where}, which was not tested")
        return
    if line.settings_file and not options.keys() >= {"nnodes", "node_rank", "master_addr"}:
        yield Unjudged((), f"where its ranks meet may stand in {line.settings_file}, which was not read")
        return
    if line.table.engine and "nnodes" not in options:
        return
    if line.is_static and line.launcher == "torchrun" and "rdzv_endpoint" in options:
        # it takes precedence over the master's address (torch/distributed/run.py, ``get_rdzv_endpoint``)
        addr, port, what = *split_endpoint(options["rdzv_endpoint"]), "rendezvous endpoint"
    elif line.is_static:
        addr, port, what = options.get("master_addr"), options.get("master_port"), "master address"
    else:
        addr, port, what = *split_endpoint(options.get("rdzv_endpoint")), "rendezvous endpoint"
    if line.is_of_c10d and addr is not None and not (addr == "localhost" or is_loopback(addr)):
        yield from _c10d(judged, addr, port)
        return
    if addr is None:
        yield f"without a {what}, each host waits for itself; the first host is {judged.master}"
    else:
        yield from _wrong_place(judged, f"the {what} {addr}", addr, port)


def _c10d(judged: JudgedLine, addr: str, port: str | None) -> Iterator[LineFault]:
    """Yield faults in torchrun's c10d rendezvous, whose store can run on any host."""
    hosts = judged.view.snapshot.hosts
    first = hosts[0].name
    takes = _stores(judged, addr)
    at = [name for name, host in takes.items() if host]
    if not at and None not in takes.values():
        yield (
            f"no host recognizes {addr} as its own, so none would run the rendezvous' store: a host recognizes its "
            "own name, and the addresses to which that resolves or other names of these addresses"
        )
    elif len(at) > 1:
        yield f"several hosts recognize {addr} as their own ({fold(at)}), so each would wait alone"
    elif not at:
        yield Unjudged((), f"it is not known which host recognizes {addr} as its own")
    elif at != [first]:
        yield Unjudged(tuple(at), f"the rendezvous endpoint {addr} is on {at[0]}, and the ports of {first} were tested")
    elif port == "0":
        yield (
            f"the rendezvous endpoint {addr} is used with port 0, which means any free port, so the other hosts "
            "would not know it"
        )
    elif port != "" and (port or C10D_PORT) != str(judged.view.snapshot.cluster.master_port):
        its_port = f"port {port}" if port else f"c10d's default port {C10D_PORT}"
        yield (
            f"the launch command uses the rendezvous endpoint {addr} with {its_port}, but nccl-doctor tested a "
            "different port"
        )
    local_addr = judged.line.options.get("local_addr")
    if local_addr is not None and (local_addr == "localhost" or is_loopback(local_addr)):
        yield f"--local-addr={local_addr} makes the ranks of each host connect to that host itself"
    yield from _meeting_by_name(judged)


def _stores(judged: JudgedLine, addr: str) -> dict[str, bool | None]:
    """Return, for each host, whether torchrun would run the rendezvous store on the host, or None if facts are missing.

    A host runs the store if the endpoint is the host's own name, the host's canonical name, an address to which the
    host's own name resolves, or another name that resolves to such an address. See ``_create_tcp_store`` in
    c10d_rendezvous_backend.py and ``_matches_machine_hostname`` in utils.py (torch/distributed/elastic/rendezvous).
    """
    conf = dict(item.partition("=")[::2] for item in judged.line.options.get("rdzv_conf", "").split(","))
    if "is_host" in conf:  # each host's line has its own
        return {judged.view.snapshot.hosts[0].name: True}
    stores: dict[str, bool | None] = {}
    for host in judged.view.snapshot.hosts:
        facts = host.facts
        if facts is None or isinstance(facts.identity, Unknown) or not isinstance(facts.resolution, Names):
            stores[host.name] = None
            continue
        answer = facts.resolution.get(facts.identity.hostname)
        names = {facts.identity.hostname, facts.engines.fqdn if isinstance(facts.engines, Engines) else None}
        endpoint = facts.resolution.get(addr)
        there = (addr,) if numeric(addr) is not None else endpoint.addresses if endpoint is not None else None
        matches = None if answer is None or there is None else bool({*there} & {*answer.addresses})
        stores[host.name] = addr in names or matches
    return stores


def _meeting_by_name(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield a fault if some hosts can't resolve the name of the store's host to an address of that host."""
    view = judged.view
    engines = {host.name: host.facts.engines for host in view.snapshot.hosts if host.facts is not None}
    name = meeting_name(judged.line, judged.count, engines.values())
    if name is None:
        return
    at = next(host for host, engine in engines.items() if isinstance(engine, Engines) and engine.fqdn == name)
    there = next((facts for host, facts in view.facts if host.name == at), None)
    entries = there.interfaces.addresses if there is not None and isinstance(there.interfaces, Interfaces) else ()
    lost: list[str] = []
    unknown: list[str] = []
    for host, facts in view.facts:
        answer = facts.resolution.get(name) if isinstance(facts.resolution, Names) else None
        if host.name == at:
            continue
        if answer is None:
            unknown.append(host.name)
        elif not {*answer.addresses} & {entry.address for entry in entries if not is_loopback(entry.address)}:
            lost.append(host.name)
    if lost:
        yield (
            f"the ranks of torchrun's c10d rendezvous connect to {at} by the name {name}, which does not resolve to an "
            f"address of {at} on {fold(lost)}: give each host's line its address (--local-addr)"
        )
    elif unknown:
        yield Unjudged(tuple(unknown), f"it is not known whether they resolve {name}, under which c10d's ranks meet")


def _deepspeed(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield faults in deepspeed's hosts and master address (DeepSpeed's launcher/runner.py)."""
    options = judged.line.options
    # without these, it uses /job/hostfile
    if not options.keys() & {"hostfile", "H", "no_ssh", "nnodes", "include", "i"}:
        yield Unjudged((), "the launch command was not judged: deepspeed's hosts are not in it (--hostfile)")
    if addr := options.get("master_addr"):
        yield from _wrong_place(judged, f"the master address {addr}", addr, options.get("master_port"))


def _by_hand(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield faults in the environment variables with which a script joins the job without a launcher (env://)."""
    addr = judged.line.variables.get("MASTER_ADDR")
    if addr and judged.line.launcher in ("script", "mpirun", "srun") and judged.count > 1:
        yield from _wrong_place(judged, f"MASTER_ADDR={addr}", addr, judged.line.variables.get("MASTER_PORT"))


def _url(judged: JudgedLine) -> Iterator[LineFault]:
    url = judged.line.url
    if url is not None and judged.count > 1:
        addr, port = split_endpoint(url.removeprefix("tcp://"))
        option = next(each.name for each in judged.line.arguments if each.value == url)
        yield from _wrong_place(judged, f"{option} {url}", addr or "", port)


def _wrong_place(judged: JudgedLine, words: str, addr: str, port: str | None) -> Iterator[LineFault]:
    planned = str(judged.view.snapshot.cluster.master_port)
    if addr == "localhost" or is_loopback(addr):
        yield (
            f"{words} makes each host connect to itself, so the ranks on the {judged.count} hosts can't connect to "
            "each other"
        )
    elif addr not in next(iter(judged.places.values())).masters and (is_local := _is_own(judged, addr)) is not True:
        first = judged.view.snapshot.hosts[0].name
        known = f"it is not known whether {addr} is an address of {first}"
        yield (
            f"{words} is not an address of the first host, {judged.master}"
            if is_local is False
            else Unjudged((first,), known)
        )
    elif port == "0":
        yield f"{words} is used with port 0, which means any free port, so the other hosts would not know it"
    elif port and port != planned:
        yield f"the launch command uses {words} with port {port}, but nccl-doctor tested port {planned}"


def _is_own(judged: JudgedLine, addr: str) -> bool | None:
    """Return whether ``addr`` is an address of the first host, or None if the host's addresses are unknown."""
    facts = judged.view.snapshot.hosts[0].facts
    if facts is None or isinstance(facts.interfaces, Unknown):
        return None
    return addr in {entry.address for entry in facts.interfaces.addresses}


def _own_ports(judged: JudgedLine) -> Iterator[str]:
    """Yield a fault for each port in an engine's launch command that the engine also uses for another purpose."""
    line = judged.line
    options = {name: line.options.get(name, "") for name in ("port", "master_port")}
    options["rdzv_endpoint"] = split_endpoint(line.options.get("rdzv_endpoint"))[1] or ""
    for name, text in options.items():
        for use in PROGRAMS[line.launcher].ports if line.launcher in PROGRAMS and is_number(text) else ():
            if use.first <= int(text) <= use.last and (not use.only_with or use.only_with in line.options):
                some = (
                    f"{use.of} port" if use.first == use.last else f"one of {use.of} ports, {use.first} to {use.last}"
                )
                phrase = f"{line.launcher} was given port {text} by {line.table.written(name)}"
                yield f"{phrase}, but that is {some} (changed by {use.by})"


def _shared(judged: JudgedLine) -> Iterator[str]:
    """Yield a fault if the launch command's CUDA_VISIBLE_DEVICES differs from the node's value in the hosts file."""
    rank, devices = judged.line.options.get("node_rank", ""), judged.line.variables.get("CUDA_VISIBLE_DEVICES")
    for host in judged.view.snapshot.hosts if devices is not None else ():
        planned = host.node.cuda_visible_devices
        if planned not in (None, devices) and rank == str(host.node.node_rank):
            yield (
                f"CUDA_VISIBLE_DEVICES={devices} is set for node rank {rank}, but the hosts file gives "
                f"{host.name} {planned}"
            )


def _advice(case: Case) -> Advice:
    if case.first.wording == _OF_MPI:
        return advise(
            f"mpirun can't start the job as its line demands: {part(case.first.message, 0, 160).rstrip('.:')}.",
            "Give it the hosts with as many slots as ranks (-H gpu01:8,gpu02:8 or a hosts file); --bind-to none, if it "
            "has fewer cores than ranks.",
        )
    refused = _REFUSED.search(case.first.text)
    why = part(refused["why"], 0, 160) if refused else case.first.message
    return advise(
        f"{refused['by'] if refused else 'The launcher'} refused its command line on {case.who}: {why}.",
        "Correct the line; an empty variable leaves an option without its value. See what it has to be on each host "
        "(nccl-doctor launch, or nccl-doctor check with the line behind --).",
    )


_LAUNCHERS = r"(?P<by>torchrun|(?:launch|run)\.py|deepspeed|accelerate\b.{0,40}?): error: "
_REFUSED = re.compile(rf"{_LAUNCHERS}(?P<why>.+)")

_OF_MPI = r"There are no allocated resources for the application|would result in binding more"

RULES = (
    root(_OF_MPI, "A request was made to bind to that would result in binding more"),
    root(
        r"(?:^|[\s\]:])" + _LAUNCHERS + USAGE,
        "torchrun: error: argument --nproc-per-node/--nproc_per_node: expected one argument",
        unless=r"unrecognized arguments: .*--local[-_]rank",  # the script's own
    ),
)

SIGNS = LogSigns(RULES, _advice)
