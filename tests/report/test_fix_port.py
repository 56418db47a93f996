"""The screen and the document of fix-port."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.model.ports import Elsewhere, GpuUse, Holder, HolderJob, Member, PortReport, Suggestion, TcpSocket
from nccl_doctor.probe.options import port_words
from nccl_doctor.report.fix_port import confirmation, screen
from nccl_doctor.report.render import render
from nccl_doctor.text.shell import clean

HOLDER = Holder(
    pid=48112,
    user="alice",
    command="python -u train.py --local_rank=0",
    started=1767225600.0,
    ticks=900,
    age_s=10800.0,
    ppid=1,
    orphan=True,
    own=True,
    tree=(48112, 48113),
    parent="/sbin/init",
    cwd="/home/alice",
    terminal=False,
)


def member(pid: int, started: int, use: GpuUse) -> Member:
    return Member(pid=pid, started=started, command=HOLDER.command, launcher=None, rank=True, gpus=(use,))


MEMBERS = (
    member(48112, 900, GpuUse(pid=48112, gpu=0, uuid="GPU-a", memory_mib=21074)),
    member(48113, 901, GpuUse(pid=48113, gpu=1, uuid="GPU-b", memory_mib=None)),
)
JOB = HolderJob(root=48112, orphan=True, unit=None, holders=(HOLDER,), members=MEMBERS, refusal=None, final=False)
SOCKET = TcpSocket(
    local_address="0.0.0.0", local_port=29500, remote_address=None, remote_port=None, state="LISTEN", pid=48112
)
SUGGESTION = Suggestion(
    port=29511,
    command="export MASTER_PORT=29511 PET_MASTER_PORT=29511",
    hosts=("node1", "node2"),
    starts=port_words((), 29511),
)
REPORT = PortReport(
    host="node1",
    here=True,
    port=29500,
    free=False,
    cause="listener",
    error="EADDRINUSE",
    jobs=(JOB,),
    sockets=(SOCKET,),
    suggestion=SUGGESTION,
    arguments=("29500", "--hosts", "my hosts.yaml"),
)

SCREEN = """\
port 29500 on this machine (node1) is in use

  pid 48112   python -u train.py --local_rank=0           alice, started 3 h ago
    folder    /home/alice
    job       2 ranks (48112 48113), orphaned: its launcher has exited
    GPU       0: 22.1 GB, 1: memory in use
    socket    0.0.0.0:29500, listening

It is your own leftover process: its launcher has exited. End it:

nccl-doctor fix-port 29500 --hosts 'my hosts.yaml' --pid 48112@900 --kill

Or start on port 29511, which is free on all 2 hosts:

export MASTER_PORT=29511 PET_MASTER_PORT=29511

torchrun --master_port 29511 …
python -m torch.distributed.launch --master_port 29511 …
init_method=tcp://node1:29511
"""


def test_a_leftover_on_the_screen() -> None:
    assert screen(REPORT) == SCREEN


def test_the_document_has_what_is_promised() -> None:
    told = json.loads(render("fix-port", "json", REPORT))
    promised = {"schema", "command", "host", "port", "free", "cause", "holders", "ended", "suggestion"}
    assert promised <= set(told)
    assert (told["schema"], told["command"], told["cause"]) == (1, "fix-port", "listener")
    (holder,) = told["holders"]
    assert {name: holder[name] for name in ("pid", "user", "age_s", "ppid", "orphan", "own", "tree")} == {
        "pid": 48112,
        "user": "alice",
        "age_s": 10800.0,
        "ppid": 1,
        "orphan": True,
        "own": True,
        "tree": [48112, 48113],
    }
    assert holder["started"] == "2026-01-01T00:00:00+00:00"
    assert holder["gpus"][0] == {"pid": 48112, "gpu": 0, "uuid": "GPU-a", "memory_mib": 21074}
    assert told["suggestion"] == {"port": 29511, "command": "export MASTER_PORT=29511 PET_MASTER_PORT=29511"}


@pytest.mark.parametrize(
    ("master", "url"),
    [(None, "tcp://node1:29511"), ("10.0.0.9", "tcp://10.0.0.9:29511"), ("fd00::1", "tcp://[fd00::1]:29511")],
)
def test_ranks_look_for_the_master_where_the_job_has_it(master: str | None, url: str) -> None:
    assert REPORT.suggestion is not None
    shown = screen(REPORT.model_copy(update={"suggestion": REPORT.suggestion.model_copy(update={"master": master})}))
    assert shown.endswith(f"init_method={url}\n")


def test_a_free_port_is_one_line() -> None:
    assert screen(PortReport(host="node1", here=False, port=29500, free=True)) == "port 29500 on node1 is free\n"


def test_a_free_port_that_an_engine_may_have_lost_is_told_to_be_kept() -> None:
    free = PortReport(host="node1", here=False, port=40123, free=True, drawn=True, reserved="8080,9000-9005")
    shown = screen(free)
    assert "binds it later" in " ".join(shown.split())
    assert shown.endswith("\n\nsysctl -w net.ipv4.ip_local_reserved_ports=8080,9000-9005,40123\n")
    assert screen(free.model_copy(update={"ended": (7,)})).count("sysctl") == 0


@pytest.mark.parametrize(("final", "offer"), [(False, True), (True, False)])
def test_a_refusal_is_named_and_force_offered_where_it_helps(final: bool, offer: bool) -> None:
    report = REPORT.model_copy(
        update={"jobs": (JOB.model_copy(update={"refusal": "pid 48112 belongs to bob", "final": final}),)}
    )
    for text in (screen(report), screen(report.model_copy(update={"refused": "pid 48112 belongs to bob"}))):
        assert "pid 48112 belongs to bob" in text
        assert "--kill\n" not in text
        assert not [line for line in text.splitlines() if line.startswith("nccl-doctor ")]
    assert ("--force" in screen(report)) is offer


def test_outbound_is_cured_by_reserving_the_port_beside_those_that_are() -> None:
    text = screen(REPORT.model_copy(update={"cause": "outbound", "reserved": "8080,9000-9005"}))
    assert "\nsysctl -w net.ipv4.ip_local_reserved_ports=8080,9000-9005,29500\n" in text


def test_a_connection_is_not_called_outgoing() -> None:
    assert (
        screen(REPORT.model_copy(update={"cause": "outbound"})).splitlines()[0].endswith(" is in use by a connection")
    )


def test_processes_that_got_no_sigkill_are_not_said_to_withstand_it() -> None:
    left = REPORT.model_copy(update={"left": (48112,)})
    assert "SIGKILL" in screen(left)
    assert "SIGKILL" not in screen(left.model_copy(update={"refused": "pid 48112 belongs to bob; root could end it"}))


@pytest.mark.parametrize(("root", "own", "anyway"), [(False, False, False), (False, True, True), (True, False, True)])
def test_force_ends_no_job_that_only_root_may_signal(root: bool, own: bool, anyway: bool) -> None:
    job = JOB.model_copy(
        update={
            "holders": (HOLDER.model_copy(update={"own": own}),),
            "refusal": "pid 48112 belongs to the user bob, and you are alice",
        }
    )
    text = " ".join(screen(REPORT.model_copy(update={"jobs": (job,), "root": root})).split())
    assert ("--force ends it anyway" in text, "Only root can end it, with --force" in text) == (anyway, not anyway)


def test_a_holder_that_is_hidden_can_be_seen_as_root() -> None:
    hint = "a process of bob that only root may look at"
    text = screen(REPORT.model_copy(update={"jobs": (), "hint": hint}))
    assert "    note      a process of bob that only root may look at\n" in text
    assert "\nss -tanp 'sport = :29500'\n" in text


def test_a_time_wait_can_be_waited_for() -> None:
    text = screen(REPORT.model_copy(update={"cause": "time-wait", "jobs": (), "sockets": (), "time_wait_s": 41.2}))
    assert "free in   41 s" in text
    assert "\nnccl-doctor fix-port 29500 --hosts 'my hosts.yaml' --wait\n" in text


def test_another_network_namespace_is_told_with_the_way_to_look_inside() -> None:
    report = PortReport(
        host="node1",
        here=True,
        port=29500,
        free=True,
        elsewhere=(Elsewhere(pid=77, command="python x.py", unit="docker container 3f"),),
    )
    assert "sudo nsenter -t 77 -n ss -tanp 'sport = :29500'" in screen(report)
    assert "sudo" not in screen(report.model_copy(update={"root": True}))


@pytest.mark.parametrize(
    ("report", "title"),
    [
        (PortReport(host="node2", here=False, port=None, pid=7, free=True), "pid 7 on node2 is not there"),
        (
            PortReport(host="node2", here=False, port=None, pid=7, free=True, ended=(7,)),
            "pid 7 on node2 has been ended",
        ),
        (PortReport(host="node2", here=False, port=None, pid=7, free=False, jobs=(JOB,)), "pid 7 on node2 is running"),
    ],
)
def test_a_process_has_a_title_of_its_own(report: PortReport, title: str) -> None:
    assert screen(report).splitlines()[0] == title


@given(st.text(max_size=300), st.text(max_size=60), st.text(max_size=120))
def test_hostile_names_neither_break_lines_nor_reach_the_terminal(command: str, user: str, folder: str) -> None:
    holder = HOLDER.model_copy(
        update={"command": command, "user": user, "cwd": folder, "parent": command, "orphan": False}
    )
    report = REPORT.model_copy(
        update={
            "jobs": (JOB.model_copy(update={"holders": (holder,), "orphan": False}),),
            "arguments": ("29500", "--hosts", folder),
        }
    )
    text = screen(report)
    assert [line for line in text.split("\n") if clean(line) != line] == []
    assert json.loads(render("fix-port", "json", report))["holders"][0]["command"] == command
    (line,) = [line for line in text.split("\n") if line.startswith("  pid ")]
    assert cell_len(line) <= 80 or cell_len(user) > 20


def test_the_question_names_the_processes() -> None:
    assert confirmation((JOB,)) == "End these 2 processes (48112 48113)? [y/N] "
