"""A line that starts a job, as somebody is about to paste it: read, never run, and written again with what must change.

Each launcher's options are a table of their own: name, whether a value follows, and which notion of torchrun's it says
(torch/distributed/run.py and launch.py of PyTorch 2.13; accelerate/commands/launch.py 1.x; deepspeed/launcher/runner.py
0.16; mpirun(1), srun(1)). argparse takes any unambiguous beginning of an option, "-" for "_", and "=" before a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.plan import nearest
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import endpoint
from nccl_doctor.text.shell import Line

_TORCHRUN = {
    **dict.fromkeys(
        (
            *("nnodes", "nproc_per_node", "rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "max_restarts"),
            *("monitor_interval", "start_method", "event_log_handler", "role", "log_dir", "r", "redirects", "t", "tee"),
            *("local_ranks_filter", "node_rank", "master_addr", "master_port", "local_addr", "logs_specs"),
            *("duplicate_stdout_filters", "duplicate_stderr_filters", "numa_binding", "signals_to_handle"),
            "shutdown_timeout",
        ),
        True,
    ),
    **dict.fromkeys(("standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "h", "help"), False),
}
_LAUNCH = {**_TORCHRUN, "use_env": False}
_DEEPSPEED = dict.fromkeys(
    ("hostfile", "H", "i", "include", "e", "exclude", "num_nodes", "num_gpus", "node_rank", "master_addr",
     "master_port", "launcher", "launcher_args", "ssh_port", "autotuning", "venv_script", "bind_core_list"), True,
) | dict.fromkeys(("module", "no_python", "no_local_rank", "no_ssh", "force_multi", "save_pid", "bind_cores_to_rank",
                   "enable_each_rank_log"), False)  # fmt: skip
_ACCELERATE = ("num_machines", "machine_rank", "main_process_ip", "main_process_port")
_ACCELERATE_FLAGS = (
    *("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "module", "m", "no_python", "debug", "quiet", "q"),
    *("same_network", "use_xpu", "use_megatron_lm"),
)
_SAME = {
    "num_machines": "nnodes", "num_nodes": "nnodes", "N": "nnodes", "nodes": "nnodes",
    "machine_rank": "node_rank", "main_process_ip": "master_addr", "main_process_port": "master_port",
    "num_gpus": "nproc_per_node", "ntasks_per_node": "nproc_per_node", "npernode": "nproc_per_node",
    "num_processes": "world_size", "np": "world_size", "n": "world_size", "ntasks": "world_size",
}  # fmt: skip
"""Other launchers' names for torchrun's notions."""
_PROGRAMS = {
    "torchrun": ("torchrun", 1), "deepspeed": ("deepspeed", 1), "accelerate": ("accelerate", 2),
    "mpirun": ("mpirun", 1), "mpiexec": ("mpirun", 1), "srun": ("srun", 1),
}  # fmt: skip
"""By program, the launcher, and how many words start it."""
_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "launch"}
_PYTHON = re.compile(r"(?:i?python|pypy)[0-9.]*")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class LaunchLine:
    """A launch line.

    Attributes:
        launcher: "torchrun", "launch" (torch.distributed.launch), "accelerate", "deepspeed", "mpirun", "srun", or
            "script" for a script that starts its own ranks.
        variables: set in front of it.
        start: the words that start the launcher, or the script's interpreter.
        options: the launcher's, by torchrun's names where it has one; "" for a flag.
        own: the same as they were written.
        unknown: what this launcher does not know, as it was written; the nearest that it knows stands in ``own``.
        script: the script and its arguments.
    """

    launcher: str
    variables: dict[str, str]
    start: tuple[str, ...]
    options: dict[str, str] = field(default_factory=dict)
    own: tuple[tuple[str, str, str | None], ...] = ()
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
        for name, written, value in self.own:
            new = left.pop(name, value)
            if name != "standalone":
                kept += (
                    [written] if new is None else [f"{written}={new}"] if written.startswith("--") else [written, new]
                )
        names = (
            {notion: name for name, notion in _SAME.items() if name in _ACCELERATE}
            if self.launcher == "accelerate"
            else {}
        )
        added = [f"--{names.get(name, name)}={value}" for name, value in left.items()] if self.is_placed else []
        front = shell.assignments({**self.variables, **variables})
        return shell.script("{line}", line=[*front, *map(shell.argument, (*self.start, *added, *kept, *script))])

    def spans(self, count: int) -> bool:
        """True where the line's number of nodes, "2" or for c10d "1:4", is this one."""
        least, sign, most = self.options.get("nnodes", "").partition(":")
        known = is_number(least) and is_number(most or least)
        return known and int(least) <= count <= int(most or least) and not (sign and self.is_static)

    @property
    def is_placed(self) -> bool:
        """True where each host gets a line of its own, with its place in the job."""
        return self.launcher in ("torchrun", "launch", "accelerate")

    @property
    def is_static(self) -> bool:
        """True where the line itself numbers the nodes, and names the master's address and port."""
        return self.is_placed and self.options.get("rdzv_backend", "static") == "static"


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


def read_line(words: Sequence[str]) -> LaunchLine:
    """The line that these words are.

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
    program, flags = PurePath(rest[0]).name, 1
    if program in _PROGRAMS:
        launcher, count = _PROGRAMS[program]
        if program != "accelerate" or rest[1:2] == ["launch"]:
            return _read(launcher, rest[:count], rest[count:], variables)
    if not _PYTHON.fullmatch(program):
        return LaunchLine("script", variables, (), script=tuple(rest))
    while rest[flags : flags + 1] and rest[flags] in ("-u", "-O", "-B", "-s"):
        flags += 1
    launcher = _MODULES.get("".join(rest[flags + 1 : flags + 2]), "") if rest[flags : flags + 1] == ["-m"] else ""
    if launcher:
        return _read(launcher, rest[: flags + 2], rest[flags + 2 :], variables)
    return LaunchLine("script", variables, tuple(rest[:flags]), script=tuple(rest[flags:]))


def _read(launcher: str, start: list[str], words: list[str], variables: dict[str, str]) -> LaunchLine:
    tables = {"torchrun": _TORCHRUN, "launch": _LAUNCH, "deepspeed": _DEEPSPEED}
    table, options, own, unknown = tables.get(launcher), {}, [], []
    while words and words[0].startswith("-") and words[0] != "--":
        written, sign, value = words.pop(0).partition("=")
        asked = written.lstrip("-").replace("-", "_")
        name = _named(asked, table) if table is not None else asked
        if table is not None and name is None:
            unknown.append(written)
            name = next(iter(difflib.get_close_matches(asked, table, 1)), None)
            written = f"--{name}" if name is not None else written
        takes = table[name] if table is not None and name is not None else asked not in _ACCELERATE_FLAGS
        if not sign and takes and words and (name is not None or not words[0].startswith("-")):
            value, sign = words.pop(0), "="
        notion = _SAME.get(name or asked, name or asked)
        options[notion] = value
        if table is None or name is not None:
            own.append((notion, written, value if sign else None))
    script = tuple(words[1:] if words[:1] == ["--"] else words)
    return LaunchLine(launcher, variables, tuple(start), options, tuple(own), tuple(unknown), script)


def _named(asked: str, table: Mapping[str, bool]) -> str | None:
    """The option that is meant, by any unambiguous beginning."""
    if asked in table:
        return asked
    near = [name for name in table if len(asked) > 1 and name.startswith(asked)]
    return near[0] if len(near) == 1 else None


def known_options(launcher: str) -> tuple[str, ...]:
    """The names of a launcher's options; none where they are not all known."""
    return tuple({"torchrun": _TORCHRUN, "launch": _LAUNCH, "deepspeed": _DEEPSPEED}.get(launcher, ()))


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


def own_lines(
    line: LaunchLine, cluster: Cluster, counts: Mapping[str, int], gpus: Mapping[str, int]
) -> dict[str, Line]:
    """By host, the line as it has to stand there; ``counts`` has the planned ranks of each, ``gpus`` its GPUs."""
    told, static, master = (
        line.options.get("nproc_per_node", ""),
        line.is_static,
        (cluster.master_addr, cluster.master_port),
    )
    options = {} if line.spans(len(cluster.nodes)) else {"nnodes": str(len(cluster.nodes))}
    if static:
        options |= {"master_addr": master[0], "master_port": str(master[1])}
    elif line.is_placed:
        options |= {"rdzv_endpoint": endpoint(*master)}
    script = list(line.script)
    world = max(1, int(told) * len(cluster.nodes) if is_number(told) else sum(counts.values()))
    better = {at: f"tcp://{endpoint(*master)}" for _, value, at in line.arguments if value.startswith("tcp://")}
    for at, option, size in _batches(script):
        if _remainder(size, world) and not _EACH.fullmatch(option):
            better[at] = str(nearest(size, world)[0])
    for at, value in better.items():
        name, sign, _ = script[at].partition("=")
        script[at] = f"{name}={value}" if sign else value
    found = {}
    for node in cluster.nodes:
        own = options | ({"node_rank": str(node.node_rank)} if static else {})
        most = node.nproc_per_node or gpus.get(node.name)
        if is_number(told) and most is not None and (node.nproc_per_node or int(told) > most):
            own["nproc_per_node"] = str(most)
        devices = {} if node.cuda_visible_devices is None else {"CUDA_VISIBLE_DEVICES": node.cuda_visible_devices}
        found[node.name] = line.written(own, script, devices)
    return found
