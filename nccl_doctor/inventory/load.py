"""Determines the hosts of a run from a hosts file, ``-w``, a job or Slurm's node list.

If no hosts are specified, the only host is this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import files, slurm, values
from nccl_doctor.inventory.build import Overrides, ThisMachine, build, own_name, this_machine, training_python
from nccl_doctor.inventory.hostfiles import expanded, named
from nccl_doctor.inventory.sources import (
    STDIN,
    Entry,
    HostSource,
    ParsedInventory,
    Settings,
    Sourced,
    SourceLocation,
    read_text,
)
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import engines, kinds
from nccl_doctor.model.engines import kube

MASTER: dict[str, tuple[str, Callable[[str, SourceLocation], Any]]] = {
    "master_port": ("MASTER_PORT", values.port),
    "master_addr": ("MASTER_ADDR", values.host),
}
"""Environment variables that specify the master of a job (torch/distributed/rendezvous.py, ``env://``)."""


def load(  # noqa: PLR0913 - each is a word of the command line
    path: str | None,
    *,
    where: str | None,
    exclude: str | None,
    environ: Mapping[str, str],
    engine: HostSource | None = None,
    transport: str | None = None,
    overrides: Overrides = Overrides(),  # noqa: B008 - frozen
    here: ThisMachine | None = None,
    parsed: ParsedInventory | None = None,
) -> Cluster:
    """Return the cluster on which a command operates.

    ``path`` is the hosts file (``-`` for standard input). ``where`` is the pattern of ``-w``, which names hosts or
    selects hosts from the file; ``exclude`` is the pattern of ``-x``. ``engine`` is a source of hosts that replaces the
    hosts file, and ``transport`` is the kind of connection to named hosts. ``environ`` contains environment variables,
    including the variables that Slurm sets and the variables that specify the master. If ``here`` is None, this
    machine's names and addresses are looked up. ``parsed`` is an inventory that has already been read. A caller that
    has read the hosts from a pipe must pass ``parsed``, because a pipe can't be read again.
    """
    left_out = expanded(exclude, SourceLocation("-x", is_file=False)) if exclude is not None else []
    if parsed is None:
        parsed = read(path, where, environ, engine, transport, overrides)
    # the environment's master counts if nothing else names one
    variables = {
        name: variable
        for name, (variable, _) in MASTER.items()
        if environ.get(variable) and getattr(parsed, name) is None and getattr(overrides, name) is None
    }
    master: dict[str, Any] = {}
    for name, variable in variables.items():
        place = SourceLocation(variable, is_file=False, note="of the environment")
        master[name] = Sourced(MASTER[name][1](environ[variable], place), place)
    among = where is not None and path is not None
    only = expanded(where or "", SourceLocation("-w", is_file=False)) if among else None
    cluster = build(replace(parsed, **master), left_out, here or this_machine(), only)
    chosen = {"-w": where if engine is not None or among else None, "-x": exclude}
    origins = cluster.origins | {option: pattern for option, pattern in chosen.items() if pattern is not None}
    return overrides.applied(cluster.model_copy(update={"origins": origins, "variables": variables}))


def read(
    path: str | None,
    where: str | None,
    environ: Mapping[str, str],
    engine: HostSource | None,
    transport: str | None,
    overrides: Overrides,
) -> ParsedInventory:
    """Read the hosts of a command, with the same arguments as :func:`load`."""
    if engine is not None:
        if engine.login and (overrides.user is not None or overrides.port is not None):
            raise UsageError(f"--user and --port are for SSH; {engine.login}")
        return engine.read(where, environ)
    parsed = _parsed(STDIN if path == "-" else path, where, environ, contained=overrides.inside is not None)
    default, by = engines()[0], kinds().get(transport or "auto")
    if by is None or by is default or by.finds_hosts:
        return parsed
    entries = [replace(entry, access=(by.name_node(entry.name.value),)) for entry in parsed.entries]
    return replace(parsed, entries=entries)


def _parsed(path: str | None, where: str | None, environ: Mapping[str, str], *, contained: bool) -> ParsedInventory:
    if path is not None:
        return files.read(read_text(path), path)
    if where is not None:
        place = SourceLocation("-w", is_file=False)
        return ParsedInventory(place, named(where, place, Settings(), Settings()))
    if environ.get(slurm.NODELIST):
        return slurm.from_environment(environ)
    place = SourceLocation("this machine", is_file=False)
    python, why = ("python3", "default") if contained else training_python(environ)
    settings = Settings(python=Sourced(python, SourceLocation(why, is_file=False)))
    entry = Entry(Sourced(own_name(), place), Sourced("127.0.0.1", place), settings)
    return ParsedInventory(place, [entry], master_addr=Sourced("127.0.0.1", place))


def requested(
    options: Mapping[str, Any], transport: str | None, environ: Mapping[str, str], *, named: bool
) -> HostSource | None:
    """Return the source of hosts that options or the environment specify, or None if no source is specified."""
    sources = [engine for engine in engines() if engine.finds_hosts]
    flags = [engine.flags[0].words[0] for engine in sources if engine.flags[0].name in options]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} both name the hosts; give one of them")
    for engine in sources:
        if not (engine.implied or any(flag.name in options for flag in engine.flags)):
            continue
        source: HostSource | None
        if engine is kube.ENGINE:
            from nccl_doctor.inventory.kube import request

            source = request(options, transport, environ, named=named)
        else:
            source = slurm.request(options, transport, environ, named=named)
        if source is not None:
            return source
    return None
