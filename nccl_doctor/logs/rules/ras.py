"""What NCCL's RAS client (``ncclras``) and its diagnostics print into a log or a terminal.

The report is one text over many lines: each is a clue, and :mod:`nccl_doctor.logs.ras_events` reads them together.
"""

from __future__ import annotations

from nccl_doctor.logs.rule import Rule, benign, clue, likely, root

LINE = (
    r"(?:job process(?: is|es are) considered dead|Missing communicator data from \d+ "
    r"|#\d+-\d+ \([0-9a-f]{1,16}\) (?:INCOMPLETE|MISMATCH|ERROR)|Communicator ranks have different "
    r"|ranks? (?:\d+ )?(?:have|has) (?:launched up to operation|not launched any op|status )"
    r"|Rank \d+ (?:has .{0,40})?-- (?:GPU|\[process)|Rank \d+ has (?:launched|not launched|status) .{0,80} --"
    r"|Process \d+ on node \S+ managing GPU|(?:ranks|Rank \d+) reported [A-Z][\w ]+)"
)
"""A line of the report that tells of a fault, or of where it is."""

RULES: tuple[Rule, ...] = (
    clue("peer-died", LINE, "  Rank 7 -- GPU 3 managed by process 3748990 on node 10.1.2.3"),
    likely(
        "gpu-count-low",
        r"NCCL DIAG \[INFO\] GPU inventory: count mismatch .*rank\(s\) (?P<rank>\d+)",
        "NCCL DIAG [INFO] GPU inventory: count mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0 (8)",
    ),
    likely(
        "version-mismatch",
        r"NCCL DIAG \[INFO\] (?:GPU inventory: model|\w+ driver version:|NCCL version:) ?mismatch .*"
        r"rank\(s\) (?P<rank>\d+)",
        "NCCL DIAG [INFO] CUDA driver version: mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ from rank 0",
    ),
    root(
        "env-mismatch",
        r"NCCL DIAG \[INFO\] .{0,20}[Ee]nv.{0,80}(?:mismatch|differ)",
        "n1:4242 NCCL DIAG [INFO] NCCL env: NCCL_ALGO mismatch across 16 ranks in comm 0x5f, rank(s) 9 differ",
    ),
    likely(
        "gdr-p2p-fault",
        r"NCCL DIAG \[INFO\] .{0,40}(?:P2P|p2p|IOMMU|ATS|ACS).{0,80}(?:mismatch|corrupt|fail|differ)",
        "NCCL DIAG [INFO] P2P: data mismatch between GPU 0 and GPU 3 on node n1",
    ),
    benign(r"NCCL DIAG (?:\[OK\]|=== )", "n1:4242 NCCL DIAG [OK] ECC: no errors on 16 ranks"),
)
