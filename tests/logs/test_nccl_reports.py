"""Lines of NCCL's own diagnostics (2.31 and later), by the format strings of libnccl 2.32.3: diagnosis, host, rank.

A rank prints the report for all: who prints a line is not who is at fault.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import MOST_RANKS
from nccl_doctor.logs.verdict import report, summed
from nccl_doctor.model.report import Report

FRONT = "gpu-01:812 NCCL DIAG "
OF = "across 16 ranks in comm 0x5f"
WARN = "gpu-01:812:841 [0] transport/net_ib/p2p.cc:300 NCCL WARN NET/IB: "
FAULTS = [
    ("[INFO] p2p: only 54/56 GPU-to-GPU peer accesses passed verification", "gdr-p2p-fault", (), ()),
    ("[INFO] p2p: read mismatch gpu 0 -> gpu 1 expected=0x5a got=0x00; check ACS", "gdr-p2p-fault", (), ()),
    ("[INFO] p2p: write mismatch gpu 0 -> gpu 1 expected=0x5a got=0x00 verify=0x00; x", "gdr-p2p-fault", (), ()),
    ("[INFO] p2p: peer-memory import failed gpu 0 -> gpu 1 reason=unsupported; x", "gdr-p2p-fault", (), ()),
    ("[INFO] p2p: setup failed on rank 3 result=1", "gdr-p2p-fault", (), ()),
    (
        "[INFO] net bw: ib rank 3 (gpu-04): 121.4 Gbit/s, >30% off median 390.2 Gbit/s in comm 0x5f",
        "link-slow",
        ("gpu-04",),
        (3,),
    ),
    (f"[INFO] GPU inventory: count mismatch {OF}, rank(s) 9 differ from rank 0 (8)", "gpu-count-low", (), (9,)),
    (f"[INFO] GPU inventory: model mismatch {OF}, rank(s) 9 differ from rank 0 (H100)", "gpu-model-mismatch", (), (9,)),
    (
        f"[INFO] NVIDIA graphics driver version: mismatch {OF}, rank(s) 9 differ from rank 0 (1)",
        "version-mismatch",
        (),
        (9,),
    ),
    (f"[INFO] CUDA driver version: mismatch {OF}, rank(s) 9 differ from rank 0 (13.0)", "version-mismatch", (), (9,)),
    (f"[INFO] NCCL version: mismatch {OF}, rank(s) 9 differ from rank 0 (2.31.2)", "version-mismatch", (), (9,)),
    (f"[INFO] ECC: uncorrected volatile errors on rank(s) {{3}} (worst=4) {OF}", "gpu-errors", (), (3,)),
    (
        f"[INFO] ECC: corrected volatile errors at or above threshold 9 on rank(s) {{3,8}} (worst=40) {OF}",
        "gpu-errors",
        (),
        (3, 8),
    ),
    (f"[INFO] NVLink: inactive link(s) on rank(s) {{3-5}} {OF}", "gpu-errors", (), (3,)),
    (f"[INFO] NVLink: inconsistent link speeds on rank(s) 3 {OF}", "gpu-errors", (), ()),
    (f"[INFO] NVLink: link-count mismatch {OF}, rank(s) 3 differ from rank 0 (18)", "gpu-errors", (), ()),
    ("[INFO] Xid 79 detected 2 s ago on host gpu-07. Reset the node", "gpu-errors", ("gpu-07",), ()),
    ("[INFO] SXid 20034 (NVSwitch driver reported a fault) on host gpu-07. Reset", "gpu-errors", ("gpu-07",), ()),
    (
        "[INFO] IOMMU mode: enabled (DMA remapping) on 4 device(s); first rank 0 device 0000:1a:00.0 in comm 0x5f",
        "gpudirect-hindered",
        (),
        (0,),
    ),
    (
        "[INFO] IOMMU groups: GPU and NIC groups differ on 2 pair(s) in comm 0x5f; first rank 0 GPU group 7 NIC x",
        "gpudirect-hindered",
        (),
        (0,),
    ),
    (
        "[INFO] ATS state: ATSCtl disabled on 2 rank/NIC pair(s) in comm 0x5f; first rank 0 NIC 0000:1b:00.0",
        "gpudirect-hindered",
        (),
        (0,),
    ),
    (f"[INFO] NCCL environment: mismatch {OF} for NCCL_PROTO", "env-mismatch", (), ()),
    ("[INFO] p2p: topology check failed gpu 0 -> gpu 1 result=3", "gdr-p2p-fault", (), ()),
    ("[INFO] p2p: launch/check failed on rank 2 result=1", "gdr-p2p-fault", (), ()),
    ("[INFO] net bw: ib 3 more ranks >30% off median 390.2 Gbit/s in comm 0x5f", "link-slow", (), ()),
    (
        "[INFO] rdma_topo check: failed on rank(s) {1,3} across 16 ranks; first rank 1 exit 2: x",
        "gpudirect-hindered",
        (),
        (1, 3),
    ),
    (
        "[INFO] Paths: could not locate the rank's own GPU in the topology on rank(s) {3}",
        "gpudirect-hindered",
        (),
        (3,),
    ),
]
GOOD = [
    "[OK]   Paths: passed on 16/16 ranks",
    "[OK]   Xid/SXid: no events requiring immediate attention across 2 hosts",
    "[INFO] Xid 31 detected 2 s ago on host gpu-07. No user action required",
    "[OK]   IOMMU groups: GPU and NIC groups match",
    "RAS diagnostics completed in 3.4 ms across 2 RAS peers",
    "[INFO] NCCL environment: NCCL_HOSTID=h0 on rank(s) {0}",
    f"[INFO] NCCL environment: mismatch {OF} for NCCL_SOCKET_IFNAME",
    "[INFO] NCCL environment: 3 NCCL_* env var(s) differ across ranks in comm 0x5f",
    "=== NCCL Diagnostics ===",
    "=== RAS Diagnostics ===",
    "NCCL diagnostics completed in 812.0 ms across 16 ranks",
    "INFO RAS diagnostics skipped: NCCL_RAS_ENABLE=0",
    "[OK] p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)",
    "[OK] net bw: 388.0/390.2/392.1 Gbit/s min/median/max ib bw (across 16 ranks) in comm 0x5f",
    "[OK] net bw: skipped (single host or no network transport)",
    "[INFO] net bw: capability probe timed out in comm 0x5f",
    f"[OK] GPU inventory: 8x NVIDIA H100 80GB HBM3 per node consistent {OF}",
    f"[OK] NCCL version: 2.31.2 consistent {OF}",
    f"[OK] ECC: no uncorrected volatile errors {OF}",
    f"[INFO] ECC: no uncorrected volatile errors {OF}",
    f"[OK] NVLink: 18 links per GPU, all active at consistent speed {OF}",
    "[OK] IOMMU mode: passthrough across 8 relevant device(s) on 16/16 ranks in comm 0x5f",
    "[INFO] ATS state: PCIe capabilities require root access on 2 rank/NIC pair(s) across 16/16 ranks in comm 0x5f",
    f"[OK] NCCL environment: NCCL_* env vars consistent {OF}",
]


def told(line: str) -> Report:
    return report(diagnose([LogSource("job.log", [f"{line}\n".encode()])]), seconds=0.0)


@pytest.mark.parametrize(("line", "name", "hosts", "ranks"), FAULTS)
def test_a_line_that_means_a_fault(line: str, name: str, hosts: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    (found,) = told(FRONT + line).diagnoses
    assert (found.name, found.hosts) == (name, hosts)
    assert set(ranks) <= set(found.facts["ranks"])
    assert "gpu-01" not in found.message


@pytest.mark.parametrize("line", GOOD)
def test_a_good_line_and_one_that_judges_nothing(line: str) -> None:
    assert told(FRONT + line).diagnoses == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NCCL_IB_PKEY_VALUE=0x8001 not found in PKey table (pkey_tbl_len=2, port=1)", "partition key"),
        (
            "mlx5_0: RTR failed (110) for QP devIndex=0 qp_num=7 localGidIndex=3 (port still down or GID x)",
            "still down",
        ),
        ("WQE stall (no CQE): peer=10.0.0.7<41> | local: qpn=7 dev=mlx5_0 | age=9ns inflight=3", "is not done"),
    ],
)
def test_new_words_of_an_rdma_fault(line: str, words: str) -> None:
    (found,) = told(WARN + line).diagnoses
    assert (found.name, found.hosts) == ("ib-fault", ("gpu-01",))
    assert words in found.message


def test_the_rows_under_a_variable_tell_its_values_and_ranks() -> None:
    """As NCCL 2.31.2 printed them on an H200."""
    head = f"{FRONT}[INFO] NCCL environment: "
    lines = [f"{head}mismatch {OF} for NCCL_PROTO", f"{head}NCCL_PROTO=LL on rank(s) {{0}}"]
    (found,) = told("\n".join([*lines, f"{head}NCCL_PROTO=Simple on rank(s) {{1-3,9}}"])).diagnoses
    assert found.name == "env-mismatch"
    assert found.message == (
        'NCCL\'s variables differ between ranks: NCCL_PROTO is "LL" on rank 0 and "Simple" on ranks 1-3,9.'
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("GPU inventory: diagnostics incomplete, gathered 1/2 ranks in comm 0x17/0xc6/0x85", "gathered 1/2 ranks"),
        ("net bw: failed: no usable IB device", "no usable IB device"),
        ("net bw: capability probe timed out in comm 0x5f", "timed out"),
        ("IOMMU mode: unavailable on 3 rank(s)", "unavailable"),
    ],
)
def test_what_nccl_could_not_judge_is_said(line: str, words: str) -> None:
    verdict = diagnose([LogSource("job.log", [f"{FRONT}[INFO] {line}\n".encode()])])
    (gap,) = [row for row in summed(verdict) if row.outcome == "unknown"]
    assert words in gap.text


@pytest.mark.parametrize("level", ["WARN", "ATTN"])
def test_nccls_own_hint_is_the_remedy_where_nothing_surer_is(level: str) -> None:
    lines = (
        "Some words that no table has",
        "HINT: In many cases this error indicates that the NICs are not cross-rail connected.",
        "HINT: To confirm, set NCCL_CROSS_NIC=0 to disable cross-rail communication (see https://docs.nvidia.com).",
    )
    front = f"gpu-01:812:841 [0] transport/net_ib/p2p.cc:300 NCCL {level} "
    (found,) = told("\n".join([*(front + line for line in lines), "ncclSystemError: x"])).diagnoses
    assert "the NICs are not cross-rail connected" in found.message
    assert found.fix.summary.startswith("To confirm, NCCL advises: set NCCL_CROSS_NIC=0")
    (known,) = told("\n".join([f"{WARN}NCCL_IB_PKEY_VALUE=0x8001 not found in PKey table", front + lines[1]])).diagnoses
    assert known.name == "ib-fault"
    assert any("HINT: In many cases" in getattr(one, "text", "") for one in known.evidence)


@pytest.mark.parametrize(
    "line",
    [
        "Handshake receive from 10.0.0.7<41234> failed, discarding peer connection",
        "NET/Socket : peer sent invalid or duplicate socket index 3 (nSocks 2)",
    ],
)
def test_who_does_not_speak_as_a_rank_is_told(line: str) -> None:
    (found,) = told(f"gpu-01:812:841 [0] misc/socket.cc:300 NCCL WARN {line}\nncclSystemError: x").diagnoses
    assert found.name == "nccl-unknown-error"
    assert "is not a rank of this job" in found.message


ODD = st.text(max_size=40) | st.sampled_from(
    ["{0-99999999999}", "{9-3}", "rank(s) {", "\x1b[31m", "9" * 40, "%s", "=" * 80]
)


@settings(max_examples=150, deadline=None)
@given(line=st.sampled_from([*(one[0] for one in FAULTS), *GOOD]), odd=ODD, data=st.data())
def test_odd_values_in_a_report_neither_raise_nor_reach_the_terminal(line: str, odd: str, data: st.DataObject) -> None:
    words = line.split(" ")
    place = data.draw(st.integers(0, len(words) - 1))
    text = " ".join([*words[:place], odd, *words[place + 1 :]])
    for found in told(FRONT + text).diagnoses:
        assert found.message.isprintable()
        assert len(found.message) < 2000
        assert len(found.facts["ranks"]) <= MOST_RANKS
