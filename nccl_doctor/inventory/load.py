"""The hosts of a run: a hosts file, a Slurm job, ``-w``, Slurm's own list, or this machine alone, in this order."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import detect, values
from nccl_doctor.inventory.build import build
from nccl_doctor.inventory.hostfiles import expanded, named
from nccl_doctor.inventory.overrides import Overrides
from nccl_doctor.inventory.parsed import STDIN, Entry, ParsedInventory, Settings, Sourced, SourceLocation, read_text
from nccl_doctor.inventory.slurm import SlurmRequest
from nccl_doctor.inventory.slurm import read as nodes_of
from nccl_doctor.inventory.this_machine import ThisMachine, own_name, this_machine, training_python
from nccl_doctor.model.cluster import ENVIRONMENT, Cluster

if TYPE_CHECKING:
    from nccl_doctor.inventory.kube_request import KubeRequest

SLURM_NODELIST = "SLURM_JOB_NODELIST"

MASTER: dict[str, tuple[str, Callable[[str, SourceLocation], Any]]] = {
    "master_port": ("MASTER_PORT", values.port),
    "master_addr": ("MASTER_ADDR", values.host),
}
"""What a job's environment says of the master (torch/distributed/rendezvous.py, ``env://``)."""


def load(  # noqa: PLR0913 - each is a word of the command line
    path: str | None,
    *,
    where: str | None,
    exclude: str | None,
    environ: Mapping[str, str],
    engine: KubeRequest | SlurmRequest | None = None,
    overrides: Overrides = Overrides(),  # noqa: B008 - frozen
    here: ThisMachine | None = None,
) -> Cluster:
    """The cluster that a command works on.

    Args:
        path: the hosts file; ``-`` is standard input.
        where: the pattern of ``-w``, in place of a file.
        exclude: the pattern of ``-x``: hosts to leave out, by name or address.
        engine: the pods or the Slurm job that are the hosts, in place of a file; ``where`` chooses among a job's nodes.
        environ: the environment, for Slurm's variables, MASTER_PORT and MASTER_ADDR, and an active virtual environment.
        overrides: what options say in place of the file.
        here: this machine; None looks.

    Raises:
        HostsFileError: for a file that can't be read or understood.
        UsageError: for anything else that can't be served.
    """
    left_out = expanded(exclude, SourceLocation("-x", is_file=False)) if exclude is not None else []
    if isinstance(engine, SlurmRequest):
        if engine.steps and (overrides.user is not None or overrides.port is not None):
            raise UsageError("--user and --port are for SSH; a job's steps run as its own user")
        parsed = nodes_of(engine, where, environ)
    elif engine is not None:
        parsed = _pods(engine, path or where, overrides)
    else:
        parsed = _parsed(STDIN if path == "-" else path, where, environ, contained=overrides.inside is not None)
    overridden = {name for name in MASTER if getattr(overrides, name) is not None}
    cluster = build(_with_master(parsed, overridden, environ), left_out, here or this_machine())
    chosen = {"-w": where if engine is not None else None, "-x": exclude}
    if any(chosen.values()):
        said = {option: pattern for option, pattern in chosen.items() if pattern is not None}
        cluster = cluster.model_copy(update={"origins": {**cluster.origins, **said}})
    return overrides.applied(cluster)


def _with_master(parsed: ParsedInventory, overridden: Collection[str], environ: Mapping[str, str]) -> ParsedInventory:
    """The parsed with the environment's word on the master, which counts where nobody else said one."""
    said: dict[str, Any] = {
        name: Sourced(read(text, place), place)
        for name, (variable, read) in MASTER.items()
        if (text := environ.get(variable)) and getattr(parsed, name) is None and name not in overridden
        for place in (SourceLocation(variable, is_file=False, note=ENVIRONMENT),)
    }
    return replace(parsed, **said)


def _parsed(path: str | None, where: str | None, environ: Mapping[str, str], *, contained: bool) -> ParsedInventory:
    if path is not None and where is not None:
        raise UsageError("a hosts file and -w both name the hosts; give one of them")
    if path is not None:
        return detect.read(read_text(path), path)
    if where is not None:
        place = SourceLocation("-w", is_file=False)
        return ParsedInventory(place, named(where, place, Settings(), Settings()))
    if environ.get(SLURM_NODELIST):
        return _slurm_job(environ)
    return _alone(environ, contained=contained)


def _pods(kube: KubeRequest, other: str | None, overrides: Overrides) -> ParsedInventory:
    from nccl_doctor.inventory.kube import read  # its types take long to import

    if other is not None:
        raise UsageError("--kube names the hosts, and so does a hosts file or -w; give one of them")
    if overrides.user is not None or overrides.port is not None:
        raise UsageError("--user and --port are for SSH; pods are entered as the user of their container")
    return read(kube)


def _alone(environ: Mapping[str, str], *, contained: bool) -> ParsedInventory:
    """This machine as the only host; a container on it knows nothing of the environment that we run in."""
    place = SourceLocation("this machine", is_file=False)
    python, why = ("python3", "default") if contained else training_python(environ)
    settings = Settings(python=Sourced(python, SourceLocation(why, is_file=False)))
    entry = Entry(Sourced(own_name(), place), Sourced("127.0.0.1", place), settings)
    return ParsedInventory(place, [entry], master_addr=Sourced("127.0.0.1", place))


def _slurm_job(environ: Mapping[str, str]) -> ParsedInventory:
    """The hosts of the Slurm job that we run in, from the variables that it sets there (sbatch(1)).

    Raises:
        UsageError: where the list can't be understood.
    """
    place = SourceLocation(SLURM_NODELIST, is_file=False)
    return ParsedInventory(
        place, named(environ[SLURM_NODELIST], place, Settings(), Settings(nproc_per_node=_slurm_ranks(environ)))
    )


def _slurm_ranks(environ: Mapping[str, str]) -> Sourced[int] | None:
    """Ranks on a node: its GPUs, else its tasks; one task is torchrun's own and says nothing of ranks."""
    for variable, least in (("SLURM_GPUS_ON_NODE", 1), ("SLURM_NTASKS_PER_NODE", 2)):
        text = environ.get(variable, "")
        if re.fullmatch(r"[0-9]{1,4}", text) and least <= int(text) <= values.MAX_NPROC:
            return Sourced(int(text), SourceLocation(variable, is_file=False))
    return None
