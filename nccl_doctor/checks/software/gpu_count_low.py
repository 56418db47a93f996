"""A node is configured to start more ranks than it has GPUs, or has fewer GPUs than the other nodes.

What it means: ranks without a GPU fail with "CUDA error: invalid device ordinal". The other ranks wait until the
rendezvous or the first collective times out. If the hosts file does not set the number of ranks per node, a node with
fewer GPUs starts fewer ranks, and the world size is smaller than intended.

How we know: the GPUs that nvidia-smi lists are compared with `nproc_per_node` and `cuda_visible_devices` in the hosts
file, or with CUDA_VISIBLE_DEVICES in the ranks' environment. If torch is built for ROCm, the check counts the GPUs that
the amdgpu driver manages. For AMD GPUs, HIP_VISIBLE_DEVICES replaces CUDA_VISIBLE_DEVICES, and ROCR_VISIBLE_DEVICES is
applied first. If a host has one GPU fewer than similar machines, the missing GPU has usually fallen off the bus (Xid 79
in the kernel log). A job is assumed to run on CPUs if no host has a GPU and neither the hosts file nor
CUDA_VISIBLE_DEVICES requests GPUs.

Fix: list the GPUs on the host's PCI bus with `lspci -d 10de:` (NVIDIA) or `lspci -d 1002:` (AMD). If a GPU on the bus
is missing from nvidia-smi's list, look for driver errors in `dmesg`, and power-cycle the host. If nvidia-smi lists
every GPU on the bus, change `nproc_per_node` and `cuda_visible_devices` to match these GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nccl_doctor.checks.effects import CUDA
from nccl_doctor.checks.view import Findings, View, check, on_each, pasted
from nccl_doctor.logs.rule import likely, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, make_advice
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import (
    HostFacts,
    gpu_wish,
    named_devices,
    rocm_choice,
    rocm_count,
    rocm_gpus,
    visible_devices,
    visible_gpus,
)
from nccl_doctor.snapshot.system import Gpu, PciGpu
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped, listed, plural, quoted
from nccl_doctor.text.shell import Line, line

ON_THE_BUS = line("lspci -d 10de:")
AMD_ON_THE_BUS = line("lspci -d 1002:")
UNSET = (
    "Remove {names} from the environment in which the job starts, or name existing GPUs "
    "(cuda_visible_devices in the hosts file). To see what is set:"
)


LACKING = (
    "Set nproc_per_node and cuda_visible_devices in the hosts file to what the host has, or bring back the GPU that it "
    "lacks. To see whether it is on the PCI bus:"
)


def in_the_shell(names: Iterable[str]) -> Line | None:
    return line("printenv {*names}", names=tuple(names))


@check(
    "NCD503",
    phrase="too few GPUs",
    severity=Severity.ERROR,
    needs=("gpus",),
    explains=(CUDA,),
    in_logs=("cuda-error", "local-rank-invalid"),
    row="GPUs",
)
def gpu_count_low(view: View) -> Findings:
    """Yield one finding per shortage of GPUs, and one if nodes have different numbers of GPUs."""
    if all(facts.gpus == () for _, facts in view.facts):
        yield from _absent(view)
        yield from _amd(view)
        others = grouped((words, host.name) for host, facts in view.facts if (words := _not_judged(facts)))
        yield from (Unjudged(tuple(hosts), words) for words, hosts in others.items())
        return
    counts: dict[str, int] = {}
    short: list[tuple[_Short, str]] = []
    hidden: list[tuple[str, str]] = []
    for host, facts in view.facts:
        gpus, gpu_count, ranks = known(facts.gpus), len(visible_gpus(host.node, facts)), view.nproc(host, facts)
        # CUDA ignores an index without a device, and all that follow it; nvidia-smi does not list parts of GPUs
        there = {str(gpu.index) for gpu in gpus}
        devices = visible_devices(host.node, facts)
        missing = [part for part in named_devices(devices) if part.isdigit() and part not in there]
        has_parts = any(part.startswith("MIG-") for part in named_devices(devices))
        is_inherited = host.node.cuda_visible_devices is None
        if is_inherited and devices is not None and gpus and not set(named_devices(devices)) - {"-1"}:
            hidden.append((devices, host.name))
        elif missing or (gpu_count < ranks and not has_parts):
            choice = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
            short.append((_short(choice, gpus, gpu_count, ranks, missing, is_own=is_inherited), host.name))
        elif host.node.nproc_per_node is None and devices is None:
            counts[host.name] = len(gpus)
    yield from (lack.finding(tuple(hosts)) for lack, hosts in grouped(short).items())
    for devices, hosts in grouped(hidden).items():
        yield Finding(
            hosts=tuple(hosts),
            message=f"CUDA_VISIBLE_DEVICES={devices or quoted(devices)} hides every GPU on {fold(hosts)}, so ranks "
            "there run on the CPU.",
            evidence=(f"{fold(hosts)}: CUDA_VISIBLE_DEVICES={devices} in the environment that ranks get",),
            facts={"gpus": 0, "cuda_visible_devices": devices},
            severity=Severity.WARNING,
            fix=pasted(
                UNSET.format(names="CUDA_VISIBLE_DEVICES"), on_each(hosts, in_the_shell(["CUDA_VISIBLE_DEVICES"]))
            ),
        )
    yield from _uneven(counts, ON_THE_BUS)


def _amd(view: View) -> Findings:
    """Yield one finding per shortage of AMD GPUs, and one if nodes have different numbers of AMD GPUs."""
    counts: dict[str, int] = {}
    short: list[tuple[_Short, str]] = []
    for host, facts in view.facts:
        there, gpu_count, choice = rocm_gpus(facts), rocm_count(host.node, facts), rocm_choice(host.node, facts)
        ranks = host.node.nproc_per_node
        if there and gpu_count is not None and gpu_count < (ranks or 1):
            is_inherited = host.node.cuda_visible_devices is None and not choice.keys() & host.node.env.keys()
            short.append((_short(choice, there, gpu_count, ranks or 1, (), is_own=is_inherited), host.name))
        elif there is not None and ranks is None and not choice:
            counts[host.name] = len(there)
    yield from (lack.finding(tuple(hosts)) for lack, hosts in grouped(short).items())
    yield from _uneven(counts if len(counts) == len(view.hosts) else {}, AMD_ON_THE_BUS)


def _uneven(counts: dict[str, int], on_the_bus: Line | None) -> Findings:
    """Yield one finding for the hosts with fewer GPUs than most hosts.

    The fix includes the command ``on_the_bus``.
    """
    usual = max(Counter(counts.values()).items(), key=lambda item: (item[1], item[0]))[0] if counts else 0
    fewer = tuple(name for name, count in counts.items() if count < usual)
    if fewer:
        rest = [name for name, count in counts.items() if count == usual]
        yield Finding(
            hosts=fewer,
            message=f"{fold(fewer)} {'has' if len(fewer) == 1 else 'have'} fewer GPUs than the other hosts, so "
            "the job would start fewer ranks there.",
            evidence=(*(f"{name}: {counts[name]}" for name in fewer), f"{fold(rest)}: {usual}"),
            facts={"gpus": counts},
            severity=Severity.WARNING,
            fix=pasted(
                "If this is intended, set nproc_per_node in the hosts file; if not, bring back the missing GPU. To see "
                "whether it is on the PCI bus:",
                on_each(fewer, on_the_bus),
            ),
        )


NO_GPU = "no GPU was found: nvidia-smi is not installed, or shows none"


def _absent(view: View) -> Findings:
    """If no host has a GPU, yield one finding for all hosts that should have GPUs."""
    without = [host for host, facts in view.facts if not rocm_gpus(facts)]
    wishes = grouped((wish, host.name) for host in without if (wish := gpu_wish(host)))
    hosts = tuple(name for names in wishes.values() for name in names)
    if hosts:
        yield Finding(
            hosts=hosts,
            message=f"{fold(hosts)} {'has' if len(hosts) == 1 else 'have'} no GPU, but the job requests GPUs.",
            evidence=(*(f"{fold(names)}: {wish}" for wish, names in wishes.items()), NO_GPU),
            facts={"gpus": 0},
            fix=pasted(
                "Use hosts that have GPUs, or pass GPUs to the container or job step; for a CPU job, "
                "remove cuda_visible_devices and CUDA_VISIBLE_DEVICES. To see whether a GPU is on the PCI bus:",
                on_each(hosts, ON_THE_BUS),
            ),
        )


def _not_judged(facts: HostFacts) -> str | None:
    """Describe a host's AMD GPUs, which the all-reduce does not use, or Intel GPUs, which are not checked.

    Return None if the host has no such GPUs.
    """
    if amd := rocm_gpus(facts):
        return f"{plural(len(amd), 'GPU')} of AMD's by the driver, but the all-reduce does not use them"
    if isinstance(facts.torch, Unknown) or facts.torch is None or "+xpu" not in facts.torch.version:
        return None
    return f"torch {facts.torch.version} is for Intel GPUs, which are not checked"


class _Short(NamedTuple):
    """A shortage of GPUs on one node, or the same shortage on several nodes."""

    wants: str
    sees: str | None  # phrase for the variables that hide GPUs from the ranks
    gpus: int
    shown: tuple[str, ...]
    ranks: int
    devices: str | None
    summary: str
    look: Line | None

    def finding(self, hosts: tuple[str, ...]) -> Finding:
        are, have = ("is", "has") if len(hosts) == 1 else ("are each", "have")
        gpus = f"only {plural(self.gpus, 'GPU')}" if self.gpus else "no GPU"
        lack = self.sees or f"{have} {gpus}"
        return Finding(
            hosts=hosts,
            message=f"{fold(hosts)} {are} configured to {self.wants}, but {lack}.",
            evidence=self.shown,
            facts={"gpus": self.gpus, "nproc_per_node": self.ranks, "cuda_visible_devices": self.devices},
            fix=pasted(self.summary, on_each(hosts, self.look)),
        )


def _short(
    choice: Mapping[str, str],
    gpus: Sequence[Gpu | PciGpu],
    visible: int,
    ranks: int,
    missing: Sequence[str],
    *,
    is_own: bool,
) -> _Short:
    """Describe a node's shortage of GPUs. ``visible`` is the number of GPUs that the ranks of the node see.

    ``is_own`` is true if the variables in ``choice`` are set in the node's own environment.
    """
    named = " and ".join(f"{name}={value}" for name, value in choice.items())
    hidden = choice and not missing
    models = grouped((gpu.name, str(gpu.index)) for gpu in gpus if isinstance(gpu, Gpu))
    shown = [f"GPU {fold_numbers(indexes)}: {name}" for name, indexes in models.items()]
    shown += [f"{gpu.address}: {gpu.name or 'an AMD GPU'}" for gpu in gpus if isinstance(gpu, PciGpu)]
    bus = AMD_ON_THE_BUS if any(isinstance(gpu, PciGpu) for gpu in gpus) else ON_THE_BUS
    return _Short(
        wants=f"use GPU{'s' * (len(missing) > 1)} {listed(missing)} ({named})"
        if missing
        else f"start {plural(ranks, 'rank')}",
        sees=f"with {named}, the ranks there see only {visible} of {plural(len(gpus), 'GPU')}" if hidden else None,
        gpus=len(gpus),
        shown=tuple(shown or [NO_GPU]),
        ranks=ranks,
        devices=choice.get("CUDA_VISIBLE_DEVICES"),
        summary=UNSET.format(names=" and ".join(choice)) if is_own and choice else LACKING,
        look=in_the_shell(choice) if is_own and choice else bus,
    )


_FEWER = make_advice(
    "{who} sees fewer GPUs than the job needs, or none.",
    "Check CUDA_VISIBLE_DEVICES, the container's --gpus, the job's request to the scheduler, and nvidia-smi:",
)
_INVISIBLE = make_advice(
    "NCCL on {who} can't see the GPU of another rank on the same host: containers or the scheduler make different GPUs "
    "visible to each rank.",
    "Make all GPUs of a host visible in all of its containers and choose with CUDA_VISIBLE_DEVICES, or give each "
    "container its own NCCL_HOSTID, so that NCCL connects them over the network like separate hosts. Check the hosts:",
)


def _advice(case: Case) -> Advice:
    return _INVISIBLE(case) if case.first.wording == _NOT_FOUND else _FEWER(case)


_NOT_FOUND = r"nvmlDeviceGetHandleByPciBusId\w{0,8}\(.{0,60}\) failed: Not Found"
"""NVML's error message for a PCI address that is not visible in the container (src/misc/nvmlwrap.cc)."""

# CUDA's error 100, and messages of launchers, Ray and NCCL about too few GPUs.
RULES = (
    likely(
        r"NCCL DIAG \[INFO\] GPU inventory: count mismatch .*rank\(s\) \{?(?P<rank>\d+)",
        "NCCL DIAG [INFO] GPU inventory: count mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0 (8)",
    ),
    *roots(
        r"(?:no CUDA-capable device is detected|cudaErrorNoDevice|No CUDA GPUs are available|no GPUs found!"
        r"|nccl2 requires at least one CUDA device)",
        "RuntimeError: No CUDA GPUs are available",
        _NOT_FOUND,
        "n1:1:2 [0] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
        r"You requested gpu: .* But your machine only has|(?i:not enough (?:gpus|cuda devices)|fewer gpus"
        r"|number of (?:visible )?(?:gpus|devices).{0,20}less than)",
        "MisconfigurationException: You requested gpu: [0, 1, 2, 3] But your machine only has: [0, 1]",
        r"number of required GPUs exceeds the total number of available GPUs|No GPU/accelerators found"
        r"|does not allocate any GPUs on the driver|No slot '\d+' specified on host|Current node has no GPU available"
        r"|(?i:parallel size).{0,40}(?:larger|greater) than the (?:number of )?available (?:GPUs|devices)",
        "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        r"WARN .*(?:[Ii]nvalid device count|rank \d+ exceeds ndev)",
        "n1:1:2 [0] init.cc:1800 NCCL WARN Invalid device count requested : 9",
    ),
)

SIGNS = LogSigns(RULES, _advice, after=("local-rank-invalid",))
