"""What may be ended, on real processes: every watcher, every sign of life, and the leftovers that have to go."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.probe import gpus, guard, jobs, procs, progress
from nccl_doctor.probe.ports.requests import look, send
from nccl_doctor.probe.procs import ProcessTable

RANK = {"LOCAL_RANK": "0", "RANK": "0", "MASTER_PORT": "29500"}
HEAD = "import os, socket, sys, time; print(os.getpid(), flush=True); "
IDLE = "time.sleep(600)"
REAPER = str(Path(__file__).parent / "reaper.py")
Start = Callable[..., int]


@pytest.fixture(autouse=True)
def _short_looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quiet is so in a shorter time too; signs of life are looked for as long as ever."""
    if "alive" not in request.node.name:
        monkeypatch.setattr(progress, "WINDOW_S", 0.4)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a Python program under something like systemd, as its orphan unless told otherwise; its PID."""
    pipe = subprocess.PIPE
    # in a session of its own, for the terminal on which the tests may run would be that of all leftovers
    with subprocess.Popen(
        [sys.executable, REAPER], stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as reaper:
        wishes, answers = reaper.stdin, reaper.stdout
        assert wishes is not None
        assert answers is not None

        def run(
            code: str = IDLE,
            *,
            argv: tuple[str, ...] = (),
            orphan: bool = True,
            env: dict[str, str] = RANK,
            head: str = HEAD,
        ) -> int:
            wish = {"argv": [*argv, sys.executable, "-c", head + code], "env": env, "orphan": orphan}
            wishes.write(json.dumps(wish) + "\n")
            wishes.flush()
            return int(answers.readline())

        yield run
        for pid in ProcessTable().descendants(reaper.pid):
            with contextlib.suppress(ProcessLookupError):  # with a server, what runs in it ends
                os.kill(pid, signal.SIGKILL)
        wishes.close()


def refusal(pid: int) -> guard.EndRefusal | None:
    """Of the job that a process belongs to, with no grace for the young."""
    table = ProcessTable()
    (found,) = guard.refusals([jobs.job_of(pid, table)], [pid], table, 0)
    return found


def kind(pid: int) -> str | None:
    found = refusal(pid)
    return found and found.kind


def test_a_rank_that_lost_its_launcher_and_does_nothing_is_a_leftover_and_ends(start: Start) -> None:
    pid = start()
    assert refusal(pid) is None
    proc = ProcessTable().procs[pid]
    seen = look({"port": None, "pid": pid, "started": proc.started, "grace_s": 0})
    assert [job["refusal"] for job in seen["jobs"]] == [None]
    other = {"processes": [[pid, proc.started - 1]], "signal": "KILL", "force": False}
    assert send(other) == {"alive": [], "sent": [], "denied": []}
    assert send({**other, "processes": [[pid, proc.started]]})["sent"] == [pid]


def test_a_pid_with_another_start_names_nobody(start: Start) -> None:
    pid = start()
    seen = look({"port": None, "pid": pid, "started": 1, "grace_s": 0})
    assert seen["jobs"] == []


def test_one_that_computes_is_alive(start: Start) -> None:
    found = refusal(start("any(False for _ in iter(int, 1))"))
    assert found is not None
    assert (found.kind, "CPU time" in found.reason) == ("alive", True)


def test_one_that_computes_now_and_then_is_alive(start: Start) -> None:
    code = "while True: begin = time.process_time(); any(time.process_time() > begin + 0.1 for _ in iter(int, 1)); time.sleep(1)"
    assert kind(start(f"exec({code!r})")) == "alive"


def test_one_that_reads_its_data_is_alive(start: Start) -> None:
    code = "f = os.open('/dev/zero', 0)\nwhile True: os.read(f, 1 << 16); time.sleep(0.05)"
    found = refusal(start(f"exec({code!r})"))
    assert found is not None
    assert (found.kind, "read or wrote" in found.reason) == ("alive", True)


TALK = """
peer = socket.create_connection(("127.0.0.1", {port}))
while True:
    peer.send(b"x")
    time.sleep(0.3)
"""


def test_one_that_talks_to_a_peer_is_alive_and_a_connection_in_silence_is_not(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TALKED_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        silent = start(f"peer = socket.create_connection(('127.0.0.1', {port})); {IDLE}")
        talking = start(f"exec({TALK.format(port=port)!r})", env={**RANK, "MASTER_PORT": "29511"})
        ends = [server.accept()[0] for _ in range(2)]
        assert refusal(silent) is None
        found = refusal(talking)
        assert found is not None
        assert (found.kind, f"127.0.0.1:{port}" in found.reason) == ("alive", True)
        monkeypatch.setattr(progress, "TALKED_S", 10.0)
        ends[0].send(b"x")
        while (found := refusal(silent)) is None:
            time.sleep(0.01)
        assert "sent it data 0 s ago" in found.reason
        for end in ends:
            end.close()


OWN_STORE = """
server = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
store = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
other, _ = server.accept()
store.send(b"x")
if os.fork() == 0:
    store.close()
other.recv(1)
time.sleep(600)
"""


def test_what_one_process_sent_to_its_own_socket_is_no_sign_of_progress(start: Start) -> None:
    pid = start(f"exec({OWN_STORE!r})")
    while not ProcessTable().descendants(pid):
        time.sleep(0.05)
    assert refusal(pid) is None


def test_a_gpu_at_work_is_progress_and_one_that_nobody_can_ask_is_no_proof(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start()
    uses = [{"pid": pid, "gpu": 0, "uuid": "GPU-a", "memory_mib": 5}]
    monkeypatch.setattr(gpus, "list_gpu_processes", lambda _deadline: uses)
    reasons = []
    for share in (97, None, 0):
        monkeypatch.setattr(gpus, "utilization", lambda _, share=share: {"GPU-a": share})
        found = refusal(pid)
        reasons.append(found and found.reason.partition("was at work for ")[2])
    assert reasons == ["97% of the last second", "an unknown part of the last second", None]


def test_what_is_no_rank_may_be_a_service(start: Start) -> None:
    found = refusal(start(env={}))
    assert found is not None
    assert (found.kind, "meant to run on its own" in found.reason) == ("watched", True)


@pytest.mark.parametrize("env", [RANK, {}])
def test_what_systemd_started_itself_is_watched(start: Start, env: dict[str, str]) -> None:
    """Without its unit's control group, only the variables tell that no launcher came between."""
    pid = start(orphan=False, env={}, argv=("env", *(f"{name}={value}" for name, value in env.items())))
    assert kind(pid) == (None if env else "watched")


def test_a_shell_and_what_else_lives_above_it_watch_over_it() -> None:
    for above, words in (
        (["sh", "-c", '"$@"; true', "sh"], "a shell waits for it"),
        (["timeout", "600"], "its parent lives: timeout"),
    ):
        argv = [*above, sys.executable, "-c", HEAD + IDLE]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={**os.environ, **RANK}) as parent:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            found = refusal(pid)
            os.kill(pid, signal.SIGKILL)
        assert found is not None
        assert (found.kind, words in found.reason) == ("watched", True)


def test_a_launcher_that_lives_watches_over_its_ranks_though_it_is_an_orphan(start: Start, tmp_path: Path) -> None:
    launcher = tmp_path / "torchrun"
    launcher.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {HEAD + IDLE!r}])\n")
    pid = start(argv=(sys.executable, str(launcher)))
    found = refusal(pid)
    assert found is not None
    assert (found.kind, found.reason[:47]) == ("watched", "a running job of yours holds it (torchrun, pid ")
    os.kill(ProcessTable().procs[pid].ppid, signal.SIGKILL)
    while refusal(pid) is not None:
        time.sleep(0.05)


def test_tmux_watches_over_what_runs_in_it(tmp_path: Path) -> None:
    server = ["tmux", "-S", str(tmp_path / "socket")]
    command = ["env", *(f"{name}={value}" for name, value in RANK.items()), sys.executable, "-c", HEAD + IDLE]
    try:
        subprocess.run([*server, "new-session", "-d", *command], check=True, env={**os.environ, "TERM": "xterm"})
        shown = subprocess.run(
            [*server, "list-panes", "-a", "-F", "#{pane_pid}"], check=True, capture_output=True, text=True
        )
        pid = int(shown.stdout)
        while not ProcessTable().executable(pid).startswith("python"):  # between fork and the second exec
            time.sleep(0.01)
        found = refusal(pid)
    finally:
        subprocess.run([*server, "kill-server"], check=True)
    assert found is not None
    assert (found.kind, found.reason[:16]) == ("watched", "it runs in tmux ")


OTHER_RANK = {**RANK, "LOCAL_RANK": "1"}
SHELL = "import subprocess; subprocess.Popen(['sh', '-c', 'echo $PPID; read line'], stdin=subprocess.PIPE).wait()"
READY = "print(os.getpid(), flush=True); time.sleep(600)"
SITTING = {
    "a server by its name, with an idle shell": (
        f"import ctypes; ctypes.CDLL(None).prctl(15, b'tmux: server', 0, 0, 0); {SHELL}",
        "is tmux, in which people work",
    ),
    "an idle shell": (SHELL, "is a shell (sh), in which"),
    "a terminal": (
        f"import pty; pid, end = pty.fork(); pid or os.write(1, b'x'); pid and os.read(end, 1); pid or time.sleep(600); {READY}",
        "has a terminal, at which",
    ),
    "a terminal's other end": (f"ends = os.openpty(); {READY}", "serves a terminal, at which"),
}
"""Programs that write their PID once they are so, and what is then said of them."""


@pytest.mark.parametrize("name", SITTING)
def test_one_that_is_sat_in_keeps_all_of_its_run(name: str, start: Start) -> None:
    code, words = SITTING[name]
    rank, other = start(), start(code, env=OTHER_RANK, head="import os, time; ")
    assert {rank, other} <= set(jobs.job_of(rank, ProcessTable()).pids)
    for pid in (rank, other):
        found = refusal(pid)
        assert found is not None
        assert (found.kind, words in found.reason) == ("watched", True), found.reason


def clients(server: int) -> set[int]:
    """The processes with the tmux server's title, but it."""
    table = ProcessTable()
    return {pid for pid in table.procs if pid != server and table.argv(pid)[:2] == table.argv(server)[:2]}


def test_a_real_tmux_with_an_idle_shell_keeps_all_of_its_run(start: Start, tmp_path: Path) -> None:
    """It has the run's variables, and is titled as a rank."""
    tmux = ["tmux", "-S", str(tmp_path / "socket")]
    rank = start()
    titled = ["python", *tmux[1:], "new-session", "-d", "-x", "80", "-y", "24", "sh"]
    start(f"os.environ['TERM'] = 'xterm'; os.execvp('tmux', {titled!r})", env=OTHER_RANK)
    ask = [*tmux, "display-message", "-p", "#{pid}"]
    try:
        while not (told := subprocess.run(ask, check=False, capture_output=True, text=True).stdout).strip().isdigit():
            time.sleep(0.01)
        server = int(told)
        assert ProcessTable().argv(server)[0] == "python"
        until = time.monotonic() + 10
        while time.monotonic() < until and set(jobs.job_of(rank, ProcessTable()).pids) & clients(server):
            time.sleep(0.01)  # the client that started the server may not have exited yet
        found = refusal(rank)
        assert found == (f"pid {server} is tmux, in which people work", "watched")
        members = jobs.job_of(rank, ProcessTable()).pids
        assert server in members
        named = [[pid, ProcessTable().procs[pid].started] for pid in members]
        answer = send({"processes": named, "signal": "TERM", "force": False})
        assert (answer["sent"], [pid for pid, _ in answer["denied"]][:1]) == ([], [server])
        assert {pid for pid, _ in answer["alive"]} == set(members)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)


def test_a_process_that_has_ended_is_in_no_other_mount_namespace() -> None:
    """Its link to one is gone, as is known of a zombie alone."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert procs.apart(ended.pid, ProcessTable()) is None


WAITS = """
import subprocess
while not os.path.exists({file!r}): time.sleep(0.01)
subprocess.Popen(["sh", "-c", "read line"], stdin=subprocess.PIPE).wait()
"""


def test_a_shell_that_came_after_the_look_keeps_all_from_the_signal(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "go"
    pid = start(f"exec({WAITS.format(file=str(file))!r})")
    assert kind(pid) != "watched"
    named = [[pid, ProcessTable().procs[pid].started]]
    file.touch()
    while not (below := ProcessTable().descendants(pid)):
        assert ProcessTable().procs[pid].state != "Z"
        time.sleep(0.01)
    while ProcessTable().executable(below[0]).startswith("python"):  # between fork and exec
        time.sleep(0.01)
    for number in ("TERM", "KILL"):
        answer = send({"processes": named, "signal": number, "force": False})
        assert (answer["sent"], [one for one, _ in answer["denied"]]) == ([], below)
    forced = send({"processes": named, "signal": "KILL", "force": True})
    assert (forced["denied"], forced["sent"][0]) == ([], pid)  # the shell may go by itself then


def test_what_a_process_says_of_itself_is_read_as_far_as_it_is_believed(tmp_path: Path) -> None:
    """64 MiB of variables, as any user may have, are neither kept nor taken for a part of what they are."""
    pretender, notes = str(Path(__file__).parent / "pretender.py"), str(tmp_path / "notes")
    words = [["train.py", "--local_rank=0"], [f"{name}={value}" for name, value in RANK.items()]]
    read = []
    for length in (0, 64 << 20):
        argv = [sys.executable, pretender, notes, *map(json.dumps, words), str(length)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            table = ProcessTable()
            read.append((table.argv(process.pid), table.environ(process.pid), len(table.text(process.pid, "environ"))))
            process.kill()
    assert read[0] == (tuple(words[0]), RANK, sum(len(word) + 1 for word in words[1]))
    assert read[1][1] == {}
    assert read[1][2] <= procs.TEXT_LIMIT


@pytest.mark.lab
def test_a_debugger_watches(start: Start) -> None:
    pid = start()
    with subprocess.Popen(["strace", "-qq", "-p", str(pid)], stderr=subprocess.DEVNULL) as strace:
        while ProcessTable().status(pid, "TracerPid") == "0":
            time.sleep(0.01)
        found = refusal(pid)
        strace.terminate()
    assert found == (f"pid {strace.pid} is looking into it with a debugger", "watched")


@pytest.fixture
def into_group() -> Iterator[Callable[[int, str], None]]:
    """Puts a process into a control group of that path, where one may be made."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [words[1] for words in mounts if words[2] == "cgroup2" or (words[2] == "cgroup" and "systemd" in words[3])]
    made: list[Path] = []

    def move(pid: int, path: str) -> None:
        folder = Path(roots[0], f"nccl-doctor-test-{os.getpid()}", path)
        made.extend([folder, *folder.parents][: path.count("/") + 2])
        folder.mkdir(parents=True)
        (folder / "cgroup.procs").write_text(str(pid))

    yield move
    for folder in made:
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        while (folder / "cgroup.procs").read_text().split():
            time.sleep(0.01)
        folder.rmdir()


GROUPS = [
    ("system.slice/train.service", "watched", "systemd runs it as train.service"),
    ("system.slice/slurmstepd.scope/job_77/step_0", "foreign", "belongs to Slurm job 77"),
    ("docker/3f2a40b1c9d2e0aa", "foreign", "is in docker container 3f2a40b1c9d2"),
    ("user.slice/user-1234.slice/session-3.scope", "foreign", "was started in the login of uid 1234"),
    ("system.slice/ssh.service", None, ""),
    ("system.slice/train.service/workers/7", "watched", "systemd runs it as train.service"),
    ("user.slice/user-0.slice/user@0.service/app.slice/notes.service", "watched", "systemd runs it as notes.service"),
    ("user.slice/user-0.slice/user@0.service/init.scope", None, ""),
]


@pytest.mark.lab
@pytest.mark.parametrize(("path", "expected", "words"), GROUPS)
def test_a_control_group_tells_who_has_it(
    path: str, expected: str | None, words: str, start: Start, into_group: Callable[[int, str], None]
) -> None:
    pid = start()
    into_group(pid, path)
    found = refusal(pid)
    assert (found and found.kind) == expected
    assert found is None or words in found.reason


@pytest.mark.lab
@pytest.mark.parametrize(("flags", "words"), [("-pf", "another PID namespace"), ("-m", "another mount namespace")])
def test_a_process_of_another_container_is_not_ones_own(flags: str, words: str, start: Start) -> None:
    code = f"{IDLE}  # {os.getpid()} {flags}"  # these tests may run side by side, each with a table of all
    start(code, argv=("unshare", flags, "env"))
    table = ProcessTable()
    (pid,) = [one for one in table.procs if code in table.command(one) and table.executable(one).startswith("python")]
    found = refusal(pid)
    assert found is not None
    assert (found.kind, words in found.reason) == ("foreign", True)
    assert not guard.is_own(pid, table)


def test_a_slurm_job_counts_while_a_step_daemon_serves_it(start: Start) -> None:
    pid = start(env={**RANK, "SLURM_JOB_ID": "78"})
    assert kind(pid) is None
    with subprocess.Popen(["slurmstepd: [78.0]", "600"], executable="/bin/sleep") as step:
        found = refusal(pid)
        step.kill()
    assert found is not None
    assert (found.kind, "belongs to Slurm job 78" in found.reason) == ("foreign", True)


@pytest.mark.lab
def test_what_somebody_elses_login_started_is_not_ones_own(start: Start) -> None:
    """pam_loginuid writes it, sudo leaves it."""
    pid = start(argv=("sh", "-c", 'echo 1234 > /proc/self/loginuid; exec "$@"', "sh"))
    found = refusal(pid)
    assert found == (f"pid {pid} was started in the login of uid 1234", "foreign")


def test_of_several_jobs_those_that_are_alive_are_told_apart(start: Start) -> None:
    told: list[Any] = progress.watch([[start()], [start("any(False for _ in iter(int, 1))")], [4_000_000]])
    assert [one is None for one in told] == [True, False, True]
