"""What this machine lets us have is no fault of a host's, and is told in one sentence."""

from __future__ import annotations

import errno
import sys
import time

import pytest

from nccl_doctor.crew.parallel import HostReach
from nccl_doctor.errors import UsageError
from nccl_doctor.text import machine
from nccl_doctor.transport.process import LocalTransport, ProcessChannel
from tests.collect.nodes import node
from tests.lab.cluster import Lab
from tests.patience import LONG_S


def test_only_the_words_of_a_machine_at_its_limit_are_taken_for_it() -> None:
    assert machine.out_of_threads(RuntimeError("can't start new thread"))
    assert machine.out_of_threads(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    assert not machine.out_of_threads(RuntimeError("can't start"))
    assert not machine.out_of_threads(BlockingIOError(errno.EINPROGRESS, "Operation now in progress"))
    assert not machine.out_of_threads(None)


class Exhausted(LocalTransport):
    """Cannot start a thread for one of the hosts."""

    def open(self, node: object, command: str, deadline: float, latest: float = 0.0) -> ProcessChannel:  # noqa: ARG002 - as the protocol says
        raise RuntimeError("can't start new thread")


def test_no_host_is_accused_of_it() -> None:
    reach = HostReach(Exhausted(), LONG_S, time.monotonic() + LONG_S, lambda _: None)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        reach.all([node(name="node1", rank=0), node(name="node2", rank=1)])
    assert reach.failures == {}


def test_another_system_is_no_host_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    machine.require_linux("this machine")
    monkeypatch.setattr(sys, "platform", "darwin")
    for named, words in (("this machine", "only Linux can"), ("ctl", "ctl is this machine, and only Linux can")):
        with pytest.raises(UsageError, match=f"^{words}.*name the job's hosts"):
            machine.require_linux(named)


@pytest.mark.lab
def test_a_login_node_with_few_threads_says_so(lab: Lab) -> None:
    lab.controller.write("/home/alice/few.yaml", lab.hosts_file())
    command = "cd && ulimit -u 9 && exec nccl-doctor check few.yaml --no-smoke"
    done = lab.controller.run(["bash", "-c", command], user="alice", check=False)
    assert done.returncode == 2
    assert "this machine allows you no more threads (ulimit -u is 9)" in done.stderr
    assert "Traceback" not in done.stderr
