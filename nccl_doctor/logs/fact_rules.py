"""Wordings of what is no fault, each beside a line that it is meant for; ``facts.Facts`` takes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from nccl_doctor.text.linear import compiled


@dataclass(frozen=True)
class FactRule:
    """One wording of a fact; ``kind`` is the method of ``Facts`` that takes it."""

    kind: str
    pattern: str
    sample: str

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """Made when a line first needs it."""
        return compiled(self.pattern)


RULES: tuple[FactRule, ...] = (
    FactRule("nccl", r"[NR]CCL version ?:? ?(?P<version>\d+\.\d+(?:\.\d+)?)", "NCCL version 2.21.5+cuda12.4"),
    FactRule("torch", r"\btorch==(?P<version>\d[\w.+]*)", "[pip3] torch==2.4.1"),
    FactRule(
        "torch", r"Py[Tt]orch(?: [Vv]ersion)?:? (?P<version>\d+\.\d+\.\d+[\w.+]*)", "PyTorch version: 2.4.1+cu124"
    ),
    FactRule(
        "torch", r"torch(?: version|\.__version__)[:=]? ?(?P<version>\d+\.\d+\.\d+[\w.+]*)", "torch version: 2.4.1"
    ),
    FactRule("interface", r"Bootstrap ?: Using ", "n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"),
    FactRule(
        "interface",
        r"NET(?:/Socket)? ?: Using (?:interface )?",
        "n1:1:2 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>",
    ),
    FactRule("interface", r"; OOB ", "n1:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
    FactRule(
        "plugin",
        r"NET/Plugin: Loaded net plugin (?P<plugin>\w.*\(v\d+\))",
        "n1:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v8)",
    ),
    FactRule("network", r"Using network (?P<network>\w.*)", "n1:1:2 [0] NCCL INFO Using network Socket"),
    FactRule(
        "init",
        r"comm \S+ rank (?P<rank>\d+) n[rR]anks (?P<size>\d+) .*- Init (?P<end>START|COMPLETE)",
        "n1:1:2 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 4 nranks 16 cudaDev 4 busId 9a000 commId 0x2 - Init START",
    ),
    FactRule(
        "rank", r"comm \S+ rank (?P<rank>\d+) nranks (?P<size>\d+)", "n1:1:2 [0] NCCL INFO comm 0x5 rank 2 nranks 4"
    ),
    FactRule(
        "rank",
        r"Init timings.*rank (?P<rank>\d+) nranks (?P<size>\d+)",
        "n1:1:2 [0] NCCL INFO Init timings - ncclCommInitRank: rank 1 nranks 16 total 1.57",
    ),
    FactRule(
        "nodes", r" nNodes (?P<nodes>\d+) ", "n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 16 nNodes 2 localRanks 8"
    ),
    FactRule("bootstrapped", r"Bootstrap timings total", "n1:1:2 [0] NCCL INFO Bootstrap timings total 0.01"),
    FactRule("connected", r"Connected all rings", "n1:1:2 [0] NCCL INFO Connected all rings"),
    FactRule(
        "ifname",
        r"NCCL_SOCKET_IFNAME (?:set (?:by environment )?to|=) ?(?P<value>[\w^=,.:@-]+)",
        "n1:1:2 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eno1",
    ),
    FactRule(
        "torn",
        r"rank (?P<rank>\d{1,7}) n[rR]anks (?P<size>\d{1,7}) .*- (?:Destroy|Abort) COMPLETE",
        "n1:1:2 [0] NCCL INFO comm 0x5 rank 2 nranks 4 cudaDev 2 busId 1000 - Destroy COMPLETE",
    ),
    FactRule(
        "summary",
        r"(?:  host      : (?P<host>[\w.-]+)|  rank      : (?P<rank>\d{1,7}) \(local_rank: \d+\)"
        r"|  exitcode  : (?P<code>-?\d{1,3}) \(pid: (?P<pid>\d{1,9})\))",
        "  rank      : 3 (local_rank: 3)",
    ),
    FactRule("srun", r"srun: error: (?P<host>[\w.-]+): task", "srun: error: n1: task 0: Exited with exit code 1"),
    FactRule("stated", r"(?:dist_rank|global_rank|GLOBAL_RANK)\S{0,3} ?(?P<rank>\d{1,6})\b", "self.dist_rank: 1"),
    FactRule(
        "ras",
        r"RAS failed to establish a client listening socket",
        "n1:1:2 [0] NCCL INFO RAS failed to establish a client listening socket at 127.0.0.1<28028>",
    ),
    FactRule(
        "failed",
        r"\b(?:group|init|bootstrap|enqueue|proxy|transport|transport/net|misc/socket|graph/\w+)"
        r"\.(?:cc|cu):\d+ -> [12345678]\b",
        "n1:1:2 [0] NCCL INFO init.cc:1007 -> 3",
    ),
    FactRule(
        "failed",
        r"Traceback \(most recent call last\)|srun: error: |exitcode: |terminate called after|Test (?:NCCL )?failure",
        "Traceback (most recent call last):",
    ),
    FactRule("well", r"Out of bounds values ?: 0 OK", "# Out of bounds values : 0 OK"),
    FactRule("busbw", r"# Avg bus bandwidth *: *(?P<rate>\d{1,6}(?:\.\d{1,9})?)", "# Avg bus bandwidth    : 92.1234"),
    FactRule(
        "row",
        r"^ +\d+ +\d+ +(?:b?float\d*|half|double"
        r"|u?int8|u?int32|u?int64|fp8_\w+|f8e4m3|f8e5m2) +(?:sum|none|prod|min|max|avg)\b",
        "        1048576        262144     float     sum    1762.4    0.59    0.59  0e+00",
    ),
    FactRule(
        "well",
        r"worker group successfully finished",
        "I1104 10:40:04 77 torch/elastic/agent/server/api.py:879] [default] worker group successfully finished",
    ),
    FactRule("well", r"'train_runtime': \d", "{'train_runtime': 812.1, 'train_loss': 1.22, 'epoch': 1.0}"),
    FactRule("well", r"`Trainer\.fit` stopped: `max_", "`Trainer.fit` stopped: `max_epochs=3` reached."),
)
"""What every log is read for."""

CHANNEL_RULES: tuple[FactRule, ...] = (
    FactRule(
        "channel",
        r"(?:Channel|Ring) \d+\S* : \d+\S* -> \d+\S* .*via (?P<way>\S+)",
        "n1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
    ),
    FactRule(
        "ring", r"Channel (?P<channel>\d+)/\d+ : (?P<order>[ \d]+)$", "n1:1:2 [0] NCCL INFO Channel 00/02 :    0   1"
    ),
    FactRule("trees", r"Trees (?P<trees>\[0\].*)", "n1:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1"),
)
"""Rings, trees and ways, of which a large job prints hundreds of thousands of lines."""
