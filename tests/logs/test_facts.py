"""Versions, interfaces, ranks, rings and how far each process came."""

from __future__ import annotations

from nccl_doctor.logs.facts import Facts, Interface, Milestone, facts_of

RUN = """\
n1:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
n1:10:10 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0> [1]ib0:fe80::1%ib0<0>
n1:10:10 [0] NCCL INFO Using network Socket
NCCL version 2.21.5+cuda12.4
n1:10:12 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xa - Init START
n2:20:22 [0] NCCL INFO ncclCommInitRank comm 0x6 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xa - Init START
n1:10:12 [0] NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
n1:10:12 [0] NCCL INFO Channel 00/02 :    0   1
n1:10:12 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
n1:10:12 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
n1:10:12 [0] NCCL INFO Connected all rings
n1:10:12 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xa - Init COMPLETE
"""


def test_of_a_run() -> None:
    facts = facts_of(RUN.splitlines())
    first, second = facts.processes["n1", "10"], facts.processes["n2", "20"]
    assert facts.nccl_versions == {"2.21.5": 1}
    assert first.interfaces == [Interface("eth0", "10.0.0.1"), Interface("ib0", "fe80::1%ib0")]
    assert (first.rank, first.world_size, first.network) == (0, 2, "Socket")
    assert (first.milestone, second.milestone) == (Milestone.COMPLETE, Milestone.INIT_START)
    assert first.transports == {"NET/Socket/0": 1}
    assert facts.rings == {0: (0, 1)}
    assert facts.trees == {0: "[0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1"}
    assert (facts.world_size, facts.nodes, facts.hosts, facts.ranks) == (2, 2, ("n1", "n2"), (0, 1))


def test_parts_of_a_log_together_tell_what_the_whole_tells() -> None:
    lines = RUN.splitlines()
    for cut in range(len(lines) + 1):
        together = Facts()
        together.merge(facts_of(lines[:cut]))
        together.merge(facts_of(lines[cut:]))
        whole = facts_of(lines)
        # A tree is noted with its rank, which the part behind the cut may not know.
        together.trees = whole.trees
        assert together == whole
