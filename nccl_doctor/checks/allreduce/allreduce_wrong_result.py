"""The all-reduce finished, but its sum is wrong.

What it means: training would run, but compute wrong results. Possible causes are memory or links that corrupt data, a
faulty driver, and peer-to-peer transfers that an IOMMU or PCIe ACS redirects.

How we know: every rank filled its buffer with values that depend on the rank and on the position in the buffer. A
missing rank, a duplicate rank or data at a wrong position would change the sum. A small all-reduce was repeated with
each of the first 64 ranks alone and with each pair of neighbouring ranks among them. The diagnosis names a rank whose
sum is wrong when the rank is tested alone or with each of its two neighbours. If no single rank can be identified and
only one pair of ranks has a wrong sum, the diagnosis names this pair. If neither a rank nor a pair can be identified,
the diagnosis names all ranks whose sums were wrong.

Fix: on hosts with GPUs, run the check again with `NCCL_P2P_DISABLE=1` in the hosts file's `env`. If the sum is correct
without P2P, check the IOMMU and ACS settings of the host. On hosts without GPUs, test the memory.
"""

from collections import Counter

from nccl_doctor.checks.allreduce.symptoms import everywhere
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.finding import Finding, Severity
from nccl_doctor.model.report import RankReport
from nccl_doctor.snapshot.smoke import Smoke
from nccl_doctor.text.hostlist import fold, listed


@check("NCD703", severity=Severity.ERROR, needs=("smoke",))
def allreduce_wrong_result(view: View) -> Findings:
    smoke = view.smoke
    wrong = [rank for rank in smoke.ranks if rank.error_kind == "wrong-sum"]
    if not wrong:
        return
    source = [smoke.ranks[rank] for rank in _source(smoke)]
    origin = f"; the error comes from {_named(source)}" if source else ""
    groups = [[smoke.ranks[rank] for rank in group] for group in smoke.wrong_groups[:4]]
    again = [f"on {_named(ranks)} alone" if len(ranks) == 1 else f"between {_named(ranks)}" for ranks in groups]
    hosts = tuple(dict.fromkeys(rank.host for rank in source or wrong))
    yield Finding(
        hosts=hosts,
        message=f"The all-reduce over {smoke.world_size} ranks produced a wrong sum{origin}.",
        evidence=(
            *(f"rank {rank.rank} ({rank.host}): {rank.error}" for rank in wrong[:4]),
            *(f"wrong again {where}" for where in again),
        ),
        facts={"ranks": [rank.rank for rank in source or wrong]},
        symptoms=(everywhere("wrong-sum", hosts, smoke),),
        fix="On GPUs, put NCCL_P2P_DISABLE: 1 under env in the hosts file, and check again. Without GPUs, "
        f"test the memory of {fold(hosts)}.",
    )


def _source(smoke: Smoke) -> tuple[int, ...]:
    """Return the ranks that most likely caused the wrong sums, or () if no such ranks are found.

    If some ranks get wrong sums when tested alone, the result consists of these ranks. If no rank gets wrong sums
    alone, the result is the only rank that several pairs with wrong sums share, or the only pair with wrong sums.
    """
    alone = tuple(group[0] for group in smoke.wrong_groups if len(group) == 1)
    if alone:
        return alone
    pairs = [group for group in smoke.wrong_groups if len(group) == 2]
    shared = tuple(rank for rank, count in Counter(rank for pair in pairs for rank in pair).items() if count > 1)
    return shared if len(shared) == 1 else pairs[0] if len(pairs) == 1 else ()


def _named(ranks: list[RankReport]) -> str:
    return listed(f"rank {rank.rank} on {rank.host}" for rank in ranks)


ADVICE = make_advice(
    "A collective on {who} gave wrong values.",
    "Take the host out of the job and test it alone: check for memory errors (nvidia-smi -q), PCIe ACS, the IOMMU, and "
    "the NIC's firmware.",
)

# The check of values at the end of nccl-tests.
RULES = (
    root(
        r"Out of bounds values ?: ?[1-9]\d* FAILED|[Oo]ut of bounds values.*FAILED", "# Out of bounds values : 8 FAILED"
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
