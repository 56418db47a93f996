"""``hang --watch`` on a real job: each kind of hang is named unattended, and no healthy job is accused."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from tests.cli.doctor import ours
from tests.cli.program import Started, run_in, start_in
from tests.hang.faults import FAULTS, Expected, Seen, lasting
from tests.hang.running import STATUS_IS_KEPT, Training, with_spy
from tests.lab.cluster import Lab
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

SOON = ("--every", "1", "--after", "3", "--interval", "1")
WATCHED = {"order": FAULTS["order"], "validate": Expected(("outside-nccl",), ("rank-outside-nccl",), (0,))}


@pytest.fixture(scope="module")
def training() -> Iterator[Training]:
    with Lab.up(3) as lab:
        with_spy(lab)
        job = Training(lab)
        yield job
        job.end()


def started(job: Training, *words: str) -> Started:
    job.lab.controller.write("/root/hosts.yaml", job.lab.hosts_file())
    return start_in(job.lab.controller, "hang", "hosts.yaml", "--watch", *SOON, "-o", "json", *words)


def ended(process: Started) -> tuple[Seen, str]:
    out, err = process.communicate()
    code = process.wait()
    assert "Traceback" not in err, err
    return Seen(code, json.loads(out), 0.0), err


def heard(process: Started, words: str) -> str:
    """Waits until the watcher says this, however long it takes; returns the lines up to there."""
    lines = ""
    deadline = time.monotonic() + LONG_S
    while words not in lines:
        line = process.stderr.readline()
        assert line, lines
        assert time.monotonic() < deadline, lines
        lines += line
    return lines


@pytest.mark.parametrize("name", WATCHED)
def test_a_hang_is_named_unattended(training: Training, name: str) -> None:
    with started(training, "-v") as process:
        heard(process, "watching a job")
        with lasting(training, name):
            seen, err = ended(process)
    assert seen.is_right(WATCHED[name]), (seen, err)
    training.went_on()
    assert [
        one
        for host in training.lab.hosts
        for one in ours(host)
        if "train.py" not in one[1] and "multiproc" not in one[1]
    ] == []


@pytest.mark.parametrize("name", ["slow", "traffic"])
def test_a_healthy_job_is_not_accused(training: Training, name: str) -> None:
    with started(training, "-v") as process:
        with lasting(training, name):
            for _ in range(5):
                heard(process, "the job makes progress")
            assert process.poll() is None
        process.signal(signal.SIGTERM)
        process.communicate()
        assert process.wait() == 130


def test_a_report_goes_to_a_file_and_a_program_hears_of_it(training: Training) -> None:
    controller = training.lab.controller
    controller.write(
        "/root/tell", '#!/bin/sh\necho "$1 $NCDOCTOR_VERDICT $NCDOCTOR_DIAGNOSIS $NCDOCTOR_REPORT" >/root/told\n', 0o755
    )
    words = ("--output-file", "/root/hang.json", "--save", "/root/seen.json", "--on-hang", "/root/tell 'two words'")
    with started(training, *words) as process, lasting(training, "lock"):
        out, err = process.communicate()
        assert (process.wait(), out) == (1, ""), err
    training.went_on()
    word, verdict, diagnosis, file = controller.read("/root/told").rsplit(maxsplit=3)
    assert (word, verdict, diagnosis) == ("two words", "outside-nccl", "rank-outside-nccl")
    assert json.loads(controller.read(file))["verdict"] == "outside-nccl"
    assert controller.run("ls /root/seen-*.json").stdout.count("\n") == 1


def test_metrics_are_refreshed(training: Training) -> None:
    controller = training.lab.controller
    words = ("-o", "prometheus", "--output-file", "/root/watch.prom")
    with started(training, *words) as process, lasting(training, "sleep"):
        assert process.communicate()[0] == ""
        assert process.wait() == 1
    training.went_on()
    text = controller.read("/root/watch.prom")
    assert 'nccl_doctor_job_hung{name="rank-outside-nccl",master="' in text
    assert text.count("nccl_doctor_rank_seconds_since_progress{") == 6
    (idle,) = (line for line in text.splitlines() if line.startswith("nccl_doctor_job_seconds_since_progress{"))
    assert float(idle.split()[-1]) >= 3


def test_a_connection_that_ends_accuses_nobody(training: Training) -> None:
    host = training.lab.hosts[1]
    with started(training, "-v") as process:
        heard(process, "watching a job")
        host.run("pkill -KILL -f '[s]shd.*root@notty'")
        heard(process, "node2: can't be observed; trying again")
        heard(process, "node2: observed again")
        assert process.poll() is None


def test_a_killed_rank_is_told_and_then_the_end(training: Training) -> None:
    """The last one, for the job can't go on; nobody hears of the rank's death, or the others would end by themselves."""
    with started(training, "-v") as process:
        heard(process, "watching a job")
        with lasting(training, "kill"):
            seen, err = ended(process)
            assert seen.is_right(FAULTS["kill"]), (seen, err)
            with started(training, "-v", "--keep-watching", "--output-file", "/root/end.json") as second:
                heard(second, "watching a job")
                training.end()
                out, err = second.communicate()
                code = second.wait()
    told = json.loads(training.lab.controller.run("cat $(ls -t /root/end*.json | head -n1)").stdout)
    assert out == ""
    expected = (1, "gone") if STATUS_IS_KEPT else (3, "unknown")
    assert (code, told["verdict"]) == expected, (told["message"], err)
    assert ("was killed by SIGKILL" if STATUS_IS_KEPT else "its exit status was not seen") in told["message"]
    alone = run_in(training.lab.controller, "hang", "hosts.yaml", "--watch", *SOON)
    assert alone.returncode == 3
    assert "--wait waits for a job to start" in alone.stderr


def test_it_waits_for_a_job_and_refuses_parts_of_itself(fresh_lab: Lab) -> None:
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    with start_in(fresh_lab.controller, "hang", "hosts.yaml", "--watch", "--wait", *SOON) as process:
        time.sleep(4)
        assert process.poll() is None
        process.signal(signal.SIGTERM)
        deadline = time.monotonic() + LONG_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    for words in (
        ["--after", "60"],
        ["-o", "prometheus"],
        ["--watch", "-o", "prometheus"],
        ["--watch", "--keep-watching", "-o", "json"],
        ["--watch", "--on-hang", "'"],
    ):
        assert run_in(fresh_lab.controller, "hang", "hosts.yaml", *words).returncode == 2
