"""Some ranks are outside any collective, and the other ranks are waiting for them in one.

What it means: nothing is wrong with the network. These ranks are waiting for a data loader, a file system, a lock or an
answer, or are simply sleeping, and never reach the collective that the others are in.

How we know: py-spy read the stacks of all ranks twice, without stopping them. The named ranks were at the same line
both times, used no CPU time, and read or wrote nothing, while the others were in torch.distributed. With
`hang --watch`, a rank that is working is named too, if all others have waited for it longer than `--after`.

Fix: Look at the named line. State "D" means that the rank is waiting in the kernel for a file system or a driver that
does not answer.

References: github.com/benfred/py-spy; proc_pid_stat(5).
"""

from nccl_doctor.model.register import from_hang

from_hang(__name__, "NCD712", explains=("rank-behind",))
