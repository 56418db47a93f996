"""A line that starts a job, as somebody is about to paste it: read, never run, and written again with what must change.

Each launcher's options are a table (probe/options.py), which the probe reads the command lines of jobs by, too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.plan import nearest
from nccl_doctor.model.base import Unknown
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.probe.options import LAUNCHERS, Launcher, Option, find_launcher, read_words
from nccl_doctor.snapshot.hosts import Snapshot
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import endpoint
from nccl_doctor.text.shell import Line

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class LaunchLine:
    """A launch line.

    Attributes:
        launcher: by name, of probe/options.py; "script" for a script that starts its own ranks.
        variables: set in front of it.
        start: the words that start the launcher, or the script's interpreter.
        options: the launcher's, by torchrun's names where it has one; "" for a flag.
        own: the same as they were written, those that it knows.
        unknown: what this launcher does not know, as it was written; the nearest that it knows stands in ``own``.
        script: the script and its arguments.
    """

    launcher: str
    variables: dict[str, str]
    start: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)
    own: tuple[Option, ...] = ()
    unknown: tuple[str, ...] = ()
    script: tuple[str, ...] = ()

    @property
    def master(self) -> dict[str, str]:
        """MASTER_ADDR and MASTER_PORT as the line says them, which count where no hosts file does."""
        addr, port = self.options.get("master_addr"), self.options.get("master_port")
        place = self.options.get("rdzv_endpoint") or (self.url or "").removeprefix("tcp://")
        if place and (self.url or self.options.get("rdzv_backend", "static") != "static"):
            addr, _, port = place.rpartition(":")
        named = {"MASTER_ADDR": (addr or "").strip("[]"), "MASTER_PORT": port if port and is_number(port) else ""}
        return {name: self.variables.get(name) or value for name, value in named.items()}

    @property
    def url(self) -> str | None:
        """The script's own tcp:// address."""
        return next((value for _, value, _ in self.arguments if value.startswith("tcp://")), None)

    @property
    def arguments(self) -> list[tuple[str, str, int]]:
        """The script's options: name with "-" for "_", value, and the place of the value among its words."""
        found = []
        for place, word in enumerate(self.script):
            name, sign, value = word.partition("=")
            if word.startswith("-") or sign:
                at = place if sign else place + 1
                found.append((name.replace("_", "-"), value if sign else "".join(self.script[at : at + 1]), at))
        return found

    def written(self, options: Mapping[str, str], script: Sequence[str], variables: Mapping[str, str]) -> Line:
        """The line with these options, script and variables in place of its own; those it lacks stand first."""
        kept, left = [], dict(options)
        for _, name, written, value in self.own:
            new = left.pop(name, value)
            if name != "standalone":
                kept += (
                    [written] if new is None else [f"{written}={new}"] if written.startswith("--") else [written, new]
                )
        more = [(self.table.written(name), value) for name, value in left.items()] if self.is_placed else []
        added = [f"{name}={value}" if value else name for name, value in more]
        front = shell.assignments({**self.variables, **variables})
        words = (*script, *added, *kept) if self.table.engine else (*added, *kept, *script)
        return shell.script("{line}", line=[*front, *map(shell.argument, (*self.start, *words))])

    def spans(self, count: int) -> bool:
        """True where the line's number of nodes, "2" or for c10d "1:4", is this one."""
        least, sign, most = self.options.get("nnodes", "").partition(":")
        known = is_number(least) and is_number(most or least)
        return known and int(least) <= count <= int(most or least) and not (sign and self.is_static)

    @property
    def is_placed(self) -> bool:
        """True where each host gets a line of its own, with its place in the job."""
        return self.table.placed

    @property
    def table(self) -> Launcher:
        """The launcher's options."""
        return LAUNCHERS[self.launcher]

    @property
    def is_static(self) -> bool:
        """True where the line numbers the nodes, and names the master's address and port apart."""
        return self.is_placed and self.options.get("rdzv_backend", "static") == "static" and self.launcher != "sglang"

    @property
    def is_ranked(self) -> bool:
        """True where the line itself numbers the nodes."""
        return self.is_static or self.launcher == "sglang"


def is_number(text: str) -> bool:
    """True for a count as a line may say one, of at most nine digits."""
    return len(text) <= 9 and text.isascii() and text.isdecimal()


def behind_dashes(words: Sequence[str], argv: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The hosts file, and the line behind "--", which click drops from the words; ``argv`` has it still.

    Raises:
        UsageError: more than a hosts file stands before it.
    """
    behind = len(argv) - argv.index("--") - 1 if "--" in argv else 0
    before, line = words[: len(words) - behind], words[len(words) - behind :]
    if len(before) > 1:
        raise UsageError(f"one hosts file, and the line to be judged behind --; {before[1]} is too much")
    if "--" in argv:
        read_line(line)
    return (before[0] if before else None), tuple(line)


def joined(words: Sequence[str]) -> str:
    """The words as one text, quoted as a shell takes them."""
    return str(shell.script("{line}", line=[*map(shell.argument, words)]))


def read_line(words: Sequence[str], known: Mapping[str, bool] | None = None) -> LaunchLine:
    """The line that these words are; ``known`` are the launcher's options where it is installed.

    Raises:
        UsageError: there is no program in it, or a shell's script.
    """
    variables, rest = {}, list(words)
    if rest[:1] == ["env"]:
        rest = rest[1:]
    while rest and (match := _VARIABLE.fullmatch(rest[0])):
        variables[match[1]] = match[2]
        rest = rest[1:]
    if not rest:
        raise UsageError("which line is to be judged? nccl-doctor check hosts.yaml -- torchrun --nnodes=2 train.py")
    if PurePath(rest[0]).suffix in {".sh", ".bash", ".sbatch", ".slurm"}:
        raise UsageError(f"{shell.word(rest[0])} is a shell script; give the line in it that starts the job")
    launcher, count = find_launcher(rest)
    if launcher.name == "script":
        return LaunchLine("script", variables, tuple(rest[:count]), script=tuple(rest[count:]))
    if known:
        launcher = launcher._replace(options={**known, **{n: v for n, v in launcher.options.items() if n in known}})
    found, start = read_words(launcher, rest[count:]), tuple(rest[:count])
    return LaunchLine(launcher.name, variables, start, found.told, found.options, found.unknown, found.rest)


def line_to_judge(snapshot: Snapshot) -> LaunchLine | None:
    """The line that a run is about, read by the options that its launcher has on the hosts.

    Raises:
        ValueError, UsageError: it is no line, or none that starts a job.
    """
    if snapshot.cluster.line is None:
        return None
    known = {name: takes for options in host_options(snapshot).values() for name, takes in options.items()}
    return read_line(shlex.split(snapshot.cluster.line), known)


def host_options(snapshot: Snapshot) -> dict[str, Mapping[str, bool]]:
    """By host, the options of the line's launcher as it is installed there, where that is known."""
    seen = {host.name: host.facts.engines for host in snapshot.hosts if host.facts is not None}
    return {
        name: one.options
        for name, one in seen.items()
        if one is not None and not isinstance(one, Unknown) and one.options
    }


_WHOLE = re.compile(r"-{0,2}(?:(?:total|global)[-_])?(?:train[-_])?batch(?:[-_]size)?")
"""For all ranks together: --batch-size of YOLOv5, batch= of Ultralytics, --global-batch-size of Megatron."""
_EACH = re.compile(r"--(?:per[-_](?:device|gpu)|micro)[-_](?:train[-_])?batch[-_]size(?:[-_]per[-_]gpu)?")
"""For one rank: --per_device_train_batch_size of transformers, --micro-batch-size of Megatron."""
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def divides(batch: int, world: int) -> None:
    """Raises UsageError where a batch can't be split evenly over all ranks."""
    wrong = _remainder(batch, world)
    if wrong:
        raise UsageError(f"a batch of {wrong}")


def batch_notes(script: tuple[str, ...], world: int) -> tuple[list[str], list[str]]:
    """Judges a script's batch sizes for so many ranks: notes, and warnings.

    Whether a script splits a batch or gives each rank one of that size, only the script knows: nothing is refused.
    """
    notes, warnings = [], []
    for _, option, size in _batches(script):
        wrong = _remainder(size, world)
        if _EACH.fullmatch(option):
            notes.append(f"{option} {size} on each of {plural(world, 'rank')}: a batch of {size * world}")
        elif wrong:
            warnings.append(f"{option} {wrong} (no matter where each rank takes a batch of its own)")
        else:
            notes.append(f"{option} {size} over {plural(world, 'rank')}: {size // world} each")
    return notes, warnings


def _batches(script: Sequence[str]) -> Iterator[tuple[int, str, int]]:
    """Yields the place of each batch size's word, its option and itself: --batch 64, --batch=64 and batch=64."""
    for place, word in enumerate(script):
        option, sign, value = word.partition("=")
        at = place if sign else place + 1
        size = value if sign else "".join(script[at : at + 1])
        named = _EACH.fullmatch(option) or (_WHOLE.fullmatch(option) and (sign or option.startswith("-")))
        if named and _NUMBER.fullmatch(size):
            yield at, option, int(size)


def _remainder(batch: int, world: int) -> str:
    if batch % world == 0 and batch > 0:
        return ""
    near = nearest(batch, world)
    does = "do" if len(near) > 1 else "does"
    return f"{batch} does not divide by {world} ranks; the nearest that {does}: {' and '.join(map(str, near))}"


def model_size(line: LaunchLine) -> int:
    """The GPUs that an engine's line asks for: its parallel sizes, multiplied."""
    size = 1
    for notion in ("tensor", "pipeline", "data"):
        told = line.options.get(notion, "")
        size *= int(told) if is_number(told) and int(told) else 1
    return size


def needs_all(line: LaunchLine, counts: Mapping[str, int]) -> bool:
    """True where an engine's line asks for more GPUs than any host alone has."""
    return line.table.engine and model_size(line) > max(counts.values(), default=1)


def own_lines(
    line: LaunchLine, cluster: Cluster, counts: Mapping[str, int], gpus: Mapping[str, int]
) -> dict[str, Line]:
    """By host, the line as it has to stand there; ``counts`` has the planned ranks of each, ``gpus`` its GPUs."""
    told, options = line.options.get("nproc_per_node", ""), _of_all(line, cluster, counts)
    ranked = line.is_ranked and not (line.table.engine and not options)
    if line.launcher == "vllm":
        line = replace(line, own=tuple(one for one in line.own if one.notion != "headless"))
    script = _better_script(line, cluster, sum(counts.values()))
    found = {}
    for node in cluster.nodes:
        own = options | ({"node_rank": str(node.node_rank)} if ranked else {})
        if line.launcher == "vllm" and ranked and node.node_rank:
            own["headless"] = ""
        most = node.nproc_per_node or gpus.get(node.name)
        if is_number(told) and most is not None and (node.nproc_per_node or int(told) > most):
            own["nproc_per_node"] = str(most)
        devices = {} if node.cuda_visible_devices is None else {"CUDA_VISIBLE_DEVICES": node.cuda_visible_devices}
        master = {"MASTER_ADDR": cluster.master_addr, "MASTER_PORT": str(cluster.master_port)}
        here = devices | {name: value for name, value in master.items() if name in line.variables}
        found[node.name] = line.written(own, script, here)
    return found


def _of_all(line: LaunchLine, cluster: Cluster, counts: Mapping[str, int]) -> dict[str, str]:
    """The options that each host's line has to have; none for an engine that each host may start alone."""
    if line.table.engine and not (line.is_placed and ("nnodes" in line.options or needs_all(line, counts))):
        return {}
    options = {} if line.spans(len(cluster.nodes)) else {"nnodes": str(len(cluster.nodes))}
    if line.is_static:
        options |= {"master_addr": cluster.master_addr, "master_port": str(cluster.master_port)}
    elif line.is_placed:
        options |= {"rdzv_endpoint": endpoint(cluster.master_addr, cluster.master_port)}
    return options


def _better_script(line: LaunchLine, cluster: Cluster, ranks: int) -> list[str]:
    """The script's words with the cluster's address, and batches that all ranks share."""
    told, script = line.options.get("nproc_per_node", ""), list(line.script)
    world = max(1, int(told) * len(cluster.nodes) if is_number(told) else ranks)
    url = f"tcp://{endpoint(cluster.master_addr, cluster.master_port)}"
    better = {at: url for _, value, at in line.arguments if value.startswith("tcp://")}
    for at, option, size in _batches(script):
        if _remainder(size, world) and not _EACH.fullmatch(option):
            better[at] = str(nearest(size, world)[0])
    for at, value in better.items():
        name, sign, _ = script[at].partition("=")
        script[at] = f"{name}={value}" if sign else value
    return script
