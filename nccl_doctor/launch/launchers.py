"""Generates (but does not run) the command that starts a job on each node.

Each command starts the script in the way that the script expects, for example with torchrun.

A single command on this machine can start the job on all hosts over SSH, and Ctrl-C ends the job on all hosts.

The commands are based on torch/distributed/run.py, torch/distributed/launch.py (for PyTorch before 1.9), and
torch/distributed/rendezvous.py (``env://`` and ``tcp://``). Torchrun's static rendezvous keeps the order of the nodes
and allows a different nproc_per_node on each node, whereas the c10d rendezvous assigns the node ranks itself. For
torch.distributed.launch, the world size is the number of nodes times the number of processes per node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.line import LaunchLine, arguments_of, c10d_place, joined, meeting_place, place_of, tcp_url
from nccl_doctor.launch.plan import LaunchPlan, NodeStart, names_of, secrets
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.model.finding import Command, on
from nccl_doctor.nccl.versions import release
from nccl_doctor.probe.options import MODULES
from nccl_doctor.text import shell
from nccl_doctor.text.inet import endpoint, is_loopback
from nccl_doctor.text.shell import Line
from nccl_doctor.transport.ssh.settings import arguments

NO_TORCHRUN = (1, 9)
"""The first version of PyTorch with torch.distributed.run."""
LOCAL_ADDR = (2, 0)
"""The first version of PyTorch whose torchrun has --local_addr."""
WHOLE_NODES = ("torchrun", "c10d", "launch")  # launchers with one line for each node
PER_RANK = ("rank", "local_rank")
SPAWN_OPTIONS = {"--dist-url": "{url}", "--world-size": "{nnodes}", "--rank": "{node_rank}"}
"""Options of scripts that use ``mp.spawn``, such as imagenet/main.py in pytorch/examples.

``--world-size`` and ``--rank`` count nodes, not ranks.
"""

_URL_OPTION = re.compile(r"--(?:dist|init|dist-init)-(?:url|method)")
"""Pattern for options such as ``--dist-url`` of imagenet/main.py and ``--init-method`` of torch's own tutorials."""


def commands(job: LaunchPlan, launcher: str, *, use_env: bool = False, preflight: bool = False) -> tuple[Command, ...]:
    """Return the command for each node; raise UsageError if the launcher can't start the job.

    With ``preflight``, each command checks all nodes (``check --join``) before it starts the job.
    """
    if launcher == "launch":
        job.even("torch.distributed.launch", "it takes nodes times processes for the world size")
    options = {"use_env": ""} if use_env else {}
    forms: dict[str, Callable[[LaunchPlan, NodeStart], Line]] = {
        "torchrun": lambda job, start: _torch_line(job, start, "torchrun", torch_settings(job, start)),
        "c10d": lambda job, start: _torch_line(job, start, "torchrun", torch_settings(job, start, static=False)),
        "launch": lambda job, start: _torch_line(job, start, "launch", {**torch_settings(job, start), **options}),
        "env": _env,
        "tcp": _tcp,
    }
    if preflight and launcher not in WHOLE_NODES:
        raise UsageError(f"--preflight is for {', '.join(WHOLE_NODES)} and --format slurm: one command on each node")
    lines = ((start, forms[launcher](job, start)) for start in job.starts)
    whole = ((start, _after_check(job, start, line) if preflight else line) for start, line in lines)
    return tuple(command for start, line in whole for command in on(start.node.name, line))


def _after_check(job: LaunchPlan, start: NodeStart, line: Line) -> Line:
    cluster = job.cluster
    return shell.script(
        "nccl-doctor check --join --nnodes {nodes} --node-rank {rank} --master-addr {address} --master-port {port} "
        "--nproc-per-node {ranks} --python {python} && {line}",
        nodes=len(job.starts),
        rank=start.node.node_rank,
        address=shell.argument(cluster.master_addr),
        port=cluster.master_port,
        ranks=start.nproc,
        python=shell.program(start.node.python),
        line=line,
    )


def default_launcher(torch: str | None) -> str:
    """Return "torchrun", or "launch" for a torch version without torchrun."""
    return "launch" if torch is not None and release(torch) < NO_TORCHRUN else "torchrun"


def takes_local_addr(job: LaunchPlan) -> bool:
    """Return whether torchrun supports ``--local_addr``; raise UsageError if torch lacks the c10d rendezvous."""
    if job.torch is not None and release(job.torch) < NO_TORCHRUN:
        raise UsageError(f"torch {job.torch} has no c10d rendezvous, which came with PyTorch 1.9")
    return job.torch is None or release(job.torch) >= LOCAL_ADDR


def torch_settings(job: LaunchPlan, start: NodeStart, *, static: bool = True) -> dict[str, str]:
    """Return the names and values of torchrun's options for a node."""
    count = {"nproc_per_node": str(start.nproc)}
    placed, meeting = place_of(start.node, len(job.starts)), meeting_place(job.cluster, static=static)
    if static:
        return {**placed, **count, **meeting}
    rendezvous = c10d_place(start.node, job.cluster)
    if not takes_local_addr(job) or start.node.address == "localhost" or is_loopback(start.node.address):
        del rendezvous["local_addr"]
    del placed["node_rank"]
    return {**placed, **count, "rdzv_backend": "c10d", **meeting, "rdzv_id": f"job-{job.digest}", **rendezvous}


def _torch_line(job: LaunchPlan, start: NodeStart, launcher: str, settings: Mapping[str, str]) -> Line:
    module = next(name for name, (called, _) in MODULES.items() if called == launcher)
    return written(start, launcher, ("-m", module), settings, job.script)


def written(
    start: NodeStart,
    launcher: str,
    program: Sequence[str],
    settings: Mapping[str, str],
    script: Sequence[str],
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Line:
    """Return a node's command line, which consists of variables, program, options, and script.

    ``variables`` are added to the node's own variables. ``settings`` maps torchrun's option names to values. If
    ``program`` is empty or begins with an option, the node's Python interpreter is prepended.
    """
    exported = secrets(start.variables)
    environment = {**start.variables, **variables}
    python = start.node.python
    python = f"$HOME/{shell.literal(python[2:])}" if python.startswith("~/") else shell.literal(python)
    line = LaunchLine(
        launcher,
        {name: f"${name}" if name in exported else shell.literal(value) for name, value in environment.items()},
        (*([python] if not program or program[0].startswith("-") else []), *program),
    )
    return joined(line.written(settings, [*map(shell.literal, script)], {}))


def _env(job: LaunchPlan, start: NodeStart) -> Line:
    settings = {
        "MASTER_ADDR": job.cluster.master_addr,
        "MASTER_PORT": str(job.cluster.master_port),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_WORLD_SIZE": str(start.nproc),
        "NODE_RANK": str(start.node.node_rank),
    }

    def of_rank(rank: Mapping[str, Line]) -> Line:
        front = shell.assignments({**start.variables, **settings}, secrets(start.variables))
        program = [shell.program(start.node.python), *shell.words(job.script, {})]
        return shell.script(
            "{front} RANK={rank} LOCAL_RANK={local_rank} {program}", front=front, program=program, **rank
        )

    return _each_rank(start, of_rank)


def _tcp(job: LaunchPlan, start: NodeStart) -> Line:
    """Return the command for a script that receives the node rank and spawns the processes of the node.

    A script whose arguments contain a placeholder for a rank is run once for each rank instead.
    """
    script, _ = tcp_script(job)
    if not _has_holes(job.script):
        job.even("a script that spawns its own processes", "it multiplies nodes by its own GPUs")
    values = {
        "url": tcp_url(job.cluster),
        "world_size": str(job.world_size),
        "nnodes": str(len(job.starts)),
        "node_rank": str(start.node.node_rank),
    }
    fixed = {name: shell.argument(value) for name, value in values.items()}

    def of_rank(rank: Mapping[str, Line]) -> Line:
        front = [*shell.assignments(start.variables, secrets(start.variables)), shell.program(start.node.python)]
        return shell.script("{front} {script}", front=front, script=shell.words(script, {**fixed, **rank}))

    per_rank = any(f"{{{name}}}" in text for text in script for name in PER_RANK)
    return _each_rank(start, of_rank) if per_rank else of_rank({})


def tcp_script(job: LaunchPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the script with placeholders for the settings that ``tcp://`` needs, and a note on replaced values.

    The note is a tuple with one sentence, or an empty tuple if no value was replaced.
    """
    right = {f"tcp://{endpoint(name, job.cluster.master_port)}" for name in names_of(job.cluster)}
    wanted = {} if _has_holes(job.script) else SPAWN_OPTIONS
    words, there, replaced = list(job.script), set(), []
    for spelled, value, at, option, front in arguments_of(job.script):
        name, hole = spelled, ""
        if _URL_OPTION.fullmatch(name) and "://" in value:
            name = "--dist-url"
            hole = "{url}" if value.startswith(("tcp://", "env://")) and value not in right else ""
            host = value.removeprefix("tcp://").rpartition(":")[0].strip("[]")
            loopback = host == "localhost" or is_loopback(host)
            by = f"{tcp_url(job.cluster)}{', for that is an address of each host itself' if loopback else ''}"
        elif name in wanted and value.isdecimal():
            hole, by = wanted[name], str(len(job.starts)) if name == "--world-size" else "each host's own"
        else:
            continue
        there.add(name)
        if hole:
            words[at] = front + hole
            replaced += [] if value == by else [f"{option} {value} by {by}"]
    words += [word for option, hole in wanted.items() if option not in there for word in (option, hole)]
    return tuple(words), (f"replaced in the script's arguments: {'; '.join(replaced)}",) if replaced else ()


def _has_holes(script: tuple[str, ...]) -> bool:
    return any(f"{{{name}}}" in text for text in script for name in ("url", "rank", "node_rank"))


def _each_rank(start: NodeStart, of_rank: Callable[[Mapping[str, Line]], Line]) -> Line:
    if start.nproc == 1:
        return of_rank({"rank": shell.script("{first}", first=start.first), "local_rank": shell.script("0")})
    numbers = [shell.script("{i}", i=i) for i in range(start.nproc)]
    command = of_rank({"rank": shell.script("$(({first} + i))", first=start.first), "local_rank": shell.script("$i")})
    loop = """for i in {numbers}; do {one} & set -- "$@" $!; done;"""
    return _side_by_side(shell.script(loop, numbers=numbers, one=command))


SSH = ("ssh", "-tt", "-n", "-o", "BatchMode=yes")
"""The ssh command and its options.

The pseudo-terminal (``-tt``) makes the remote command end when the connection is closed. Input is disabled (``-n``)
because all connections would otherwise share stdin.
"""


def start_over_ssh(cluster: Cluster, commands: Iterable[Command]) -> Line:
    """Return a command that runs the commands of all hosts in parallel and fails if any command fails."""
    nodes = {node.name: node for node in cluster.nodes}
    started = []
    for entry in commands:
        node = nodes[entry.host or ""]
        words = [*SSH, *arguments(node.options(SshOptions)), node.address]
        start = [shell.argument(word) for word in (["setsid", "sh", "-c"] if node.local else words)]
        # over SSH, a command starts in the home directory
        command = shell.nested(f"cd && {entry.command}" if node.local else entry.command)
        kept = shell.script("l=$!;" if node.local else "")
        started.append(
            shell.script("""{start} {command} & set -- "$@" $!;{kept}""", start=start, command=command, kept=kept)
        )
    return _side_by_side(shell.script("{started}", started=started))


def _side_by_side(started: Line) -> Line:
    """Return a script that runs commands in parallel, ends them on Ctrl-C, and fails if any command fails.

    The command on this machine is a session of its own (setsid), whose leader is "$l", so that its processes end too.
    """
    trap = shell.script("""trap 'kill "$@"; [ -z "$l" ] || kill -- "-$l"' INT TERM;""")
    wait = """(set --; l=; {trap} {started} for p in "$@"; do wait "$p" || s=1; done; exit ${{s:-0}})"""
    return shell.script(wait, started=started, trap=trap)
