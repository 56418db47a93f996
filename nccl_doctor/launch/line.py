"""Parses a launch command without running it, and generates a corrected launch command for each host.

The options of each launcher are listed in probe/options.py, which the probe uses to parse the command lines of running
jobs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import starmap, takewhile
from pathlib import Path, PurePath
from typing import NamedTuple

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.plan import is_number, nearest
from nccl_doctor.launch.shell_variables import is_of_shell, known_options
from nccl_doctor.launch.wrappers import ASSIGNMENT, SHELLS, front_of, the_start
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.finding import Command, on
from nccl_doctor.probe.options import LAUNCHERS, LauncherOptions, Option, find_launcher, read_words
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.snapshot.network import Engines
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural, quoted
from nccl_doctor.text.inet import endpoint
from nccl_doctor.text.shell import Line

SCRIPTS = frozenset({".sh", ".bash", ".sbatch", ".slurm"})
"""File extensions of shell scripts and batch scripts."""
TRAINERS = frozenset(
    {"yolo", "lightning", "litgpt", "tune", "axolotl", "llamafactory-cli", "ns-train", "mim", "simple_tuner"}
)
"""Training programs that are Python scripts and start their own ranks."""
_PYTHON = re.compile(r"python[\d.]*")
_MOST_SCRIPT = 1 << 16  # bytes of a shell's script
C10D_PORT = "29400"
"""Port of a c10d endpoint without a port (torch/distributed/elastic/rendezvous/c10d_rendezvous_backend.py)."""


class Argument(NamedTuple):
    """An option on a script's command line."""

    name: str  # with "-" for "_"
    value: str  # "" for a flag at the end
    at: int  # index of the word with the value
    spelled: str  # the name as typed
    front: str  # what precedes the value in its word: "NAME=", or ""


def arguments_of(script: Sequence[str]) -> tuple[Argument, ...]:
    """Return a script's options, which can be written as ``--batch 64``, ``--batch=64``, or ``batch=64``."""
    arguments = []
    for place, word in enumerate(script):
        spelled, sign, value = word.partition("=")
        if word.startswith("-") or sign:
            at = place if sign else place + 1
            value = value if sign else "".join(script[at : at + 1])
            arguments.append(Argument(spelled.replace("_", "-"), value, at, spelled, f"{spelled}=" if sign else ""))
    return tuple(arguments)


@dataclass(frozen=True)
class LaunchLine:
    """A parsed launch command.

    Attributes:
        launcher: name of the launcher in probe/options.py; "script" for a script that starts its own ranks.
        variables: environment variables set before the command.
        start: words that run the launcher or the script's interpreter.
        options: the launcher's options with their values, which are "" for flags; an option that has an equivalent in
            torchrun is stored under torchrun's name.
        own: known options of the launcher, as typed.
        unknown: options that the launcher does not support, as typed; for each, ``own`` contains the most similar known
            option, if any.
        script: the script and its arguments.
        wrapped: names of variables set by a program that precedes the launcher, such as ``env`` or ``docker run``.
        started: words of the srun or mpirun command that starts the launcher on the hosts.
        nested: whether the command is in the ``-c`` argument of a shell.
        unread: reason why the started program is unknown; None if the program is known.
        lost: options whose variables only a shell can expand, with their values as typed; a value is "" if the shell
            sets the option correctly on every host.
    """

    launcher: str
    variables: dict[str, str]
    start: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)
    own: tuple[Option, ...] = ()
    unknown: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    wrapped: frozenset[str] = frozenset()
    started: tuple[str, ...] = ()
    nested: bool = False
    unread: str | None = None
    lost: Mapping[str, str] = field(default_factory=dict)

    def in_cluster(self, cluster: Cluster) -> LaunchLine:
        """Return the line with the known variables in its options replaced by their values.

        Options that contain unknown variables are moved to ``lost``.
        """
        known, lost = known_options(self.options, self.variables, cluster)
        return replace(self, options=known, lost=lost)

    @property
    def master(self) -> dict[str, str]:
        """The values of MASTER_ADDR and MASTER_PORT that the line sets; an unknown value is an empty string."""
        addr, port = self.options.get("master_addr"), self.options.get("master_port")
        place = self.options.get("rdzv_endpoint") or (self.url or "").removeprefix("tcp://")
        if place and (self.url or self.launcher == "sglang" or self.options.get("rdzv_backend", "static") != "static"):
            addr, port = split_endpoint(place)
            if port is None and self.is_of_c10d and not is_of_shell(place):
                port = C10D_PORT
        port = port if port and is_number(port) and int(port) else ""  # 0: any free one
        named = {"MASTER_ADDR": (addr or "").strip("[]"), "MASTER_PORT": port}
        values = {name: self.variables.get(name) or value for name, value in named.items()}
        return {name: "" if is_of_shell(value) else value for name, value in values.items()}

    @property
    def url(self) -> str | None:
        """The first ``tcp://`` URL in the script's arguments, or None if the arguments contain no such URL."""
        return next((each.value for each in self.arguments if each.value.startswith("tcp://")), None)

    @property
    def places_itself(self) -> bool:
        """True if no launcher starts the script, so each host's line must contain the rank."""
        return self.launcher == "script" and not self.started

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return arguments_of(self.script)

    def written(
        self, options: Mapping[str, str], script: Sequence[str], variables: Mapping[str, str]
    ) -> tuple[str, ...]:
        """Return the words of the line, updated with the given options, script, and variables."""
        kept, left = [], dict(options)
        for _, name, written, value in self.own:
            new = left.pop(name, value)
            if value is not None and is_of_shell(value) and new == self.options.get(name, value):
                new = value
            if name != "standalone":
                kept += (
                    [written] if new is None else [f"{written}={new}"] if written.startswith("--") else [written, new]
                )
        more = [(self.table.written(name), value) for name, value in left.items()]
        added = [f"{name}={value}" if value else name for name, value in more]
        front = {name: value for name, value in {**self.variables, **variables}.items() if name not in self.wrapped}
        start = list(self.start)
        for name in self.wrapped & variables.keys():
            start = [word.replace(f"{name}={self.variables[name]}", f"{name}={variables[name]}") for word in start]
        words = (*script, *added, *kept) if self.table.engine else (*added, *kept, *script)
        return (*starmap(shell.assignment, front.items()), *start, *words)

    def spans(self, count: int) -> bool:
        """Return whether the value of ``--nnodes``, such as ``2`` or ``1:4`` (c10d only), allows ``count`` nodes."""
        least, sign, most = self.options.get("nnodes", "").partition(":")
        known = is_number(least) and is_number(most or least)
        return known and int(least) <= count <= int(most or least) and not (sign and self.is_static)

    @property
    def table(self) -> LauncherOptions:
        return LAUNCHERS[self.launcher]

    @property
    def is_static(self) -> bool:
        """True if the line must specify the node rank, the master address, and the master port."""
        return (
            self.table.placed and self.options.get("rdzv_backend", "static") == "static" and self.launcher != "sglang"
        )

    @property
    def is_of_c10d(self) -> bool:
        """True if the ranks use torchrun's c10d rendezvous."""
        return self.launcher == "torchrun" and self.options.get("rdzv_backend") == "c10d"

    @property
    def settings_file(self) -> str | None:
        """The configuration file from which Accelerate reads settings that the line omits.

        The default configuration file is determined by ``_validate_launch_command`` (accelerate/commands/launch.py) and
        ``default_config_file`` (config_args.py).
        """
        default = "accelerate's default_config.yaml" if self.launcher == "accelerate" else None
        return self.options.get("config_file", default)

    @property
    def meets_elsewhere(self) -> bool:
        """True if the rendezvous uses an etcd server, which is not one of the job's hosts."""
        return self.options.get("rdzv_backend", "").startswith("etcd")

    @property
    def is_ranked(self) -> bool:
        """True if each host's line must specify the node rank."""
        return self.is_static or self.launcher == "sglang"


def split_endpoint(place: str | None) -> tuple[str | None, str | None]:
    """Return the address and the port of ``address[:port]``, each None if it is missing."""
    host, sign, port = (place or "").rpartition(":")
    if not sign or port.endswith("]"):  # an IPv6 address in brackets
        return (place or "").strip("[]") or None, None
    return host.strip("[]") or None, port


def split_at_dashes(
    words: Sequence[str], argv: Sequence[str], others: int, what: str
) -> tuple[str | None, Sequence[str]]:
    """Return the hosts file, and the words after ``--`` (the last ``others`` words if ``--`` is missing).

    ``argv`` is needed because Click removes ``--`` from ``words``.
    """
    behind = len(argv) - argv.index("--") - 1 if "--" in argv else others
    before, after = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1:
        raise UsageError(f"unexpected argument {before[1]}; put {what} after --")
    return (before[0] if before else None), after


def behind_dashes(words: Sequence[str], argv: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the hosts file and the launch command after ``--``; raise UsageError if several words precede ``--``."""
    hosts, line = split_at_dashes(words, argv, 0, "the launch command")
    if "--" in argv:
        out = _out_of_script(line)
        read = read_line(out)
        # of several words, the user's shell has replaced the variables that were not quoted
        kept = {word for word in read.script if "$" in word} if out is line and len(line) > 1 else ()
        line = [shell.Literal(word) if word in kept else word for word in out]
    return hosts, tuple(line)


def _out_of_script(words: Sequence[str]) -> Sequence[str]:
    """Return the launch command in the shell script that ``words`` runs, or ``words`` if no script is run.

    The shell script, which must be on this machine, is read but not run.
    """
    readers = {*SHELLS, "sbatch"}
    path = next((word for word in words if not word.startswith("-") and PurePath(word).name not in readers), "")
    if words[:1] == ["sbatch"]:  # an option's value may stand before it
        path = next((word for word in words if PurePath(word).suffix in SCRIPTS), "")
    if PurePath(path).suffix not in SCRIPTS or PurePath(words[0]).name not in {*readers, PurePath(path).name}:
        return words
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return the_start(file.read(_MOST_SCRIPT))
    except OSError as error:
        raise UsageError(
            f"{shell.word(path)} can't be read here ({error.strerror}); give the line that it starts"
        ) from None
    except UsageError as error:
        raise UsageError(f"{shell.word(path)}: {error}") from None


def joined(words: Sequence[str]) -> Line:
    """Return the words as one line, quoted so that a shell still expands variables."""
    return shell.script("{line}", line=[*map(shell.with_variables, words)])


def pasteable(lines: Mapping[str, tuple[str, ...]]) -> tuple[Command, ...]:
    """Return one command for each host, or a single command without a host if all lines are equal."""
    if len({*lines.values()}) == 1:
        return on(None, joined(next(iter(lines.values()))))
    return tuple(command for host, words in lines.items() for command in on(host, joined(words)))


def _split(words: Sequence[str]) -> list[str]:
    """Return the words of a line; a line that was given as a single quoted argument is split into words."""
    if len(words) != 1 or not any(map(str.isspace, words[0])):
        return list(words)
    try:
        return shell.split(words[0])
    except ValueError as error:
        raise UsageError(f"the launch command {quoted(words[0])} has an unmatched quote") from error


def read_line(words: Sequence[str], known: Mapping[str, bool] | None = None) -> LaunchLine:
    """Parse words as a launch command; raise UsageError if the words are not a launch command.

    ``known`` contains the options of the launcher that is installed on the hosts, each with a flag that is true if the
    option takes a value.
    """
    every = _split(words)
    if every[:1] == ["env"] and not "".join(every[1:2]).startswith("-"):
        every = every[1:]
    set_first = list(takewhile(ASSIGNMENT.fullmatch, every))
    front = front_of(every)
    if front.inner is not None:
        inner = read_line(front.inner, known)
        return replace(inner, variables={**front.variables, **inner.variables}, nested=True)
    rest = every[front.count :] if front.unread is None else every[len(set_first) :]
    if not rest:
        raise UsageError(
            "no launch command after --; for example: nccl-doctor check hosts.yaml -- torchrun --nnodes=2 train.py"
        )
    if PurePath(rest[0]).suffix in SCRIPTS:
        raise UsageError(f"{shell.word(rest[0])} is a shell script; give the line in it that starts the job")
    passed = tuple(every[len(set_first) : front.count]) if front.unread is None else ()
    wrapped = front.variables.keys() - {word.partition("=")[0] for word in set_first}
    line = LaunchLine("script", front.variables, (), wrapped=frozenset(wrapped), started=front.started)
    if front.unread is not None:
        return replace(line, script=tuple(rest), unread=front.unread)
    launcher, count = find_launcher(rest)
    if launcher.name == "script" and front.started:  # srun or mpirun itself starts the ranks
        rest = every[front.begun :]
        passed = tuple(every[len(set_first) : front.begun])
        launcher, count = find_launcher(rest)
    line = replace(line, launcher=launcher.name, start=(*passed, *rest[:count]), script=tuple(rest[count:]))
    if launcher.name == "script":
        program = PurePath(rest[0]).name
        known_here = _PYTHON.fullmatch(program) or program.endswith(".py") or program in TRAINERS
        return line if known_here else replace(line, unread=f"what {program} starts is not known here")
    if known:
        launcher = launcher._replace(options={**known, **{n: v for n, v in launcher.options.items() if n in known}})
    result = read_words(launcher, rest[count:])
    return replace(line, options=result.told, own=result.options, unknown=result.unknown, script=result.rest)


def meeting_name(line: LaunchLine, nodes: int, engines: Iterable[Engines | Unknown | None]) -> str | None:
    """Return the host name that torchrun's c10d rendezvous passes to all ranks as the master address.

    The result is None if the rendezvous does not use host names or if a host name is unknown. The result is the fully
    qualified domain name (``socket.getfqdn``) of the host whose torchrun agent has rank 0. Agents are ranked in
    alphabetical order of these domain names (``_NodeDesc`` and ``next_rendezvous`` in
    torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
    """
    names = [engine.fqdn for engine in engines if isinstance(engine, Engines) and engine.fqdn]
    by_name = line.is_of_c10d and "local_addr" not in line.options and nodes > 1
    return min(names) if by_name and len(names) == nodes else None


def line_to_judge(snapshot: Snapshot) -> LaunchLine | None:
    """Return the parsed launch command of a snapshot, or None if the snapshot contains no launch command.

    A command that can't be parsed raises ValueError or UsageError.
    """
    if snapshot.cluster.line is None:
        return None
    known = {name: takes for options in host_options(snapshot).values() for name, takes in options.items()}
    return read_line(shell.split(snapshot.cluster.line), known).in_cluster(snapshot.cluster)


def host_options(snapshot: Snapshot) -> dict[str, Mapping[str, bool]]:
    """Return, for each host, the options of the launcher that is installed there.

    A host whose launcher options are unknown is omitted.
    """
    engines = {host.name: host.facts.engines for host in snapshot.hosts if host.facts is not None}
    return {
        name: engine.options
        for name, engine in engines.items()
        if engine is not None and not isinstance(engine, Unknown) and engine.options
    }


_WHOLE = re.compile(r"-{0,2}(?:(?:total|global)[-_])?(?:train[-_])?batch(?:[-_]size)?")
"""Pattern for options that set the total batch size of all ranks, such as ``--batch-size`` of YOLOv5, ``batch=`` of
Ultralytics, and ``--global-batch-size`` of Megatron.
"""
_EACH = re.compile(r"--(?:per[-_](?:device|gpu)|micro)[-_](?:train[-_])?batch[-_]size(?:[-_]per[-_]gpu)?")
"""Pattern for options that set the batch size of each rank, such as ``--per_device_train_batch_size`` of Transformers
and ``--micro-batch-size`` of Megatron.
"""
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def divides(batch: int, world: int) -> None:
    """Raise UsageError if a batch can't be split evenly among all ranks."""
    wrong = _remainder(batch, world)
    if wrong:
        raise UsageError(f"a batch of {wrong}")


def batch_notes(script: tuple[str, ...], world: int) -> tuple[list[str], list[str]]:
    """Return notes and warnings about a script's batch sizes for ``world`` ranks.

    No batch size is rejected, because only the script determines whether a batch size applies to all ranks or to each
    rank.
    """
    notes, warnings = [], []
    for argument in _batches(script):
        option, size = argument.spelled, int(argument.value)
        wrong = _remainder(size, world)
        if _EACH.fullmatch(option):
            notes.append(f"{option} {size} on each of {plural(world, 'rank')}: a batch of {size * world}")
        elif wrong:
            warnings.append(f"{option} {wrong} (harmless if {option} is the batch size of each rank)")
        else:
            notes.append(f"{option} {size} over {plural(world, 'rank')}: {size // world} each")
    return notes, warnings


def _batches(script: Sequence[str]) -> list[Argument]:
    return [
        each
        for each in arguments_of(script)
        if (_EACH.fullmatch(each.spelled) or _WHOLE.fullmatch(each.spelled)) and _NUMBER.fullmatch(each.value)
    ]


def _remainder(batch: int, world: int) -> str:
    if batch % world == 0 and batch > 0:
        return ""
    near = nearest(batch, world)
    sizes = "batch sizes that do are" if len(near) > 1 else "batch size that does is"
    return f"{batch} does not divide evenly among {world} ranks; the nearest {sizes} {' and '.join(map(str, near))}"


def model_size(line: LaunchLine) -> int | None:
    """Return the number of GPUs that an engine needs in total or, for vLLM without ``--nnodes``, on each host.

    The result is None if a vLLM command has ``--data-parallel-address`` but not ``--data-parallel-size-local``. Any
    other parallel size that the command does not specify counts as 1. For data parallelism over several hosts, vLLM
    does not need ``--nnodes``, and ``--data-parallel-size-local`` gives the number of data-parallel ranks on each host.
    With ``--enable-dp-attention``, SGLang's data-parallel ranks use the GPUs of the tensor-parallel ranks.
    """
    sizes = ["tensor", "pipeline"]
    if line.launcher == "vllm" and "nnodes" not in line.options:
        if "data_parallel_size_local" not in line.options and "data_parallel_address" in line.options:
            return None
        sizes += ["data_parallel_size_local" if "data_parallel_size_local" in line.options else "data"]
    elif "enable_dp_attention" not in line.options:
        sizes += ["data"]
    values = [line.options.get(notion, "") for notion in sizes]
    return math.prod(int(value) if is_number(value) and int(value) else 1 for value in values)


def meant_total(line: LaunchLine, counts: Collection[int]) -> int | None:
    """Return the correct ``--num_processes`` if an Accelerate line gives the number per machine instead of the total.

    The result is None if ``--num_processes`` needs no correction or the launcher is not Accelerate. ``counts`` contains
    the planned number of ranks on each host.
    """
    value, total = line.options.get("world_size", ""), sum(counts)
    per_machine = line.launcher == "accelerate" and is_number(value) and {*counts} == {int(value)}
    return total if per_machine and total > int(value) else None


def starts_no_ranks(line: LaunchLine) -> bool:
    """Return whether Accelerate starts the script once on each machine without assigning a rank.

    With ``--cpu``, Accelerate 1.15 uses ``simple_launcher``, which assigns no ranks (accelerate/commands/launch.py).
    """
    several = is_number(line.options.get("nnodes", "")) and int(line.options["nnodes"]) > 1
    return line.launcher == "accelerate" and several and "cpu" in line.options and "mpirun_hostfile" not in line.options


def needs_all(line: LaunchLine, counts: Mapping[str, int]) -> bool:
    """Return whether an engine's launch command needs more GPUs than any single host has."""
    return line.table.engine and (model_size(line) or 0) > max(counts.values(), default=1)


def own_lines(
    line: LaunchLine, cluster: Cluster, counts: Mapping[str, int], gpus: Mapping[str, int], *, spelled_out: bool = False
) -> dict[str, tuple[str, ...]]:
    """Return the words of each host's launch command.

    ``counts`` and ``gpus`` contain the planned number of ranks and the number of GPUs of each host.

    Set ``spelled_out`` if the names of the hosts would make torchrun's c10d rendezvous fail. With ``spelled_out``, the
    lines contain the settings that torchrun would otherwise derive from the host names.
    """
    nproc, options = line.options.get("nproc_per_node", ""), _of_all(line, cluster, counts)
    ranked = line.is_ranked and not (line.table.engine and not options)
    if line.launcher == "vllm":
        line = replace(line, own=tuple(option for option in line.own if option.notion != "headless"))
    if starts_no_ranks(line):  # with --multi_gpu ranks compute on CPUs where there is no GPU
        line, options = (
            replace(line, own=tuple(option for option in line.own if option.name != "cpu")),
            {**options, "multi_gpu": ""},
        )
    script = _better_script(line, cluster, sum(counts.values()))
    lines = {}
    for node in cluster.nodes:
        settings = options | ({"node_rank": str(node.node_rank)} if ranked and line.lost.get("node_rank") != "" else {})
        if line.launcher == "vllm" and ranked and node.node_rank:
            settings["headless"] = ""
        if line.is_of_c10d and spelled_out:
            settings |= c10d_place(node, cluster, line.options.get("rdzv_conf", ""))
        most = node.nproc_per_node or gpus.get(node.name)
        if is_number(nproc) and most is not None and (node.nproc_per_node or int(nproc) > most):
            settings["nproc_per_node"] = str(most)
        devices = {} if node.cuda_visible_devices is None else {"CUDA_VISIBLE_DEVICES": node.cuda_visible_devices}
        master = {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port)}
        here = devices | {name: value for name, value in master.items() if name in line.variables}
        if line.places_itself and len(cluster.nodes) > 1:
            script, ranks = _placed(line, script, node.node_rank, len(cluster.nodes), counts)
            here |= ranks
        lines[node.name] = line.written(settings, script, here)
    return lines


def c10d_place(node: Node, cluster: Cluster, conf: str = "") -> dict[str, str]:
    """Return a node's settings for the c10d rendezvous: whether the node hosts the store, and the node's address.

    By default, torchrun derives these settings from the address to which the host resolves its own name. This address
    might be 127.0.1.1.
    """
    items = [item for item in conf.split(",") if item and not item.startswith("is_host=")]
    return {"rdzv_conf": ",".join([*items, f"is_host={int(node is cluster.nodes[0])}"]), "local_addr": node.address}


def _placed(
    line: LaunchLine, script: list[str], node_rank: int, nodes: int, counts: Mapping[str, int]
) -> tuple[list[str], dict[str, str]]:
    """Return the script's words and the rank variables for one node of a job whose ranks no launcher starts.

    A script that is started once per node is the node's only rank or starts the node's other ranks itself, as
    imagenet/main.py does.
    """
    right = {"--rank": str(node_rank), "--world-size": str(nodes)}
    options = {each.name: each for each in line.arguments if each.name in right and is_number(each.value)}
    alone = all(count == 1 for count in counts.values())
    words = list(script)
    if "--rank" in options and (alone or ("--world-size" in options and options["--world-size"].value == str(nodes))):
        for name, argument in options.items():
            words[argument.at] = argument.front + right[name]
    variables = {"RANK": str(node_rank), "WORLD_SIZE": str(nodes)} if alone and "RANK" in line.variables else {}
    return words, {name: value for name, value in variables.items() if name in line.variables}


def _of_all(line: LaunchLine, cluster: Cluster, counts: Mapping[str, int]) -> dict[str, str]:
    """Return the options that all lines share (none for an engine that runs on each host independently)."""
    if not line.table.placed or (line.table.engine and "nnodes" not in line.options and not needs_all(line, counts)):
        return {}
    options = {} if line.spans(len(cluster.nodes)) else {"nnodes": str(len(cluster.nodes))}
    if (total := meant_total(line, counts.values())) is not None:
        options["world_size"] = str(total)
    return options if line.meets_elsewhere else options | meeting_place(cluster, static=line.is_static)


def meeting_place(cluster: Cluster, *, static: bool) -> dict[str, str]:
    """Return the torchrun options, with values, for a job's rendezvous address and port."""
    if static:
        return {"master_addr": cluster.master_addr, "master_port": str(cluster.master_port)}
    return {"rdzv_endpoint": endpoint(cluster.master_addr, cluster.master_port)}


def tcp_url(cluster: Cluster) -> str:
    return f"tcp://{endpoint(cluster.master_addr, cluster.master_port)}"


def place_of(node: Node, nodes: int) -> dict[str, str]:
    """Return the torchrun options, with values, for the number of nodes and the node rank."""
    return {"nnodes": str(nodes), "node_rank": str(node.node_rank)}


def _better_script(line: LaunchLine, cluster: Cluster, ranks: int) -> list[str]:
    """Return the script's words with the cluster's master address and with evenly divisible batch sizes."""
    nproc, script = line.options.get("nproc_per_node", ""), list(line.script)
    world = max(1, int(nproc) * len(cluster.nodes) if is_number(nproc) else ranks)
    for each in line.arguments:
        if each.value.startswith("tcp://"):
            script[each.at] = each.front + tcp_url(cluster)
    for each in _batches(script):
        size = int(each.value)
        if _remainder(size, world) and not _EACH.fullmatch(each.spelled):
            near = min(nearest(size, world), key=lambda near: (abs(near - size), -near))
            script[each.at] = f"{each.front}{near}"
    return script
