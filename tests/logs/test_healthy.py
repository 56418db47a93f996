"""Healthy runs of ten NCCL versions, each with every warning that does no harm there: no diagnosis above info."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.verdict import report
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.messages import Meaning, catalogue
from tests.nccl.printed import printed

VERSIONS = ("2.3.7", "2.4.8", "2.7.8", "2.10.3", "2.14.3", "2.18.1", "2.21.5", "2.24.3", "2.27.7", "2.30.7")

TORCH = """\
[W socket.cpp:601] [c10d] The client socket cannot be initialized to connect to [n1]:29500 (errno: 97 - Address family).
[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 111 - Connection refused).
[W socket.cpp:697] [c10d] The hostname of the client socket cannot be retrieved. err=-3
Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system being overloaded
libibverbs: Warning: RLIMIT_MEMLOCK is 65536 bytes. This will severely limit memory registrations.
"""

END = """\
epoch 1 step 100 loss 0.25 error 0.01
n1:1:2 [0] NCCL INFO comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE
[rank0]:[W101 12:08:33.9 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called before exit
"""


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def there(found: Meaning, version: str) -> bool:
    return not found.first or number(found.first) <= number(version) <= number(found.last)


def run(version: str) -> str:
    """A start as this version prints it."""
    early = number(version) < (2, 24)
    stamp = "[2025-03-01 10:00:33] " if number(version) >= (2, 26) else ""
    place = "a.cc:12 (f)" if number(version) >= (2, 30) else "a.cc:12"
    lines = [TORCH]
    for rank, host in enumerate(("n1", "n2")):
        info = f"{host}:1:2 [0] NCCL INFO"
        lines += [
            f"{info} Bootstrap{' ' if early else ''}: Using eth0:10.0.0.{rank + 1}<0>",
            f"{info} NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
            f"{info} NET/Plugin : Plugin load returned 17 : libnccl-net.so: cannot open shared object file: No such file.",
            f"{info} Failed to open libibverbs.so[.1]",
            f"{info} NET/IB : No device found.",
            f"{info} NET/Socket : Using [0]eth0:10.0.0.{rank + 1}<0> [1]docker0:172.17.0.1<0>",
            f"{info} Using network Socket",
            f"{info} Call to connect returned Connection refused, retrying",
            f"{info} [Service thread] Connection closed by localRank 0",
        ]
        lines += [
            f"\n{stamp}{host}:1:2 [0] {place} NCCL WARN {printed(found.template)}"
            for found in catalogue()
            if found.name == "benign" and there(found, version)
        ]
        lines.append(f"{info} comm 0x5 rank {rank} nranks 2 cudaDev 0 busId 1000 commId 0xa - Init COMPLETE")
    return "\n".join([f"NCCL version {version}+cuda12.4", *lines, END])


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_diagnosed(version: str) -> None:
    verdict = diagnose([LogSource("run.log", [run(version).encode()])])
    assert [(cause.name, cause.events[0].text) for cause in verdict.causes] == []
    assert verdict.log.facts.nccl_versions == {version: 1}
    assert verdict.log.facts.world_size == 2


def test_a_healthy_benchmark_ends_well_whatever_came_before() -> None:
    text = run("2.21.5") + "n1:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<4242>\n"
    assert diagnose([LogSource("run.log", [text.encode()])]).causes
    assert not diagnose([LogSource("run.log", [text.encode() + b"# Out of bounds values : 0 OK\n"])]).causes


def test_a_fault_after_a_healthy_start_is_found_and_the_start_is_not_blamed() -> None:
    text = run("2.21.5") + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    verdict = diagnose([LogSource("run.log", [text.encode()])])
    assert [cause.name for cause in verdict.causes] == ["out-of-memory"]
    assert re.search("OutOfMemory", verdict.causes[0].events[0].text)


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "healthy").glob("*.log")), ids=lambda path: path.stem)
def test_a_healthy_log_says_nothing_above_info(path: Path) -> None:
    diagnoses = report(diagnose([LogSource(path.name, [path.read_bytes()])]), 0.1).diagnoses
    assert [found.name for found in diagnoses if found.severity is not Severity.INFO] == []
