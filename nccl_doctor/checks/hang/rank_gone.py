"""A rank's process has exited or is stopped, and the other ranks wait for it.

What it means: every collective needs all ranks. If one is killed without its launcher noticing, or is stopped by a
signal, a debugger or a frozen container, the others wait until their timeout, with NCCL at 100 % of their GPUs.

How we know: each launcher's ranks are numbered consecutively, so a rank that is not among the processes of its host is
missing; a process's state is in /proc/PID/stat ("T" is stopped, "Z" has ended and was not waited for). The kernel's log
shows processes killed for lack of memory.

Fix: A stopped process goes on with SIGCONT. A job that lost a rank must be ended on all hosts and started again; the
rank's log shows why it ended.

References: proc_pid_stat(5); torchrun's TORCHELASTIC variables in torch/distributed/elastic.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD710", explains=("link-stalled", "rank-outside-nccl", "rank-behind", "collective-mismatch"))
"""A stopped or ended process is the reason for whatever the others do."""
