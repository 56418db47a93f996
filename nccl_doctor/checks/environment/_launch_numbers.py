"""Finds wrong numbers in a launch command, such as the numbers of nodes, ranks and GPUs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from nccl_doctor.checks.view import View
from nccl_doctor.launch.line import LaunchLine, meant_total, model_size, starts_no_ranks
from nccl_doctor.launch.plan import PlannedNode, is_number
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.register import Unjudged
from nccl_doctor.probe.options import LAUNCHERS, read_words
from nccl_doctor.snapshot.hosts import visible_gpus
from nccl_doctor.text.hostlist import fold, listed, nouns, plural


@dataclass(frozen=True)
class JudgedLine:
    """A launch command, and the hosts for which the command is checked."""

    view: View
    line: LaunchLine
    places: dict[str, PlannedNode]

    @property
    def count(self) -> int:
        return len(self.places)

    @property
    def master(self) -> str:
        """Address at which the other hosts will reach the master."""
        return self.view.snapshot.cluster.master_addr

    @property
    def world(self) -> int:
        """Total number of ranks, derived from the launch command if the command gives the number of ranks per node."""
        nproc = self.line.options.get("nproc_per_node", "")
        planned = sum(place.nproc for place in self.places.values())
        return max(1, int(nproc) * self.count if is_number(nproc) else planned)


LineFault = str | Unjudged
"""A phrase that describes a fault, or the reason why the launch command could not be checked."""


def nodes(judged: JudgedLine) -> Iterator[str]:
    line, count = judged.line, judged.count
    text, rank = line.options.get("nnodes"), line.options.get("node_rank")
    if line.settings_file and not line.options.keys() >= {"nnodes", "node_rank"} and count > 1:
        return  # the file's content is unknown here
    if "standalone" in line.options and count > 1:
        yield f"--standalone starts a separate job on each of the {count} hosts"
        return
    if "nnodes" in line.lost:
        return
    if text is not None and not line.spans(count):
        if ":" in text and line.is_static:
            yield (
                f"--nnodes={text} is a range, which needs --rdzv_backend=c10d; for {count} hosts, use --nnodes={count}"
            )
        else:
            yield f"the launch command specifies --nnodes={text}, but there are {count} hosts"
    elif text is None and count > 1 and line.table.placed and not line.table.engine:
        yield f"without --nnodes, each of the {count} hosts starts a separate job"
    yield from _rank(judged, text, rank)
    pairs = [
        [next((each.value for each in line.arguments if each.name == o), None) for o in ("--world-size", "--rank")]
    ]
    pairs.append([line.variables.get(name) for name in ("WORLD_SIZE", "RANK")])
    for (text, rank), (size, flag) in zip(pairs, (("--world-size ", "--rank "), ("WORLD_SIZE=", "RANK=")), strict=True):
        if text and rank and is_number(text) and is_number(rank) and int(rank) >= int(text):
            yield (
                f"{flag}{rank} is too high for {size}{text}: ranks are numbered from 0, so the highest is "
                f"{int(text) - 1}"
            )
        elif text and is_number(text) and line.places_itself and int(text) not in (count, judged.world) and count > 1:
            yield f"{size}{text} was given, but the {count} hosts have {plural(judged.world, 'rank')} in total"


def own_ways(judged: JudgedLine) -> Iterator[str]:
    """Yield faults in launcher-specific options and variables, such as host filters and the total number of ranks."""
    line, count = judged.line, judged.count
    total, machines, rank = (line.options.get(name, "") for name in ("world_size", "nnodes", "node_rank"))
    if starts_no_ranks(line):
        yield "accelerate's --cpu starts one script on each machine, without a rank (--multi_gpu is for CPUs, too)"
    if line.launcher == "deepspeed":
        known = {name for node in judged.view.snapshot.cluster.nodes for name in (node.name, node.address)}
        for option in ("include", "i", "exclude", "e"):
            parts = filter(None, line.options.get(option, "").split("@"))
            strange = [name for part in parts if (name := part.partition(":")[0]) not in known]
            if strange:
                yield (
                    f"--{option} names {listed(strange)}, which {'is' if len(strange) == 1 else 'are'} not "
                    "among the hosts"
                )
    numbered = line.launcher == "accelerate" and is_number(total) and is_number(machines) and int(machines) > 1
    if numbered and int(total) % int(machines):  # accelerate/commands/launch.py: the total of all machines
        yield (
            f"--num_processes is the total number of ranks, but {total} ranks can't be divided evenly among "
            f"{machines} machines"
        )
    if line.launcher == "vllm" and is_number(rank) and int(rank) > 0 and "headless" not in line.options:
        yield f"without --headless, the node with node rank {rank} starts a second API server"
    starts = LLAMA in (PurePath(word).name for word in (*line.start, *line.script)[:1])
    nodes = line.variables.get("NNODES", "") if starts else ""
    if is_number(nodes) and int(nodes) != count > 1:
        yield f"NNODES is {nodes}, but there are {count} hosts"


LLAMA = "llamafactory-cli"
"""LLaMA-Factory's command, which passes NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT on to torchrun
(llamafactory/launcher.py)."""


def _rank(judged: JudgedLine, nodes: str | None, rank: str | None) -> Iterator[str]:
    """Yield a fault if the launch command's node rank is missing or does not fit the number of nodes."""
    line, count = judged.line, judged.count
    if line.launcher == "deepspeed" and "no_ssh" in line.options and rank is None and count > 1:
        yield "--no_ssh is given without --node_rank, so deepspeed exits immediately"
    if line.is_ranked and count > 1 and "node_rank" not in line.lost and (nodes is not None or not line.table.engine):
        if rank is None:
            failing = "accelerate uses the rank in its config file or fails"
            same = "every host regards itself as node 0"
            yield f"without a node rank, {failing if line.launcher == 'accelerate' else same}"
        elif not is_number(rank) or int(rank) >= count:
            yield f"node rank {rank} is not in the range from 0 to {count - 1}"


def started(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield faults in the numbers of processes that srun or mpirun will start."""
    line = judged.line
    if line.launcher == "mpirun":
        yield from _slots(judged, line.options)
        return
    if not line.started or not line.table.placed:
        return
    front = read_words(LAUNCHERS["srun"], line.started[1:]).told
    tasks, each = front.get("world_size"), front.get("nproc_per_node")
    program = line.started[0]
    if each and is_number(each) and int(each) > 1:
        yield f"{program} starts {line.launcher} {each} times on each host, and each of them starts its own ranks"
    elif tasks and is_number(tasks) and int(tasks) > judged.count:
        yield f"{program} starts {line.launcher} {tasks} times, but there are {judged.count} hosts"


def _slots(judged: JudgedLine, options: Mapping[str, str]) -> Iterator[LineFault]:
    """Yield a fault if mpirun would start more ranks than its host list has slots."""
    hydra = "hosts" in options  # MPICH and Intel MPI have no slots
    named = next((options[name] for name in ("hosts", "H", "host") if options.get(name)), "")
    ranks = options.get("world_size", "")
    elsewhere = any(name in options for name in ("hostfile", "machinefile", "f", "nproc_per_node"))
    if not named and judged.count > 1 and not elsewhere:
        yield Unjudged((), "the launch command was not judged: mpirun's hosts are not in it (-H, --hostfile)")
        return
    slots = [part.rpartition(":")[2] if ":" in part else "1" for part in named.split(",") if part]
    if slots and not hydra and all(map(is_number, slots)) and is_number(ranks) and int(ranks) > sum(map(int, slots)):
        yield f"mpirun would start {ranks} ranks, but -H gives only {plural(sum(map(int, slots)), 'slot')}"


def sizes(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield a fault if an engine's parallelism settings do not fit the number of GPUs."""
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
        return  # it may be meant for a CPU job
    if "nnodes" in line.options and judged.count > 1:
        if wanted > sum(counts.values()):
            yield (
                f"the parallelism settings need {plural(wanted, 'GPU')}, but the hosts have "
                f"{sum(counts.values())} in total"
            )
        elif wanted % judged.count:
            yield f"the parallelism settings need {wanted} GPUs, which can't be divided among {judged.count} hosts"
    elif wanted > max(counts.values()) and line.options.get("distributed_executor_backend") != "ray":
        most = max(counts, key=lambda name: counts[name])
        each = "" if judged.count == 1 else " on each host (because --nnodes is not set)"
        yield f"the parallelism settings need {plural(wanted, 'GPU')}{each}, but {most} has only {counts[most]}"


def ranks(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield faults in the number of ranks per node, which must suit the number of GPUs and match the hosts file."""
    text = judged.line.options.get("nproc_per_node")
    total, machines = (judged.line.options.get(name, "") for name in ("world_size", "nnodes"))
    if judged.line.launcher == "accelerate" and is_number(total) and is_number(machines) and int(machines) > 0:
        text = str(int(total) // int(machines))
    devices = judged.line.variables.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return
    few: dict[int, list[str]] = {}
    for host, facts in judged.view.facts:
        if isinstance(facts.gpus, Unknown) and (is_number(text) or text == "gpu") and text != "0":
            yield Unjudged((host.name,), f"{text} ranks a node, and how many GPUs there are is not known")
        if isinstance(facts.gpus, tuple) and (facts.gpus or text == "gpu"):
            there = len(visible_gpus(host.node, facts)) if devices is None else len(devices.split(","))
            if (is_number(text) and int(text) > there) or (text == "gpu" and not there):
                few.setdefault(there, []).append(host.name)
    for there, hosts in few.items():
        wants = f"{text} {nouns(int(text), 'rank')} per node need {plural(int(text), 'GPU')}" if text != "gpu" else ""
        have = "has" if len(hosts) == 1 else "have"
        few_each = f"only {there}{' each' * (len(hosts) > 1)}" if there else "none"
        yield f"{wants or '--nproc_per_node=gpu needs GPUs'}, but {fold(hosts)} {have} {few_each}"
    planned = {place.node.nproc_per_node for place in judged.places.values()} - {None}
    if text == "0":
        yield "with 0 ranks per node, nothing is started"
    elif is_number(text) and not few and planned and {int(text)} != planned:
        yield (
            f"the line starts {text} ranks per node, but the hosts file says "
            f"{listed(map(str, sorted(filter(None, planned))))}"
        )


def idle(judged: JudgedLine) -> Iterator[str]:
    """Yield a warning if accelerate's total number of ranks seems to have been intended as the number per machine."""
    total, meant = (
        judged.line.options.get("world_size"),
        meant_total(judged.line, [place.nproc for place in judged.places.values()]),
    )
    if meant is not None:
        yield f"--num_processes {total} is the total number of ranks, but all hosts together can run {meant}"


def devices(judged: JudgedLine) -> Iterator[LineFault]:
    """Yield a fault if a host lacks a GPU that --device names, or has fewer GPUs than Lightning's --devices needs."""
    named = (each for each in judged.line.arguments if each.name in ("--device", "--devices", "device"))
    option, value = next(((each.name, each.value) for each in named), ("", ""))
    asked = [part for part in value.removeprefix("cuda:").split(",") if is_number(part)]
    if not asked and value != "cuda":
        return
    counted = option == "--devices" and is_number(value)
    for host, facts in judged.view.facts:
        if isinstance(facts.gpus, Unknown):
            yield Unjudged((host.name,), f"{option} {value}, and which GPUs there are is not known")
        if isinstance(facts.gpus, tuple):
            count = len(visible_gpus(host.node, facts))
            has = f"only {plural(count, 'GPU')}" if count else "no GPU"
            phrase = f"only {'GPU' if count == 1 else 'GPUs'} {listed(map(str, range(count)))}" if count else has
            there = {str(number) for number in range(count)}
            missing = [part for part in asked or ["0"] if part not in there]
            if counted and int(value) > count:
                yield f"{option} {value} asks for {plural(int(value), 'GPU')}, but {host.name} has {has}"
                return
            if missing and not counted:
                yield (
                    f"{option} {value} asks for {nouns(len(missing), 'GPU')} {listed(missing)}, but "
                    f"{host.name} has {phrase}"
                )
                return
