"""One rank of the all-reduce, run by torchrun on the host; a program, never imported.

It reports each stage as it is reached, so that a hang can be told by the last one:

    started     the process runs
    torch       torch is imported
    store       the master's TCPStore answers
    group       the process group is up: all ranks met
    allreduce   the first all-reduce gave the right sum
    sizes       all sizes are measured
    done        the group is taken down

Values depend on rank and position, so that a sum that misses a rank or mixes up positions can't pass.

With a list of groups to try (see probe/allreduce_trials.py) one process imports torch once, and forks a rank for every
group it is told of.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

CONFIG = json.loads(os.environ["NCDOCTOR_ALLREDUCE"])
BEGAN = time.monotonic()
PATTERN = 97
ITERATIONS = 5
MOST_ACCUSED = 64
PR_SET_PDEATHSIG = 1


def report(**event: object) -> None:
    """One line, one write(2): below PIPE_BUF, so that ranks can't cut into each other (pipe(7))."""
    event.update(local_rank=int(os.environ["LOCAL_RANK"]), since=time.monotonic() - BEGAN)
    os.write(1, (CONFIG["mark"] + json.dumps(event) + "\n").encode())


def end_with_parent() -> None:
    """Ranks have sessions of their own: only the kernel ends them surely when their starter dies (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    """All stages of a rank; an exception is reported with its text and ends the rank with status 1."""
    end_with_parent()
    local_rank = int(os.environ["LOCAL_RANK"])
    faulthandler.enable()
    # On SIGUSR1 the interpreter writes where the main thread stands, even where that one holds its lock and hangs.
    stack = os.open(CONFIG["stacks"][local_rank], os.O_WRONLY | os.O_APPEND)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    report(stage="started", pid=os.getpid())
    all_reduce(local_rank)


def all_reduce(local_rank: int) -> None:
    """The stages from torch's import on."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    backend = CONFIG["backend"]
    if backend == "nccl" and not dist.is_nccl_available():
        raise RuntimeError(f"torch {torch.__version__} is built without NCCL")
    report(stage="torch", torch=torch.__version__, nccl=loaded_nccl(torch) if backend == "nccl" else None)
    timeout = dt.timedelta(seconds=CONFIG["deadline_s"])
    if backend == "nccl":
        torch.cuda.set_device(local_rank)
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    report(stage="store")
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    report(stage="group")
    device = torch.device("cuda", local_rank) if backend == "nccl" else torch.device("cpu")
    bench = Bench(torch, dist, device)
    bench.checked(torch.float32, 1024)
    report(stage="allreduce")
    bench.measure()
    report(stage="sizes")
    dist.destroy_process_group()
    report(stage="done")


def loaded_nccl(torch: Any) -> str:
    """The version of the NCCL that torch really loaded."""
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def weight(rank: int) -> int:
    """A rank's factor: small, so that float32 sums stay exact below 2**24 for thousands of ranks."""
    return rank % 13 + 1


class WrongSumError(Exception):
    """The all-reduce ended, and its result is wrong."""


class Bench:
    """Checked and timed all-reduces on one device.

    Attributes:
        inside_s: seconds spent in all-reduces; what is left of the whole is the rank's own.
    """

    def __init__(self, torch: Any, dist: Any, device: Any) -> None:
        self.torch, self.dist, self.device = torch, dist, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.inside_s = 0.0

    def fill(self, dtype: Any, count: int) -> tuple[Any, Any]:
        """This rank's values, and the sums that they must give with everybody else's.

        In float32 position p of rank r has (p mod 97 + 1) (r mod 13 + 1), and every sum is exact. bfloat16 counts to
        256 at most (8 bits of mantissa), so there each position has a value on one rank alone.
        """
        torch = self.torch
        cycle = torch.arange(1, PATTERN + 1, dtype=dtype, device=self.device)
        positions = cycle.repeat(-(-count // PATTERN))[:count]
        if dtype == torch.float32:
            return positions * weight(self.rank), positions * sum(weight(rank) for rank in range(self.world))
        values = torch.zeros_like(positions)
        values[self.rank :: self.world] = positions[self.rank :: self.world]
        return values, positions

    def checked(self, dtype: Any, count: int) -> Any:
        """One all-reduce whose sums are compared on all ranks; returns the buffer.

        Raises:
            WrongSumError: on every rank, where any rank has a wrong sum; the groups that show it are reported before.
        """
        values, expected = self.fill(dtype, count)
        self.timed(values)
        differs = values != expected
        wrong = int(differs.sum())
        if self.slowest(float(wrong))[0]:
            text = "its sums are right, but those of other ranks are not"
            if wrong:
                place = int(differs.nonzero()[0])
                got, wanted = float(values[place]), float(expected[place])
                text = f"{wrong} of {count} sums are wrong; the first at {place}: {got} instead of {wanted}"
            report(error=f"WrongSumError: {text}", wrong=True)
            self.locate_wrong_rank()
            raise WrongSumError(text)
        return values

    def locate_wrong_rank(self) -> None:
        """Repeats a small all-reduce on each rank alone and between ring neighbours; a wrong one is reported."""
        ranks = range(min(self.world, MOST_ACCUSED))
        groups = [[rank] for rank in ranks]
        groups += [sorted((rank, (rank + 1) % self.world)) for rank in ranks if self.world > 2]
        for members in groups:
            group = self.dist.new_group(members)
            if self.rank in members:
                positions = self.torch.arange(1, PATTERN + 1, dtype=self.torch.float32, device=self.device)
                values = positions * weight(self.rank)
                self.dist.all_reduce(values, group=group)
                if bool((values != positions * sum(map(weight, members))).any()):
                    report(wrong_group=members)

    def timed(self, values: Any) -> float:
        """Seconds of one all-reduce, its end on the device included."""
        began = time.perf_counter()
        self.dist.all_reduce(values)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - began
        self.inside_s += seconds
        return seconds

    def slowest(self, *numbers: float) -> list[float]:
        """The largest of each number over all ranks, so that all decide alike."""
        values = self.torch.tensor(numbers, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(values, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def measure(self) -> None:
        """Times float32, and on GPUs bfloat16; each has its part of the budget."""
        dtypes = [self.torch.float32]
        if self.device.type == "cuda":
            dtypes.append(self.torch.bfloat16)
        began, self.inside_s = time.perf_counter(), 0.0
        for dtype in dtypes:
            self.measure_sizes(dtype, self.largest(), CONFIG["budget_s"] / len(dtypes))
        report(own_s=time.perf_counter() - began - self.inside_s, inside_s=self.inside_s)

    def largest(self) -> int:
        """The largest message in bytes: as asked for, and no more than an eighth of any GPU's free memory."""
        wanted = int(CONFIG["max_bytes"])
        if self.device.type != "cuda":
            return wanted
        free = self.torch.cuda.mem_get_info(self.device)[0]
        return min(wanted, -int(self.slowest(-float(free // 8))[0]))

    def measure_sizes(self, dtype: Any, largest: int, budget_s: float) -> None:
        """Times sizes from 8 bytes up by doubling while the next one fits the budget; rank 0 reports the medians.

        algbw = bytes / seconds; busbw = algbw * 2 (n - 1) / n, as nccl-tests' PERFORMANCE.md defines them; in 10⁹
        bytes/s.
        """
        name = str(dtype).rpartition(".")[2]
        width = 4 if name == "float32" else 2
        began = time.perf_counter()
        size = 8
        while size <= largest:
            this_began = time.perf_counter()
            values = self.checked(dtype, size // width).zero_()
            times = sorted(self.timed(values) for _ in range(ITERATIONS))
            now = time.perf_counter()
            seconds, this_s, total_s = self.slowest(times[ITERATIONS // 2], now - this_began, now - began)
            if self.rank == 0:
                algbw = size / seconds / 1e9
                busbw = algbw * 2 * (self.world - 1) / self.world
                report(size={"bytes": size, "seconds": seconds, "algbw": algbw, "busbw": busbw, "dtype": name})
            if total_s + 2 * this_s > budget_s:
                return
            size *= 2


def guarded(run: Any) -> int:
    """Runs a rank; the exit status, after a report of what went wrong."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - reported whole; the controller judges
        traceback.print_exc()
        report(error=f"{type(error).__name__}: {error}"[:600], wrong=isinstance(error, WrongSumError))
        return 1
    return 0


def leave(status: int) -> None:
    """Ends the process at once, with all that was printed.

    An interpreter that holds torch takes half a second to take itself down, and aborts at that now and then.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def try_groups(orders: str) -> None:
    """Forks this host's ranks of one group after the other; an order is a line of JSON, and so is its answer."""
    global BEGAN  # noqa: PLW0603 - a rank's clock starts with its fork
    end_with_parent()
    import torch.distributed  # noqa: F401 - what this process is for: its children have it already

    os.write(1, (CONFIG["mark"] + json.dumps({"ready": True}) + "\n").encode())
    with open(orders) as lines:
        for line in lines:
            order = json.loads(line)
            children = []
            for environment in order["ranks"]:
                pid = os.fork()
                if pid == 0:
                    end_with_parent()
                    os.environ.update(environment)
                    BEGAN = time.monotonic()
                    report(stage="started", pid=os.getpid())
                    status = guarded(lambda: all_reduce(int(os.environ["LOCAL_RANK"])))
                    os._exit(status)
                children.append(pid)
            good = wait_for(children, order["deadline_s"])
            os.write(1, (CONFIG["mark"] + json.dumps({"ended": True, "ok": good}) + "\n").encode())


def wait_for(children: list[int], seconds: float) -> bool:
    """Waits for all children, and kills them at the end; whether every one ended well in time."""
    deadline = time.monotonic() + seconds
    left = set(children)
    good = True
    while left and good and time.monotonic() < deadline:
        for pid in tuple(left):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                left.discard(pid)
                good = good and status == 0
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return good and not left


if __name__ == "__main__":
    if "orders" in CONFIG:
        try_groups(CONFIG["orders"])
    else:
        leave(guarded(main))
