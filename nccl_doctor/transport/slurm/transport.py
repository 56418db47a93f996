"""Runs commands as steps of a Slurm job, with one ``srun`` per node in addition to the job's own steps (``--overlap``).

Starting a step has a deadline, because srun could wait forever for the controller or for a node that can't connect back
to this machine. A step can outlive its srun process. If srun and its helper process are killed, the step's tasks
continue with an open stdin until the probe has received no heartbeat for several seconds. All steps of an nccl-doctor
run share a name. When nccl-doctor ends, even abnormally, a keeper process uses the steps' shared name to cancel any
remaining steps. The keeper is a shell that outlives nccl-doctor by a few seconds. In Slurm 22.05, a step remains listed
while slurmstepd tries to notify an srun process that has ended. The notification takes 2.3 s if srun's machine refuses
the connection, and 22 s if that machine drops packets.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import socket
import subprocess
import threading
from collections.abc import Sequence

from nccl_doctor.model.cluster import Node
from nccl_doctor.model.engines.slurm import SlurmOptions
from nccl_doctor.snapshot.access import EngineFacts, EngineFailure
from nccl_doctor.text.hostlist import expand
from nccl_doctor.transport.base import AccessError, Channel, Greeting
from nccl_doctor.transport.process import ProcessChannel

KIND = "step-not-started"
_ASKING_S = 5.0
_IDLE = re.compile("lacks support for cpu binding|Application launch failed|Job step aborted|forcing job termination")
"""Pattern for messages from srun that are irrelevant or that merely follow from another error."""
_STATE = re.compile(r"\bState=(\S+)")
_WHY = re.compile(r"\bReason=(.+?)(?: \[.*)?$", re.MULTILINE)


_CAUSES = (  # srun's messages that show a cause, with its reason, detail and remedy
    (
        r"Communication connection failure|failed on node|Unable to contact slurmd|Connection timed out|Zero Bytes",
        "slurmd",
        "did not start the job step: its slurmd does not answer",
        (
            "On the node, check whether slurmd is running (systemctl status slurmd); if not, its log may say why. A "
            "job on this node won't start either. Leave the node out with -x, or resubmit with sbatch --exclude."
        ),
    ),
    (
        r"has expired|Invalid job id|already completing|Job/step already",
        "ended",
        "did not start the job step: the job has ended",
        "Check within a job that runs; squeue --me lists yours.",
    ),
    (
        r"Access/permission denied|Invalid user|User not permitted",
        "denied",
        "did not start the job step: Slurm admits only the job's own user",
        "Run nccl-doctor as the user of the job.",
    ),
    (
        r"pyxis: .*(?:failed|could|error|couldn't|not found)|enroot",
        "container",
        "did not start the container of the job step",
        "See that the image's name is right and can be fetched from the node, with srun --container-image alone.",
    ),
    (
        r"unrecognized option|invalid option|Invalid --",
        "option",
        "did not start the job step: srun does not support one of the options",
        "--container-image and --container-name need Slurm's plug-in pyxis on this machine and on the nodes.",
    ),
    (
        r"Unable to contact slurm controller|Socket timed out|Unable to confirm allocation",
        "controller",
        "did not start the job step: Slurm's controller does not answer",
        "See whether scontrol ping answers; where it is only busy, check again.",
    ),
    (
        r"Requested nodes are busy|temporarily disabled",
        "busy",
        "did not start the job step: Slurm has no free resources for it on the node",
        (
            "Check again, because Slurm might still be ending another step; if the message stays, see the node's state "
            "(scontrol show node). Before Slurm 22.05, --overlap shares only CPUs, so another step might hold the "
            "node's memory or GPUs until it ends."
        ),
    ),
)


def classify(node: str, options: SlurmOptions, output: Sequence[str], *, late: bool, started: bool) -> EngineFailure:
    """Return the failure that is inferred from srun's messages or from a missing answer.

    ``started`` means that Slurm lists the step.
    """
    lines = [re.sub(r"^srun: (?:error: )?", "", line).strip() for line in output if not _IDLE.search(line)]
    shown = [cause for pattern, *cause in _CAUSES if any(re.search(pattern, line) for line in lines)]
    if shown:
        reason, detail, remedy = shown[0]
        if reason == "option" and not options.container:
            remedy = "nccl-doctor needs srun's --overlap, that is, Slurm 20.11 or later; or use --transport openssh."
    elif started:
        here = socket.gethostname().partition(".")[0]
        reason, detail = "no-way-back", f"began the step, and nothing of it came back to this machine ({here})"
        remedy = (
            "The nodes dial srun on this machine: let them in on the ports of SrunPortRange in slurm.conf, or on all "
            "where it is not set; or run nccl-doctor inside the job, in its batch script."
        )
    else:
        reason, ended = "silent" if late else "failed", f': "{lines[-1]}"' if lines else ""
        detail = "did not start the job step in time" if late else f"did not start the job step{ended}"
        plain = re.fullmatch(r"[A-Za-z0-9_.-]+", node)
        step = f"srun --jobid={options.job} --overlap -w {node} -N1 -n1 hostname" if plain else "srun with that node"
        remedy = f"See what {step} says."
    facts = EngineFacts.model_validate({"job": options.job, "node": node, "reason": reason, "late": late})
    text = "\n".join(_asked("scontrol", "-o", "show", "node", node))
    state, why = _STATE.search(text), _WHY.search(text)
    evidence = lines[-4:]
    if why is not None or (state is not None and state[1] not in ("IDLE", "ALLOCATED", "MIXED")):
        evidence.append(f"Slurm has the node as {state[1] if state else '?'}{f': {why[1]}' if why else ''}")
    return EngineFailure(kind=KIND, detail=detail, remedy=remedy, evidence=tuple(evidence), facts=facts)


def step_exists(job: str, name: str, node: str) -> bool:
    for step, _, nodes in (line.partition(" ") for line in _asked("squeue", "-h", "-s", "-j", job, "-o", "%j %N")):
        with contextlib.suppress(ValueError):  # not a node list
            if step == name and node in expand(nodes):
                return True
    return False


def _asked(*argv: str) -> list[str]:
    """Return the output lines of a Slurm command, or no lines if the command fails.

    A failure is not reported, because the output is only supplementary information.
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, timeout=_ASKING_S, check=False, stdin=subprocess.DEVNULL, encoding="utf-8",
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.splitlines()


STEP_S = 15.0  # time for a step's first message: srun takes 12 s to report a missing slurmd
CONTAINER_S = 120.0  # the same if an image has to be fetched first
_GRACE_S = 8.0  # the probe removes its files first: srun's signals would kill it at once
_NOTHING_S = 0.1  # the probe did not even start
_KEEPER_S = 20.0

_FINDS_THE_JOB = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_WORKING_CLUSTER"})
_OF_OUR_STEP = "SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_NTASKS SLURM_NPROCS SLURM_NNODES SLURM_JOB_NUM_NODES"
"""Variables that Slurm sets for nccl-doctor's one-task step, with values that differ from the values for the job."""
_OF_OUR_CONTAINER = "RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR"
"""Variables that enroot's PyTorch hook derives from the step's variables (conf/hooks/extra/50-slurm-pytorch.sh)."""
_OURS = "HOME,USER,LOGNAME,SHELL,LANG"  # variables that a step gets from a machine outside the job
KEEPER = """\
trap '' HUP INT TERM
sruns() {
  for file in $(grep -ls -e "$NCDOCTOR_STEP" /proc/[0-9]*/cmdline); do
    pid=${file#/proc/}; pid=${pid%/cmdline}
    read -r name < "/proc/$pid/comm" && [ "$name" = srun ] && echo "$pid"
  done
}
read -r word
[ "$word" = done ] && exit
signals='KILL KILL KILL'
if [ "$word" != now ]; then
  signals='TERM KILL KILL'
  for n in 1 2 3 4 5 6; do [ -z "$(sruns)" ] || sleep 0.5; done
fi
for signal in $signals; do
  for pid in $(sruns); do kill -KILL "$pid"; done
  for n in 1 2 3; do  # a controller that is busy answers late
    listed=$(timeout 5 squeue -h -s -j "$NCDOCTOR_JOB" -o '%i %j')
    [ $? = 124 ] || { answered=1; break; }
  done
  steps=$(echo "$listed" | sed -n "s/ $NCDOCTOR_STEP\\$//p")
  [ -z "$steps" ] && [ -n "$again" ] && exit
  [ -z "$steps" ] || timeout 5 scancel -s "$signal" $steps
  [ -n "$steps" ] && [ "$signal" = TERM ] && sleep 2
  sleep 0.5
  again=$answered
done
"""
"""A shell script that cancels nccl-doctor's job steps unless nccl-doctor reports that all steps have ended.

A running srun process gets 3 s to forward the end of its stdin to its step. On SIGTERM, the probe removes its files.
The steps are listed twice to find any step that was still starting during the first listing.
"""


class SlurmTransport:
    """A transport that starts one ``srun`` process per node, where all nodes belong to one job."""

    def __init__(self) -> None:
        self._name = f"ncdoctor-{secrets.token_hex(8)}"
        self._lock = threading.Lock()
        self._keeper: subprocess.Popen[bytes] | None = None
        self._channels: list[ProcessChannel] = []
        self._left = False

    def open(self, node: Node, command: str, deadline: float, latest: float = math.inf) -> Channel:
        """Start ``command`` as a step on ``node``; raise AccessError if the step is refused or not started in time."""
        options, mark = node.options(SlurmOptions), f"ncdoctor-{secrets.token_hex(8)}"
        self._keep(options.job)
        foreign = f"{_OF_OUR_STEP} {_OF_OUR_CONTAINER}" if options.container else _OF_OUR_STEP
        script = f"echo {mark}; export PATH; unset {foreign}; {command}"
        argv = [
            *("srun", f"--jobid={options.job}", "--overlap", "-w", node.address, "-N1", "-n1"),
            *("--mpi=none", "--cpu-bind=none", "--chdir=/", "--propagate=NONE", "--quit-on-interrupt"),
            *(f"--job-name={self._name}", f"--export={'ALL' if options.inside else _OURS}"),
            *(*options.container, "/bin/sh", "-c", script),
        ]
        try:
            channel = ProcessChannel(argv, environment())
        except BlockingIOError:  # fork(2) failed: no more processes for this user, a fault of this machine
            raise
        except OSError as error:
            detail = f"was not asked: srun could not be started here: {error.strerror}"
            facts, remedy = EngineFacts.model_validate({"reason": "no-srun"}), "Run nccl-doctor where srun works."
            raise AccessError(EngineFailure(kind=KIND, detail=detail, remedy=remedy, facts=facts)) from error
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
        """Return the time limit in seconds for starting a step.

        The limit is longer if a container image must be imported.
        """
        return CONTAINER_S if node.options(SlurmOptions).container else STEP_S

    def close(self) -> None:
        """End the keeper if every step has ended, or else wait until the keeper has ended the remaining steps."""
        with self._lock:
            keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        left = self._left or any(channel.forced or channel.running for channel in self._channels)
        try:
            keeper.communicate(b"now\n" if left else b"done\n", _KEEPER_S)
        except subprocess.TimeoutExpired:
            return  # it continues without us

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

    def _failure(
        self, channel: ProcessChannel, options: SlurmOptions, node: Node, before: Sequence[str], *, late: bool
    ) -> EngineFailure:
        started = late and step_exists(options.job, self._name, node.address)
        output = [*before, *channel.stderr_tail().splitlines()]
        channel.grace_s = _NOTHING_S
        channel.close()
        self._left = True
        return classify(node.address, options, [line for line in output if line.strip()], late=late, started=started)


def environment() -> dict[str, str]:
    """Return the environment without this process's own Slurm variables, which srun would interpret as options."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _FINDS_THE_JOB
    }
