"""A rank's process has exited or is stopped, and the other ranks wait for it.

What it means: every collective needs all ranks. Where one is killed and its launcher does not notice, or is stopped by
a signal, a debugger or a frozen container, the others wait until their timeout, with NCCL at 100 % of their GPUs.

How we know: each launcher's ranks are numbered in a row, so one that is not among the processes of its host is missing
from there; a process's state is in /proc/PID/stat ("T" is stopped, "Z" has ended and was not asked for). The kernel's
log says whom it killed for want of memory.

Fix: A stopped process goes on with SIGCONT. A job that lost a rank has to be ended on all hosts and started again; the
rank's own log tells why it ended.

References: proc_pid_stat(5); torchrun's TORCHELASTIC variables in torch/distributed/elastic.
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD710", explains=("link-stalled", "rank-outside-nccl", "rank-behind", "collective-mismatch"))
"""A stopped or ended process is the reason for whatever the others do."""
