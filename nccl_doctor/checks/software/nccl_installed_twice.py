"""Two packages or search paths provide NCCL to torch, and one of them silently takes precedence.

What it means: `nvidia-nccl-cu12` and `nvidia-nccl-cu13` install the same file, so the package that was installed last
determines the content of the file, regardless of what pip lists. A hang that a newer NCCL version fixes might occur
again, and hosts might load different NCCL versions although their package lists are the same.

How we know: the check reads the metadata of wheels and conda packages, and searches LD_LIBRARY_PATH and LD_PRELOAD. If
several copies of NCCL are found, `ldd libtorch_cuda.so` shows which copy the dynamic linker chooses. If two packages
share one file, the size of the file shows which package installed it. If ldd is missing or too slow, the copy in use is
unknown. Without ldd, the check gives no result if one copy of NCCL comes from a package and another copy from
LD_LIBRARY_PATH. Some builds of torch search LD_LIBRARY_PATH first (RUNPATH), and others search the package's directory
first (RPATH).

Fix: uninstall the package that does not match torch's CUDA version (`torch.version.cuda`). Then reinstall the package
that matches torch's CUDA version, because uninstalling the other package also removed the shared file. Name the version
that torch requires (`pip install --force-reinstall --no-deps nvidia-nccl-cu12==VERSION`), because pip otherwise
installs the newest version. Remove any other copy of NCCL from LD_LIBRARY_PATH and LD_PRELOAD.

References: marin-community/marin issue 7344, "a silent NCCL path collision"; ld.so(8).
"""

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.register import Unjudged
from nccl_doctor.snapshot.hosts import HostFacts
from nccl_doctor.snapshot.system import NcclCopy, TorchInfo
from nccl_doctor.text.hostlist import fold, listed


@check(
    "NCD513",
    phrase="NCCL is installed twice",
    severity=Severity.WARNING,
    needs=("torch",),
    in_logs=("version-mismatch",),
)
def nccl_installed_twice(view: View) -> Findings:
    for why, hosts in view.hosts_by(_unjudged).items():
        yield Unjudged(hosts, why)
    for torch, hosts in view.hosts_by(_torn).items():
        copies = torch.nccl_copies
        words = [
            f"the library in {copy.owner}"
            if copy.owner.startswith("LD_")
            else f"{copy.owner} {copy.version or ''}".strip()
            for copy in copies
        ]
        winner = next((name for name, copy in zip(words, copies, strict=True) if copy.loaded), None)
        winner = None if torch.nccl_unlinked and len(copies) > len(_packages(torch)) else winner
        fits = f"nvidia-nccl-cu{(torch.cuda or '').partition('.')[0]}"
        version: str = next((copy.version for copy in copies if copy.owner == fits and copy.version), "")
        required = "" if version else ", with the VERSION that importlib.metadata.requires('torch') shows in Python"
        yield Finding(
            hosts=hosts,
            message=f"torch finds {len(copies)} copies of NCCL on {fold(hosts)} ({listed(words)})"
            + (f" and loads {winner}." if winner else "; it is unknown which copy torch loads."),
            evidence=tuple(f"{name}: {copy.path}" for name, copy in zip(words, copies, strict=True)),
            facts={"copies": [copy.model_dump() for copy in copies]},
            fix="Keep one: uninstall the others, then pip install --force-reinstall --no-deps "
            f"{fits}=={version or 'VERSION'} (the wheels share a file){required}, and remove other copies from "
            "LD_LIBRARY_PATH and LD_PRELOAD.",
        )


def _packages(torch: TorchInfo) -> list[NcclCopy]:
    return [copy for copy in torch.nccl_copies if not copy.owner.startswith("LD_")]


def _torn(facts: HostFacts) -> TorchInfo | None:
    """Return a host's ``TorchInfo`` if the host has conflicting copies of NCCL, otherwise None.

    Copies conflict if several packages provide NCCL, or if torch loads a copy from LD_LIBRARY_PATH or LD_PRELOAD
    instead of the package's copy.
    """
    torch = known(facts.torch)
    if torch is None or torch.cuda is None:
        return None
    packages = _packages(torch)
    beside = torch.nccl_unlinked is None and any(copy.loaded for copy in torch.nccl_copies if copy not in packages)
    return torch if len(packages) > 1 or (packages and beside) else None


def _unjudged(facts: HostFacts) -> str | None:
    """Return the reason why the copy of NCCL that torch loads is unknown, or None if the copy is known."""
    torch = known(facts.torch)
    if torch is None or torch.cuda is None or torch.nccl_unlinked is None or len(_packages(torch)) != 1:
        return None
    owners = {copy.owner for copy in torch.nccl_copies if copy not in _packages(torch)}
    return f"which NCCL torch loads, the package's or that of {' and '.join(sorted(owners))}: {torch.nccl_unlinked}"
