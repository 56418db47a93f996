"""The process of a rank has exited or is stopped, and the other ranks are waiting for this rank.

What it means: every collective needs all ranks. If a rank is stopped, or is killed and its launcher does not notice,
the other ranks wait until they time out. A rank can be stopped by a signal or a debugger. NCCL keeps the GPUs of
waiting ranks 100% busy.

How we know: the ranks of each launcher are numbered consecutively, so a number without a process belongs to a missing
rank. The state in /proc/PID/stat is "T" for a process that a signal stopped, "t" for a process that a debugger stopped,
and "Z" for a process that has exited but has not been reaped. The kernel's log shows processes that were killed because
memory ran out.

Fix: Resume a process that a signal stopped with SIGCONT, and a process that a debugger stopped in the debugger. If a
rank has exited, end the job on all hosts and start it again. The rank's log shows why the rank exited.

References: proc_pid_stat(5); torchrun's TORCHELASTIC variables in torch/distributed/elastic.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD710", explains=("link-stalled", "rank-outside-nccl", "rank-behind", "collective-mismatch"))
"""A stopped or exited process explains the symptoms of all other ranks, because they wait for this process."""
