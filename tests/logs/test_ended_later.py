"""A launcher that a scheduler ends after other ranks' time-out is no cause, although the time-out's line has no time."""

from __future__ import annotations

import pytest

from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import Case, signs

WAITED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/u/train.py", line 16, in <module>
[rank0]: RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete
E1128 13:36:07.220000 3159 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 429) of binary: /opt/py/bin/python
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_13:36:07
  host      : n1
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 429)
"""
ENDED = """\
W1128 {0}.992000 3170 torch/distributed/elastic/agent/server/api.py:752] Received 15 death signal, shutting down workers
W1128 {0}.993000 3170 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 433 closing signal SIGTERM
torch.distributed.elastic.multiprocessing.api.SignalException: Process 3170 got signal: 15
"""


@pytest.mark.parametrize(("at", "cause"), [("13:36:13", "collective-timeout"), ("13:36:02", "killed")])
def test_what_came_first_is_the_cause(at: str, cause: str) -> None:
    sources = [LogSource("n1.log", [WAITED.encode()]), LogSource("n2.log", [ENDED.format(at).encode()])]
    found = diagnose(sources)
    first = found.causes[0]
    assert first.name == cause
    case = Case(first, found.log)
    assert "rank 0" not in (signs()["killed"].advice(case).message if cause == "killed" else "")
    assert case.entities().get("rank") == {"killed": None, "collective-timeout": 0}[cause]
