"""``fix``: faults of the lab are mended by one answer and taken back by another, and nothing is run unasked."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.doctor import ours
from tests.cli.program import run_in, start_in
from tests.lab.cluster import Lab
from tests.lab.faults import fault
from tests.lab.host import LabHost
from tests.lab.odd.users import AS_ALICE
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

PASSWORD = f"correct-{secrets.token_hex(6)}"
RULES = "nft list ruleset"


@dataclass(frozen=True)
class Fixed:
    """What one call of ``fix`` left."""

    code: int
    document: dict[str, Any]
    stderr: str

    @property
    def outcomes(self) -> list[str]:
        return [result["outcome"] for result in self.document["results"]]


def fix(lab: Lab, *words: str) -> Fixed:
    done = run_in(lab.controller, "fix", "hosts.yaml", "--no-smoke", "-o", "json", *words)
    assert "Traceback" not in done.stderr, done.stderr
    return Fixed(done.returncode, json.loads(done.stdout), done.stderr)


def broken(lab: Lab, name: str, host: str = "node1", **hosts: Any) -> LabHost:
    fault(name)(lab, lab.host(host))
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(**hosts))
    return lab.host(host)


REJECTS = """table inet filter {
  chain input {
    type filter hook input priority 0; policy accept;
    iif != lo tcp dport != 22 ct state new reject with icmpx type admin-prohibited
  }
}
"""


def rejecting(lab: Lab, host: str = "node1", **hosts: Any) -> LabHost:
    """A host that rejects all but SSH, which is seen sooner than what is dropped."""
    lab.host(host).run(["nft", "-f", "-"], input=REJECTS)
    lab.controller.write("/root/hosts.yaml", lab.hosts_file(**hosts))
    return lab.host(host)


def test_without_a_terminal_nothing_is_run(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    rules = host.run(RULES).stdout
    asked = fix(fresh_lab)
    assert (asked.code, asked.document["results"]) == (1, [])
    assert "there is no terminal to ask on" in asked.document["note"]
    assert [step["command"][:8] for step in asked.document["plan"]] == ["nft list"]
    assert host.run(RULES).stdout == rules


def test_a_healthy_cluster_is_ready_and_not_touched(fresh_lab: Lab) -> None:
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file())
    done = run_in(fresh_lab.controller, "fix", "hosts.yaml")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "There is no command to run.")
    assert done.stdout.splitlines()[-1].startswith("Ready. ")  # with its all-reduce


MENDED = {
    "compose-bridge": "ifname-needed",
    "firewalld-public": "firewall-blocks-port",
    "hostname-unresolvable": "hostname-unresolvable",
    "iptables-reject": "firewall-blocks-port",
    "nftables-policy-drop": "firewall-blocks-port",
    "route-missing": "route-missing",
    "ufw-deny": "firewall-blocks-port",
}


@pytest.mark.parametrize("name", MENDED)
def test_a_fault_is_mended_and_taken_back(fresh_lab: Lab, name: str) -> None:
    broken(fresh_lab, name)
    mended = fix(fresh_lab, "--yes")
    assert (mended.code, mended.document["mended"]) == (0, [f"{MENDED[name]} on node1"]), mended
    assert mended.document["after"] == []
    assert mended.document["verdict"].startswith("Ready.")
    assert set(mended.outcomes) == {"done"}
    back = fix(fresh_lab, "--undo", "--yes")
    assert (back.code, set(back.outcomes)) == (0, {"done"}), back
    again = fix(fresh_lab, "--dry-run")
    assert [found["name"] for found in again.document["before"]] == [MENDED[name]]
    assert fix(fresh_lab, "--undo", "--yes").code == 2  # once
    assert ours(fresh_lab.host("node1")) == []


def test_a_variable_that_two_of_three_hosts_need_goes_into_the_hosts_file(fresh_lab: Lab) -> None:
    for name in ("node1", "node2"):
        broken(fresh_lab, "hostname-loopback", name)
    file = fresh_lab.controller.read("/root/hosts.yaml")
    mended = fix(fresh_lab, "--yes")
    assert (mended.code, mended.document["mended"]) == (0, ["hostname-loopback on node[1-2]"]), mended
    assert "  GLOO_SOCKET_IFNAME: 'eth0'" in fresh_lab.controller.read("/root/hosts.yaml")
    assert fix(fresh_lab, "--undo", "--yes").code == 0
    assert fresh_lab.controller.read("/root/hosts.yaml") == file


def test_a_way_back_is_not_taken_where_somebody_changed_it(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    assert fix(fresh_lab, "--yes").code == 0
    host.run("nft flush chain inet filter input; nft add rule inet filter input accept")
    rules = host.run(RULES).stdout
    back = fix(fresh_lab, "--undo", "--yes")
    assert (back.code, back.outcomes) == (0, ["changed"])  # nothing of it is left
    assert host.run(RULES).stdout == rules


def test_a_rule_that_somebody_has_edited_stays(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    assert fix(fresh_lab, "--yes").code == 0
    listed = host.run(RULES).stdout
    comment = next(line for line in listed.splitlines() if "nccl-doctor" in line).strip()
    host.run(
        ["nft", "-f", "-"],
        input=listed.replace(comment, comment.replace("10.77.0.2", "10.77.0.77")).join(("flush ruleset\n", "")),
    )
    rules = host.run(RULES).stdout
    assert "10.77.0.77" in rules
    back = fix(fresh_lab, "--undo", "--yes")
    assert (back.code, back.outcomes) == (1, ["changed"])
    assert back.document["results"][0]["reason"] == "somebody else has changed it since"
    assert host.run(RULES).stdout == rules


def test_users_with_and_without_a_way_to_root(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab, **AS_ALICE)
    lines = host.run(RULES).stdout
    fresh_lab.controller.write("/root/hosts.yaml", fresh_lab.hosts_file(**AS_ALICE))
    host.write("/etc/sudoers.d/alice", "alice ALL=(root) NOPASSWD: /usr/sbin/nft\n", 0o440)
    without = fix(fresh_lab, "--yes", "--sudo")
    assert (without.code, without.document["results"]) == (1, [])
    assert "it needs root" in without.document["note"]
    assert host.run(RULES).stdout == lines
    host.run(f"echo alice:{PASSWORD} | chpasswd")
    host.write("/etc/sudoers.d/alice", "alice ALL=(root) ALL, NOPASSWD: /usr/sbin/nft\n", 0o440)
    asking = fix(fresh_lab, "--yes", "--sudo")
    assert "sudo asks for a password there (--ask-sudo)" in asking.document["note"]
    wrong = typed(fresh_lab, "wrong", "--yes", "--sudo", "--ask-sudo", at="Password for sudo")
    assert (wrong.code, wrong.outcomes) == (1, ["not-run"])
    assert wrong.document["results"][0]["reason"] == "sudo did not accept the password on node1"
    assert "Password for sudo on node1: " in wrong.stderr
    assert host.run(RULES).stdout == lines
    watch = host.background(["sh", "-c", WATCH])
    right = typed(fresh_lab, PASSWORD, "--yes", "--sudo", "--ask-sudo", at="Password for sudo")
    host.run(["kill", "--", str(-watch)])  # with what it has started, which would see the search below
    host.run(f"while kill -0 -- -{watch} 2>/dev/null; do sleep 0.1; done")
    assert (right.code, right.document["mended"]) == (0, ["firewall-blocks-port on node1"])
    said = json.dumps(right.document) + right.stderr
    search = "grep -rlsF -f - /root /home /tmp /var/log /var/tmp /run /etc; true"
    kept = [machine.run(search, input=PASSWORD).stdout for machine in (host, fresh_lab.controller)]
    assert (PASSWORD in said, kept) == (False, ["", ""])
    assert "sudo" in host.read("/tmp/seen")  # the watch did see what ran
    host.write("/etc/sudoers.d/alice", "alice ALL=(root) NOPASSWD: ALL\n", 0o440)
    back = fix(fresh_lab, "--undo", "--yes", "--sudo")
    assert (back.code, back.outcomes) == (0, ["done"])


WATCH = "while :; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' >>/tmp/seen; done"


def typed(lab: Lab, text: str, *words: str, at: str = "[y/N", first: str = "") -> Fixed:
    """A call on a terminal on which each of these lines is typed once it has asked ``at``; ``first`` at its start."""
    mine, theirs = os.openpty()
    try:
        with start_in(lab.controller, "fix", "hosts.yaml", "--no-smoke", "-o", "json", *words, stdin=theirs) as process:
            os.write(mine, first.encode())
            before = ""
            for answer in text.split("\n"):
                asked = before.count(at)
                while before.count(at) == asked and (more := process.stderr.read(1)):
                    before += more
                if before.count(at) > asked:
                    os.write(mine, f"{answer}\n".encode())
            out, err = process.communicate()
            code = process.wait()
    finally:
        os.close(mine)
        os.close(theirs)
    return Fixed(code, json.loads(out) if out else {}, before + err)


def test_on_a_terminal_it_asks_and_takes_no_for_no(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    rules = host.run(RULES).stdout
    no = typed(fresh_lab, "n")
    assert (no.code, no.document) == (1, {})
    assert "Run 1 command on 1 host? [y/N/s(elect)]" in no.stderr
    assert "nft insert rule inet filter input" in no.stderr
    assert host.run(RULES).stdout == rules
    assert typed(fresh_lab, "s\nn").code == 1
    assert host.run(RULES).stdout == rules
    assert typed(fresh_lab, "s\ny").document["mended"] == ["firewall-blocks-port on node1"]


def test_a_stale_job_is_ended_only_when_asked_for_by_itself(fresh_lab: Lab) -> None:
    from nccl_doctor.model.ports import GRACE_S

    broken(fresh_lab, "stale-listener")
    time.sleep(GRACE_S)
    safe = fix(fresh_lab, "--yes")
    assert (safe.code, safe.document["results"]) == (1, [])
    assert "without --yes, fix asks about each command" in safe.document["note"]
    no = typed(fresh_lab, "y\nn")
    assert (no.code, "port-in-use: disruptive: nccl-doctor fix-port" in no.stderr) == (1, True)
    yes = typed(fresh_lab, "y\ny")
    assert (yes.code, yes.document["mended"]) == (0, ["port-in-use on node1"]), yes


SLOW = """#!/bin/sh
case "$*" in
*insert*) touch /tmp/began; sleep 3 ;;
esac
exec /usr/sbin/nft "$@"
"""


def slow_nft(host: LabHost) -> None:
    """An nft that takes its time to insert a rule."""
    host.write("/usr/local/bin/nft", SLOW, 0o755)


def test_an_interrupt_ends_after_the_running_command(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    host.run("nft add chain inet filter pre '{ type filter hook prerouting priority -10; }'")
    host.run("nft add rule inet filter pre tcp dport != 22 ct state new drop")
    slow_nft(host)
    with start_in(fresh_lab.controller, "fix", "hosts.yaml", "--no-smoke", "-o", "json", "--yes") as process:
        host.wait_until(lambda: host.run("test -e /tmp/began", check=False).returncode == 0, "the first command")
        process.signal(signal.SIGINT)
        out, err = process.communicate()
        code = process.wait()
    document = json.loads(out)
    assert code == 130, err
    outcomes = [result["outcome"] for result in document["results"]]
    assert outcomes[0] == "done"
    assert set(outcomes[1:]) <= {"not-run"}
    assert "interrupted: node1 was changed (1 command); to undo it: nccl-doctor fix hosts.yaml --undo" in err
    assert ours(host) == []


def test_a_host_that_goes_away_in_the_middle_costs_the_others_nothing(fresh_lab: Lab) -> None:
    first = rejecting(fresh_lab)
    second = rejecting(fresh_lab, "node2")
    slow_nft(first)
    with start_in(fresh_lab.controller, "fix", "hosts.yaml", "--no-smoke", "-o", "json", "--yes") as process:
        first.wait_until(lambda: first.run("test -e /tmp/began", check=False).returncode == 0, "the first command")
        first.run("pkill -KILL -f '[s]shd.*root@notty'")
        out, err = process.communicate()
        code = process.wait()
    document = json.loads(out)
    outcomes = {result["host"]: result["outcome"] for result in document["results"]}
    assert (code, outcomes["node1"], outcomes["node2"]) == (1, "unknown", "done"), (document, err)
    assert "nccl-doctor" in second.run(RULES).stdout
    deadline = time.monotonic() + LONG_S
    while "insert rule" in " ".join(line for _, line in first.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "nccl-doctor" not in first.run(RULES).stdout  # the command ended with its connection


def test_a_script_for_each_host_does_the_same(fresh_lab: Lab) -> None:
    host = broken(fresh_lab, "firewalld-public")
    written = fix(fresh_lab, "--script", "/root/mend.sh")
    assert (written.code, written.document["scripts"]) == (1, ["/root/mend-node1.sh"])
    assert written.document["results"] == []
    fresh_lab.controller.run("install -o 1000 -m 600 /dev/null /root/theirs-node1.sh")
    refused = run_in(fresh_lab.controller, "fix", "hosts.yaml", "--no-smoke", "--script", "/root/theirs.sh")
    assert (refused.returncode, fresh_lab.controller.read("/root/theirs-node1.sh")) == (2, "")
    assert "/root/theirs-node1.sh belongs to another user" in refused.stderr
    host.run(["sh", "-c", fresh_lab.controller.read("/root/mend-node1.sh")])
    assert fix(fresh_lab, "--dry-run").code == 0


def test_a_script_that_undoes_is_written_and_not_run(fresh_lab: Lab) -> None:
    host = rejecting(fresh_lab)
    before = host.run(RULES).stdout
    assert fix(fresh_lab, "--yes").code == 0
    mended = host.run(RULES).stdout
    written = fix(fresh_lab, "--undo", "--yes", "--script", "/root/back.sh")
    assert (written.code, written.document["scripts"], written.document["results"]) == (1, ["/root/back-node1.sh"], [])
    assert host.run(RULES).stdout == mended
    host.run(["sh", "-c", fresh_lab.controller.read("/root/back-node1.sh")])
    assert host.run(RULES).stdout == before


def test_steps_run_over_the_connections_of_the_check(fresh_lab: Lab) -> None:
    """The second connection, which shows that SSH still comes in, and those of the check after it are their own."""
    host = rejecting(fresh_lab)
    host.write("/etc/ssh/sshrc", 'echo "${SSH_CONNECTION}" >> /tmp/logins\n')
    assert fix(fresh_lab, "--yes").code == 0
    assert len(set(host.read("/tmp/logins").splitlines())) == 3


def test_check_offers_it(fresh_lab: Lab) -> None:
    rejecting(fresh_lab)
    shown = run_in(fresh_lab.controller, "check", "hosts.yaml", "--no-smoke")
    assert shown.stdout.splitlines()[-1] == "To fix it:  nccl-doctor fix hosts.yaml"
    mine, theirs = os.openpty()
    try:
        with start_in(fresh_lab.controller, "check", "hosts.yaml", "--no-smoke", "--fix", stdin=theirs) as process:
            before = ""
            while "[y/N" not in before and (more := process.stderr.read(1)):
                before += more
            os.write(mine, b"y\n")
            out, err = process.communicate()
            assert process.wait() == 0, before + err
    finally:
        os.close(mine)
        os.close(theirs)
    assert "Fixed: firewall-blocks-port on node1" in out
    words = shlex.split("check hosts.yaml --no-smoke --fix -o json")
    assert run_in(fresh_lab.controller, *words).returncode == 2


def test_a_check_with_warnings_alone_goes_on_to_the_commands(fresh_lab: Lab) -> None:
    broken(fresh_lab, "mtu-small")
    asked = run_in(fresh_lab.controller, "check", "hosts.yaml", "--no-smoke", "--fix")
    assert (asked.returncode, "there is no terminal to ask on" in asked.stdout) == (0, True), asked
