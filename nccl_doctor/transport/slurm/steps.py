"""Runs commands as steps of a Slurm job: one ``srun`` a node, beside whatever the job runs there (``--overlap``).

srun can wait in silence for ever, for the controller or for a node that can't dial back to this machine: every deadline
is ours. Its step can outlive it: killed together with srun's helper, the tasks go on and hear of no end of their input.
So every run has a name, which its steps bear, and a keeper: a shell that outlives us, by seconds, and cancels what is
left of that name.
"""

from __future__ import annotations

import math
import os
import secrets
import subprocess
import threading
from collections.abc import Sequence

from nccl_doctor.model.cluster import Node
from nccl_doctor.snapshot import EngineFailure
from nccl_doctor.snapshot.slurm import SlurmOptions
from nccl_doctor.text.hostlist import fold
from nccl_doctor.transport.base import AccessError, Channel, Greeting
from nccl_doctor.transport.process import ProcessChannel
from nccl_doctor.transport.slurm import failures

STEP_S = 15.0
"""For a step's first word: srun itself takes 12 s to tell of a slurmd that is away."""
CONTAINER_S = 120.0
"""The same where an image has to be brought first."""

_GRACE_S = 8.0  # the probe removes its files first: signals to srun kill it where it stands
_NOTHING_S = 0.1  # the probe did not even start
_KEEPER_S = 20.0

_FINDS_THE_JOB = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER"})
_OF_OUR_STEP = "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES"
"""Numbers of a step of one task, which are none of the job's."""
_OF_OUR_CONTAINER = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR"
"""What enroot's hook for PyTorch makes of those (conf/hooks/extra/50-slurm-pytorch.sh)."""

_OURS = "HOME,USER,LOGNAME,SHELL,LANG"
"""What a step gets of the environment of a machine that is not in the job."""

KEEPER = """\
trap '' HUP INT TERM
read -r word
[ "$word" = done ] && exit
[ "$word" = now ] || sleep 3
for n in 1 2 3; do
  for file in $(grep -ls -e "$NCDOCTOR_STEP" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    read -r name < "/proc/$pid/comm" && [ "$name" = srun ] && kill -KILL "$pid"
  done
  steps=$(timeout 5 squeue -h -s -j "$NCDOCTOR_JOB" -o '%i %j' | sed -n "s/ $NCDOCTOR_STEP\\$//p")
  [ -z "$steps" ] && [ "$n" -gt 1 ] && exit
  [ -z "$steps" ] || timeout 5 scancel -s KILL $steps
  sleep 0.5
done
"""
"""Reads whether all is done, or that we are gone; the second look sees a step that was being started at the first."""


class SlurmTransport:
    """Starts one ``srun`` a node; all nodes are of one job."""

    def __init__(self) -> None:
        self._name = f"ncdoctor-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._channels: list[ProcessChannel] = []
        self._left = False

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Starts ``command`` as a step on ``node``.

        Raises:
            AccessError: no step started in time, or Slurm refused it.
        """
        options, mark = node.options(SlurmOptions), f"ncdoctor-{secrets.token_hex(8)}"
        self._keep(options.job)
        argv = self._argv(options, [node.address], f"echo {mark}; export PATH; unset {foreign(options)}; {command}")
        try:
            channel = ProcessChannel(argv, environment())
        except BlockingIOError:  # fork(2): no further process for us, a fault of this machine's
            raise
        except OSError as error:
            raise AccessError(failures.not_run(error)) from error
        self._channels.append(channel)
        greeting, late = Greeting(channel.read_line, mark), False
        try:
            if greeting.ends(min(deadline, latest)):
                channel.grace_s = _GRACE_S
                return channel
        except TimeoutError:
            late = True
        except BaseException:
            channel.close()
            raise
        raise AccessError(self._failure(channel, options, node, greeting.words, late=late))

    def connect_timeout(self, node: Node) -> float:
        """What a step needs; a container has to be brought first."""
        return CONTAINER_S if node.options(SlurmOptions).container else STEP_S

    def close(self) -> None:
        """Lets the keeper go, where every step ended by itself; else waits until it has ended the others."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        left = self._left or any(channel.forced or channel.running for channel in self._channels)
        try:
            keeper.communicate(b"now\n" if left else b"done\n", _KEEPER_S)
        except subprocess.TimeoutExpired:
            return  # it goes on without us

    def _keep(self, job: str) -> None:
        with self._lock:
            if self._keeper is None:
                self._keeper = subprocess.Popen(
                    ["/bin/sh", "-c", KEEPER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**environment(), "NCDOCTOR_STEP": self._name, "NCDOCTOR_JOB": job},
                    start_new_session=True,
                )

    def _argv(self, options: SlurmOptions, names: Sequence[str], script: str, *more: str) -> list[str]:
        """Srun with ``script`` for each of the nodes."""
        count = len(names)
        return [
            *("srun", f"--jobid={options.job}", "--overlap", "-w", fold(names), f"-N{count}", f"-n{count}"),
            *("--mpi=none", "--cpu-bind=none", "--chdir=/", "--propagate=NONE", "--quit-on-interrupt"),
            *(f"--job-name={self._name}", f"--export={'ALL' if options.inside else _OURS}"),
            *(*options.container, *more, "/bin/sh", "-c", script),
        ]

    def _failure(
        self, channel: ProcessChannel, options: SlurmOptions, node: Node, before: Sequence[str], *, late: bool
    ) -> EngineFailure:
        started = late and failures.step_exists(options.job, self._name, node.address)
        said = [*before, *channel.stderr_tail().splitlines()]
        channel.grace_s = _NOTHING_S
        channel.close()
        self._left = True
        return failures.classify(
            node.address, options, [line for line in said if line.strip()], late=late, started=started
        )


def foreign(options: SlurmOptions) -> str:
    """The variables that tell of our step, and nothing of the job."""
    return f"{_OF_OUR_STEP} {_OF_OUR_CONTAINER}" if options.container else _OF_OUR_STEP


def environment() -> dict[str, str]:
    """Ours without what Slurm gave our own step: srun would take it for options."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _FINDS_THE_JOB
    }
