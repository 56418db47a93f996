"""Some ranks are not in a collective, while the other ranks are waiting for them in a collective.

What it means: the network is not at fault. Some ranks are sleeping, or waiting for a data loader, a file system, a lock
or a response, and do not reach the collective.

How we know: py-spy read the stacks of all ranks twice, without stopping the processes. Each named rank was at the same
source line in both samples, while the other ranks were in torch.distributed. Between the samples, the named ranks used
hardly any CPU time, and read or wrote hardly any data. With `hang --watch`, a rank that uses CPU time, or reads or
writes data, is also named if all other ranks have waited for this rank longer than `--after`.

Fix: Examine the source line that the report names. A rank in state "D" is waiting in the kernel for a file system or
driver that does not respond.

References: github.com/benfred/py-spy; proc_pid_stat(5).
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD712", explains=("rank-behind",))
