"""A rank's process has exited or is stopped, and the other ranks are waiting for it.

What it means: every collective needs all ranks. If a rank is killed without its launcher noticing, or is stopped by a
signal, a debugger or a frozen container, the others wait until they time out, while NCCL keeps their GPUs 100 % busy.

How we know: each launcher's ranks are numbered consecutively, so a number without a process on its host belongs to a
missing rank; a process's state is in /proc/PID/stat ("T": stopped; "Z": exited, but not yet reaped). The kernel's log
shows processes killed for lack of memory.

Fix: SIGCONT resumes a stopped process. A job that has lost a rank must be ended on all hosts and started again; the
rank's log shows why it ended.

References: proc_pid_stat(5); torchrun's TORCHELASTIC variables in torch/distributed/elastic.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD710", explains=("link-stalled", "rank-outside-nccl", "rank-behind", "collective-mismatch"))
"""A process that was stopped or has exited explains whatever the other ranks do."""
