"""The training script itself failed: an exception of its own, or an exit code without a word.

What it means: NCCL and the network are not to blame; the other ranks then lose their connections or wait in vain.

How we know: torch's "[rank1]: ValueError: …" of an exception that nobody caught, an error of shapes or devices, or a
launcher's "exitcode: 1" in a log where nothing else explains the failure.

Fix: Read the traceback of the rank that is named. Where the log holds none, `torchrun --log-dir DIR --tee 3` keeps
every rank's output, and the decorator `record` puts the traceback into torchrun's summary.

References: torch/distributed/elastic/multiprocessing/errors; torch/distributed/distributed_c10d.py (the excepthook).
"""

from __future__ import annotations

from nccl_doctor.registry import from_logs

from_logs(__name__, "NCD919")
