"""The job's NCCL version has a known fault that affects these hosts.

What it means: a public report describes a hang, a crash or wrong results with the same GPUs and the same NCCL version.
If the diagnosis is only a note (info), the cause of the reported fault is unclear.

The same diagnosis is made from a log in which NCCL's "ncclMaxSharedMem … exceeds device/fn maxSharedMem" precedes a
CUDA error, because NCCL's kernels need more shared memory than the GPU has.

How we know: the NCCL version that torch loads, the GPUs, the CPU and the network plugin are compared with the entries
in `nccl_doctor/nccl/known_bad.json`. Each entry of known_bad.json links to a report (a GitHub issue or forum thread)
and gives the date of the report's last post.

Fix: apply the remedy from the report, usually another NCCL version (`pip install nvidia-nccl-cu12==…`). A torch release
also works with NCCL versions newer than the one it was released with.

References: the report that is shown with the diagnosis.
"""

from collections.abc import Iterator
from dataclasses import replace

from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import Grade, hint
from nccl_doctor.logs.signs import Advice, Case, LogSigns, advise
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.effect import Effect, Reach
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.nccl.host_nccl import nccl_version
from nccl_doctor.nccl.known_bad import rows
from nccl_doctor.nccl.versions import parse_version, show
from nccl_doctor.snapshot.hosts import Host, HostFacts, rank_counts, visible_gpus
from nccl_doctor.snapshot.system import Identity
from nccl_doctor.text.hostlist import fold, grouped
from nccl_doctor.text.secrets import part

FAULT = Effect(
    ("hang", "collective-timeout", "cuda-error", "SIGABRT"),
    Reach.OWN,
    "the public bug report that the diagnosis cites describes these symptoms",
    ("nccl",),
)


@check(
    "NCD514",
    phrase="NCCL version with a known fault",
    severity=Severity.WARNING,
    needs=("gpus", "torch"),
    explains=(FAULT,),
    row="software",
)
def nccl_known_bad(view: View) -> Findings:
    """Yield one finding per known fault and affected hardware, with the affected hosts."""
    size = len(view.snapshot.cluster.nodes)
    uneven = len({*rank_counts(view.snapshot).values()}) > 1
    known_on = [(key, host.name) for host, facts in view.facts for key in _matching(host, facts, size, uneven=uneven)]
    for (number, version, subject), hosts in grouped(known_on).items():
        row = rows()[number]
        yield Finding(
            hosts=tuple(hosts),
            message=f"{fold(hosts)} {'has' if len(hosts) == 1 else 'have'} NCCL {version}, which {row['fault']}.",
            evidence=(f"NCCL {version}, {subject}", f"{row['date']}: {row['source']}"),
            facts={"nccl": version, "source": row["source"], "date": row["date"]},
            severity=Severity(row["severity"]),
            explains=(replace(FAULT, kinds=tuple(row["shows"])),) if "shows" in row else (),
            fix=row["way"],
        )


def _matching(host: Host, facts: HostFacts, size: int, *, uneven: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the index of each known fault that affects a host, with the NCCL version and the affected hardware."""
    version, torch = nccl_version(facts), known(facts.torch)
    gpus = visible_gpus(host.node, facts)
    if version is None or not gpus or torch is None or torch.cuda is None:
        return
    env = {**({} if isinstance(facts.env, Unknown) else facts.env), **host.node.env}
    plugins = () if isinstance(facts.plugins, Unknown) else facts.plugins
    machine = facts.identity.machine if isinstance(facts.identity, Identity) else ""
    for number, row in enumerate(rows()):
        first, fixed = map(parse_version, row["nccl"])
        where, unless = row["where"], row.get("unless", {})
        named = [gpu.name for gpu in gpus if where.get("gpu", "") in gpu.name]
        old = [plugin.version for plugin in plugins if plugin.version and "ofi_below" in where
               and parse_plugin(plugin.version) < parse_plugin(where["ofi_below"])]  # fmt: skip
        if (
            first <= version < fixed
            and len(named) >= where.get("gpus", 1)
            and size >= where.get("hosts", 1)
            and where.get("machine", machine) == machine
            and uneven >= where.get("uneven", False)
            and ("wheel" not in where or torch.nccl is not None)
            and ("ofi_below" not in where or old)
            and not any(env.get(name) == value for name, value in unless.items())
        ):
            ofi = f", aws-ofi-nccl {old[0]}" if old else ""
            yield number, show(version), f"{len(named)} {named[0]} on {machine or 'an unknown processor'}{ofi}"


def parse_plugin(text: str) -> tuple[int, ...]:
    """Return a plugin's version as numbers, such as (1, 17, 1) for "1.17.1-aws"."""
    return tuple(int(part) for part in text.partition("-")[0].split(".") if part.isdecimal())


_TOO_NEW = r"ncclMaxSharedMem \d{1,9} exceeds device/fn maxSharedMem \d{1,9}"
"""NCCL's message for kernels that need more shared memory than the GPU has (``ncclInitKernelsForDevice`` in
src/enqueue.cc).
"""


def _advice(case: Case) -> Advice:
    facts = case.log.facts
    version = next(iter(facts.nccl_versions), None)
    names = [name for topic, name, _ in facts.chosen if topic == "gpu"]
    gpu = f" ({part(names[0], 0, 60)})" if names else ""
    return advise(
        f"NCCL{f' {version}' if version else ''} does not support the GPUs of {case.who}{gpu}: its kernels need more "
        "shared memory than these GPUs have (ncclMaxSharedMem).",
        "Install a newer NCCL (for Blackwell 2.26 or later; pip install -U nvidia-nccl-cu12 or -cu13), or a torch that "
        "comes with one.",
        case.check(),
    )


SIGNS = LogSigns(
    (hint(_TOO_NEW, "n1:1:2 [0] NCCL INFO ncclMaxSharedMem 82240 exceeds device/fn maxSharedMem 79856"),),
    _advice,
    hint=Grade.ROOT,
    hint_beside=("cuda-error", "nccl-unknown-error"),
)
