"""The hosts have different versions of Python, torch, CUDA, NCCL, NCCL plugins or the GPU driver.

What it means: NCCL can't form a communicator from ranks that use different NCCL versions. From version 2.23 on, NCCL
fails with "Mismatched NCCL version detected". Earlier versions of NCCL hang or fail with "Message truncated". Different
torch releases might use different wire formats for the store and gloo. Even if a job with different torch releases
starts, its ranks might compute different numerical results.

These differences are reported:

- A different release of torch (such as 2.9.0 against 2.9.1) or a different CUDA version of torch is an error.
- A different NCCL version is an error. The check compares the versions of the NCCL libraries that torch loads. If these
  versions are unknown, the check compares the versions of the installed NCCL wheels.
- It is an error if an NCCL plugin such as aws-ofi-nccl is missing on some hosts, or if its version differs between
  hosts, since the two ends of a connection would use different transports.
- A different minor version of Python (3.10 versus 3.11) is a warning, since pickled objects and compiled extensions
  might be incompatible.
- A different driver branch (570 against 580) is a warning, since NCCL would use features of the newer branch, such as
  NVLink SHARP, on no rank. With AMD GPUs, the release of the amdgpu module (6.8 against 6.10) is compared, since a ROCm
  release supports only drivers up to two releases older or newer.

Differences in Python's patch release, the driver's minor release, the kernel, and the build tag of torch (such as
"+cu128") are not reported.

How we know: the check reads the package metadata of each host's training interpreter without importing torch, and the
version that libnccl reports. NCCL plugins are compared by their versions or, if the versions are unknown, by the
digests of their files. The driver version comes from nvidia-smi or, for ROCm, from /sys/module/amdgpu/version. If the
all-reduce ran, the versions that its ranks loaded take precedence. The version on most hosts is assumed to be correct,
and the diagnosis names the other hosts.

Fix: install the same versions on all hosts, or name interpreters with the same versions in the hosts file.
"""

import re

from nccl_doctor.checks.effects import VERSIONS
from nccl_doctor.checks.view import Findings, View, check, difference, ordered
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, likely, root, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.snapshot.hosts import HostFacts, rocm_gpus
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.snapshot.system import GpuDriver, LibncclAnswer, TorchInfo
from nccl_doctor.text.hostlist import capital, fold, listed
from nccl_doctor.text.secrets import part

MATTERS = {
    "torch": Severity.ERROR,
    "CUDA": Severity.ERROR,
    "NCCL": Severity.ERROR,
    "NCCL plugins": Severity.ERROR,
    "Python": Severity.WARNING,
    "driver": Severity.WARNING,
}

PLUGINS = "the NCCL plugins"
_NAMES = {"NCCL plugins": PLUGINS, "driver": "the GPU driver"}


@check(
    "NCD502",
    phrase="versions differ",
    severity=Severity.ERROR,
    needs=("python", "torch"),
    explains=(VERSIONS,),
    in_logs=("collective-mismatch", "cuda-error", "torch-missing"),
)
def version_mismatch(view: View) -> Findings:
    """Yield one finding for all differences between the majority of hosts and the others."""
    versions = {host.name: _versions(facts) for host, facts in view.facts}
    smoke = view.snapshot.smoke
    # what ranks really loaded, which LD_LIBRARY_PATH may change; the first rank of a host counts
    for rank in reversed(smoke.ranks) if isinstance(smoke, Smoke) else ():
        loaded = {"torch": (rank.torch or "").split("+")[0], "NCCL": rank.nccl or ""}
        versions.get(rank.host, {}).update((subject, version) for subject, version in loaded.items() if version)
    differences = [
        differs
        for subject in MATTERS
        if (differs := difference(subject, {name: v[subject] for name, v in versions.items() if subject in v}))
    ]
    if not differences:
        return
    hosts = ordered(versions, {name for entry in differences for name in entry.outliers})
    subjects = [_NAMES.get(entry.subject, entry.subject) for entry in differences]
    if subjects == [PLUGINS]:
        differ = f"{capital(PLUGINS)} on {fold(hosts)} differ from those"
    elif len(subjects) == 1:
        differ = f"The version of {subjects[0]} on {fold(hosts)} differs from that"
    else:
        differ = f"The versions of {listed(subjects)} on {fold(hosts)} differ from those"
    yield Finding(
        hosts=hosts,
        message=f"{differ} on the other hosts.",
        evidence=tuple(map(str, differences)),
        facts={"versions": {entry.subject: entry.groups for entry in differences}},
        severity=max((MATTERS[entry.subject] for entry in differences), key=lambda each: each.rank),
        fix="Install the same versions on all hosts, or name interpreters with the same versions in the hosts file.",
    )


def _versions(facts: HostFacts) -> dict[str, str]:
    """Map each component to its version. Without torch, there are no entries for torch, CUDA and NCCL."""
    python = known(facts.python)
    versions = {"Python": ".".join(python.version.split(".")[:2])}
    if isinstance(facts.torch, TorchInfo):
        versions["torch"] = facts.torch.version.split("+")[0]
        versions["CUDA"] = facts.torch.cuda or facts.torch.hip or "none"
        loaded = facts.libnccl.version if isinstance(facts.libnccl, LibncclAnswer) else None
        if nccl := loaded or facts.torch.nccl:
            versions["NCCL"] = nccl
    if not isinstance(facts.plugins, Unknown):
        versions["NCCL plugins"] = ", ".join(
            f"{item.name} {item.version or item.digest[:12]}" for item in sorted(facts.plugins, key=lambda p: p.name)
        ) or "none"  # fmt: skip
    if not isinstance(facts.gpus, Unknown) and facts.gpus:
        versions["driver"] = facts.gpus[0].driver.split(".")[0]
    elif rocm_gpus(facts) and isinstance(facts.gpu_driver, GpuDriver) and facts.gpu_driver.amdgpu:
        versions["driver"] = "amdgpu " + ".".join(facts.gpu_driver.amdgpu.split(".")[:2])
    return versions


_UNLOADED = re.compile(r"Failed to load NCCL library from (?P<path>\S{1,300}\w)")
"""Error message of vLLM if NCCL can't be loaded (vllm/distributed/device_communicators/pynccl_wrapper.py)."""


def _advice(case: Case) -> Advice:
    if case.first.wording == _OF_RAY:
        return advise(
            f"The version of Ray or Python on {case.who} differs from that of the Ray cluster that it joins.",
            "Install the same Ray and the same Python, down to the patch release, on all hosts (ray --version; "
            "python --version).",
        )
    unloaded = next((match for event in case.cause.events if (match := _UNLOADED.search(event.text))), None)
    if unloaded is not None:
        return advise(
            f"{case.who} failed to load NCCL's library {part(unloaded['path'], 0, 160)}.",
            "See whether the file is there and what it needs (ldd), on each host and inside the container. Its path "
            "comes from VLLM_NCCL_SO_PATH or LD_LIBRARY_PATH: unset them to use the NCCL that comes with torch.",
            case.check(),
        )
    versions = " and ".join(case.log.facts.nccl_versions)
    note = f" The log names NCCL versions {versions}." if len(case.log.facts.nccl_versions) > 1 else ""
    return advise(
        f"The libraries of {case.who} do not match: NCCL, CUDA or torch is not the version that the program was "
        f"built for, or that the other ranks have.{note}",
        "Install the same versions on all hosts: one nvidia-nccl package, and no older libnccl.so on LD_LIBRARY_PATH. "
        "To compare the hosts:",
        case.check(),
    )


_OF_RAY = r"Version mismatch: The cluster was started with"

# Messages of NCCL about two versions, missing symbols and missing libraries.
RULES = (
    likely(
        r"NCCL DIAG \[INFO\] (?:[\w ]{0,40}driver version:|NCCL version:) ?mismatch .*"
        r"rank\(s\) \{?(?P<rank>\d+)",
        "NCCL DIAG [INFO] CUDA driver version: mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0",
    ),
    likely(
        r"WARN .*(?:Message truncated ?: received \d+|socketFinalizeAccept.*: wrong type)",
        "n1:9:9 [0] bootstrap.cc:60 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    root(
        r"Failed to load NCCL library from \S",
        "ERROR 08-20 09:48:31 [pynccl_wrapper.py:229] Failed to load NCCL library from /opt/lib/libnccl.so.2. It is",
    ),
    root(_OF_RAY, "RuntimeError: Version mismatch: The cluster was started with:"),
    root(
        r"(?:Mismatched NCCL (?:git )?versions? detected|NCCL version mismatch)",
        "n1:1:2 [0] init.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 22703 rank 1 version 22105",
    ),
    root(
        r"undefined symbol: (?:nccl|ncclx|rccl|nvml|cu[a-zA-Z]+|__nv|cudnn|_ZN\S*c10|_ZN\S*at[0-9]|_ZN\S*torch|iJIT"
        r"|MPI_|ucs_|uct_|ucp_)",
        "ImportError: libtorch_cuda.so: undefined symbol: ncclMemFree",
        unless=r"version MLX5",
    ),
    *roots(
        r"(?:libnccl|librccl|libcudart|libcudnn|libtorch_cuda)\.so\S*:? (?:cannot open shared object file"
        r"|version `.*' not found)",
        "OSError: libnccl.so.2: cannot open shared object file: No such file or directory",
        r"(?:compiled with (?:too old )?(?:version of )?NCCL.{0,60}but is running with|NCCL library is (?:too old"
        r"|not backwards)|(?:were|was) compiled with different CUDA|detected CUDA version .* mismatches)",
        "n1:1:2 [0] x.cc:1 NCCL WARN NCCL library is too old. This application was compiled with NCCL version "
        "2.30.3, but is running with NCCL library version 2.29.2.",
        r"NCCL version .*(?:does not match|mismatch|differs|incompatible|is not supported|at least)",
        "RuntimeError: NCCL version 2.10.3 does not match the version 2.14.3 of the other ranks",
    ),
)

_SIZES = re.compile(r"mismatch in info from procs, nranks (?P<one>\d{1,9}) vs (?P<other>\d{1,9})\b")
"""NCCL's error message about communicator sizes.

Different NCCL builds exchange different structures, so the sizes can be meaningless.
"""


_MOVED = re.compile(r"\b(?:(?P<old>socket(?:PollConnect|ProgressOpt|StartConnect|TryAccept)\b)|(?P<new>ncclOsSocket))")
"""Functions of NCCL that report failed socket calls, up to version 2.28 (old) and from version 2.29 on (new)."""


def _other_builds(scene: Scene) -> list[Event]:
    """Diagnose mixed NCCL versions if messages from different hosts name functions of different versions.

    Up to version 2.28, failed connect, accept, recv and send calls are reported by functions in src/misc/socket.cc, and
    from version 2.29 on, by functions in src/os/linux.cc. Other messages still come from src/misc/socket.cc.
    """
    hosts: dict[str, set[str]] = {"old": set(), "new": set()}
    for event in scene.events:
        moved = _MOVED.search(event.text)
        if event.prefix.host and moved and moved.lastgroup:
            hosts[moved.lastgroup].add(event.prefix.host)
    old, new = hosts.values()
    if not new or not old or new & old:
        return scene.events
    return scene.renamed("version-mismatch", Grade.ROOT, lambda event: event.prefix.host in new | old)


def _garbled(scene: Scene) -> list[Event]:
    """Diagnose different NCCL builds if ranks report a size mismatch although their world sizes are equal."""

    def equal_sizes(event: Event) -> bool:
        sizes = _SIZES.search(event.text) if event.name == "world-size-mismatch" else None
        return sizes is not None and sizes["one"] == sizes["other"]

    return scene.renamed("version-mismatch", Grade.ROOT, equal_sizes)


SIGNS = LogSigns(RULES, _advice, passes={PassStage.MEANING: _garbled, PassStage.CONSEQUENCES: _other_builds})
