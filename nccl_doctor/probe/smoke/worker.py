"""A program that imports torch once and forks this host's ranks of the all-reduce.

This file is never imported as a module.

The program runs in the same Python interpreter as training, and does not use CUDA before the fork, because forked
processes can't re-initialize CUDA (torch/cuda/__init__.py, "Cannot re-initialize CUDA in forked subprocess"). Each
order is one line of JSON that starts all ranks of one all-reduce on this host. Events are written to stdout, each
preceded by a marker. Each rank reports every stage that it reaches, so the last reported stage shows where a rank
hangs.

The first stages are "started" (the Python interpreter is running), "torch" (torch is imported), "store" (the master's
TCPStore answers) and "group" (the process group is initialized). The remaining stages are "allreduce" (the first
all-reduce returned the correct sum), "sizes" (all sizes have been measured) and "done" (the process group has been
destroyed).

Each value to be summed depends on the rank and on the value's position in the tensor, so a sum is wrong if a rank is
missing or if values are at wrong positions.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime as dt
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

CONFIG = json.loads(os.environ["NCDOCTOR_ALLREDUCE"])
STORE_KEY = "nccl-doctor/run"
PATTERN = 97
ITERATIONS = 5
MOST_ACCUSED = 64
PR_SET_PDEATHSIG = 1
GRACE_S = 1.0  # time for the other ranks of a host to report, once one of them has died
GAIN, PLATEAU_BYTES = 1.1, 1 << 20
"""Bandwidth growth factor that defines the plateau, and the smallest message size for which the plateau is detected.

The bandwidth has reached its plateau if it grew by less than the factor ``GAIN`` when the message size was quadrupled.
If only the plateau is measured, each size is four times the previous size.
"""


def write_event(**event: object) -> None:
    """Write an event as one line of at most PIPE_BUF bytes in a single write(2), so that lines are not interleaved."""
    os.write(1, (CONFIG["mark"] + json.dumps(event) + "\n").encode())


def report(**event: object) -> None:
    """Write an event of this rank, with the number of seconds since the order was sent."""
    write_event(**event, local_rank=int(os.environ["LOCAL_RANK"]), since=time.monotonic() - ORDER["began"])


ORDER: dict[str, Any] = {}  # request for which the ranks were forked: see :func:`serve`


def end_with_parent() -> None:
    """Tell the kernel to kill this process when its parent dies (PR_SET_PDEATHSIG, prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def write_stack_on_signal(path: str) -> None:
    """Install a handler that writes the main thread's stack to a file on SIGUSR1, even if the thread hangs."""
    faulthandler.register(signal.SIGUSR1, file=os.open(path, os.O_WRONLY | os.O_APPEND), all_threads=False)


def all_reduce() -> None:
    """Run all stages of a rank. Exceptions are reported by :func:`guarded`."""
    import torch
    import torch.distributed as dist
    from torch.distributed.rendezvous import rendezvous

    local_rank = int(os.environ["LOCAL_RANK"])
    report(stage="torch", pid=os.getpid(), torch=torch.__version__)
    backend = ORDER["backend"]
    if backend == "nccl":
        if not dist.is_nccl_available():
            raise WithoutNcclError(f"torch {torch.__version__} is built without NCCL")
        report(nccl=loaded_nccl(torch))
        torch.cuda.set_device(local_rank)
    timeout = dt.timedelta(seconds=ORDER["deadline_s"])
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    report(stage="store")
    store = own_store(dist, store, rank)
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


class ForeignStoreError(Exception):
    """Error for a store that belongs to another run of nccl-doctor."""


class Store(Protocol):
    """The part of ``torch.distributed.Store`` that this program uses."""

    def set(self, key: str, value: str) -> None: ...

    def check(self, keys: list[str]) -> bool: ...

    def get(self, key: str) -> bytes:
        """Wait until a key is set, and return the value of the key."""


def own_store(dist: ModuleType, store: Store, rank: int) -> Any:  # noqa: ANN401 - torch's own, which mypy can't see
    """Return the store with a prefix for all keys.

    The prefix is the token of this all-reduce, so that ranks of other runs can't join.

    Rank 0, whose process serves the store, writes the token to the store. Other ranks wait for rank 0 in
    ``init_process_group`` rather than in this function, so that their stack traces show the wait.
    """
    if rank == 0:
        store.set(STORE_KEY, ORDER["token"])
    elif store.check([STORE_KEY]) and store.get(STORE_KEY).decode() != ORDER["token"]:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ForeignStoreError(f"the store at {where} belongs to another run of nccl-doctor")
    return dist.PrefixStore(ORDER["token"], store)


def loaded_nccl(torch: ModuleType) -> str:
    """Return the version of NCCL that torch has loaded."""
    version = torch.cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def weight(rank: int) -> int:
    """Return the factor by which a rank multiplies its values.

    The factor is small, so that float32 sums over thousands of ranks are exact (below 2**24).
    """
    return rank % 13 + 1


class WrongSumError(Exception):
    """Error for a wrong result of the all-reduce."""


class WithoutNcclError(RuntimeError):
    """Error for a torch build without NCCL."""


ERROR_KINDS = {WrongSumError: "wrong-sum", WithoutNcclError: "no-nccl"}
"""Kinds of error, keyed by exception type.

For an exception of another type, the controller determines the kind from the error's text.
"""


class Device(Protocol):
    """The part of ``torch.device`` that this program uses. ``type`` is "cuda" or "cpu"."""

    type: str


class Tensor(Protocol):
    """The part of ``torch.Tensor`` that this program uses."""

    def zero_(self) -> Tensor:
        """Set every element of the tensor to 0."""


class Bench:
    """A benchmark that runs, checks and times all-reduces on one device."""

    def __init__(self, torch: ModuleType, dist: ModuleType, device: Device) -> None:
        self.torch, self.dist, self.device = torch, dist, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.inside_s = 0.0

    def fill(self, dtype: object, count: int) -> tuple[Any, Any]:
        """Return this rank's values and the expected sums over all ranks.

        In float32, position p of rank r has the value (p mod 97 + 1) * (r mod 13 + 1), so every sum is exact. In
        bfloat16, integers are guaranteed to be exact only up to 256 (8 bits of precision), so only one rank has a
        non-zero value at each position.
        """
        torch = self.torch
        cycle = torch.arange(1, PATTERN + 1, dtype=dtype, device=self.device)
        positions = cycle.repeat(-(-count // PATTERN))[:count]
        if dtype == torch.float32:
            return positions * weight(self.rank), positions * sum(weight(rank) for rank in range(self.world))
        values = torch.zeros_like(positions)
        values[self.rank :: self.world] = positions[self.rank :: self.world]
        return values, positions

    def checked(self, dtype: object, count: int) -> Tensor:
        """Run an all-reduce and return the sums.

        If any rank has a wrong sum, report the error and raise WrongSumError on every rank.
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
            report(error=f"WrongSumError: {text}", error_kind="wrong-sum")
            self.locate_wrong_rank()
            raise WrongSumError(text)
        summed: Tensor = values
        return summed

    def locate_wrong_rank(self) -> None:
        """Find ranks that compute wrong sums.

        A small all-reduce is run on each single rank and on each pair of ring neighbours. Each rank or pair with a
        wrong sum is reported.
        """
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

    def timed(self, values: Tensor) -> float:
        """Run one all-reduce and return the time in seconds until the operation is complete on the device."""
        began = time.perf_counter()
        self.dist.all_reduce(values)
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)
        seconds = time.perf_counter() - began
        self.inside_s += seconds
        return seconds

    def slowest(self, *numbers: float) -> list[float]:
        """Return the maximum of each number over all ranks, so that all ranks make the same decision."""
        values = self.torch.tensor(numbers, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(values, op=self.dist.ReduceOp.MAX)
        return [float(value) for value in values]

    def measure(self) -> None:
        """Time all-reduces in float32 and, on GPUs, in bfloat16.

        Each data type gets an equal share of the time budget.
        """
        dtypes = [self.torch.float32]
        if self.device.type == "cuda":
            dtypes.append(self.torch.bfloat16)
        began, wanted_s, self.inside_s = time.perf_counter(), cpu_wanted_s(), 0.0
        for dtype in dtypes:
            self.measure_sizes(dtype, self.largest(), ORDER["budget_s"] / len(dtypes))
        took_s = time.perf_counter() - began
        report(own_s=took_s - self.inside_s, busy=(cpu_wanted_s() - wanted_s) / took_s)

    def largest(self) -> int:
        """Return the largest message size in bytes that is measured.

        The size is at most "max_bytes" from the order, and at most one eighth of the free memory of every GPU.
        """
        wanted = int(ORDER["max_bytes"])
        if self.device.type != "cuda":
            return wanted
        free = self.torch.cuda.mem_get_info(self.device)[0]
        return min(wanted, -int(self.slowest(-float(free // 8))[0]))

    def measure_sizes(self, dtype: object, largest: int, budget_s: float) -> None:
        """Time all-reduces of increasing message sizes until the next size would exceed the time budget.

        Rank 0 reports the median time for each message size.

        The bandwidths are algbw = bytes / seconds and busbw = algbw * 2 (n - 1) / n in 10⁹ bytes/s, as defined in
        PERFORMANCE.md of nccl-tests. If "plateau" is true in the request, each size is four times the previous size,
        and the measurement stops when the bandwidth reaches its plateau.
        """
        name = str(dtype).rpartition(".")[2]
        width = 4 if name == "float32" else 2
        began = time.perf_counter()
        size, step, iterations = (16, 4, 3) if ORDER["plateau"] else (8, 2, ITERATIONS)
        speed = 0.0
        while size <= largest:
            this_began = time.perf_counter()
            values = self.checked(dtype, size // width).zero_()
            times = sorted(self.timed(values) for _ in range(iterations))
            now = time.perf_counter()
            seconds, this_s, total_s = self.slowest(times[iterations // 2], now - this_began, now - began)
            algbw = size / seconds / 1e9
            if self.rank == 0:
                busbw = algbw * 2 * (self.world - 1) / self.world
                report(size={"bytes": size, "seconds": seconds, "algbw": algbw, "busbw": busbw, "dtype": name})
            flat = size >= PLATEAU_BYTES and algbw < GAIN * speed
            if total_s + step * this_s > budget_s or (flat and ORDER["plateau"]):
                return
            speed = algbw
            size *= step


def cpu_wanted_s() -> float:
    """Return how many seconds this process's threads have run or waited for a CPU (/proc/PID/task/TID/schedstat)."""
    wanted = 0
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/self/task/{thread}/schedstat") as file:
            wanted += sum(map(int, file.read().split()[:2]))
    return wanted / 1e9


def guarded(run: Callable[[], object]) -> int:
    """Call ``run``, report any exception, and return the exit status."""
    try:
        run()
    except Exception as error:  # noqa: BLE001 - reported whole; the controller judges
        traceback.print_exc()
        report(error=f"{type(error).__name__}: {error}"[:600], error_kind=ERROR_KINDS.get(type(error)))
        return 1
    return 0


def leave(status: int) -> None:
    """Exit immediately without torch's shutdown. The shutdown takes half a second and sometimes aborts the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


def fork_rank(local_rank: int) -> int:
    """Fork a rank and return its PID.

    The rank's environment contains RANK, LOCAL_RANK and the environment variables from the order.
    """
    pid = os.fork()
    if pid == 0:
        os.setsid()
        end_with_parent()
        write_stack_on_signal(ORDER["stacks"][local_rank])
        os.environ.update(ORDER["variables"])
        os.environ.update(RANK=str(ORDER["first_rank"] + local_rank), LOCAL_RANK=str(local_rank))
        leave(guarded(all_reduce))
    return pid


def wait_for_ranks(pids: list[int], seconds: float) -> bool:
    """Wait until all ranks have exited or ``seconds`` seconds have passed.

    After the first failure, wait at most GRACE_S more seconds. Report failed ranks, kill the remaining ranks, and
    return True if all ranks succeeded.
    """
    deadline = time.monotonic() + seconds
    left = {pid: local_rank for local_rank, pid in enumerate(pids)}
    good = True
    while left and time.monotonic() < deadline:
        for pid in tuple(left):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            local_rank = left.pop(pid)
            code = -(status & 127) if status & 127 else status >> 8
            if code:
                write_event(local_rank=local_rank, exit_code=code)
                deadline = min(deadline, time.monotonic() + GRACE_S) if good else deadline
                good = False
        time.sleep(0.01)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return good and not left


def serve() -> None:
    """Import torch, and run one order after another until the end of the input.

    An order has the keys "number", "token", "first_rank", "count", "variables" (of the job), "stacks" (a path for each
    rank), "began" (the sender's time.monotonic), "backend", "budget_s", "max_bytes", "plateau" and "deadline_s".
    """
    end_with_parent()
    # Python 3.12 warns about forks beside threads; some libraries start threads on import, and allow it.
    warnings.simplefilter("ignore", DeprecationWarning)
    faulthandler.enable()
    write_stack_on_signal(CONFIG["stack"])
    write_event(began=True)
    try:
        # Torch is imported as torchrun would import it, so an error that would keep it from starting is found here.
        import torch.distributed.run  # noqa: F401
    except BaseException as error:  # noqa: BLE001 - reported whole; the controller judges
        traceback.print_exc()
        write_event(failed=f"{type(error).__name__}: {error}"[:600])
        leave(1)
    write_event(ready=True)
    with open(CONFIG["orders"]) as lines:
        for line in lines:
            ORDER.update(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            pids = [fork_rank(local_rank) for local_rank in range(ORDER["count"])]
            write_event(ended=ORDER["number"], ok=wait_for_ranks(pids, ORDER["deadline_s"]))


if __name__ == "__main__":
    serve()
