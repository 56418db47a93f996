"""What a healthy log comes to, and an empty one."""

from __future__ import annotations

from pathlib import Path

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.report.render import RenderOptions, render
from tests.cli.program import run

HEALTHY = """\
NCCL version 2.21.5+cuda12.4
{0}:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
{0}:1:1 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v8)
{0}:1:1 [0] NCCL INFO Using network AWS Libfabric
{0}:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0xa - Init START
{1}:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>
{1}:1:1 [0] NCCL INFO Using network AWS Libfabric
{1}:1:1 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 0 busId 1000 commId 0xa - Init START
{0}:1:1 [0] NCCL INFO Channel 00/02 :    0   1
{0}:1:1 [0] NCCL INFO Channel 01/02 :    0   1
{0}:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA
{0}:1:1 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 commId 0xa - Init COMPLETE
{1}:1:1 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 0 busId 1000 commId 0xa - Init COMPLETE
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 92.1234
"""

ROWS = """\
  versions       ok    NCCL 2.21.5 for cuda12.4
  ranks          ok    2 ranks on gpu[01-02]
  interface      ok    eth0 on gpu[01-02]
  network        ok    AWS Libfabric"""


def test_a_healthy_log_is_summed_up() -> None:
    said = report(diagnose([LogSource("run.log", [HEALTHY.format("gpu01", "gpu02").encode()])]), 0.1)
    text = render("logs", "human", said, RenderOptions())
    assert ROWS in text
    assert "  rings          ok    2 channels, the first goes 0 1\n" in text
    assert "  ways           ok    NET/AWS" in text
    assert "  busbw          ok    92.1 GB/s on average\n" in text
    assert said.complete


CHOICES = """\
{0}:1:1 [0] NCCL INFO cudaDriverVersion 12040
{0}:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
{0}:1:1 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.9.1-aws
{0}:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring
{0}:1:1 [0] NCCL INFO 24 coll channels, 0 collnet channels, 0 nvls channels, 32 p2p channels, 2 p2p channels per peer
{0}:1:1 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""
CHOSEN = """\
  plugin         ok    aws-ofi-nccl 1.9.1-aws on gpu[01-02]
  devices        ok    [0]mlx5_0:1/IB [1]mlx5_1:1/IB on gpu[01-02]
  gdr            ok    used on gpu01; not used on gpu02
  algorithm      ok    NCCL_ALGO Ring on gpu[01-02]
  channels       ok    24 coll channels, 0 collnet channels, 0 nvls channels,
"""
LOST = "[rank1]: RuntimeError: Connection reset by peer\n"


def test_what_nccl_chose_is_shown_where_it_is_asked_for() -> None:
    text = CHOICES.format("gpu01") + CHOICES.format("gpu02").replace("GDR 1", "GDR 0")
    verdict = diagnose([LogSource("run.log", [(HEALTHY.format("gpu01", "gpu02") + text).encode()])])
    shown = render("logs", "human", report(verdict, 0.1), RenderOptions())
    assert CHOSEN in shown
    assert "NCCL 2.21.5 for cuda12.4, the driver's CUDA 12.4\n" in shown
    ill = diagnose([LogSource("run.log", [(text + LOST).encode()])])
    assert CHOSEN not in render("logs", "human", report(ill, 0.1), RenderOptions())
    above = render("logs", "human", report(ill, 0.1, whole=True), RenderOptions())
    assert above.index(CHOSEN) < above.index("peer-died")
    below = render("logs", "human", report(ill, 0.1), RenderOptions(verbose=True))
    assert below.index("peer-died") < below.index(CHOSEN)
    names = [one.name for one in report(ill, 0.1).summary]
    assert names == ["versions", "interface", "plugin", "devices", "gdr", "algorithm", "channels"]


def test_a_log_without_a_word_of_nccl_has_nothing_to_sum_up() -> None:
    verdict = diagnose([LogSource("run.log", [b"loader: 24 channels, GDR 1, algorithm Ring\n"])])
    assert report(verdict, 0.1, whole=True).phases == ()


def test_the_option_shows_it(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(CHOICES.format("gpu01") + LOST)
    done = run("logs", "--summary", "run.log", cwd=tmp_path)
    assert done.returncode == 1
    assert "  algorithm      ok    NCCL_ALGO Ring on gpu01\n" in done.stdout


def test_an_empty_log_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").touch()
    done = run("logs", "rank0.log", cwd=tmp_path)
    assert done.returncode == 3
    assert "  log             ?    rank0.log is empty\n" in done.stdout
    (tmp_path / "rank1.log").write_text("RuntimeError: Address already in use\n")
    assert run("logs", "rank0.log", "rank1.log", cwd=tmp_path).returncode == 1


def test_one_stream_of_a_process_may_be_empty(tmp_path: Path) -> None:
    for folder, out, err in (("0", "step 1\n", ""), ("1", "", "step 1\n"), ("2", "", "")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "stdout.log").write_text(out)
        (tmp_path / folder / "stderr.log").write_text(err)
    assert run("logs", "0", "1", cwd=tmp_path).returncode == 0
    done = run("logs", "0", "1", "2", cwd=tmp_path)
    assert done.returncode == 3
    assert "2/stderr.log,2/stdout.log is empty" in done.stdout
    assert "0/stderr.log" not in done.stdout
