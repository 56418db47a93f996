"""Determines this process's node in a job from the variables that launchers set, for ``check --join``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from nccl_doctor.errors import DoctorError, UsageError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation, read_bytes
from nccl_doctor.model.engines.joined import JoinedOptions
from nccl_doctor.text.hostlist import expand, fold, fold_numbers, nouns, quoted
from nccl_doctor.text.inet import numeric
from nccl_doctor.transport.joined.handshake import MOST_NODES, MOST_PROCESSES

TOKEN = "NCDOCTOR_TOKEN"  # noqa: S105 - the name of the variable
NOWHERE = "0.0.0.0"  # noqa: S104 - the address of a node that did not come and has no name, so nothing is looked up
LEAST_TOKEN, MOST_TOKEN = 16, 4096
LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
"""Variables with the rank of a process on its node, and variables with the number of processes on a node.

The process that represents its node in ``check --join`` has rank 0 on the node.
"""
_LONG = 40  # letters of a host name that another node has, too


@dataclass(frozen=True)
class LauncherVariables:
    """The variables by which a launcher tells a process its place in the job.

    If ``per_node`` is set, it names the variable with the number of processes on a node, and ``nodes`` and ``rank``
    refer to processes instead of nodes. If ``absent`` is set, it names a variable that only other launchers set.
    """

    name: str
    nodes: str
    rank: str
    per_node: str = ""
    absent: str = ""

    def has_set(self, environ: Mapping[str, str]) -> bool:
        wanted = filter(None, (self.nodes, self.rank, self.per_node))
        return all(environ.get(name) for name in wanted) and not environ.get(self.absent)


LAUNCHERS = (
    LauncherVariables("the environment", "NNODES", "NODE_RANK"),
    LauncherVariables("PyTorchJob", "PET_NNODES", "PET_NODE_RANK"),
    LauncherVariables("torchrun", "GROUP_WORLD_SIZE", "GROUP_RANK"),
    LauncherVariables("Ray Train", "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"),
    LauncherVariables("srun", "SLURM_STEP_NUM_NODES", "SLURM_NODEID"),
    LauncherVariables("sbatch", "SLURM_NNODES", "SLURM_NODEID"),
    LauncherVariables(
        "Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    LauncherVariables("MPICH", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
    LauncherVariables("PyTorchJob", "WORLD_SIZE", "RANK", absent="LOCAL_RANK"),
    LauncherVariables("an indexed Job", "NNODES", "JOB_COMPLETION_INDEX"),
)  # fmt: skip
"""All supported launchers, in an order in which those with the most specific variables come first.

The variables of torchrun are set in torch/distributed/elastic/agent/server/local_elastic_agent.py. The PET_… variables
are read in torch/distributed/argparse_util.py and set by Kubeflow's training operator. For srun, see srun(1), "OUTPUT
ENVIRONMENT VARIABLES", and for Open MPI, see mpirun(1). MPICH and Intel MPI use the Hydra launcher.
"""


@dataclass(frozen=True)
class JobPlace:
    """The place of this process in its job.

    Attributes:
        nodes: the number of nodes.
        rank: the rank of this node.
        master: the name or address of node 0.
        takes_part: true for one process of each node; all other processes only wait for the result.
        names: the names of the nodes in rank order, or empty if the launcher does not provide names.
        launcher: the launcher whose variables were used.
        processes: the number of processes that the launcher started on this node, or 1 if unknown.
    """

    nodes: int
    rank: int
    master: str
    takes_part: bool = True
    names: tuple[str, ...] = ()
    launcher: str = "options"
    processes: int = 1

    @property
    def leads(self) -> bool:
        """True for the process that checks all nodes."""
        return self.rank == 0 and self.takes_part


def place(
    environ: Mapping[str, str], nodes: int | None = None, rank: int | None = None, master: str | None = None
) -> JobPlace:
    """Return this process's place in its job.

    Arguments take precedence over environment variables. Raise UsageError if information is missing.
    """
    launcher = next((candidate for candidate in LAUNCHERS if candidate.has_set(environ)), None)
    if launcher is not None and (nodes is None or rank is None):
        per_node = _number(environ, launcher.per_node) if environ.get(launcher.per_node) else 1
        nodes = math.ceil(_number(environ, launcher.nodes) / max(per_node, 1)) if nodes is None else nodes
        rank = _number(environ, launcher.rank) // max(per_node, 1) if rank is None else rank
    local = any(_number(environ, name) for name in LOCAL_RANKS if environ.get(name))
    names = _names(environ)
    if names and (nodes is None or rank is None):
        nodes = len(names) if nodes is None else nodes
        hostname = environ.get("SM_CURRENT_HOST", "")
        rank = names.index(hostname) if rank is None and hostname in names else rank
    master = master or environ.get("MASTER_ADDR") or (names[0] if len(names) == nodes else None)
    lacking = {
        "the number of nodes (--nnodes, or NNODES)": nodes is None,
        "this node's rank (--node-rank, or NODE_RANK)": rank is None,
        "node 0's address (--master-addr, or MASTER_ADDR)": master is None,
    }
    if any(lacking.values()):
        raise UsageError(
            f"--join does not know {' and '.join(what for what, is_lacking in lacking.items() if is_lacking)}; srun, "
            "torchrun and PyTorchJob set what is needed; under mpirun, add -x MASTER_ADDR"
        )
    nodes, rank, master = nodes or 0, rank or 0, master or ""
    if nodes > MOST_NODES:
        raise UsageError(f"--join: {nodes} nodes are too many; at most {MOST_NODES} can be checked")
    if not 0 <= rank < nodes:
        raise UsageError(f"--join: node rank {rank} is not below the number of nodes, {nodes}")
    where = SourceLocation("MASTER_ADDR" if environ.get("MASTER_ADDR") == master else "--master-addr", is_file=False)
    known = names if len(names) == nodes else ()
    name = launcher.name if launcher else "options"
    return JobPlace(nodes, rank, values.host(master, where), not local, known, name, _processes(environ))


def _processes(environ: Mapping[str, str]) -> int:
    """Return the number of processes that the launcher started on this node, or 1 if the number is unknown."""
    for name in LOCAL_SIZES:
        count = environ.get(name, "").partition("(")[0]  # Slurm's form is 8(x2)
        if count.isascii() and count.isdecimal() and 0 < int(count[:6]) <= MOST_PROCESSES:
            return int(count)
    return 1


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if text.isascii() and text.isdecimal() and len(text) < 7:
        return int(text)
    elastic = "; a check needs a fixed number of nodes: give --nnodes" if ":" in text else ""
    raise UsageError(f"{name}={quoted(text)} is not a number{elastic}")


def _names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the nodes in rank order, from the variables of Slurm or SageMaker."""
    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST")
    try:
        if listed:
            return tuple(expand(listed))
        hosts = json.loads(environ.get("SM_HOSTS") or "[]")
    except ValueError:
        return ()
    place = SourceLocation("SM_HOSTS", is_file=False)
    return tuple(values.host(str(host), place) for host in hosts) if isinstance(hosts, list) else ()


def token(environ: Mapping[str, str], path: Path | None) -> bytes:
    """Return the job's secret from ``--token-file`` or NCDOCTOR_TOKEN, or an empty value if no secret is set."""
    if path is None:
        secret, origin = environ.get(TOKEN, "").strip().encode(errors="replace"), TOKEN
        if not secret:
            return b""
    else:
        origin = f"--token-file: {path}"
        try:
            secret = read_bytes(str(path), "a token", MOST_TOKEN).strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"{origin}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    if not (secret.isascii() and LEAST_TOKEN <= len(secret) <= MOST_TOKEN):
        raise UsageError(
            f"{origin} needs {LEAST_TOKEN} to {MOST_TOKEN} ASCII characters (openssl rand -hex 16 makes them)"
        )
    return secret


@dataclass(frozen=True)
class Arrival:
    """A node that has joined the check, with the address from which the node connected."""

    rank: int
    name: str
    address: str
    python: str


def arrived(here: JobPlace, came: Sequence[Arrival], port: int) -> ParsedInventory:
    """Return the job's nodes in rank order, including the nodes that did not join."""
    source = SourceLocation("--join", is_file=False)
    by_rank = {arrival.rank: arrival for arrival in came}
    entries: list[Entry] = []
    names: set[str] = set()
    for rank in range(here.nodes):
        arrival = by_rank.get(rank)
        name = _name(arrival.name if arrival else here.names[rank] if here.names else "", rank, names)
        names.add(name)
        address = arrival.address if arrival else name if here.names else NOWHERE
        settings = Settings(python=Sourced(arrival.python, source)) if arrival else Settings()
        entries.append(
            Entry(Sourced(name, source), Sourced(address, source), settings, access=(JoinedOptions(rank, port),))
        )
    return ParsedInventory(source, entries, master_addr=Sourced(here.master, source))


def _name(host: str, rank: int, others: Container[str]) -> str:
    """Return a node's own host name, or a name with its rank if the host name is invalid or already used."""
    for name in (host, f"{host[:_LONG]}-rank{rank}"):
        with suppress(DoctorError):
            if name not in others and numeric(name) is None:  # an address would be others for another node's
                return values.host(name, SourceLocation("--join", is_file=False))
    return next(name for name in (f"rank-{rank}{'x' * more}" for more in count()) if name not in others)


def missing(here: JobPlace, came: Sequence[Arrival]) -> str:
    """Return a phrase for the nodes that did not join, such as ``node rank 2 (node3)``."""
    absent = sorted(set(range(here.nodes)) - {arrival.rank for arrival in came})
    names = f" ({fold([here.names[rank] for rank in absent])})" if here.names else ""
    return f"{nouns(len(absent), 'node rank')} {fold_numbers(absent)}{names}"


_OF_MASTER = re.compile(r"(?P<job>[a-z0-9]([a-z0-9.-]{0,200}[a-z0-9])?)-master-0")


def output_of(rank: int, environ: Mapping[str, str], hostname: str) -> str:
    """Return a phrase that says where the output of a node is. ``hostname`` is the host name of node 0.

    The default name of a batch job's output file is documented in sbatch(1). Kubeflow's training operator names the
    pods of a PyTorchJob after the job, the role, and the index in the role.
    """
    job, pod = environ.get("SLURM_JOB_ID", ""), _OF_MASTER.fullmatch(hostname)
    if job.isascii() and job.isdecimal():
        return f"the output of node rank {rank} (in slurm-{job}.out, if sbatch had no -o)"
    if pod is not None:
        return f"the output of node rank {rank} (kubectl logs {pod['job']}-worker-{rank - 1})"
    if environ.get("JOB_COMPLETION_INDEX"):
        label = f"batch.kubernetes.io/job-completion-index={rank}"
        return f"the output of node rank {rank} (of the pod that kubectl get pods -l {label} shows)"
    return f"the output of node rank {rank}"
