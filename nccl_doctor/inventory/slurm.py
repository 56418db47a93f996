"""Reads the nodes of a Slurm job, their order, and their rank counts from scontrol, which lists only current jobs.

The nodes are in the order of ``scontrol show hostnames``, which is also the order in which srun numbers the nodes.
Launch scripts usually use the first node in this order as the master.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import values
from nccl_doctor.inventory.build import training_python
from nccl_doctor.inventory.hostfiles import expanded, named
from nccl_doctor.inventory.slurm_port import master_port
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.text.hostlist import expand, fold, quoted

JOB_ID = "SLURM_JOB_ID"
NODELIST = "SLURM_JOB_NODELIST"
ANSWER_S = 15.0
_WORDS = 200
"""The time limit for scontrol in seconds, and the maximum length of a shown error message in characters.

A busy controller answers within seconds, and scontrol itself gives up after 10 s (MessageTimeout).
"""

_NUMBER = re.compile(r"[0-9]{1,10}([_+][0-9]{1,7})?")
_BLOCK = re.compile(r"^JobId=(?P<id>[0-9]+)[^\n]*\n(?P<rest>.*?)(?=^JobId=|\Z)", re.MULTILINE | re.DOTALL)
_USER = re.compile(r"^\s+UserId=(?P<name>[^\s(]*)\((?P<uid>[0-9]+)\)", re.MULTILINE)
_STATE = re.compile(r"^\s+JobState=(?P<state>[A-Z_]+) Reason=(?P<reason>\S+)", re.MULTILINE)
_NODES = re.compile(r"^\s+NodeList=(?P<nodes>\S+)", re.MULTILINE)
_BATCH = re.compile(r"^\s+Requeue=[0-9]+ Restarts=[0-9]+ BatchFlag=[1-9]", re.MULTILINE)
_TASKS = re.compile(r"^\s+Socks/Node=\S+ NtasksPerN:B:S:C=(?P<tasks>[0-9]+):", re.MULTILINE)
_GRES = re.compile(r"^\s+Nodes=(?P<nodes>\S+) CPU_IDs=\S* Mem=\S* GRES=(?P<gres>\S*)", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)gpu(?::[A-Za-z0-9_.-]+)?:(?P<count>[0-9]{1,4})(?=\(|,|$)")


@dataclass(frozen=True)
class SlurmRequest:
    """The requested Slurm job. The nodes are reached with job steps if ``steps`` is true, and over SSH otherwise."""

    job: str
    container_image: str = ""
    container_name: str = ""
    steps: bool = True

    @property
    def login(self) -> str:
        """The reason why ``--user`` and ``--port`` have no effect on the steps of a job."""
        return "a job's steps run as its own user" if self.steps else ""

    def read(self, where: str | None, environ: Mapping[str, str]) -> ParsedInventory:
        """Return the nodes of a running job. ``where`` is a pattern that selects nodes, or None for all nodes."""
        if self.steps and shutil.which("srun") is None:
            raise UsageError(_NO_SLURM.format(program="srun"))
        job, rest = _job(self.job)
        user = _USER.search(rest)
        if self.steps and user and int(user["uid"]) != os.getuid():
            raise UsageError(f"Slurm job {job} belongs to {user['name']}, and only its own user can start steps in it")
        _refuse_unless_running(job, rest)
        place = SourceLocation(f"Slurm job {job}", is_file=False)
        listed = _NODES.search(rest)
        names = _scontrol("show", "hostnames", listed["nodes"]).split() if listed else []
        asked = names if where is None else expanded(where, SourceLocation("-w", is_file=False))
        if absent := [name for name in asked if name not in names]:
            raise UsageError(f"-w: {fold(absent)} is not a node of {place.source}, which has {fold(names)}")
        gpus, ranks = _gpus_and_ranks(rest, names)
        inside = environ.get(JOB_ID) == job
        image, container = self.container_image, self.container_name
        reached = SlurmOptions(job=job, inside=inside, container_image=image, container_name=container)
        shared = Settings()
        if inside and not reached.container:
            python, why = training_python(environ)
            shared = Settings(python=Sourced(python, SourceLocation(why, is_file=False)))
        entries = []
        for name in (name for name in names if name in asked):
            address = Sourced(values.host(name, place), place)
            settings = Settings(nproc_per_node=Sourced(ranks[name], place) if name in ranks else None)
            access = (replace(reached, gpus=gpus.get(name, 0)),) if self.steps else ()
            entries.append(Entry(address, address, settings, shared, access=access))
        port = None
        if not environ.get("MASTER_PORT") and _BATCH.search(rest):
            port = master_port(_scontrol("write", "batch_script", job, "-"), int(job))
        of_script = SourceLocation(f"the batch script of Slurm job {job}", is_file=False)
        return ParsedInventory(place, entries, master_port=None if port is None else Sourced(port, of_script))


def request(
    options: Mapping[str, Any], transport: str | None, environ: Mapping[str, str], *, named: bool
) -> SlurmRequest | None:
    """Return the Slurm job that options or the environment specify, or None if no job is specified.

    If no transport is specified, the job in the environment is used only if scontrol is installed.
    """
    steps, asked = transport in (None, "auto", "slurm"), options.get("slurm_job")
    image, name = options.get("container_image") or "", options.get("container_name") or ""
    if asked is not None and named:
        raise UsageError("a hosts file and --slurm-job both name the hosts; give one of them")
    told_by_environment = transport is None and shutil.which("scontrol") is None
    of_ours = environ.get(JOB_ID) if steps and not named and not told_by_environment else None
    job = of_ours or None if asked is None else asked
    if job is None and (transport == "slurm" or image or name):
        option = "--transport slurm" if transport == "slurm" else "a container of --container-image or --container-name"
        hint = "give --slurm-job ID, or run inside an allocation, without a hosts file"
        raise UsageError(f"{option} needs a job: {hint}")
    if job is None:
        return None
    if not _NUMBER.fullmatch(job):
        raise UsageError(f"--slurm-job: {quoted(job)} is not a job; it takes the number that squeue shows")
    if (image or name) and not steps:
        raise UsageError(f"a container is entered by steps of the job; leave out --transport {transport}")
    return SlurmRequest(job, image, name, steps)


_WITHOUT_SLURM = "unset SLURM_JOB_ID, leave out --slurm-job, and name the hosts with -w"
_NO_SLURM = (
    "there is no {program} on this machine, and a job's nodes are found and entered with Slurm's own commands; run "
    f"where they are, or {_WITHOUT_SLURM}"
)


def _job(number: str) -> tuple[str, str]:
    blocks = list(_BLOCK.finditer(_scontrol("-d", "show", "job", number)))
    if not blocks:
        raise UsageError(f"--slurm-job {number}: scontrol printed nothing about it")
    if len(blocks) > 1:
        hint = f"name one task of the array, {number}_1, or one part of the heterogeneous job, {number}+0"
        raise UsageError(f"--slurm-job {number} stands for {len(blocks)} jobs; {hint}")
    return blocks[0]["id"], blocks[0]["rest"]


def _scontrol(*words: str) -> str:
    try:
        asked = ["scontrol", *words]
        done = subprocess.run(asked, capture_output=True, timeout=ANSWER_S, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError(_NO_SLURM.format(program="scontrol")) from None
    except subprocess.TimeoutExpired:
        why = "its controller (slurmctld) is down, busy, or out of reach"
        raise UsageError(f"Slurm did not answer within {ANSWER_S:.0f} s: {why}") from None
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    lines = [" ".join(line.split()) for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    message = (
        textwrap.shorten(lines[-1], _WORDS, placeholder=" …") if lines else f"the answer was status {done.returncode}"
    )
    if any("Invalid job id" in line for line in lines):
        gone = "Slurm knows no such job, or forgot it after its end; squeue --me lists yours"
        raise UsageError(f"--slurm-job {words[-1]}: {gone}")
    raise UsageError(f"Slurm could not be queried: {message}. To do without Slurm, {_WITHOUT_SLURM}")


def _refuse_unless_running(job: str, rest: str) -> None:
    match = _STATE.search(rest)
    state, reason = (match["state"], match["reason"]) if match else ("UNKNOWN", "None")
    if state == "RUNNING":
        return
    if state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"):
        raise UsageError(f"Slurm job {job} is pending ({reason}): it has no nodes yet; check when it runs")
    if state in ("CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"):
        raise UsageError(f"Slurm job {job} is {state.lower()}: no step can be started in it now")
    raise UsageError(f"Slurm job {job} has ended ({state}); only the nodes of a running job can be entered")


def _gpus_and_ranks(rest: str, names: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    gpus: dict[str, int] = {}
    for group in _GRES.finditer(rest):
        count = sum(int(match["count"]) for match in _GPUS.finditer(group["gres"]))
        if 0 < count <= values.MAX_NPROC:
            gpus |= dict.fromkeys(expand(group["nodes"]), count)
    tasks = _TASKS.search(rest)
    each = int(tasks["tasks"]) if tasks else 0  # several tasks are ranks, a single one is a launcher
    return gpus, gpus or (dict.fromkeys(names, each) if 1 < each <= values.MAX_NPROC else {})


def from_environment(environ: Mapping[str, str]) -> ParsedInventory:
    """Return the hosts of the Slurm job in which this process runs, according to the variables set by sbatch."""
    place = SourceLocation(NODELIST, is_file=False)
    ranks = None
    # a node's GPUs, otherwise its tasks; a single task is torchrun, which says nothing about ranks
    for variable, least in (("SLURM_NTASKS_PER_NODE", 2), ("SLURM_GPUS_ON_NODE", 1)):
        text = environ.get(variable, "")
        if re.fullmatch(r"[0-9]{1,4}", text) and least <= int(text) <= values.MAX_NPROC:
            ranks = Sourced(int(text), SourceLocation(variable, is_file=False))
    return ParsedInventory(place, named(environ[NODELIST], place, Settings(), Settings(nproc_per_node=ranks)))
