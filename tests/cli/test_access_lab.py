"""Logins as people's hosts have them: what ``ssh HOST true`` does there, and what is said of it."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.doctor import doctor
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults.memory import limited_memory, set_limit
from tests.lab.faults.ssh import stop_sshd
from tests.lab.odd.sshd import configure, with_pam
from tests.lab.warm import plain
from tests.patience import LONG_S, crowd

pytestmark = pytest.mark.lab

OPENSSH = ("--no-smoke", "--transport", "openssh")
SLURM = "Access denied by pam_slurm_adopt: you have no active jobs on this node"
EXPIRED = "Your account has expired"


@pytest.fixture
def odd(make_lab: MakeLab) -> Lab:
    """node1 is healthy; node2 lets in who has a job; alice's account on node3 is expired; node4's shell starts another."""
    lab = make_lab(4)
    with_pam(
        lab.host("node2"), "account required pam_exec.so stdout /opt/adopt", f"#!/bin/sh\necho '{SLURM}'\nexit 1\n"
    )
    with_pam(lab.host("node3"), "account required pam_unix.so")
    lab.host("node3").run("usermod -e 1970-01-02 alice")
    lab.host("node4").write("/root/.bashrc", "exec dash\n")
    return lab


def ssh(lab: Lab, login: str) -> str:
    """What a person sees."""
    done = lab.controller.run(["ssh", "-o", "BatchMode=yes", login, "true"], check=False)
    assert done.returncode == 255
    return done.stderr


def test_the_servers_own_words_end_the_search(odd: Lab) -> None:
    assert SLURM in ssh(odd, "node2")
    assert EXPIRED in ssh(odd, "alice@node3")
    hosts = odd.hosts_file(hosts=["node1", "node2", {"name": "node3", "ssh": {"user": "alice"}}])
    for transport in ("paramiko", "openssh"):
        run = doctor(odd, "check", "--no-smoke", "--transport", transport, hosts=hosts)
        assert run.code == 1
        assert [(found["name"], found["hosts"]) for found in run.report["diagnoses"]] == [
            ("ssh-auth-failed", ["node2"]),
            ("ssh-auth-failed", ["node3"]),
        ]
        adopt, expired = run.report["diagnoses"]
        assert f'took a key of the user root, barred the account and said "{SLURM}' in adopt["message"]
        assert "salloc" in adopt["fix"]["summary"]
        assert f'barred the account and said "{EXPIRED}' in expired["message"]
        assert "expired, locked" in expired["fix"]["summary"]


def test_a_login_shell_that_starts_another_is_sent_no_program(odd: Lab) -> None:
    """Plain ssh hangs there, too: the second shell waits for commands on stdin."""
    waits = odd.controller.run(["timeout", "2", "ssh", "-n", "-o", "BatchMode=yes", "node4", "echo ran"], check=False)
    assert "ran" not in waits.stdout
    run = doctor(odd, "check", "--no-smoke", "--connect-timeout", "5", hosts=odd.hosts_file(hosts=["node1", "node4"]))
    (found,) = run.report["diagnoses"]
    assert (found["name"], found["hosts"]) == ("probe-failed", ["node4"])
    assert "did not start in time: the login waits or runs something else" in found["message"]
    assert "login shell" in found["fix"]["summary"]
    assert not any("not found" in line for line in found["evidence"]), "the program was run as commands"


def test_a_slow_login_is_waited_for_as_ssh_does(make_lab: MakeLab) -> None:
    """Longer than a silent host would be: PAM of node2, the start-up files of node3."""
    lab = make_lab(3)
    slow_s, answer_s = 6, "5"
    with_pam(lab.host("node2"), "account required pam_exec.so /opt/adopt", f"#!/bin/sh\nsleep {slow_s}\n")
    lab.host("node3").write("/root/.bashrc", f"sleep {slow_s}\n")
    with lab.controller.popen(["ssh", "-o", f"ConnectTimeout={answer_s}", "node2", "true"]) as plain:
        for transport in ("paramiko", "openssh"):
            run = doctor(lab, "check", "--no-smoke", "--connect-timeout", answer_s, "--transport", transport)
            assert (run.code, run.names) == (0, [])
        assert plain.wait(LONG_S) == 0


def test_the_way_that_an_ansible_inventory_names(make_lab: MakeLab) -> None:
    """node2 takes no connection from here, and its neighbour's one."""
    lab = make_lab(2)
    lab.host("node2").run(f"iptables -I INPUT -p tcp --dport 22 -s {lab.controller.address} -j REJECT")
    assert lab.controller.run("ssh -o BatchMode=yes node2 true", check=False).returncode == 255
    assert lab.controller.run("ssh -o BatchMode=yes -J node1 node2 true").returncode == 0
    own_way = "node2 ansible_ssh_common_args='-J node1'"
    inventory = f"node1\n{own_way}\n[all:vars]\nansible_python_interpreter={sys.executable}\n"
    run = doctor(lab, "check", "--no-smoke", hosts=inventory)
    assert (run.code, run.names) == (0, [])


def test_shared_memory_that_the_user_may_not_write_to(make_lab: MakeLab) -> None:
    lab = make_lab(2)
    lab.host("node2").run("chmod 755 /dev/shm")
    lock = shlex.quote("import multiprocessing; multiprocessing.Lock()")
    assert (
        "Permission denied"
        in lab.controller.run(["ssh", "alice@node2", f"{sys.executable} -c {lock}"], check=False).stderr
    )
    hosts = lab.hosts_file(ssh={"user": "alice"})
    run = doctor(lab, "check", "--no-smoke", hosts=hosts)
    (found,) = run.report["diagnoses"]
    assert (run.code, found["name"], found["severity"], found["hosts"]) == (1, "shm-small", "error", ["node2"])
    (command,) = found["fix"]["commands"]
    lab.host(command["host"]).run(command["command"])
    assert doctor(lab, "check", "--no-smoke", hosts=hosts).names == []


def test_a_login_that_hangs_is_hung_up_on(make_lab: MakeLab) -> None:
    """Where sshd may signal it, which is not for root; plain ssh leaves it behind."""
    lab = make_lab(1)
    node = lab.host("node1")
    node.write("/home/alice/.bashrc", "sleep 777\n")
    node.run("chown alice: /home/alice/.bashrc")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(hosts=[{"name": "node1", "ssh": {"user": "alice"}}]))

    def waiting() -> bool:
        return any("sleep 777" in line for _, line in node.processes())

    for number in (signal.SIGINT, None):
        limit = ["--connect-timeout", "120" if number else "1"]
        with lab.controller.popen(
            ["nccl-doctor", "check", "hosts.yaml", *limit], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            if number:
                node.wait_until(waiting, "a login that waits")
                process.send_signal(number)
            assert process.wait(LONG_S) == (130 if number else 1)
        node.wait_until(lambda: not waiting(), "the end of the login")


def test_names_that_only_the_ssh_configuration_knows_are_one_finding(make_lab: MakeLab) -> None:
    """torch on the hosts would look them up, and fail; ssh here goes where HostName says."""
    lab = make_lab(3)
    aliases = {f"gpu{number}": host for number, host in enumerate(lab.hosts, 1)}
    config = "".join(
        f"Host {alias}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n" for alias, host in aliases.items()
    )
    lab.controller.write("/root/.ssh/config", config, 0o600)
    assert lab.controller.run(["ssh", "gpu1", "getent", "hosts", "gpu2"], check=False).returncode == 2
    hosts = lab.hosts_file(hosts=[*aliases])
    run = doctor(lab, "check", "--no-smoke", hosts=hosts)
    (found,) = run.report["diagnoses"]
    assert (found["name"], found["severity"], found["hosts"]) == ("hostname-unresolvable", "error", [*aliases])
    assert found["message"].startswith('"gpu1" is only an alias in this machine\'s ~/.ssh/config: ranks on gpu[1-3]')
    assert {effect["name"] for effect in found["explains"]} == {"port-unreachable", "master-addr-not-local"}
    address = lab.hosts[0].address
    assert found["fix"]["summary"].startswith(f"Set master_addr: {address} in the hosts file (--master-addr {address})")
    assert doctor(lab, "check", "--no-smoke", "--master-addr", address, hosts=hosts).names == []


def test_logins_that_take_long_at_a_bastion_are_waited_for_in_their_turn(make_lab: MakeLab) -> None:
    """Twelve hosts whose logins take longer than a silent host is waited for, by way of node1."""
    lab = make_lab(13)
    slow = lab.hosts[1:]
    for host in slow:
        with_pam(host, "account required pam_exec.so /opt/adopt", "#!/bin/sh\nsleep 3\n")
    names = " ".join(host.name for host in slow)
    lab.controller.write("/root/.ssh/config", f"Host {names}\n  ProxyJump node1\n", 0o600)
    assert lab.controller.run("ssh -o BatchMode=yes node2 true").returncode == 0
    run = doctor(lab, "check", "--no-smoke", "--connect-timeout", "2")
    assert (run.code, run.names) == (0, [])


def test_where_one_host_or_none_was_reached_nobody_says_ok_for_the_others(make_lab: MakeLab) -> None:
    lab = make_lab(3)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    for host in lab.hosts[1:]:
        stop_sshd(host)
    assert "Connection refused" in ssh(lab, "node3")
    assert lab.controller.run("ssh -o BatchMode=yes node1 true").returncode == 0
    shown = lab.controller.run("nccl-doctor check hosts.yaml", check=False)
    rows = dict(re.findall(r"^  (\S+) +(\S+ {2,}\S.*(?:\n {8,}.*)*)$", shown.stdout, re.MULTILINE))
    said = {name: " ".join(row.split()) for name, row in rows.items()}
    assert (shown.returncode, "Ready" in shown.stdout) == (1, False)
    assert said["access"] == "FAIL 1 of 3 hosts answered; no answer from node[2-3]"
    assert {name: said[name] for name in ("interfaces", "ports", "firewall")} == dict.fromkeys(
        ("interfaces", "ports", "firewall"), "? fewer than two hosts were reached"
    )
    assert said["all-reduce"] == "skip needs every host; not reached: node[2-3]"
    well = {name: row for name, row in said.items() if row.startswith("ok ")}
    assert well.keys() == {"software", "processes", "limits"}
    assert all(row.endswith("1 of 3 hosts checked") for row in well.values()), well
    stop_sshd(lab.hosts[0])
    assert "Connection refused" in ssh(lab, "node1")
    shown = lab.controller.run("nccl-doctor check hosts.yaml", check=False)
    assert shown.returncode == 1
    assert "could not be judged" in shown.stdout
    assert "passed" not in shown.stdout
    assert " ok " not in shown.stdout


def test_hosts_known_in_unlike_ways_are_reached_alike(make_lab: MakeLab) -> None:
    """node1, a bastion, by a CA; node2 behind it by its key; node3 by a KnownHostsCommand; node4 by its key."""
    lab = make_lab(4)
    bastion, inner, by_command, _ = lab.hosts
    key, known = "/etc/ssh/ssh_host_ed25519_key", "/root/.ssh/known_hosts"
    lab.controller.run("ssh-keygen -q -t ed25519 -N '' -f /root/ca")
    bastion.run(f"ssh-keygen -y -f {key} >{key}.pub")
    lab.controller.write("/root/node1.pub", bastion.read(f"{key}.pub"))
    lab.controller.run("ssh-keygen -q -s /root/ca -I node1 -h -n node1 /root/node1.pub")
    bastion.write(f"{key}-cert.pub", lab.controller.read("/root/node1-cert.pub"))
    configure(bastion, f"HostCertificate {key}-cert.pub")
    inner.run(f"iptables -I INPUT -p tcp --dport 22 -s {lab.controller.address} -j REJECT")
    lab.controller.run(f"grep '^node3,' {known} >/root/asked; sed -i '/^node[13],/d' {known}")
    config = f"Host node2\n  ProxyJump node1\nHost {by_command.name}\n  KnownHostsCommand /bin/cat /root/asked\n"
    for host in (bastion, by_command):
        assert "Host key verification failed" in ssh(lab, host.name)
    lab.controller.write("/root/.ssh/config", config, 0o600)
    lab.controller.run(f'echo "@cert-authority node1 $(cat /root/ca.pub)" >>{known}')
    for host in lab.hosts:
        assert lab.controller.run(f"ssh -o BatchMode=yes {host.name} true").returncode == 0
    run = doctor(lab, "check", "--no-smoke")
    assert (run.code, run.names, run.report["complete"]) == (0, [], True)


def test_what_all_hosts_have_alike_is_one_finding_and_the_neighbours_path_is_printed(make_lab: MakeLab) -> None:
    """Shared memory that is small everywhere; an interpreter without torch beside one that has it."""
    lab = make_lab(3)
    for host in lab.hosts:
        host.run("mount -o remount,size=32m /dev/shm")
    assert lab.controller.run("ssh -o BatchMode=yes node2 true").returncode == 0
    bare = {"name": "node2", "python": "/usr/bin/python3"}
    run = doctor(lab, "check", "--no-smoke", hosts=lab.hosts_file(hosts=["node1", bare, "node3"]))
    found = {one["name"]: one for one in run.report["diagnoses"]}
    assert found["shm-small"]["hosts"] == ["node1", "node2", "node3"]
    assert found["torch-missing"]["hosts"] == ["node2"]
    assert f'python: {plain()}"' in found["torch-missing"]["fix"]["summary"]
    assert run.names.count("shm-small") == 1


def test_a_user_without_a_name_here_is_told_so(make_lab: MakeLab) -> None:
    """As in a container that was started with ``--user``; no host is at fault."""
    lab = make_lab(2)
    as_nobody = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups"]
    plain = lab.controller.run([*as_nobody, "ssh", "-o", "BatchMode=yes", "node1", "true"], check=False)
    assert (plain.returncode, "No user exists for uid 12345" in plain.stderr) == (255, True)
    lab.controller.write("/opt/hosts.yaml", lab.hosts_file())
    for command in (["check", "/opt/hosts.yaml"], ["hang", "/opt/hosts.yaml"]):
        run = lab.controller.run([*as_nobody, "nccl-doctor", *command], check=False)
        assert (run.returncode, run.stdout) == (2, "")
        sentence = run.stderr.splitlines()[-1]
        assert sentence.startswith("the user id 12345 has no name on this machine, and ssh works for none without: ")
        assert "node" not in sentence


def test_an_agent_that_hangs_is_named_at_once(make_lab: MakeLab) -> None:
    """Plain ssh waits for it without end; node2 is down besides, which takes longer to see."""
    lab = make_lab(2)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    lab.host("node2").run(["ip", "link", "set", "eth0", "down"])
    hangs = "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind('/root/agent'); s.listen(); time.sleep(999)"
    lab.controller.background([sys.executable, "-c", hangs])
    lab.controller.wait_until(lambda: "agent" in lab.controller.run(["ls"]).stdout, "an agent")
    agent, began = ["env", "SSH_AUTH_SOCK=/root/agent"], time.monotonic()
    plain = [*agent, "timeout", "2", "ssh", "-o", "BatchMode=yes", "node1", "true"]
    assert lab.controller.run(plain, check=False).returncode == 124
    began = time.monotonic()
    run = lab.controller.run([*agent, "nccl-doctor", "check", "hosts.yaml"], check=False)
    assert time.monotonic() - began < 8 * crowd()
    assert (run.returncode, run.stdout) == (2, "")
    assert "the ssh-agent at /root/agent (SSH_AUTH_SOCK) did not answer in " in run.stderr
    without = lab.controller.run(
        [*agent, "env", "-u", "SSH_AUTH_SOCK", "nccl-doctor", "check", "-w", "node1"], check=False
    )
    assert "1 host answered" in without.stdout


def test_an_expired_certificate_is_to_be_renewed(make_lab: MakeLab) -> None:
    """Its plain key is on no host, and the hosts take passwords."""
    lab = make_lab(2)
    key = "/root/.ssh/id_ed25519"
    lab.controller.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/ca"])
    lab.controller.run(f"ssh-keygen -y -f {key} >{key}.pub")
    for host in lab.hosts:
        host.write("/etc/ssh/ca.pub", lab.controller.read("/root/ca.pub"))
        configure(host, "TrustedUserCAKeys /etc/ssh/ca.pub", "PasswordAuthentication yes", "PermitRootLogin yes")
        host.run(["rm", "/root/.ssh/authorized_keys"])
    for lasts, code in (("20200101:20200102", 1), ("always:forever", 0)):
        lab.controller.run(["ssh-keygen", "-q", "-s", "/root/ca", "-I", "me", "-n", "root", "-V", lasts, f"{key}.pub"])
        run = doctor(lab, "check", "--no-smoke")
        assert run.code == code, run.report["diagnoses"]
        if code:
            assert (run.names, run.first["hosts"]) == (["ssh-auth-failed"], ["node1", "node2"])
            assert any("password" in line for line in run.first["evidence"])
            assert run.first["fix"]["summary"].startswith("Have the certificate renewed")
            assert run.first["fix"]["commands"] == []


def test_a_host_with_nearly_no_memory(make_lab: MakeLab) -> None:
    """Plain ssh gets in; the kernel kills Python there, or with a little more, what imports torch."""
    lab = make_lab(2)
    hosts = lab.hosts_file(python=sys.executable)  # a fork would not be of the group
    with limited_memory(lab, lab.host("node2")) as group:
        for mebibytes, smoke, name, words, fix in (
            (120, ("--smoke-timeout", str(LONG_S)), "allreduce-failed", "killed by SIGKILL", "for want of memory"),
            (
                10,
                ("--no-smoke",),
                "probe-failed",
                "the connection to the host ended",
                "whether the host is out of memory",
            ),
            (
                4,
                ("--no-smoke",),
                "probe-failed",
                "the connection to the host ended",
                "whether the host is out of memory",
            ),
            (4, OPENSSH, "probe-failed", "the connection to the host ended", "whether the host is out of memory"),
        ):
            set_limit(group, mebibytes)
            assert lab.controller.run("ssh -o BatchMode=yes node2 true").returncode == 0
            run = doctor(lab, "check", *smoke, hosts=hosts)
            assert [(one["name"], one["hosts"]) for one in run.report["diagnoses"]] == [(name, ["node2"])]
            assert (words in run.first["message"], fix in run.first["fix"]["summary"]) == (True, True), run.first
        set_limit(group, 4000)
        run = doctor(lab, "check", "--no-smoke", hosts=hosts)
        assert (run.code, run.names) == (0, [])


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_ctrl_c_says_whose_login_shell_may_be_left(make_lab: MakeLab, transport: str) -> None:
    """node2's start-up file hangs; sshd signals no process of root, and ssh hangs up on none."""
    lab = make_lab(2)
    lab.host("node2").write("/root/.bashrc", "sleep 777\n")
    lab.controller.write("/root/hosts.yaml", lab.hosts_file())
    command = ["nccl-doctor", "check", "hosts.yaml", "--connect-timeout", "120", "--transport", transport]
    with lab.controller.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lab.host("node2").wait_until(
            lambda: any("sleep 777" in line for _, line in lab.host("node2").processes()), "a login that waits"
        )
        time.sleep(2 * crowd())  # node1 has let us in long ago
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=LONG_S)
        assert (process.returncode, time.monotonic() - began < 4 * crowd()) == (130, True)
    sentence = said.splitlines()[-1]
    assert (
        "interrupted; nothing of nccl-doctor is left running on any host, but node2 had not finished the login"
        in sentence
    )
    assert "login shell" in sentence
    assert "node1" not in sentence
    assert not any(line.startswith("ssh ") for _, line in lab.controller.processes()), "our ssh runs on"
    left = lab.host("node2")
    left.run("pkill -x sleep")
    left.wait_until(lambda: not any("ncdoctor" in line for _, line in left.processes()), "the end of the shell")
