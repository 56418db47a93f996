"""Generates the commands that start an engine (vLLM, SGLang, Ray, DeepSpeed, or Accelerate) on each host.

The commands use the syntax of vLLM 0.33 (0.11 has no ``--nnodes``), SGLang 0.5, Ray 2.60, DeepSpeed 0.19
(``--no_ssh``), and Accelerate 1.15. If an engine needs the host's own address, the command sets the variable or option
that the engine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nccl_doctor.errors import UsageError
from nccl_doctor.launch.launchers import written
from nccl_doctor.launch.line import meeting_place, place_of
from nccl_doctor.launch.plan import LaunchPlan, NodeStart
from nccl_doctor.model.finding import Command, on
from nccl_doctor.probe.options import find_launcher
from nccl_doctor.servers.advertise import PROGRAMS
from nccl_doctor.text import shell
from nccl_doctor.text.hostlist import plural
from nccl_doctor.text.inet import endpoint, is_loopback, numeric
from nccl_doctor.text.shell import Line

GCS_PORT = 6379
HOSTFILE = "deepspeed-hosts"
Addresses = Mapping[str, str]  # by host, its address in the cluster's network, if known


def engine_commands(job: LaunchPlan, engine: str, addresses: Addresses) -> tuple[Command, ...]:
    """Return the command that starts the engine on each node; raise UsageError if the engine can't start the job."""
    forms: dict[str, Callable[[LaunchPlan, NodeStart, str | None], Line]] = {
        "vllm": _vllm,
        "sglang": _sglang,
        "ray": _ray,
        "deepspeed": _deepspeed,
        "accelerate": _accelerate,
    }
    named, count = find_launcher(job.script or ("",))
    if named.name == engine != "ray":  # a whole line, as guides have it
        job = replace(job, script=job.script[count:])
    if not job.script and engine != "ray":
        what = "model" if PROGRAMS[engine].starts == "MODEL" else "script"
        raise UsageError(f"which {what}? nccl-doctor launch hosts.yaml --engine {engine} -- {what.upper()} OPTIONS")
    made = [on(item.node.name, forms[engine](job, item, addresses.get(item.node.name))) for item in job.starts]
    if engine == "ray" and job.script:
        made.append(on(job.starts[0].node.name, written(job.starts[0], "script", (), {}, job.script)))
    return tuple(item for line in made for item in line)


def engine_notes(job: LaunchPlan, engine: str, addresses: Addresses) -> tuple[list[str], list[str]]:
    notes = [f"these lines are for {PROGRAMS[engine].syntax}"]
    if PROGRAMS[engine].sizes and not _asked(job.script, engine):
        gpus = plural(job.starts[0].nproc, "GPU") if engine == "vllm" else f"all {job.world_size} GPUs"
        sizes = f"tensor parallel over {gpus}{' per host' if engine == 'vllm' else ''}"
        over = ", pipeline parallel across the hosts" if engine == "vllm" and len(job.starts) > 1 else ""
        notes.append(f"{sizes}{over}; sizes given after -- take precedence")
    if engine == "deepspeed":
        notes.append(f"each line writes {HOSTFILE}, which DeepSpeed reads, in the folder that it is started in")
    if engine == "ray" and job.script:
        notes.append("run the last line once ray status shows all nodes")
    lost = [start.node.name for start in job.starts if start.node.name not in addresses]
    if lost and PROGRAMS[engine].is_server:
        words = "nccl-doctor check with this hosts file finds them"
        return notes, [f"the addresses of {', '.join(lost[:6])} are not known, so they are left out; {words}"]
    return notes, []


def _asked(script: Sequence[str], engine: str) -> bool:
    return any(word.partition("=")[0] in PROGRAMS[engine].sizes for word in script)


def _placed(job: LaunchPlan, start: NodeStart, *, static: bool = True) -> dict[str, str]:
    """Return a node's rendezvous settings as torchrun options, or an empty mapping for a job with a single node."""
    if len(job.starts) == 1:
        return {}
    return {**place_of(start.node, len(job.starts)), **meeting_place(job.cluster, static=static)}


def _vllm(job: LaunchPlan, start: NodeStart, address: str | None) -> Line:
    settings = _placed(job, start)
    if not _asked(job.script, "vllm"):
        each = str(job.even("vLLM", "its tensor parallel size is that of each node"))
        across = {"pipeline": str(len(job.starts))} if settings else {}
        settings = {"tensor": each, **across, **settings}
    if start.node.node_rank:
        settings["headless"] = ""
    return written(start, "vllm", ("vllm", "serve"), settings, job.script, _variable("VLLM_HOST_IP", address))


def _sglang(job: LaunchPlan, start: NodeStart, address: str | None) -> Line:
    sizes = {} if _asked(job.script, "sglang") else {"tensor": str(job.world_size)}
    script = job.script if job.script[0].startswith("-") else ("--model-path", *job.script)
    settings = {**sizes, **_placed(job, start, static=False)}
    return written(
        start, "sglang", ("-m", "sglang.launch_server"), settings, script, _variable("SGLANG_HOST_IP", address)
    )


def _ray(job: LaunchPlan, start: NodeStart, address: str | None) -> Line:
    head = {"head": "", "port": str(GCS_PORT)}
    settings = {"address": endpoint(job.cluster.master_addr, GCS_PORT)} if start.node.node_rank else head
    settings |= _variable("node_ip_address", address) | ({"num_gpus": str(len(start.gpus))} if start.gpus else {})
    return written(start, "ray", ("ray", "start"), settings, ())


def _deepspeed(job: LaunchPlan, start: NodeStart, address: str | None) -> Line:
    del address  # only the master's address is used
    if len(job.starts) == 1:
        return written(start, "deepspeed", ("deepspeed",), {"num_gpus": str(start.nproc)}, job.script)
    if len({entry.node.address for entry in job.starts}) < len(job.starts):
        raise UsageError("DeepSpeed's hostfile names each machine once; make the nodes of one machine one node")
    slots = [shell.argument(f"{entry.node.address} slots={entry.nproc}") for entry in job.starts]
    settings = {"hostfile": HOSTFILE, "no_ssh": "", **_placed(job, start)}
    del settings["nnodes"]
    line = written(start, "deepspeed", ("deepspeed",), settings, job.script)
    return shell.script(
        "printf '%s\\n' {slots} > {file} && {line}", slots=slots, file=shell.argument(HOSTFILE), line=line
    )


def _accelerate(job: LaunchPlan, start: NodeStart, address: str | None) -> Line:
    del address
    job.even("accelerate", "it divides all processes by the machines")
    # --cpu starts a single rank, also of several; with --multi_gpu ranks compute on CPUs where there is no GPU
    kind = {"multi_gpu": ""} if job.world_size > 1 else {"cpu": ""} if start.gpus == () else {}
    settings = {**kind, "world_size": str(job.world_size)}
    placed = _placed(job, start)
    settings |= {**placed, "same_network": ""} if placed else {}
    return written(start, "accelerate", ("accelerate", "launch"), settings, job.script)


def _variable(name: str, address: str | None) -> dict[str, str]:
    return {} if address is None else {name: address}


def own_addresses(job: LaunchPlan, checked: Mapping[str, str]) -> Addresses:
    """Return each host's IP address from the list or, if a name or loopback address is listed, from the last check.

    A host without a known address is omitted.
    """
    addresses = {}
    for start in job.starts:
        listed = start.node.address
        usable = numeric(listed) is not None and not is_loopback(listed)
        if address := listed if usable else checked.get(start.node.name):
            addresses[start.node.name] = address
    return addresses
