"""A process was ended from outside.

What it means: The kernel, the scheduler, a time limit, a closed terminal or a person sent a signal. Other ranks then
see closed connections.

How we know: "exitcode: -9", "Signal 9 (SIGKILL)", exit code 137, "CANCELLED … DUE TO TIME LIMIT", SIGHUP of a closed
terminal. SIGTERM that torchrun sends to the other workers after the first failure is not meant.

Fix: dmesg tells of the OOM killer, sacct or kubectl describe of the scheduler. Start long runs under tmux or nohup.

References: signal(7); torch/distributed/elastic/multiprocessing/api.py.
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD917")
