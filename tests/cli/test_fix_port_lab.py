"""``nccl-doctor fix-port`` on real processes and real torch."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.doctor import doctor
from tests.cli.holders import (
    DOCTOR,
    HEAD,
    TORCHRUN,
    Answer,
    alive,
    fix_port,
    hold,
    new_port,
    torch_binds,
    wait_for_age,
    wait_for_rest,
)
from tests.cli.program import run_in, start_in
from tests.lab.cluster import Lab, MakeLab
from tests.lab.host import LabHost
from tests.lab.warm import interpreter
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

AT_ONCE = ("--kill", "--yes", "--force")
"""The holders of these tests are younger than any grace period."""
UNFORCED = ("--kill", "--yes", "--grace", "1")
"""Older than that they are when they have started."""
LEFTOVER = ("--kill", "--yes", "--grace", "0")
"""However young it is."""


@pytest.fixture(scope="module")
def node() -> Iterator[LabHost]:
    with Lab.up(1) as lab:
        yield lab.hosts[0]


CAUSES = [
    ("listener", "keep = listen()"),
    ("listener", "keep = listen(socket.AF_INET6, '::')"),
    ("listener", "keep = listen(address='127.0.0.2')"),
    ("bound", "keep = socket.socket(); keep.bind(('0.0.0.0', PORT))"),
    (
        "outbound",
        """
        service = socket.create_server(("127.0.0.1", 0))
        keep = socket.create_connection(service.getsockname(), source_address=("127.0.0.1", PORT))
        other, _ = service.accept()
        """,
    ),
]


@pytest.mark.parametrize(("cause", "body"), CAUSES)
def test_each_cause_is_told_and_its_holder_ended(node: LabHost, cause: str, body: str) -> None:
    port = new_port()
    pid = hold(node, body, port)
    seen = fix_port(node, port)
    assert (seen.code, seen.document["cause"]) == (1, cause)
    assert [holder["pid"] for holder in seen.document["holders"]] == [pid]
    ended = fix_port(node, port, *AT_ONCE)
    assert (ended.code, ended.document["free"], ended.document["ended"]) == (0, True, [pid])
    assert alive(node, {pid}) == set()


def test_a_holder_on_ipv6_alone_does_not_keep_torch_from_the_port(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, "keep = listen(socket.AF_INET6, '::', v6only=1)", port)
    answer = fix_port(node, port, *AT_ONCE)
    assert (answer.code, answer.document["free"], answer.document["ended"]) == (0, True, [])
    assert alive(node, {pid}) == {pid}


def test_wait_waits_for_a_time_wait(node: LabHost) -> None:
    port = new_port()
    body = """
    server = listen(reuse=0)
    client = socket.create_connection(("127.0.0.1", PORT))
    accepted, _ = server.accept()
    accepted.close(); client.close(); server.close()
    """
    pid = hold(node, body, port)
    node.run(["kill", "-9", str(pid)])
    seen = fix_port(node, port)
    assert (seen.code, seen.document["cause"], seen.document["holders"]) == (1, "time-wait", [])
    assert 0 < seen.document["time_wait_s"] <= 60
    with start_in(node, "fix-port", str(port), "--wait") as waiting:
        assert "TIME_WAIT, free in" in waiting.stderr.readline()
        node.run(["ss", "-K", "state", "time-wait", "sport", "=", f":{port}"])
        assert waiting.wait() == 0


def test_a_real_store_is_ended_and_torch_gets_the_port(node: LabHost) -> None:
    port = new_port()
    body = """
    import torch.distributed as d
    keep = d.TCPStore("127.0.0.1", PORT, is_master=True, wait_for_workers=False)
    """
    hold(node, body, port, python=interpreter())
    (pid,) = (pid for pid, line in node.processes() if f" {port}" in line)
    answer = fix_port(node, port, *AT_ONCE)
    assert (answer.code, answer.document["ended"]) == (0, [pid])
    assert torch_binds(node, port)


RANK = """
import os, sys, time, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "0":
    keep = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
open(f"/tmp/rank{os.environ['RANK']}.ready", "w").close()
time.sleep(86400)
"""


def age(node: LabHost, pid: int) -> int:
    """Whole seconds since a process was started."""
    return int(node.run(["ps", "-o", "etimes=", "-p", str(pid)]).stdout)


def kill_launcher(node: LabHost, agent: int, ranks: set[int]) -> None:
    """Kills torchrun, and waits until its ranks have the host's init as their parent."""
    node.run(["kill", "-9", str(agent)])
    parents = "sed -n 's/^PPid:[[:space:]]*//p' " + " ".join(f"/proc/{pid}/status" for pid in ranks)
    node.wait_until(lambda: set(node.run(parents).stdout.split()) == {"1"}, "the ranks' new parent")


def test_orphans_of_a_killed_torchrun_are_one_job(node: LabHost) -> None:
    port = new_port()
    node.write("/root/train.py", RANK)
    words = ["--nproc_per_node", "2", "--master_port", str(new_port()), "/root/train.py", str(port)]
    node.background([interpreter(), TORCHRUN, *words])
    ready = ["test", "-e", "/tmp/rank0.ready", "-a", "-e", "/tmp/rank1.ready"]
    node.wait_until(lambda: node.run(ready, check=False).returncode == 0, "the ranks' start")
    whole = fix_port(node, port)
    ranks = {pid for pid, line in node.processes() if "/root/train.py" in line and "torchrun" not in line}
    (agent,) = (pid for pid, line in node.processes() if TORCHRUN in line)
    assert len(ranks) == 2
    assert whole.pids == {agent, *ranks}
    assert [holder["orphan"] for holder in whole.document["holders"]] == [False]
    node.wait_until(lambda: all(age(node, pid) > 1 for pid in ranks), "ranks that don't just start")
    refused = fix_port(node, port, *UNFORCED)
    assert (refused.code, refused.document["ended"], alive(node, ranks)) == (1, [], ranks)
    assert "torchrun" in refused.document["holders"][0]["refusal"]
    kill_launcher(node, agent, ranks)
    left = fix_port(node, port)
    (holder,) = left.document["holders"]
    assert (holder["orphan"], set(holder["tree"]), holder["ppid"]) == (True, ranks, 1)
    answers: list[Answer] = []
    wait_for_rest(node, "/tmp/rank0.ready", "/tmp/rank1.ready")

    def ended() -> bool:  # not before ten seconds after they met: what spoke since is alive
        answers.append(fix_port(node, port, *UNFORCED))
        assert answers[-1].code == 0 or "sent it data" in answers[-1].stderr, answers[-1].stderr
        return answers[-1].code == 0

    node.wait_until(ended, "the end of the orphans")
    assert set(answers[-1].document["ended"]) == ranks
    assert alive(node, ranks) == set()
    assert torch_binds(node, port)


STEPS = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "0":
    keep = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=True, wait_for_workers=False)
step = 0
while True:
    dist.all_reduce(torch.ones(1000))
    step += 1
    mine = f"/tmp/step{os.environ['RANK']}"
    with open(mine + ".new", "w") as file:
        file.write(str(step))
    os.replace(mine + ".new", mine)
    time.sleep(0.05)
"""


def test_a_training_on_a_terminal_whose_steps_go_on_is_refused(node: LabHost) -> None:
    port = new_port()
    node.write("/root/steps.py", STEPS)
    words = [TORCHRUN, "--nproc_per_node", "2", "--master_port", str(new_port()), "/root/steps.py", str(port)]
    tmux = ["tmux", "-S", "/tmp/tmux.socket"]
    node.run([*tmux, "new-session", "-d", *words], env={"TERM": "xterm", "OMP_NUM_THREADS": "1"})

    def step() -> int:
        return int(node.run("cat /tmp/step1 2>/dev/null || echo 0").stdout)

    try:
        node.wait_until(lambda: step() > 3, "the first steps")
        refused = fix_port(node, port, *UNFORCED)
        (holder,) = refused.document["holders"]
        assert (refused.code, refused.document["ended"]) == (1, [])
        assert "torchrun" in holder["refusal"]
        before = step()
        node.wait_until(lambda: step() > before + 3, "further steps")
        # without the launcher the steps alone tell
        agent = next(pid for pid, line in node.processes() if "torchrun" in line and "tmux" not in line)
        kill_launcher(
            node, agent, {pid for pid, line in node.processes() if "/root/steps.py" in line and "torchrun" not in line}
        )
        left = fix_port(node, port, *UNFORCED)
        assert (left.code, left.document["ended"]) == (1, []), left.stderr
        assert "it makes progress" in left.document["holders"][0]["refusal"]
    finally:
        ranks = [str(pid) for pid, line in node.processes() if "/root/steps.py" in line]
        node.run(["kill", "-9", *ranks], check=False)
        node.run([*tmux, "kill-server"], check=False)


RUN = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
"""The variables of a rank; another of its run has another LOCAL_RANK."""


def said(variables: dict[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in variables.items()]


def test_a_tmux_that_people_work_in_stays_with_a_leftover_of_the_same_variables(node: LabHost) -> None:
    port = new_port()
    tmux = ["tmux", "-S", "/tmp/people.socket"]
    pid = hold(node, "keep = listen()", port, env=RUN)
    node.run([*tmux, "new-session", "-d", "sh"], env={**RUN, "LOCAL_RANK": "1", "TERM": "xterm"})
    try:
        server, pane = (
            int(node.run([*tmux, "display-message", "-p", f"#{{{what}}}"]).stdout) for what in ("pid", "pane_pid")
        )
        refused = fix_port(node, port, *LEFTOVER)
        unharmed(node, refused, {pid, server, pane})
        assert refused.pids == {pid, server, pane}
        assert f"pid {server} is tmux, in which people work" in refused.stderr
    finally:
        node.run([*tmux, "kill-server"])
    assert fix_port(node, port, *LEFTOVER).document["ended"] == [pid]


EVIL = "/tmp/evil"
"""Programs of every name that one might look for, each of which leaves a file."""
NAMES = (
    *("python3", "python", "nvidia-smi", "py-spy", "gdb", "ss", "ps", "lsof", "fuser", "sudo", "sh", "bash", "env"),
    *("timeout", "nsenter", "kill", "pgrep", "docker", "systemctl", "loginctl", "tmux", "nvidia-smi.exe", "train.py"),
)
PRETENDER = str(Path(__file__).parents[1] / "probe" / "pretender.py")


def pretender(node: LabHost, number: int, *before: str, user: str | None = None, length: int = 0) -> set[int]:
    """An orphan that says it is a rank of the run, out of a folder of such programs; its PIDs once it says so.

    Args:
        node: where.
        number: of the rank.
        before: words before its own, such as unshare's.
        user: root where there is none.
        length: of its variables.
    """
    known = {pid for pid, line in node.processes() if line.startswith(EVIL)}
    words = [f"{EVIL}/python3", "-u", "train.py", f"--local_rank={number}", f"of={user}"]
    variables = said({**RUN, "LOCAL_RANK": str(number), "PATH": EVIL, "LD_PRELOAD": f"{EVIL}/sh", "HOME": EVIL})
    told = [sys.executable, PRETENDER, f"{EVIL}/signalled", json.dumps(words), json.dumps(variables), str(length)]
    node.background([*before, "/usr/bin/env", "-C", EVIL, *said(RUN), *told], user=user)
    found: set[int] = set()

    def ready() -> bool:
        found.update({pid for pid, line in node.processes() if line.startswith(EVIL)} - known)
        return bool(found)

    node.wait_until(ready, "the pretender's start")
    return found


def test_who_pretends_to_be_of_the_run_is_neither_believed_nor_signalled_nor_executed(node: LabHost) -> None:
    """An unprivileged user, and root of a container with mounts and PIDs of its own, beside a real leftover of root."""
    node.run(f"mkdir -p {EVIL} && chmod 1777 {EVIL} && touch {EVIL}/signalled && chmod 666 {EVIL}/signalled")
    for name in NAMES:
        node.write(f"{EVIL}/{name}", f"#!/bin/sh\n: >{EVIL}/canary-$$\n", 0o755)
    # in its own mounts, these stand where the system's own programs do
    mounts = f'mount --bind {EVIL} /usr/local/bin && mount --bind {EVIL} /usr/local/sbin && exec "$@"'
    contained = ("unshare", "-mpf", "--mount-proc", "sh", "-c", mounts, "sh")
    first, second = new_port(), new_port()
    leftovers = [hold(node, "keep = listen()", port, env=RUN) for port in (first, second)]
    others = pretender(node, 1, user="alice") | pretender(node, 2, user="alice", length=64 << 20)
    others |= pretender(node, 3, *contained) | pretender(node, 4, *contained, length=64 << 20)
    # without the program that made them, the containers are orphans as the leftover is
    makers = [pid for pid, line in node.processes() if line.startswith("unshare -mpf")]
    node.run(["kill", "-9", *map(str, makers)])
    assert len(others) == 4
    for port, pid, how in zip((first, second), leftovers, (LEFTOVER, AT_ONCE), strict=True):
        answer = fix_port(node, port, *how)
        assert (answer.code, answer.document["ended"]) == (0, [pid]), answer.stderr
    assert alive(node, others) == others
    assert node.run(["ls", EVIL]).stdout.split() == sorted([*NAMES, "signalled"])
    assert node.read(f"{EVIL}/signalled") == ""


def test_a_holder_that_ignores_sigterm_is_killed_after_the_grace_period(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, "signal.signal(signal.SIGTERM, signal.SIG_IGN); keep = listen()", port)
    done = run_in(node, "fix-port", str(port), *AT_ONCE, "--grace", "1")
    assert done.returncode == 0
    assert f"SIGTERM sent; SIGKILL to pid {pid}" in done.stderr
    assert alive(node, {pid}) == set()


def test_twenty_children_that_ignore_sigterm_end_with_their_parent(node: LabHost) -> None:
    port = new_port()
    body = """
    keep = listen()
    for _ in range(20):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(86400)
    time.sleep(0.2)
    """
    pid = hold(node, body, port)
    before = {one for one, line in node.processes() if f" {port}" in line and "time.sleep" in line}
    assert len(before) == 21
    answer = fix_port(node, port, *AT_ONCE, "--grace", "0.5")
    assert (answer.code, set(answer.document["ended"])) == (0, before)
    assert pid in before
    assert alive(node, before) == set()


def unharmed(node: LabHost, answer: Answer, pids: set[int]) -> None:
    assert (answer.code, answer.document["free"], answer.document["ended"]) == (1, False, [])
    assert "nothing was ended" in answer.stderr
    assert alive(node, pids) == pids


NOTES = (
    "for number in (1, 2, 3, 15): signal.signal(number, lambda got, _: open('/tmp/signalled', 'a').write(f'{got} '))\n"
)


def test_a_process_of_another_user_goes_by_force_of_root_alone(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, f"{NOTES}keep = listen()", port)
    hidden = fix_port(node, port, *AT_ONCE, user="alice")
    unharmed(node, hidden, {pid})
    assert hidden.document["cause"] == "listener"
    assert "root" in hidden.document["hint"]
    assert node.run(["test", "-e", "/tmp/signalled"], check=False).returncode == 1
    other = new_port()
    hers = hold(node, "keep = listen()", other, user="alice")
    refused = fix_port(node, other, "--kill", "--yes", "--grace", "0")
    unharmed(node, refused, {hers})
    assert f"pid {hers} belongs to the user alice, and you are root" in refused.stderr
    assert fix_port(node, other, *AT_ONCE).code == 0


def test_a_web_server_and_what_is_no_python_are_refused(node: LabHost) -> None:
    web = new_port()
    server = node.background([sys.executable, "-m", "http.server", str(web)])
    node.wait_until(lambda: web in {port for _, port in node.listeners()}, "the web server's start")
    refused = fix_port(node, web, "--kill", "--yes", "--grace", "0")
    unharmed(node, refused, {server})
    assert "is a web server (http.server)" in refused.stderr
    port = new_port()
    body = "keep = listen(); os.set_inheritable(keep.fileno(), True); open(f'/tmp/{PORT}.ready', 'w')\nos.execv('/bin/sleep', ['sleep', '600'])"
    pid = hold(node, body, port)
    unharmed(node, fix_port(node, port, "--kill", "--yes", "--grace", "0"), {pid})
    assert fix_port(node, port, *AT_ONCE).code == 0


def test_what_was_just_started_is_refused_and_named(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, "keep = listen()", port)
    refused = fix_port(node, port, "--kill", "--yes")
    unharmed(node, refused, {pid})
    assert "younger than 10 s" in refused.stderr
    assert refused.document["holders"][0]["refusal"] in refused.stderr


def test_nothing_lifts_the_refusal_of_sshd_of_pid_1_and_of_ourselves(node: LabHost) -> None:
    sshd = {pid for pid, line in node.processes() if line.startswith("sshd")}
    unharmed(node, fix_port(node, 22, *AT_ONCE), sshd)
    init = run_in(node, "fix-port", "--pid", "1", *AT_ONCE)
    assert (init.returncode, "pid 1 is the system's own" in init.stdout) == (1, True)
    code = (
        f"{HEAD}keep = listen()\nsys.exit(subprocess.run({[DOCTOR, 'fix-port', *AT_ONCE]!r} + [str(PORT)]).returncode)"
    )
    ours = node.run([sys.executable, "-c", code, str(new_port())], check=False)
    assert (ours.returncode, "nccl-doctor itself runs under pid" in ours.stdout) == (1, True)


def test_without_a_terminal_it_never_asks(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, "keep = listen()", port)
    done = node.run([DOCTOR, "fix-port", str(port), "--kill", "--force"], check=False, input="y\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "use --yes in scripts" in done.stderr
    assert alive(node, {pid}) == {pid}


@pytest.mark.parametrize(("answer", "gone"), [("n\n", False), ("y\n", True)])
def test_on_a_terminal_it_asks_first(node: LabHost, answer: str, gone: bool) -> None:
    port = new_port()
    pid = hold(node, "keep = listen()", port)
    ours, theirs = os.openpty()
    try:
        with start_in(node, "fix-port", str(port), "--kill", "--force", stdin=theirs) as process:
            os.write(ours, answer.encode())
            out, err = process.communicate()
            code = process.wait()
    finally:
        os.close(ours)
        os.close(theirs)
    assert f"End this process ({pid})? [y/N]" in err
    assert alive(node, {pid}) == (set() if gone else {pid})
    assert (code, "it was not confirmed" in out) == ((0, False) if gone else (1, True))


CHURN = """
import os, signal, time
log = os.open("/tmp/churn", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
signal.signal(signal.SIGTERM, lambda number, _: os.write(log, f"{os.getpid()} got {number}\\n".encode()))
started = running = 0
while running or started < 1000 or not os.path.exists("/tmp/stop"):
    if started < 1000 or not os.path.exists("/tmp/stop"):
        started, running = started + 1, running + 1
        if os.fork() == 0:
            time.sleep(0.002 * (started % 4))
            os._exit(0)
    while running and (ended := os.waitpid(-1, 0 if running > 20 else os.WNOHANG))[0]:
        running -= 1
        if ended[1]:
            os.write(log, f"{ended[0]} ended with {ended[1]}\\n".encode())
os.write(log, b"done\\n")
"""


def test_a_thousand_short_lived_processes_get_no_signal(make_lab: MakeLab) -> None:
    """PIDs run out at 400 here, so that each is used again several times while the job's processes end."""
    node = make_lab(1).hosts[0]
    node.run("echo 400 > /proc/sys/kernel/pid_max")
    port = new_port()
    body = """
    keep = listen()
    for number in range(20):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.02 * number), os._exit(0)))
            time.sleep(86400)
    time.sleep(0.2)
    """
    hold(node, body, port)
    with node.popen([sys.executable, "-c", CHURN]) as churn:
        answer = fix_port(node, port, *AT_ONCE, "--grace", "2")
        assert (answer.code, len(answer.document["ended"])) == (0, 21)
        assert churn.poll() is None, "the churn ended first, so this test shows nothing"
        node.write("/tmp/stop", "")
        assert churn.wait(LONG_S) == 0
    assert node.read("/tmp/churn") == "done\n"


HOSTS = """\
# our five
master_addr: node1   # by name
master_port: 29500   # torch's own
hosts:
  - node[1-5]
"""


def test_next_is_free_on_all_hosts_and_write_changes_that_value_alone(make_lab: MakeLab) -> None:
    lab = make_lab(5)
    ctl = lab.controller
    for number, host in enumerate(lab.hosts[:3]):
        hold(host, "keep = listen()", 29501 + number)
    lab.host("node4").run("echo 29504 > /proc/sys/net/ipv4/ip_local_reserved_ports")
    lab.host("node5").run("echo 29505 60999 > /proc/sys/net/ipv4/ip_local_port_range")
    ctl.write("/root/hosts.yaml", f"python: {sys.executable}\n{HOSTS}")
    before = ctl.read("/root/hosts.yaml")
    # all that is left behind 29504 is ephemeral on node5 up to 60999
    done = run_in(ctl, "fix-port", "--hosts", "hosts.yaml", "--next", "--write")
    port = int(done.stdout)
    assert (done.returncode, port >= 61000) == (0, True)
    assert ctl.read("/root/hosts.yaml") == before.replace("29500", str(port))
    document = json.loads(run_in(ctl, "fix-port", "--hosts", "hosts.yaml", "--next", "-o", "json").stdout)
    assert document["free"]
    assert document["instead_of"] == port
    assert document["suggestion"]["port"] == document["port"] != port
    away = run_in(ctl, "fix-port", "--host", "nowhere")
    assert (away.returncode, "nowhere: ssh-unreachable" in away.stderr) == (3, True)
    held = run_in(ctl, "fix-port", "29501", "--hosts", "hosts.yaml")
    assert held.returncode == 1
    assert "free on all 5 hosts" in held.stdout
    on_node2 = ("fix-port", "29502", "--hosts", "hosts.yaml", "--host", "node2")
    other = run_in(ctl, *on_node2)
    assert "\ninit_method=tcp://node1:" in other.stdout
    ended = run_in(ctl, *on_node2, *AT_ONCE, "-o", "json")
    assert ended.returncode == 0
    pid = json.loads(ended.stdout)["ended"]
    assert alive(lab.host("node2"), set(pid)) == set()
    assert len(pid) == 1


def test_next_finds_what_a_firewall_lets_in(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    for let_in, least in (("32768-60999", 32768), ("4000-4003", 4000)):
        chain = f"type filter hook input priority 0; tcp dport {{ 22, {let_in} }} accept; ct state new drop"
        lab.host("node1").run(["nft", f"flush ruleset; table inet f {{ chain i {{ {chain}; }}; }}"])
        done = run_in(lab.controller, "fix-port", "--hosts", "hosts.yaml", "--next")
        assert (done.returncode, int(done.stdout)) == (0, least)
        reserved = f"\nsysctl -w net.ipv4.ip_local_reserved_ports={least}\n" in done.stderr
        assert reserved is (least == 32768)
    screen = run_in(lab.controller, "fix-port", "--hosts", "hosts.yaml", "22").stdout
    assert "Or start on port 4000" in screen


def test_a_leftover_goes_by_the_command_that_check_prints_and_a_live_one_has_none(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    ctl = lab.controller
    node = lab.host("node2")
    variables = {"LOCAL_RANK": "0", "MASTER_PORT": "29511"}
    words = ["env", *(f"{name}={value}" for name, value in variables.items()), sys.executable, "-c"]
    # an eighth of a core: what makes progress need not take all
    works = "import time\nwhile True: sum(range(100000)); time.sleep(0.02)"
    busy = node.background([*words, works, "--local_rank=0"])
    pid = node.background([sys.executable, "-c", "import time; time.sleep(86400)", "--local_rank=0"])
    look = ("check", "--no-smoke", "--only", "processes")
    found: list[dict[str, Any]] = []
    wait_for_age(node, {pid})

    def offered() -> bool:
        found[:] = doctor(lab, *look).report["diagnoses"]
        assert [(one["name"], one["severity"], one["hosts"]) for one in found] == [
            ("stale-process", "warning", ["node2"])
        ]
        return bool(found[0]["fix"]["commands"])

    node.wait_until(offered, "a command to end the leftover")
    assert found[0]["facts"]["pids"] == [pid]
    (command,) = found[0]["fix"]["commands"]
    assert f"--pid {pid}@" in command["command"]
    another = command["command"].replace("@", "@1")
    assert ctl.run(another, check=False).returncode == 0, "no such process is nothing to end"
    assert alive(node, {pid, busy}) == {pid, busy}
    assert ctl.run(command["command"]).returncode == 0
    assert alive(node, {pid, busy}) == {busy}
    assert doctor(lab, *look).names == []
    refused = run_in(ctl, "fix-port", "--host", "node2", "--pid", str(busy), "--kill", "--yes")
    assert (refused.returncode, "it makes progress" in refused.stdout) == (1, True)
    assert alive(node, {busy}) == {busy}


def test_ctrl_c_while_it_waits_ends_with_130(node: LabHost) -> None:
    port = new_port()
    pid = hold(node, "signal.signal(signal.SIGTERM, signal.SIG_IGN); keep = listen()", port)
    with start_in(node, "fix-port", str(port), *AT_ONCE, "--grace", "30") as process:
        assert "SIGTERM sent" in process.stderr.readline()
        process.signal(signal.SIGINT)
        assert process.wait() == 130
    assert alive(node, {pid}) == {pid}
    assert fix_port(node, port, *AT_ONCE, "--grace", "0").code == 0
