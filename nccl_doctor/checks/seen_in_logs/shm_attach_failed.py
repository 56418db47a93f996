"""A shared memory segment of another rank could not be opened.

What it means: Ranks of one host do not share /dev/shm or an IPC namespace, the segment was removed (systemd's
RemoveIPC), or its maker had ended.

How we know: "Error while attaching to shared memory segment", "unlink shared memory … failed, error: No such file or
directory", "shm_open failed".

Fix: One IPC namespace for all ranks of a host (--ipc=host), RemoveIPC=no in logind.conf. NCCL_SHM_DISABLE=1 shows
whether all else works.

References: NCCL's src/misc/shmutils.cc; logind.conf(5).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD909")
