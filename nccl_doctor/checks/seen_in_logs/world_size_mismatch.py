"""The ranks and the world size do not match.

What it means: Two processes have the same rank, a rank is equal to or greater than the world size, hosts have different
world sizes, or two jobs use the same address.

How we know: NCCL prints "Bootstrap Root : rank 1 of 8 ranks has already checked in" or "mismatch in rank count from
procs". Other signs are an error from Lightning or torch about an invalid rank, and MPI's "not enough slots" message.
The tables of two overlapping nccl-tests runs, in which rank 0 is on different hosts, also lead to this diagnosis.

Fix: Compare RANK, WORLD_SIZE, --nnodes, --node_rank, --nproc_per_node and the scheduler's tasks per node on all hosts.
`nccl-doctor launch` prints the launch command of each host with the right values.

References: NCCL's src/bootstrap.cc.
"""

import re
from dataclasses import replace

from nccl_doctor.launch.plan import nearest
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.prefix import number
from nccl_doctor.logs.rule import Grade, clue, roots
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise
from nccl_doctor.model.register import from_logs
from nccl_doctor.text.hostlist import fold

from_logs(__name__, "NCD915")

_BATCH = re.compile(r"--batch[-_]size (?P<batch>\d{1,9}) must be (?:a )?multiple of WORLD_SIZE")


def _advice(case: Case) -> Advice:
    batch = _BATCH.search(case.first.text)
    if batch is not None:
        return _of_batch(int(batch["batch"]), case.log.facts.world_size)
    if case.first.wording == _FIRST_RANK:
        hosts = [match["host"] for event in case.cause.events if (match := _ROW.search(event.text))]
        return advise(
            f"nccl-tests ran separately on each of {fold(hosts)}, with a rank 0 on each, so its results are those of "
            "single hosts.",
            "Build it with MPI (make MPI=1 MPI_HOME=...), and start it on all hosts with one mpirun or srun of that "
            "MPI; then one table lists the ranks of all hosts.",
        )
    if case.first.wording in _OTHER_NUMBERS:
        return advise(*_OTHER_NUMBERS[case.first.wording])
    return advise(
        f"Ranks and world size do not match, according to {case.who}: two processes have the same rank, ranks of "
        "another job connect, or the world size does not divide evenly.",
        "Compare RANK, WORLD_SIZE, --nnodes, --node_rank and --nproc_per_node on all hosts; nccl-doctor launch "
        "prints the right values.",
    )


def _of_batch(batch: int, world: int | None) -> Advice:
    if not world:
        return advise(
            f"A batch of {batch} does not divide evenly among the number of ranks, which the log does not show.",
            "nccl-doctor launch with --batch-size and the job's hosts names the nearest batch sizes that do; or use "
            "the number of ranks times the batch size per rank.",
        )
    near = nearest(batch, world)
    return advise(
        f"A batch of {batch} does not divide evenly among the {world} ranks, but {' or '.join(map(str, near))} does.",
        "Give the script such a --batch-size; nccl-doctor launch with the same option checks it before the start.",
    )


_LIGHTNING = r"number of tasks per node configured in SLURM .* does not match|`--ntasks=\d+` in your SLURM"
_DEEPSPEED = r"not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size"
_SLOTS = r"not enough slots available in the system"
_OTHER_NUMBERS = {
    _LIGHTNING: (
        "The number of devices that Lightning should use differs from the tasks per node of the Slurm job.",
        (
            "Set --ntasks-per-node of the batch script (not --ntasks) to the number of GPUs per host, and Lightning's "
            "devices to the same number."
        ),
    ),
    _DEEPSPEED: (
        (
            "train_batch_size in DeepSpeed's configuration is not the batch size per GPU times the gradient "
            "accumulation steps times the number of ranks."
        ),
        (
            "Correct train_batch_size, train_micro_batch_size_per_gpu or gradient_accumulation_steps in the DeepSpeed "
            "configuration, or start as many ranks as they assume."
        ),
    ),
    _SLOTS: (
        "mpirun can't start the job, since its hosts have fewer slots than the ranks that were requested.",
        (
            "Give it the hosts with as many slots as ranks (-H gpu01:8,gpu02:8 or a hosts file), request a larger "
            "allocation, or start fewer ranks."
        ),
    ),
}
"""Messages and remedies for patterns whose cause is a number other than the ranks and world sizes of running ranks."""

# nccl-tests' own lines (src/common.cu)
_FIRST_RANK = r"# +Rank +0 +Group +\d+ +Pid +\d+ +on "
_ROW = re.compile(_FIRST_RANK + r" *(?P<host>[\w.-]{1,64}) +device")
_RESULT = r"# Avg bus bandwidth"

_TABLES = (
    clue(_FIRST_RANK, "#  Rank  0 Group  0 Pid 398189 on    gpu01 device  0 [0x07] NVIDIA A100-SXM4-80GB"),
    clue(_RESULT, "# Avg bus bandwidth    : 4.51"),
)

RULES = _TABLES + roots(
    _BATCH.pattern,
    "AssertionError: --batch-size 65 must be multiple of WORLD_SIZE",
    r"Bootstrap Root ?: mismatch in (?:rank count|info) from procs",
    "n1:9:9 [0] bootstrap.cc:125 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
    r"Bootstrap Root ?: rank (?P<rank>\d+) of \d+ ranks has already checked in",
    "n1:9:9 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in",
    r"Bootstrap Root ?: localId \d+ is out of range",
    "n1:9:9 [0] bootstrap.cc:390 NCCL WARN Bootstrap Root : localId 9 is out of range",
    r"Invalid rank requested ?: (?P<rank>-?\d+)/\d+",
    "n1:9:9 [0] init.cc:1750 NCCL WARN Invalid rank requested : 8/8",
    r"(?i:world(?:_| )size) ?\(?(?:=|:)? ?\d+\)? (?:is not|isn't|must be|should be|not) (?:a )?(?:divisible"
    r"|multiple|equal|match)",
    "AssertionError: world_size (12) is not divisible by tensor_model_parallel_size (8)",
    r"(?i:(?:invalid|wrong|bad) (?:rank|world[ _]size))\b.*(?:interval|\[0|range|\d|world)",
    "ValueError: Invalid rank 8, rank should be in the interval [0, 7]",
    r"\b[Rr]ank\b.{0,12}(?:>=|must be less than|should be less than|must be smaller than) ?(?:the )?(?i:world(?:_"
    r"| )size)",
    "AssertionError: rank 8 >= world_size 8",
    _LIGHTNING,
    "ValueError: You set `devices=8` in Lightning, but the number of tasks per node configured in SLURM "
    "`--ntasks-per-node=1` does not match. HINT: Set `devices=1`.",
    _DEEPSPEED,
    "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
    "gradient_acc_step * world_size 8 != 1 * 1 * 2",
    _SLOTS,
    "There are not enough slots available in the system to satisfy the 16 slots that were requested",
)

_BARRIER = re.compile(r"world_size=(?P<size>\d+), worker_count=(?P<workers>\d+)")


def _crowded_barrier(scene: Scene) -> list[Event]:
    """Diagnose a wrong world size if it is smaller than the number of workers that reached a barrier."""

    def is_crowded(event: Event) -> bool:
        barrier = _BARRIER.search(event.text) if event.name == "rendezvous-timeout" else None
        return barrier is not None and (number(barrier["workers"]) or 0) > (number(barrier["size"]) or 0)

    return scene.renamed("world-size-mismatch", Grade.ROOT, is_crowded)


def _separate_tables(scene: Scene) -> list[Event]:
    """Diagnose a wrong world size if a benchmark began on a second host before the first host printed a result."""
    running: dict[str, Event] = {}
    separate: dict[str, Event] = {}
    for event in scene.events:
        row = _ROW.search(event.text) if event.wording == _FIRST_RANK else None
        if row is not None:
            running[row["host"]] = event
            separate |= running if len(running) > 1 else {}
        elif event.wording == _RESULT:
            running.clear()
    blamed = tuple(separate.values())
    return scene.renamed("world-size-mismatch", Grade.ROOT, lambda event: event in blamed)


def _meant(scene: Scene) -> list[Event]:
    return _separate_tables(replace(scene, events=_crowded_barrier(scene)))


SIGNS = LogSigns(RULES, _advice, passes={PassStage.MEANING: _meant})
