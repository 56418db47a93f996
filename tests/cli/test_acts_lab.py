"""``fix`` where an act could do harm: lock-outs, lies, other people's changes, kills, passwords, pipes, exit codes."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from nccl_doctor.model.ports import GRACE_S
from tests.cli.doctor import ours
from tests.cli.program import start_in
from tests.cli.test_fix_lab import PASSWORD, RULES, broken, fix, rejecting, slow_nft, typed
from tests.lab.cluster import Lab, MakeLab
from tests.lab.faults.ssh import stop_sshd
from tests.lab.host import LabHost
from tests.lab.odd.users import AS_ALICE

pytestmark = pytest.mark.lab

INTERNAL = (
    "firewall-cmd -q --permanent --zone=public --remove-service=ssh; "
    "firewall-cmd -q --zone=internal --change-interface=eth0; firewall-cmd -q --zone=internal --add-service=ssh"
)


def sh(lab: Lab, command: str) -> tuple[int, str, str]:
    """A command of a user's shell on the controller."""
    done = lab.controller.run(["bash", "-c", f"cd /root && {command}"], check=False)
    return done.returncode, done.stdout, done.stderr


def test_what_was_set_at_run_time_alone_is_no_trap(fresh_lab: Lab) -> None:
    """3, 5: the permanent zone lets no SSH in, and an administrator's direct rule stands at run time alone."""
    host = broken(fresh_lab, "firewalld-public")
    host.run(INTERNAL)
    host.run("firewall-cmd -q --direct --add-rule ipv4 filter INPUT 5 -s 203.0.113.9 -j DROP")
    mended = fix(fresh_lab, "--yes")
    assert (mended.code, mended.document["mended"]) == (0, ["firewall-blocks-port on node1"]), mended
    assert not any("reload" in step["command"] for step in mended.document["plan"])
    host.run("firewall-cmd -q --zone=internal --add-port=8080/tcp")  # somebody's, since then
    back = fix(fresh_lab, "--undo", "--yes")
    assert (back.code, set(back.outcomes)) == (0, {"done"}), back
    assert "8080/tcp" in host.run("firewall-cmd --zone=internal --list-ports").stdout
    assert "203.0.113.9" in host.run("firewall-cmd --direct --get-all-rules").stdout
    assert host.run("ls /etc/firewalld/zones").stdout.split() == ["public.xml", "public.xml.old"][:2]
    assert fix(fresh_lab, "--dry-run").code == 1


def closing_after(host: LabHost, count: int) -> None:
    """Have a host accept so many further connections of SSH, and no other ones: the door closes behind the step."""
    host.run(["nft", f"insert rule inet filter input tcp dport 22 ct state new numgen inc mod 10000 >= {count} drop"])


def test_a_step_after_which_no_ssh_comes_in_is_taken_back(fresh_lab: Lab) -> None:
    """3: whatever closes the door, the open connection is kept until a second one stands."""
    host = rejecting(fresh_lab)
    closing_after(host, 1)
    closed = fix(fresh_lab, "--yes", "--connect-timeout", "3")
    assert (closed.code, closed.outcomes) == (1, ["failed"]), closed
    assert closed.document["results"][0]["reason"] == (
        "no second connection could be opened after it, so it was taken back"
    )
    assert "nccl-doctor" not in host.run(RULES).stdout


@pytest.mark.parametrize("ends", [(signal.SIGKILL,), (signal.SIGINT, signal.SIGINT)], ids=["kill", "two interrupts"])
def test_a_closed_door_opens_again_without_us(fresh_lab: Lab, ends: tuple[signal.Signals, ...]) -> None:
    """The end comes while it is tried whether SSH still comes in: the host itself takes the step back."""
    host = rejecting(fresh_lab)
    closing_after(host, 1)
    with start_in(
        fresh_lab.controller, "fix", "hosts.yaml", "--no-smoke", "--yes", "--connect-timeout", "9"
    ) as process:
        host.wait_until(lambda: "nccl-doctor" in host.run(RULES).stdout, "the step")
        time.sleep(0.5)
        for number in ends:
            process.signal(number)
            time.sleep(0.5)
        host.wait_until(lambda: "nccl-doctor" not in host.run(RULES).stdout, "the way back")
        process.signal(signal.SIGKILL)
    host.wait_until(lambda: not ours(host), "the end of what ran there")


SHARED = "Host node1\n  ControlMaster auto\n  ControlPath /root/.ssh/shared-%C\n"


def test_a_shared_connection_is_no_second_one(fresh_lab: Lab) -> None:
    """A session that the user has open (ControlMaster) outlives the closed door, and proves nothing."""
    host, controller = rejecting(fresh_lab), fresh_lab.controller
    controller.write("/root/.ssh/config", SHARED, 0o600)
    with controller.popen(["ssh", "-MNn", "node1"]):
        controller.wait_until(lambda: controller.run("ls /root/.ssh/shared-*", check=False).returncode == 0, "a master")
        closing_after(host, 0)
        closed = fix(fresh_lab, "--yes", "--connect-timeout", "3")
        controller.run("ssh -O exit node1")
    assert (closed.code, closed.outcomes) == (1, ["failed"]), closed
    assert closed.document["results"][0]["reason"].endswith("so it was taken back")
    assert "nccl-doctor" not in host.run(RULES).stdout


def test_a_hosts_file_without_a_last_newline(fresh_lab: Lab) -> None:
    """6: the entry is a line of its own, and the undo restores every byte, mode and owner."""
    host = broken(fresh_lab, "hostname-unresolvable")
    host.write("/etc/hosts", host.read("/etc/hosts").rstrip("\n"), 0o640)
    text = host.read("/etc/hosts")
    mended = fix(fresh_lab, "--yes")
    assert (mended.code, mended.outcomes) == (0, ["done"]), mended
    assert host.read("/etc/hosts").startswith(text + "\n10.77.0.")
    assert fix(fresh_lab, "--undo", "--yes").code == 0
    assert host.read("/etc/hosts") == text
    assert host.run("stat -c %a /etc/hosts").stdout.strip() == "640"


def test_a_kill_in_the_middle_loses_no_undo(fresh_lab: Lab) -> None:
    """7: one host is done, the other still runs, and the controller is killed."""
    first, second = rejecting(fresh_lab), rejecting(fresh_lab, "node2")
    rules = [host.run(RULES).stdout for host in (first, second)]
    slow_nft(second)
    with start_in(fresh_lab.controller, "fix", "hosts.yaml", "--no-smoke", "--yes") as process:
        second.wait_until(lambda: second.run("test -e /tmp/began", check=False).returncode == 0, "the second host")
        first.wait_until(lambda: "nccl-doctor" in first.run(RULES).stdout, "the first host")
        time.sleep(0.5)
        process.signal(signal.SIGKILL)
    second.wait_until(lambda: not ours(second), "the end of what ran there")
    second.run("rm /usr/local/bin/nft")
    _, listed, _ = sh(fresh_lab, "nccl-doctor fix --undo --list")
    assert ":  nccl-doctor fix hosts.yaml --undo" in listed
    back = fix(fresh_lab, "--undo", "--yes")
    assert back.code == 0, back
    assert [host.run(RULES).stdout for host in (first, second)] == rules


def test_an_undo_needs_the_machine_the_program_and_the_place(fresh_lab: Lab) -> None:
    """8, 9: another machine of that name, a firewalld that stands still, a second run, and no hosts named."""
    host = broken(fresh_lab, "firewalld-public")
    assert fix(fresh_lab, "--yes").code == 0
    assert fix(fresh_lab, "--yes").code == 0  # nothing to do: it hides nothing
    code, _, err = sh(fresh_lab, "nccl-doctor fix --undo --yes")
    assert (code, "the last run that can be undone: nccl-doctor fix hosts.yaml --undo" in err) == (2, True), err
    machine_id = host.run("cat /etc/machine-id").stdout
    host.write("/etc/machine-id", "f" * 32 + "\n")
    other = fix(fresh_lab, "--undo", "--yes")
    assert (other.code, other.document["results"][0]["reason"]) == (1, "another machine has this host's name now")
    host.write("/etc/machine-id", machine_id)
    host.run("pkill -STOP firewalld")
    host.run("pkill -KILL firewalld")
    still = fix(fresh_lab, "--undo", "--yes")
    assert (still.code, "could not be looked at" in still.document["results"][0]["reason"]) == (1, True), still
    host.run("firewalld --nopid")
    host.wait_until(lambda: host.run("firewall-cmd --state", check=False).returncode == 0, "firewalld")
    back = fix(fresh_lab, "--undo", "--yes")
    assert back.code == 0, back


def test_a_variable_that_somebody_has_changed_since_stays(fresh_lab: Lab) -> None:
    """10."""
    for name in ("node1", "node2"):
        broken(fresh_lab, "hostname-loopback", name)
    assert fix(fresh_lab, "--yes").code == 0
    changed = fresh_lab.controller.read("/root/hosts.yaml").replace(
        "GLOO_SOCKET_IFNAME: 'eth0'", "GLOO_SOCKET_IFNAME: bond7"
    )
    fresh_lab.controller.write("/root/hosts.yaml", changed)
    back = fix(fresh_lab, "--undo", "--yes")
    assert (back.code, back.document["results"][0]["reason"]) == (1, "somebody else has changed it since")
    assert fresh_lab.controller.read("/root/hosts.yaml") == changed


def test_what_was_typed_before_the_question_is_no_answer(fresh_lab: Lab) -> None:
    """11."""
    host = rejecting(fresh_lab)
    rules = host.run(RULES).stdout
    early = typed(fresh_lab, "n", first="y\n")
    assert (early.code, "Nothing was run." in early.stderr) == (1, True), early
    assert host.run(RULES).stdout == rules


THIEF = "#!/bin/sh\nid -u\nhead -n1 > /tmp/stolen\necho 'sudo: a password is required' >&2\nexit 1\n"


def test_a_password_goes_to_the_sudo_of_root_alone(fresh_lab: Lab) -> None:
    """12: not to one that stands first on PATH; and it is shown nowhere, though the host echoes it."""
    host = rejecting(fresh_lab, **AS_ALICE)
    host.write("/tmp/bin/sudo", THIEF, 0o755)
    host.write("/home/alice/.bashrc", "PATH=/tmp/bin:$PATH\n")
    host.run(f"echo alice:{PASSWORD} | chpasswd")
    rules = "alice ALL=(root) ALL, NOPASSWD: /usr/sbin/nft, /usr/local/bin/nft\n"
    host.write("/etc/sudoers.d/alice", rules, 0o440)
    echo = f'#!/bin/sh\ncase "$*" in *insert*) echo {PASSWORD} ;; esac\nexec /usr/sbin/nft "$@"\n'
    host.write("/usr/local/bin/nft", echo, 0o755)
    right = typed(fresh_lab, PASSWORD, "--yes", "--sudo", "--ask-sudo", at="Password for sudo on node1: ")
    assert right.code == 0, right
    assert PASSWORD not in json.dumps(right.document) + right.stderr.replace(f"{PASSWORD}\n", "")
    assert host.run("test -e /tmp/stolen", check=False).returncode == 1


def test_an_interrupt_at_the_password_leaves_no_record(fresh_lab: Lab) -> None:
    """13: a rule that the administrator pastes afterwards is not ours to delete."""
    host = rejecting(fresh_lab, **AS_ALICE)
    host.run(f"echo alice:{PASSWORD} | chpasswd")
    host.write("/etc/sudoers.d/alice", "alice ALL=(root) ALL, NOPASSWD: /usr/sbin/nft\n", 0o440)
    mine, theirs = os.openpty()
    try:
        words = ("fix", "hosts.yaml", "--no-smoke", "--yes", "--sudo", "--ask-sudo")
        with start_in(fresh_lab.controller, *words, stdin=theirs) as process:
            said = ""
            while "Password for sudo" not in said and (more := process.stderr.read(1)):
                said += more
            process.signal(signal.SIGINT)
            process.communicate()
            assert process.wait() == 130
    finally:
        os.close(mine)
        os.close(theirs)
    code, _, err = sh(fresh_lab, "nccl-doctor fix hosts.yaml --undo --yes")
    assert (code, "no run of fix on hosts.yaml can be undone" in err) == (2, True), err


def test_the_code_is_that_of_the_check_after_it(make_lab: MakeLab) -> None:
    """14, 15: a host that is down is let in, too, and the code is not 0 while it is."""
    lab = make_lab(3)
    host = rejecting(lab)
    stop_sshd(lab.host("node2"))
    down = fix(lab, "--yes", "--connect-timeout", "3")
    assert (down.code, down.document["mended"]) == (1, ["firewall-blocks-port on node1"]), down
    assert any("ssh-unreachable on node2" in one for one in down.document["remaining"])
    assert "10.77.0.2" in host.run(RULES).stdout
    assert "10.77.0.3" in host.run(RULES).stdout


def test_hosts_from_a_pipe_are_read_once(fresh_lab: Lab) -> None:
    """14."""
    rejecting(fresh_lab)
    code, out, err = sh(fresh_lab, "cat hosts.yaml | nccl-doctor fix - --no-smoke --yes")
    assert (code, "Fixed: firewall-blocks-port on node1" in out) == (0, True), (out, err)
    line = "torchrun --nnodes=3 --node_rank=0 --nproc_per_node=1 --master_addr=node1 --master_port=29500 train.py"
    for hosts in ("- < hosts.yaml", "<(cat hosts.yaml)"):
        words = (
            f"nccl-doctor check {hosts} --no-smoke -o json -- {line}"
            if "<(" in hosts
            else (f"cat hosts.yaml | nccl-doctor check - --no-smoke -o json -- {line}")
        )
        code, out, err = sh(fresh_lab, words)
        assert code != 2, err
        assert json.loads(out)["checks"], err


def test_a_job_is_ended_by_no_program_of_the_current_folder(fresh_lab: Lab) -> None:
    """2: a typer.py in a shared checkout runs as nobody."""
    broken(fresh_lab, "stale-listener")
    time.sleep(GRACE_S)
    for name in ("typer", "nccl_doctor", "json", "rich"):
        fresh_lab.controller.write(f"/root/{name}.py", "open('/tmp/ran', 'w')\n")
    yes = typed(fresh_lab, "y\ny")
    assert (yes.code, yes.document["mended"]) == (0, ["port-in-use on node1"]), yes
    assert fresh_lab.controller.run("test -e /tmp/ran", check=False).returncode == 1


def test_a_setting_that_was_empty_is_empty_again(fresh_lab: Lab) -> None:
    """16, 21: and an information that was chosen is told as mended."""
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file(master_port=40000))
    mended = fix(fresh_lab, "--yes")
    assert "port-in-ephemeral-range on node1" in mended.document["mended"], mended
    host = fresh_lab.host("node1")
    assert host.run("sysctl -n net.ipv4.ip_local_reserved_ports").stdout == "40000\n"
    assert fix(fresh_lab, "--undo", "--yes").code == 0
    assert host.run("sysctl -n net.ipv4.ip_local_reserved_ports").stdout == "\n"
