"""What nobody may end though it says that it belongs to a leftover: by its names, terminal, service, and what is below."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest

from nccl_doctor.probe import guard, jobs
from tests.probe.tables import RUN, Fake, FakeTable, rank

OTHER = {**RUN, "LOCAL_RANK": "1"}
TRAIN = "python -u train.py"
"""What an honest rank's command line says; and whoever likes to say it."""


class Bystander(NamedTuple):
    """A process that goes for one of the leftover's, and the reason for which all of it stays."""

    fake: Fake
    kind: str
    words: str


def orphan(line: str = TRAIN, **change: Any) -> Fake:
    return Fake(31, 1, line, OTHER, **{"executable": "python3", **change})


def below(line: str = TRAIN, **change: Any) -> Fake:
    return Fake(40, 30, line, **{"executable": "python3", **change})


def group(path: str) -> dict[str, str]:
    return {"cgroup": f"0::{path}\n"}


BYSTANDERS = {
    "a server by its own name": Bystander(orphan(name="tmux: server"), "watched", "pid 31 is tmux, in which"),
    "a server by its title": Bystander(orphan("SCREEN -S work"), "watched", "pid 31 is screen, in which"),
    "a server that is titled as a rank": Bystander(orphan(executable="tmux"), "watched", "pid 31 is tmux, in which"),
    "a server of some version": Bystander(orphan(executable="screen-4.9.0"), "watched", "pid 31 is screen, in"),
    "zellij": Bystander(orphan("/usr/bin/zellij --server /run/z", executable="zellij"), "watched", "is zellij, in"),
    "dtach": Bystander(orphan("dtach -n /tmp/s bash", executable="dtach"), "watched", "pid 31 is dtach, in"),
    "abduco": Bystander(orphan("abduco -n s", executable="abduco"), "watched", "pid 31 is abduco, in"),
    "mosh": Bystander(orphan("mosh-server new", executable="mosh-server"), "watched", "pid 31 is mosh-server, in"),
    "byobu": Bystander(orphan("/bin/sh /usr/bin/byobu", executable="dash"), "watched", "is a shell (sh), in"),
    "a shell as an orphan": Bystander(orphan("-bash", executable="bash"), "watched", "pid 31 is a shell (bash), in"),
    "a shell titled as a rank": Bystander(below(executable="bash"), "watched", "pid 40 is a shell (bash), in"),
    "a shell below": Bystander(below("-zsh", executable="zsh", name="zsh"), "watched", "pid 40 is a shell (zsh), in"),
    "a shell in Python": Bystander(below("python /usr/bin/xonsh"), "watched", "pid 40 is a shell (xonsh), in"),
    "a terminal": Bystander(below(terminal=True), "watched", "pid 40 (python) has a terminal"),
    "a terminal of an orphan": Bystander(orphan(terminal=True), "watched", "pid 31 (python) has a terminal"),
    "a terminal's other end": Bystander(orphan(opened=("/dev/null", "/dev/ptmx")), "watched", "31 (python) serves a"),
    "another's other end": Bystander(below(opened=("/dev/pts/ptmx",)), "watched", "40 (python) serves a terminal"),
    "a user's service": Bystander(
        orphan(files=group("/user.slice/user-1000.slice/user@1000.service/app.slice/code.service")),
        "watched",
        "systemd runs it as code.service",
    ),
    "a service with groups of its own": Bystander(
        orphan(files=group("/system.slice/train.service/workers/0")), "watched", "systemd runs it as train.service"
    ),
    "a service below": Bystander(
        below(files=group("/system.slice/agent.service")), "watched", "systemd runs pid 40 as agent.service"
    ),
    "an agent": Bystander(orphan("ssh-agent -s", executable="ssh-agent"), "not-training", "pid 31 (ssh-agent) is no"),
    "a bus": Bystander(orphan("dbus-daemon --session", executable="dbus-daemon"), "not-training", "is not a Python"),
    "a desktop": Bystander(orphan("gnome-shell", executable="gnome-shell"), "not-training", "is not a Python"),
    "an editor": Bystander(orphan("emacs --daemon", executable="emacs"), "not-training", "is not a Python"),
    "an editor's server": Bystander(orphan("node server.js", executable="node"), "not-training", "(node) is no"),
    "Ray's daemon": Bystander(orphan("raylet --port", executable="raylet"), "not-training", "is not a Python"),
    "cron": Bystander(orphan("/usr/sbin/cron -f", executable="cron"), "not-training", "is not a Python"),
    "a web server below": Bystander(below("nginx: master", executable="nginx"), "not-training", "pid 40 (nginx)"),
    "a notebook below": Bystander(below("python -m ipykernel_launcher -f k"), "not-training", "a notebook's kernel"),
    "a notebook server": Bystander(orphan("python /opt/bin/jupyter-server"), "not-training", "a notebook server"),
    "a debugger in Python": Bystander(below("python -m pdb train.py"), "not-training", "pid 40 is a debugger (pdb)"),
    "an interactive Python": Bystander(orphan("python /usr/bin/ipython"), "not-training", "an interactive Python"),
    "one that hides its program": Bystander(orphan(links={"exe": None}), "not-training", "does not tell what program"),
}


def refusal(*fakes: Fake) -> guard.EndRefusal | None:
    """Of the job of the leftover rank 30, beside these."""
    table = FakeTable(rank(30, 1, 0), *fakes)
    job = jobs.job_of(30, table)
    assert set(job.pids) == {30, *(fake.pid for fake in fakes)}
    return guard.refusal(job, [30], table, 0)


@pytest.fixture(autouse=True)
def _as_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)


@pytest.mark.parametrize("name", BYSTANDERS)
def test_a_bystander_keeps_all_of_the_job(name: str) -> None:
    fake, kind, words = BYSTANDERS[name]
    found = refusal(fake)
    assert found is not None
    assert (found.kind, words in found.reason) == (kind, True), found.reason
    assert guard.refuses(fake.pid, FakeTable(fake), force=False) is not None
    assert guard.refuses(fake.pid, FakeTable(fake), force=True) is None


@pytest.mark.parametrize(
    "fake",
    [
        orphan(),
        below(),
        below("python screen.py"),
        orphan(name="screen.py"),
        orphan(name="tmux_train.py"),
        below("/opt/wandb/bin/wandb-core --port-filename /tmp/p", executable="wandb-core"),
        orphan("torch_shm_manager", executable="torch_shm_manager"),
        below("[sh]", name="sh", executable="sh", state="Z"),
        orphan(files=group("/user.slice/user-1000.slice/user@1000.service/init.scope")),
        orphan(files=group("/user.slice/user-1000.slice/session-3.scope")),
    ],
    ids=lambda fake: fake.line + fake.name,
)
def test_what_a_run_leaves_does_not_keep_it(fake: Fake) -> None:
    assert refusal(fake) is None


@pytest.mark.parametrize(
    ("above", "words"),
    [
        (Fake(20, 1, TRAIN, name="systemd", executable="tmux"), "it runs in tmux (pid 20)"),
        (Fake(20, 1, TRAIN, name="systemd", executable="bash"), "a shell waits for it: bash, pid 20"),
        (Fake(20, 1, "SCREEN -D", name="init", executable="python3"), "it runs in screen (pid 20)"),
    ],
)
def test_a_name_of_those_that_adopt_orphans_hides_no_multiplexer_and_no_shell(above: Fake, words: str) -> None:
    table = FakeTable(above, rank(30, 20, 0))
    found = guard.refusal(jobs.job_of(30, table), [30], table, 0)
    assert found == (words, "watched")


@pytest.mark.parametrize(
    "apart",
    [
        {"links": {"ns/pid": "pid:[7]"}},
        {"links": {"ns/mnt": "mnt:[7]"}},
        {"files": {"cgroup": "0::/docker/3f2a40b1c9d2e0aa\n"}},
        {"files": {"cgroup": "0::/slurm/uid_1000/job_78/step_0\n"}},
    ],
    ids=str,
)
def test_another_container_that_says_the_same_of_itself_is_no_part_of_the_job(apart: dict[str, Any]) -> None:
    table = FakeTable(rank(30, 1, 0), orphan(**apart))
    assert jobs.job_of(30, table) == (30, (30,))
    assert guard.refusal(jobs.job_of(30, table), [30], table, 0) is None
