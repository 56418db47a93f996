"""``nccl-doctor logs`` beside ``grep`` on the same made-up logs: ``scripts/bench logs [MB]``.

Prints the ratio to ``grep -cE`` of one word of each of the reader's wordings, and the peak memory: once for one log of
512 ranks with a single fault in it, once for 512 files.
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench.hostile_logs import RULES, longest_word

RANKS = 512
FAULT = (
    "\n[2025-03-01 10:00:33] gpu017:4003:9003 [3] transport/net_ib.cc:2453 NCCL WARN NET/IB: Got completion from peer "
    "10.0.0.17<51161> with status=12 opcode=32614 len=32614 vendor err 129 (Send) hca mlx5_1\n"
)
GREP = ["grep", "-cE", "|".join(sorted({longest_word(rule) for rule in RULES}))]
DOCTOR = [sys.executable, "-c", "from nccl_doctor.cli.main import main; main()", "logs", "-q", "-o", "json"]


def lines(rng: random.Random) -> Iterator[str]:
    """What 512 ranks print, without end: mostly training, some of NCCL's INFO."""
    for step in itertools.count():
        for rank in range(RANKS):
            host, local, chance = f"gpu{rank // 8:03d}", rank % 8, rng.random()
            if chance < 0.5:
                yield (
                    f"[rank{rank}]: step {step} loss {rng.random() * 5:.4f} lr 1.0e-04 grad_norm {chance:.3f} "
                    f"tokens/s {rng.randint(9000, 11000)} mem 71.2GiB\n"
                )
            elif chance < 0.8:
                count = rng.randint(1, 1 << 20)
                yield (
                    f"{host}:{4000 + local}:{9000 + local} [{local}] NCCL INFO AllReduce: opCount {step:x} sendbuff 0x7f{count:x} "
                    f"recvbuff 0x7f00 count {count} datatype 9 op 0 root 0 comm 0x5 [nranks=512] stream 0x1\n"
                )
            elif chance < 0.95:
                yield (
                    f"{host}:{4000 + local}:{9000 + local} [{local}] NCCL INFO Channel {step % 32:02d}/0 : {rank}[{local}] -> "
                    f"{(rank + 8) % RANKS}[{local}] [send] via NET/IB/{local}/GDRDMA\n"
                )
            else:
                yield f"[2025-03-01 10:00:{rng.randint(10, 59)}][INFO][rank {rank}] loader fetched shard {step} in {chance:.3f}s\n"


def write(path: Path, size: int, rng: random.Random, *, fault: bool) -> None:
    """A log of about ``size`` bytes, the fault two thirds down."""
    stream, written, told = lines(rng), 0, not fault
    with path.open("w") as file:
        while written < size:
            block = "".join(itertools.islice(stream, 4096))
            if not told and written > size * 2 // 3:
                block, told = block + FAULT, True
            written += file.write(block)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time and of processors, the best of five; the largest resident set in MiB (ru_maxrss)."""

    seconds: float
    cpu: float
    memory: float


def cost(command: list[str]) -> Cost:
    """Runs a command five times."""
    seconds, cpu, memory = [], [], 0.0
    for _ in range(5):
        began = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - began)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise RuntimeError(f"{command[:5]} ended with {process.returncode}")
        cpu.append(usage.ru_utime + usage.ru_stime)
        memory = max(memory, usage.ru_maxrss / 1024)
    return Cost(min(seconds), min(cpu), memory)


def compare(title: str, names: list[str], size: int) -> None:
    """Prints one line."""
    grep, doctor = cost([*GREP, *names]), cost([*DOCTOR, *names])
    print(
        f"{title}, {size >> 20} MiB: nccl-doctor logs {doctor.seconds:.2f} s ({doctor.cpu:.2f} s of processors), "
        f"grep {grep.seconds:.2f} s ({grep.cpu:.2f}), ratio {doctor.seconds / grep.seconds:.2f}; "
        f"peak memory {doctor.memory:.0f} MiB"
    )


def main() -> None:
    """Makes the logs and compares."""
    size = int(sys.argv[1] if len(sys.argv) > 1 else 500) * 1_000_000
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="ncdoctor-bench-") as folder:
        one = Path(folder, "all.log")
        write(one, size, rng, fault=True)
        compare("one log of 512 ranks", [str(one)], size)
        many = [Path(folder, f"rank{rank}.log") for rank in range(RANKS)]
        for rank, path in enumerate(many):
            write(path, size // RANKS, rng, fault=rank == 100)
        compare("512 logs", [str(path) for path in many], size)


if __name__ == "__main__":
    main()
