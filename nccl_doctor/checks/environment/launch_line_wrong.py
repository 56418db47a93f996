"""The line behind ``--`` can't work as it is written, on these hosts.

What it means: torchrun or the script ends at once, each host starts a job of its own, or ranks wait for a master that
nobody is. A line out of a guide holds for its author's machines: number of nodes and ranks, the master's address, a
loopback dist-url, a batch size.

How we know: the line is read as its launcher would, and never run: torchrun, torch.distributed.launch, accelerate,
deepspeed, mpirun, srun, or a script with options such as --dist-url, --rank, --batch-size and --device. What it says is
held against the hosts as they were seen: how many there are, which GPUs they have, which master and port were tried,
and which options the launcher's source has there (torch/distributed/run.py; it is read, not started). A batch is only a
warning: whether a script splits it or gives each rank one, the script alone knows.

Fix: the same line with what must change, for each host its own where they differ.

References: torch/distributed/run.py, torch/distributed/rendezvous.py (env://, tcp://); accelerate launch; deepspeed.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from nccl_doctor.checks.environment.job_variable_conflict import planned_nodes
from nccl_doctor.checks.view import Findings, View, check, pasted
from nccl_doctor.engines.advertise import PORTS
from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import (
    LaunchLine,
    batch_notes,
    host_options,
    is_number,
    line_to_judge,
    model_size,
    own_lines,
    read_line,
)
from nccl_doctor.launch.plan import PlannedNode
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Command, Finding, Severity, on
from nccl_doctor.model.register import Absent, Unjudged
from nccl_doctor.probe.options import LAUNCHERS, read_words
from nccl_doctor.snapshot.hosts import gpu_counts, visible_gpus
from nccl_doctor.text.hostlist import fold, grouped, plural
from nccl_doctor.text.inet import is_loopback
from nccl_doctor.text.shell import Line


@dataclass(frozen=True)
class Judged:
    """A line against the hosts."""

    view: View
    line: LaunchLine
    places: dict[str, PlannedNode]

    @property
    def count(self) -> int:
        """The number of hosts."""
        return len(self.places)

    @property
    def master(self) -> str:
        """The address that the other hosts were seen to reach."""
        return self.view.snapshot.cluster.master_addr

    @property
    def world(self) -> int:
        """All ranks, by the line where it says how many a node has."""
        told = self.line.options.get("nproc_per_node", "")
        planned = sum(place.nproc for place in self.places.values())
        return max(1, int(told) * self.count if is_number(told) else planned)


@check("NCD805", severity=Severity.ERROR, row="software")
def launch_line_wrong(view: View) -> Findings:
    """Yields one finding for all that the line says wrongly."""
    cluster = view.snapshot.cluster
    try:
        line = line_to_judge(view.snapshot)
    except (ValueError, UsageError) as error:
        yield Unjudged((), f"the launch line can't be read: {error}")
        return
    if line is None:
        yield Absent("no launch line was given")
        return
    judged = Judged(view, line, dict(planned_nodes(view.snapshot)))
    if line.unread is not None:
        yield Unjudged((), f"the launch line was not judged: {line.unread}")
    found = _faults(judged)
    yield from found.gaps
    batch = batch_notes(line.script, judged.world)[1]
    if found.all or batch:
        first, *others = *found.all, *batch
        only_meeting = found.all and found.all == found.meeting
        how = f"Give {view.snapshot.hosts[0].name}'s address:" if only_meeting else "Start it so:"
        commands = () if found.beyond_a_line or line.nested or line.started else _commands(judged)
        yield Finding(
            hosts=(),
            message=f"{first[0].upper()}{first[1:]}.",
            evidence=tuple(others),
            facts={"line": cluster.line, "launcher": line.launcher},
            severity=Severity.ERROR if found.all else Severity.WARNING,
            fix=pasted(how, commands) if commands else found.advice,
        )


@dataclass(frozen=True)
class Faults:
    """Findings against a line: faults, by what they are about, and what could not be judged."""

    all: list[str]
    meeting: list[str]
    devices: list[str]
    ports: list[str]
    ranks: list[str]
    gaps: list[Unjudged]
    lacks_gpus: bool

    @property
    def beyond_a_line(self) -> bool:
        """True where no other line mends it: another port, GPUs that are not there."""
        return bool(self.devices or self.ports or self.lacks_gpus)

    @property
    def advice(self) -> str:
        """The remedy in words."""
        if self.ports:
            return "Give it another port."
        if self.ranks and not (self.devices or self.lacks_gpus):
            return "Start no more ranks than each host has GPUs."
        if self.devices or self.lacks_gpus:
            return "Ask for GPUs that every host has, or for the processor."
        return "Correct that where the line is written."


def _faults(judged: Judged) -> Faults:
    meeting, gaps = _apart((*_meeting(judged), *_url(judged), *_by_hand(judged)))
    devices, of_devices = _apart(_devices(judged))
    ports = list(_own_ports(judged))
    ranks, of_ranks = _apart((*_ranks(judged), *_sizes(judged)))
    started, of_started = _apart(_started(judged))
    every = [
        *_unknown_options(judged),
        *_nodes(judged),
        *_own_ways(judged),
        *started,
        *ranks,
        *meeting,
        *ports,
        *_shared(judged),
        *devices,
    ]
    lacks = bool(ranks) and judged.line.options.get("nproc_per_node") == "gpu"
    return Faults(every, meeting, devices, ports, ranks, [*gaps, *of_devices, *of_ranks, *of_started], lacks)


Fault = str | Unjudged


def _apart(found: Iterable[Fault]) -> tuple[list[str], list[Unjudged]]:
    """Faults, and what could not be judged."""
    both = list(found)
    return [one for one in both if isinstance(one, str)], [one for one in both if isinstance(one, Unjudged)]


def _commands(judged: Judged) -> tuple[Command, ...]:
    """The corrected line: one for all hosts where it serves for all."""
    counts = {name: place.nproc for name, place in judged.places.items()}
    lacking = {option for option, _ in _lacking(judged)}
    line = replace(judged.line, own=tuple(option for option in judged.line.own if option.written not in lacking))
    lines = own_lines(line, judged.view.snapshot.cluster, counts, gpu_counts(judged.view.snapshot))
    if not all(_passes(judged, one) for one in lines.values()):
        return ()
    if len({str(line) for line in lines.values()}) == 1:
        return on(None, next(iter(lines.values())))
    return tuple(command for host, line in lines.items() for command in on(host, line))


def _passes(judged: Judged, line: Line) -> bool:
    """True where a remedy's own line, or one for each host, has no fault: what is printed must mend."""
    again = replace(judged, line=read_line(shlex.split(str(line))))
    return not _faults(again).all


def _unknown_options(judged: Judged) -> Iterator[str]:
    for option in judged.line.unknown:
        near = judged.line.table.nearest(option)
        yield f"{judged.line.launcher} knows no option {option}" + (f"; --{near} is near" if near else "")
    for option, hosts in grouped(_lacking(judged)).items():
        some = f"{judged.line.launcher} on {fold(hosts)}"
        yield f"{some} knows no option {option}, which it has on others: it is of another version there"


def _lacking(judged: Judged) -> Iterator[tuple[str, str]]:
    """Yields each option that some hosts have, as it was written, with a host that has not."""
    for host, known in host_options(judged.view.snapshot).items():
        yield from ((option.written, host) for option in judged.line.own if option.name not in known)


def _nodes(judged: Judged) -> Iterator[str]:
    """Faults in the number of nodes, and in their places."""
    line, count = judged.line, judged.count
    told, rank = line.options.get("nnodes"), line.options.get("node_rank")
    if line.is_configured and told is None and count > 1:
        return  # what the file says, nobody here has read
    if "standalone" in line.options and count > 1:
        yield f"--standalone makes a job of its own on each of the {count} hosts"
        return
    if told is not None and not line.spans(count):
        static = ", and a range needs --rdzv_backend=c10d" if ":" in told and line.is_static else ""
        yield f"the line says {told} nodes, and the hosts are {count}{static}"
    elif told is None and count > 1 and line.is_placed and not line.table.engine:
        yield f"without --nnodes each of the {count} hosts starts a job of its own"
    yield from _rank(judged, told, rank)
    pairs = [[next((v for n, v, _ in line.arguments if n == o), None) for o in ("--world-size", "--rank")]]
    pairs.append([line.variables.get(name) for name in ("WORLD_SIZE", "RANK")])
    for (told, rank), (size, own) in zip(pairs, (("--world-size ", "--rank "), ("WORLD_SIZE=", "RANK=")), strict=True):
        if told and rank and is_number(told) and is_number(rank) and int(rank) >= int(told):
            yield f"{own}{rank} of {size}{told}: ranks are counted from 0"
        elif told and is_number(told) and line.places_itself and int(told) not in (count, judged.world) and count > 1:
            yield f"{size}{told}, and the {count} hosts have {plural(judged.world, 'rank')}"


def _own_ways(judged: Judged) -> Iterator[str]:
    """Faults in what one launcher alone has: its filters, totals, variables."""
    line, count = judged.line, judged.count
    total, machines, rank = (line.options.get(name, "") for name in ("world_size", "nnodes", "node_rank"))
    if line.launcher == "deepspeed":
        known = {name for node in judged.view.snapshot.cluster.nodes for name in (node.name, node.address)}
        for option in ("include", "i", "exclude", "e"):
            parts = filter(None, line.options.get(option, "").split("@"))
            strange = [name for part in parts if (name := part.partition(":")[0]) not in known]
            if strange:
                yield f"--{option} names {', '.join(strange)}, which the hosts are not"
    numbered = line.launcher == "accelerate" and is_number(total) and is_number(machines) and int(machines) > 1
    if numbered and int(total) % int(machines):  # accelerate/commands/launch.py: all ranks of all machines
        yield f"--num_processes {total} are all ranks together, and don't divide by {machines} machines"
    if line.launcher == "vllm" and is_number(rank) and int(rank) > 0 and "headless" not in line.options:
        yield f"node rank {rank} without --headless starts a server of its own"
    starts = LLAMA in (PurePath(word).name for word in (*line.start, *line.script)[:1])
    nodes = line.variables.get("NNODES", "") if starts else ""
    if is_number(nodes) and int(nodes) != count > 1:
        yield f"NNODES={nodes}, and the hosts are {count}"


LLAMA = "llamafactory-cli"
"""Hands NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT to torchrun (llamafactory/launcher.py)."""


def _rank(judged: Judged, nodes: str | None, rank: str | None) -> Iterator[str]:
    """Faults in the number that the line gives its node, of so many that it tells."""
    line, count = judged.line, judged.count
    if line.launcher == "deepspeed" and "no_ssh" in line.options and rank is None and count > 1:
        yield "--no_ssh without --node_rank: every host takes itself for node 0"
    if line.is_ranked and count > 1 and (nodes is not None or not line.table.engine):
        if rank is None:
            yield "without a node rank every host takes itself for node 0"
        elif not is_number(rank) or int(rank) >= count:
            yield f"node rank {rank} is none of 0 to {count - 1}"


def _started(judged: Judged) -> Iterator[Fault]:
    """Faults in what starts the launcher, or the ranks, on the hosts: srun, mpirun."""
    line = judged.line
    if line.launcher == "mpirun":
        yield from _slots(judged, line.options)
        return
    if not line.started or not line.is_placed:
        return
    front = read_words(LAUNCHERS["srun"], line.started[1:]).told
    tasks, each = front.get("ntasks") or front.get("n"), front.get("ntasks_per_node") or front.get("nproc_per_node")
    program = line.started[0]
    if each and is_number(each) and int(each) > 1:
        yield f"{program} starts {each} of {line.launcher} on each host, and each starts ranks of its own"
    elif tasks and is_number(tasks) and int(tasks) > judged.count:
        yield f"{program} starts {line.launcher} {tasks} times, and the hosts are {judged.count}"


def _slots(judged: Judged, options: Mapping[str, str]) -> Iterator[Fault]:
    """Faults in mpirun's own number of ranks, against the slots that it names."""
    named = next((options[name] for name in ("H", "host", "hosts") if options.get(name)), "")
    ranks = options.get("world_size", "")
    elsewhere = any(name in options for name in ("hostfile", "machinefile", "f", "nproc_per_node"))
    if not named and judged.count > 1 and not elsewhere:
        yield Unjudged((), "the launch line was not judged: mpirun's hosts are not in it (-H, --hostfile)")
        return
    slots = [part.rpartition(":")[2] if ":" in part else "1" for part in named.split(",") if part]
    if slots and all(map(is_number, slots)) and is_number(ranks) and int(ranks) > sum(map(int, slots)):
        yield f"mpirun is to start {ranks} ranks, and -H has {plural(sum(map(int, slots)), 'slot')}"


def _sizes(judged: Judged) -> Iterator[Fault]:
    """Faults in an engine's parallel sizes, against the GPUs that there are."""
    line = judged.line
    if line.launcher not in ("vllm", "sglang"):
        return
    wanted = model_size(line)
    if wanted is None:
        yield Unjudged((), "how many GPUs a host needs is not in the line (--data-parallel-size-local)")
        return
    counts: dict[str, int] = {}
    for host, facts in judged.view.facts:
        if isinstance(facts.gpus, Unknown):
            yield Unjudged((host.name,), f"how many GPUs there are is not known: {facts.gpus.reason}")
            return
        counts[host.name] = len(visible_gpus(host.node, facts))
    if not any(counts.values()):
        return  # it may be meant for processors
    if "nnodes" in line.options and judged.count > 1:
        if wanted > sum(counts.values()):
            yield f"the parallel sizes need {plural(wanted, 'GPU')}, and the hosts have {sum(counts.values())}"
        elif wanted % judged.count:
            yield f"the parallel sizes, {wanted} GPUs together, don't divide by {judged.count} hosts"
    elif wanted > max(counts.values()) and line.options.get("distributed_executor_backend") != "ray":
        most = max(counts, key=lambda name: counts[name])
        each = "" if judged.count == 1 else "; without --nnodes each host serves alone"
        yield f"the parallel sizes need {plural(wanted, 'GPU')}, and {most} has {counts[most]}{each}"


def _ranks(judged: Judged) -> Iterator[Fault]:
    """Faults in the number of ranks a node, against the GPUs that there are."""
    told = judged.line.options.get("nproc_per_node")
    devices = judged.line.variables.get("CUDA_VISIBLE_DEVICES")
    if told is None:
        return
    few: dict[int, list[str]] = {}
    for host, facts in judged.view.facts:
        if isinstance(facts.gpus, Unknown) and (is_number(told) or told == "gpu") and told != "0":
            yield Unjudged((host.name,), f"{told} ranks a node, and how many GPUs there are is not known")
        if isinstance(facts.gpus, tuple) and (facts.gpus or told == "gpu"):
            there = len(visible_gpus(host.node, facts)) if devices is None else len(devices.split(","))
            if (is_number(told) and int(told) > there) or (told == "gpu" and not there):
                few.setdefault(there, []).append(host.name)
    for there, hosts in few.items():
        wants = "--nproc_per_node=gpu needs GPUs" if told == "gpu" else f"{told} ranks a node need as many GPUs"
        yield f"{wants}, and {fold(hosts)} {'has' if len(hosts) == 1 else 'have'} {there or 'none'}"
    planned = {place.node.nproc_per_node for place in judged.places.values()} - {None}
    if told == "0":
        yield "0 ranks a node start nothing"
    elif is_number(told) and not few and planned and {int(told)} != planned:
        yield f"{told} ranks a node, and the hosts file says {', '.join(map(str, sorted(filter(None, planned))))}"


def _meeting(judged: Judged) -> Iterator[Fault]:
    """Faults in the address and the port at which ranks meet."""
    line, options = judged.line, judged.line.options
    if not line.is_placed or judged.count == 1 or "standalone" in options or line.meets_elsewhere:
        return
    if line.is_configured and not options.keys() >= {"nnodes", "master_addr"}:
        yield Unjudged((), f"where its ranks meet stands in {options['config_file']}, which was not read")
        return
    if line.table.engine and "nnodes" not in options:
        return
    if line.is_static:
        addr, port, what = options.get("master_addr"), options.get("master_port"), "master address"
    else:
        addr, port, what = *_split(options.get("rdzv_endpoint")), "rendezvous endpoint"
    if addr is None:
        yield f"without a {what} each host waits for itself; {judged.master} is the first host's"
    else:
        yield from _wrong_place(judged, f"{what} {addr}", addr, port)


def _by_hand(judged: Judged) -> Iterator[Fault]:
    """Faults in the variables by which a script of its own is to meet the others (env://)."""
    addr = judged.line.variables.get("MASTER_ADDR")
    if addr and judged.line.launcher in ("script", "mpirun", "srun") and judged.count > 1:
        yield from _wrong_place(judged, f"MASTER_ADDR={addr}", addr, judged.line.variables.get("MASTER_PORT"))


def _url(judged: Judged) -> Iterator[Fault]:
    url = judged.line.url
    if url is not None and judged.count > 1:
        addr, port = _split(url.removeprefix("tcp://"))
        option = next(name for name, value, _ in judged.line.arguments if value == url)
        yield from _wrong_place(judged, f"{option} {url}", addr or "", port)


def _wrong_place(judged: Judged, words: str, addr: str, port: str | None) -> Iterator[Fault]:
    planned = str(judged.view.snapshot.cluster.master_port)
    if addr == "localhost" or is_loopback(addr):
        yield f"{words} is each host's own address: with {judged.count} hosts the ranks would never meet"
    elif addr not in next(iter(judged.places.values())).masters and (own := _is_own(judged, addr)) is not True:
        first = judged.view.snapshot.hosts[0].name
        known = f"whether {addr} is an address of {first} is not known"
        yield (
            f"{words} is not the first host's, which is {judged.master}" if own is False else Unjudged((first,), known)
        )
    elif port and port != planned:
        yield f"{words} goes with port {port}, and {planned} is what was tried"


def _is_own(judged: Judged, addr: str) -> bool | None:
    """True for any address of the first host's; None where those are not known."""
    facts = judged.view.snapshot.hosts[0].facts
    if facts is None or isinstance(facts.interfaces, Unknown):
        return None
    return addr in {entry.address for entry in facts.interfaces.addresses}


def _split(place: str | None) -> tuple[str | None, str | None]:
    host, sign, port = (place or "").rpartition(":")
    return ((host if sign else port).strip("[]") or None), (port if sign else None)


def _own_ports(judged: Judged) -> Iterator[str]:
    """Faults in ports of an engine's line, which the engine takes for something else, too."""
    line = judged.line
    told = {name: line.options.get(name, "") for name in ("port", "master_port")}
    told["rdzv_endpoint"] = _split(line.options.get("rdzv_endpoint"))[1] or ""
    for name, text in told.items():
        for own in PORTS.get(line.launcher, ()) if is_number(text) else ():
            if own.first <= int(text) <= own.last and (not own.only_with or own.only_with in line.options):
                some = str(own.first) if own.first == own.last else f"{own.first} to {own.last}"
                yield f"port {text} of {line.table.written(name)} is one of {some}, {own.of} ({own.by} moves them)"


def _shared(judged: Judged) -> Iterator[str]:
    """Faults in the devices set in front, where a machine is two nodes."""
    rank, said = judged.line.options.get("node_rank", ""), judged.line.variables.get("CUDA_VISIBLE_DEVICES")
    for host in judged.view.snapshot.hosts if said is not None else ():
        planned = host.node.cuda_visible_devices
        if planned not in (None, said) and rank == str(host.node.node_rank):
            yield f"CUDA_VISIBLE_DEVICES={said} with node rank {rank}, and {host.name} has {planned} in the hosts file"


def _devices(judged: Judged) -> Iterator[Fault]:
    """Faults in a script's own --device: numbers that a host has no GPU for; Lightning's --devices N is a count."""
    named = ((name, value) for name, value, _ in judged.line.arguments if name in ("--device", "--devices", "device"))
    option, value = next(named, ("", ""))
    asked = [part for part in value.removeprefix("cuda:").split(",") if is_number(part)]
    if not asked and value != "cuda":
        return
    counted = option == "--devices" and is_number(value)
    for host, facts in judged.view.facts:
        if isinstance(facts.gpus, Unknown):
            yield Unjudged((host.name,), f"{option} {value}, and which GPUs there are is not known")
        if isinstance(facts.gpus, tuple):
            count = len(visible_gpus(host.node, facts))
            has = plural(count, "GPU")
            there = {str(number) for number in range(count)}
            missing = [part for part in asked or ["0"] if part not in there]
            if counted and int(value) > count:
                yield f"{option} {value} asks for {plural(int(value), 'GPU')}, and {host.name} has {has}"
                return
            if missing and not counted:
                yield f"{option} {value} asks for GPU {','.join(missing)}, and {host.name} has {has}"
                return
