"""Ctrl-C in a run: what was found until then is told, in every form."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.doctor import ours
from tests.cli.program import start_in
from tests.cli.smoking import all_reduce_processes
from tests.lab.cluster import Lab

pytestmark = pytest.mark.lab


@pytest.mark.parametrize("form", ["human", "json"])
def test_an_interrupt_in_the_all_reduce_tells_what_was_found(fresh_lab: Lab, form: str) -> None:
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file(master_port=40000))
    words = ["check", "hosts.yaml", "-o", form, "--output-file", "/root/report"]
    host = fresh_lab.host("node1")
    with start_in(fresh_lab.controller, *words) as process:
        said = ""
        while "all-reduce" not in said and (more := process.stderr.read(1)):
            said += more
        host.wait_until(lambda: bool(all_reduce_processes(host)), "the all-reduce")
        process.signal(signal.SIGINT)
        out, err = process.communicate()
        assert process.wait() == 130, err
    assert "interrupted; nothing of nccl-doctor is left running on any host" in err
    assert out == ""
    report = fresh_lab.controller.read("/root/report")
    if form == "json":
        document = json.loads(report)
        assert [one["name"] for one in document["diagnoses"]] == ["port-in-ephemeral-range"]
        assert document["complete"] is False
        assert document["mesh"]["tested"] == 6
    else:
        assert "NCD303" in report or "port-in-ephemeral-range" in report
        assert "interrupted before its end" in report
    assert all(ours(one) == [] for one in fresh_lab.hosts)
