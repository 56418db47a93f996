"""``check --join`` in the lab: the same line on every node, and no SSH."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nccl_doctor.model.ports import GRACE_S
from tests.cli.doctor import doctor, files, ours
from tests.cli.joining import PROGRAM, TOKEN, join, start, wait_for
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults import all_faults, fault
from tests.lab.host import LabHost
from tests.lab.requirements import find_tool
from tests.lab.slurm import Slurm
from tests.lab.warm import interpreter
from tests.patience import LONG_S, crowd

pytestmark = pytest.mark.lab

PORT = 29499
NO_SMOKE = "--no-smoke"


def without_sshd(lab: Lab) -> Lab:
    for host in lab.hosts:
        fault("sshd-dead")(lab, host)
    return lab


def left(host: LabHost) -> list[tuple[int, str]]:
    """What of nccl-doctor still runs on a host after a while."""
    until = time.monotonic() + 12 * crowd()
    while (found := ours(host)) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def test_four_nodes_meet_by_one_line_and_end_with_one_code(make_lab: MakeLab) -> None:
    lab = without_sshd(make_lab(4))
    before = {host.name: files(host) for host in lab.hosts}
    found = join(lab, last=True)
    assert (found.run.code, found.run.names) == (0, [])
    assert found.run.report["smoke"]["world_size"] == 4
    assert [host["name"] for host in found.run.report["hosts"]] == ["node1", "node2", "node3", "node4"]
    for name, other in found.others.items():
        assert other.code == 0
        assert other.stdout == f"{name}: no fault found here; the check ended on node 0 with exit code 0\n"
    assert {host.name: left(host) for host in lab.hosts} == {host.name: [] for host in lab.hosts}
    assert {host.name: files(host) for host in lab.hosts[1:]} == {name: before[name] for name in list(before)[1:]}


def test_a_node_that_does_not_come_is_named_and_the_others_are_judged(make_lab: MakeLab) -> None:
    lab = make_lab(4)
    fault("shm-small")(lab, lab.hosts[1])
    found = join(lab, hosts=[lab.hosts[0], lab.hosts[1], lab.hosts[3]], patience_s=4)
    assert found.run.code == 1
    assert found.run.names[0] == "node-missing"
    assert found.run.first["message"].startswith("rank-2 did not join the check within")
    assert "shm-small" in found.run.names
    assert "node2: shm-small (NCD605); the check ended on node 0 with exit code 1" in found.others["node2"].stdout
    assert {other.code for other in found.others.values()} == {1}


@pytest.mark.parametrize("rank", [0, 1])
def test_whoever_is_killed_in_the_middle_leaves_nothing_and_is_told(make_lab: MakeLab, rank: int) -> None:
    lab = make_lab(3)
    env = {"MASTER_ADDR": lab.hosts[0].address}
    running = [
        start(host, index, 3, *(("-o", "json") if index == 0 else ()), env=env) for index, host in enumerate(lab.hosts)
    ]
    wait_for(lab.hosts[0], PORT)
    until = time.monotonic() + LONG_S
    while not any("zlib" in line for _, line in ours(lab.hosts[1])) and time.monotonic() < until:
        time.sleep(0.02)
    running[rank].send_signal(signal.SIGKILL)
    ends = [process.communicate(timeout=LONG_S) for process in running]
    assert {host.name: left(host) for host in lab.hosts} == {host.name: [] for host in lab.hosts}
    if rank == 0:
        assert [process.returncode for process in running[1:]] == [1, 1]
        assert "node 0" in ends[1][1]
    else:
        report = json.loads(ends[0][0])
        assert running[0].returncode == running[2].returncode == 1
        assert [host for one in report["diagnoses"] for host in one["hosts"]] == ["node2"]


def test_strangers_a_wrong_and_a_replayed_token_and_a_flood_are_refused(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    first, node, stranger = lab.hosts
    env = {"MASTER_ADDR": first.address}
    leader = start(first, 0, 2, NO_SMOKE, "-o", "json", env=env)
    wait_for(first, PORT)
    wrong = start(stranger, 1, 2, "--join-timeout", "2", env={**env, "NCDOCTOR_TOKEN": "another token of 16 letters"})
    assert "wrong token" in wrong.communicate(timeout=LONG_S)[1]
    assert wrong.returncode == 1
    flood = stranger.run([sys.executable, "-c", FLOOD, first.address, str(PORT)])
    assert flood.stdout == "refused\n", flood.stderr
    other = start(node, 1, 2, NO_SMOKE, env=env)
    report = json.loads(leader.communicate(timeout=LONG_S)[0])
    assert other.communicate(timeout=LONG_S)[0].endswith("exit code 0\n")
    assert (leader.returncode, report["diagnoses"]) == (0, [])


FLOOD = f"""
import json, socket, sys
where = sys.argv[1], int(sys.argv[2])
idle = []
for _ in range(1000):
    one = socket.create_connection(where, timeout=20)
    idle.append(one)
def line(one):
    return one.makefile("rb").readline()
sys.path.insert(0, {str(__file__).split("/tests/")[0]!r})
from nccl_doctor.transport.joined import handshake as h
# a recorded introduction, sent again: its nonces are those of another connection
a = socket.create_connection(where, timeout=20)
release, nonce = h.read_greeting(line(a))
words = h.introduce({TOKEN.encode()!r}, h.Introduction(1, 2, "x", "python3", release), ("0" * 32, "1" * 32))
a.sendall(words)
print("refused" if b"wrong token" in line(a) else "accepted")
"""


def test_another_release_is_refused_with_both(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    script = "import sys; import nccl_doctor.crew.follow as f; f.__version__ = '0.0.9'; from nccl_doctor.cli.main import main; sys.argv[0] = 'nccl-doctor'; main()"
    env = {"MASTER_ADDR": lab.hosts[0].address, "NNODES": "2", "NODE_RANK": "1", "NCDOCTOR_TOKEN": TOKEN}
    leader = start(lab.hosts[0], 0, 2, NO_SMOKE, "--join-timeout", "3", env={"MASTER_ADDR": lab.hosts[0].address})
    wait_for(lab.hosts[0], PORT)
    old = lab.hosts[1].run([sys.executable, "-c", script, "check", "--join"], env=env, check=False)
    assert old.returncode == 2
    assert "has nccl-doctor 0.1.0 (probe " in old.stderr
    assert "this node has 0.0.9 (probe " in old.stderr
    assert leader.communicate(timeout=LONG_S)[0].count("node-missing") == 1


def test_two_jobs_on_the_same_hosts_at_once_accuse_nobody(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    env = {"MASTER_ADDR": lab.hosts[0].address}
    jobs = [
        [
            start(host, rank, 2, NO_SMOKE, "-o", "json", "--join-port", str(port), env=env)
            for rank, host in enumerate(lab.hosts)
        ]
        for port in (PORT, PORT - 1)
    ]
    for leader, other in jobs:
        report = json.loads(leader.communicate(timeout=LONG_S)[0])
        other.communicate(timeout=LONG_S)
        sys.stdout.write(json.dumps(report["diagnoses"], indent=1))
        assert (leader.returncode, other.returncode, report["diagnoses"]) == (0, 0, [])


def test_a_second_check_waits_for_the_port_of_the_first(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    for host in lab.hosts:
        host.write("/root/token", "a token in a file\n")
    env = {"MASTER_ADDR": lab.hosts[0].address, "NCDOCTOR_TOKEN": ""}
    words = (NO_SMOKE, "--token-file", "/root/token")
    first = start(lab.hosts[0], 0, 2, *words, env=env)
    wait_for(lab.hosts[0], PORT)
    second = start(lab.hosts[0], 0, 2, NO_SMOKE, env={**env, "NCDOCTOR_TOKEN": TOKEN})
    others = [
        start(lab.hosts[1], 1, 2, NO_SMOKE, env={**env, "NCDOCTOR_TOKEN": TOKEN}),
        start(lab.hosts[1], 1, 2, *words, env=env),
    ]
    ends = [process.communicate(timeout=LONG_S) for process in (first, second, *others)]
    assert [process.returncode for process in (first, second, *others)] == [0, 0, 0, 0], ends
    assert "is in use, probably by another check with --join" in ends[1][1]


UNREACHABLE = {
    "name": ("no-such-host.invalid", 'the name "no-such-host.invalid" does not resolve here'),
    "refused": ("10.77.0.2", "nothing listens at 10.77.0.2:29499 (connection refused)"),
}


@pytest.mark.parametrize("fault_name", list(UNREACHABLE))
def test_a_node_that_cant_reach_node_0_says_why(lab: Lab, fault_name: str) -> None:
    address, words = UNREACHABLE[fault_name]
    process = start(lab.hosts[1], 1, 2, "--join-timeout", "2", env={"MASTER_ADDR": address})
    _, stderr = process.communicate(timeout=LONG_S)
    assert process.returncode == 1
    assert words in stderr.splitlines()[-1]


DROPPED = "table inet f {{\n chain input {{\n type filter hook input priority 0;\n tcp dport {} drop\n}}\n}}\n"


def test_a_firewall_that_drops_the_join_port_is_named_on_both_ends(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.hosts[0].run(["nft", "-f", "-"], input=DROPPED.format(PORT))
    found = join(lab, NO_SMOKE, patience_s=9)
    assert found.run.names[0] == "node-missing"
    assert any("tcp dport 29499 drop" in line for line in found.run.first["evidence"]), found.run.first
    assert "10.77.0.1:29499 does not answer: a firewall that drops this port" in found.others["node2"].stderr


def test_an_interpreter_that_is_not_there_is_the_nodes_own_fault(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    env = {"MASTER_ADDR": lab.hosts[0].address}
    leader = start(lab.hosts[0], 0, 2, NO_SMOKE, "-o", "json", env=env)
    other = start(lab.hosts[1], 1, 2, NO_SMOKE, env=env, python="/no/such/python")
    report = json.loads(leader.communicate(timeout=LONG_S)[0])
    sys.stdout.write(json.dumps(report["diagnoses"], indent=1))
    assert [(one["name"], one["hosts"]) for one in report["diagnoses"]] == [("python-missing", ["node2"])]
    assert "python-missing" in other.communicate(timeout=LONG_S)[0]


APART = {
    "the login, of which there is none": ("ssh", "host-key", "sshd", "nofile-low", "noisy-bashrc"),
    "the interpreter that would run nccl-doctor itself": ("python",),
    "the names in a hosts file, of which there is none": ("hostname-mismatch", "hostname-unresolvable"),
    "the way from the broken host to node 0": ("cut-off", "route-missing", "duplicate-address", "host-dead"),
}
"""What is broken by the faults that differ, or can't exist, without SSH; beginnings of their names."""
SAME = [name for name in all_faults() if not name.startswith(tuple(one for names in APART.values() for one in names))]


@pytest.mark.parametrize("name", SAME)
def test_every_fault_gives_the_same_diagnosis_as_over_ssh(fresh_lab: Lab, name: str) -> None:
    at = 0 if name in ("stale-listener", "bound-not-listening", "time-wait") else 1
    fault(name)(fresh_lab, fresh_lab.hosts[at])
    over_ssh = doctor(fresh_lab, "check", NO_SMOKE)
    found = join(fresh_lab, NO_SMOKE)
    assert [(one["name"], one["severity"], one["hosts"]) for one in found.run.report["diagnoses"]] == [
        (one["name"], one["severity"], one["hosts"]) for one in over_ssh.report["diagnoses"]
    ]
    assert found.run.code == over_ssh.code


def test_commands_are_for_the_node_itself(fresh_lab: Lab) -> None:
    node = fresh_lab.hosts[0]
    fault("stale-listener")(fresh_lab, node)
    began = time.monotonic()
    node.wait_until(lambda: time.monotonic() > began + GRACE_S + 1, "its age")
    found = join(fresh_lab, NO_SMOKE)
    assert found.run.report["next_step"] is None  # no command on any machine reaches these nodes
    (command,) = found.run.first["fix"]["commands"]
    assert command["host"] == node.name
    assert command["command"].startswith("nccl-doctor fix-port 29500 --pid ")
    path = {"PATH": f"{Path(PROGRAM).parent}:{node.environment('root')['PATH']}"}
    node.run(command["command"], env=path)
    assert join(fresh_lab, NO_SMOKE).run.names == []


@pytest.mark.parametrize("name", ["cut-off", "route-missing"])
def test_a_node_that_is_cut_off_from_node_0_is_missing(fresh_lab: Lab, name: str) -> None:
    fault(name)(fresh_lab, fresh_lab.hosts[1])
    found = join(fresh_lab, NO_SMOKE, patience_s=3)
    assert [one["name"] for one in found.run.report["diagnoses"]] == ["node-missing"]
    assert found.others["node2"].code == 1


def test_without_a_token_only_this_machine_is_checked(lab: Lab) -> None:
    host = lab.hosts[0]
    refused = host.run(
        [PROGRAM, "check", "--join"], env={"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": host.address}, check=False
    )
    assert refused.returncode == 2
    assert (
        "--join needs a token in NCDOCTOR_TOKEN or --token-file, which must be the same on all nodes" in refused.stderr
    )
    env = {"MASTER_ADDR": "127.0.0.1", "NCDOCTOR_TOKEN": ""}
    leader = start(host, 0, 1, NO_SMOKE, env=env)
    assert "No faults found" in leader.communicate(timeout=LONG_S)[0]


def test_processes_of_one_node_wait_for_the_one_that_takes_part(lab: Lab) -> None:
    env = {"MASTER_ADDR": lab.hosts[0].address, "NNODES": "", "NODE_RANK": ""}
    ranks = [
        start(
            host,
            0,
            0,
            NO_SMOKE,
            env={
                **env,
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_RANK": str(2 * node + local),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
        )
        for node, host in enumerate(lab.hosts[:2])
        for local in range(2)
    ]
    ends = [process.communicate(timeout=LONG_S) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * 4, ends
    assert [bool(stdout) for stdout, _ in ends] == [True, False, True, False]
    assert "a job is running" not in ends[0][0]  # they have the variables of ranks


def ended_as_one(done: subprocess.CompletedProcess[str], nodes: int) -> None:
    assert done.returncode == 0, done
    assert f"{nodes} hosts, {nodes} ranks" in done.stdout
    assert "Ready" in done.stdout
    assert done.stdout.count("no fault found here; the check ended on node 0 with exit code 0") == nodes - 1


def test_srun_starts_it_on_the_nodes_of_a_job(slurm: Slurm, job: str) -> None:
    words = [PROGRAM, "check", "--join", "--python", interpreter()]
    line = f"srun --jobid={job} -N4 --ntasks-per-node=1 {' '.join(words)}"
    ended_as_one(slurm.lab.controller.run(["sh", "-c", line], env={"NCDOCTOR_TOKEN": TOKEN}), 4)


def test_mpirun_starts_it_with_two_processes_on_each_node(lab: Lab) -> None:
    find_tool("mpirun")
    hosts = ",".join(f"{host.name}:2" for host in lab.hosts)
    words = f"mpirun --allow-run-as-root --host {hosts} -npernode 2 -x MASTER_ADDR -x NCDOCTOR_TOKEN".split()
    env = {"MASTER_ADDR": lab.hosts[0].address, "NCDOCTOR_TOKEN": TOKEN}
    command = [*words, PROGRAM, "check", "--join", "--python", interpreter()]
    ended_as_one(lab.controller.run(command, env=env), 3)


PREFLIGHT = r"""
import os, sys
import nccl_doctor
try:
    report = nccl_doctor.preflight(timeout_s=60)
    said = f"ready {os.environ['RANK']} {report.status} {len(report.hosts)} {report.smoke and report.smoke.ok}"
    os.write(1, f"{said}\n".encode())  # at once: another rank writes there, too
except nccl_doctor.PreflightError as error:
    os.write(1, f"refused {os.environ['RANK']} {error.report.diagnoses[0].name}\n".encode())
    sys.exit(7)
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
"""


@pytest.mark.parametrize("broken", [False, True])
def test_a_training_script_checks_its_nodes_before_it_begins(make_lab: MakeLab, *, broken: bool) -> None:
    lab = without_sshd(make_lab(2))
    if broken:
        fault("nftables-drop-ephemeral")(lab, lab.hosts[1])
    running = []
    for rank, host in enumerate(lab.hosts):
        host.write("/root/train.py", PREFLIGHT)
        words = f"--nnodes=2 --nproc_per_node=2 --node_rank={rank} --master_addr={lab.hosts[0].address} /root/train.py"
        command = [sys.executable, "-m", "torch.distributed.run", *words.split()]
        env = {"NCDOCTOR_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        running.append(host.popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    ends = [process.communicate(timeout=2 * LONG_S) for process in running]
    said = sorted(line for stdout, _ in ends for line in stdout.splitlines() if line.startswith(("ready", "refused")))
    if broken:
        # torchrun ends a node's other rank as soon as one has left
        refused = {line: int(line.split()[1]) // 2 for line in said}
        assert set(refused.values()) == {0, 1}, ends
        assert {line.replace(line.split()[1], "N") for line in said} == {"refused N firewall-blocks-ephemeral"}
        assert all(process.returncode for process in running)
    else:
        assert said == [f"ready {rank} ok 2 True" for rank in range(4)], ends
        assert [process.returncode for process in running] == [0, 0]
