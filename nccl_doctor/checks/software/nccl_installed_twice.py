"""Two packages or variables provide NCCL to torch, and one silently takes precedence.

What it means: `nvidia-nccl-cu12` and `-cu13` install the same file, so the one installed last determines its content,
whatever pip lists. A hang that a newer NCCL fixes may come back, or hosts may differ although their lists of packages
don't.

How we know: the metadata of the wheels on sys.path and of conda; LD_LIBRARY_PATH and LD_PRELOAD; the dynamic linker's
choice for torch's library (`ldd libtorch_cuda.so`) if there are several files; the file's size if there is only one. If
ldd is missing or too slow, it is unknown which file is used, and if there is a copy in LD_LIBRARY_PATH besides one
package, this can't be judged: some builds of torch search there first (RUNPATH), others in the package's folder
(RPATH).

Fix: keep the package that matches torch's CUDA version (`torch.version.cuda`), and install it again, since uninstalling
the other one removes the file they share. LD_LIBRARY_PATH and LD_PRELOAD should not lead to another copy.

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
        words = [f"{one.owner} {one.version or ''}".strip() for one in copies]
        winner = next((name for name, one in zip(words, copies, strict=True) if one.loaded), None)
        winner = None if torch.nccl_unlinked and len(copies) > len(_packages(torch)) else winner
        fits = f"nvidia-nccl-cu{(torch.cuda or '').partition('.')[0]}"
        yield Finding(
            hosts=hosts,
            message=f"torch finds {len(copies)} copies of NCCL on {fold(hosts)} ({listed(words)})"
            + (f" and loads the one from {winner}." if winner else "; which of them it loads is unknown."),
            evidence=tuple(f"{name}: {one.path}" for name, one in zip(words, copies, strict=True)),
            facts={"copies": [one.model_dump() for one in copies]},
            fix=f"Keep one: uninstall the others, then pip install --force-reinstall --no-deps {fits} (the wheels "
            "share a file), and remove other copies from LD_LIBRARY_PATH and LD_PRELOAD.",
        )


def _packages(torch: TorchInfo) -> list[NcclCopy]:
    return [one for one in torch.nccl_copies if not one.owner.startswith("LD_")]


def _torn(facts: HostFacts) -> TorchInfo | None:
    """Return a host's torch if two packages provide NCCL, or if torch loads an NCCL other than the package's."""
    torch = known(facts.torch)
    if torch is None or torch.cuda is None:
        return None
    packages = _packages(torch)
    beside = torch.nccl_unlinked is None and any(one.loaded for one in torch.nccl_copies if one not in packages)
    return torch if len(packages) > 1 or (packages and beside) else None


def _unjudged(facts: HostFacts) -> str | None:
    """Return why it is unknown whether torch loads the package's NCCL or one from LD_LIBRARY_PATH or LD_PRELOAD."""
    torch = known(facts.torch)
    if torch is None or torch.cuda is None or torch.nccl_unlinked is None or len(_packages(torch)) != 1:
        return None
    owners = {one.owner for one in torch.nccl_copies if one not in _packages(torch)}
    return f"which NCCL torch loads, the package's or that of {' and '.join(sorted(owners))}: {torch.nccl_unlinked}"
