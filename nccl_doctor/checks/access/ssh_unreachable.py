"""An SSH session to the host could not be opened.

What it means: nccl-doctor could not connect to sshd on the host, and therefore could not examine the host. A launcher
that starts ranks over SSH will fail in the same way. If the host is down, its ranks will be missing from the job.

How we know: nccl-doctor resolves the host's name (getaddrinfo), opens a TCP connection to the host's SSH port, and
waits for sshd's banner. The message shows which step of the connection failed. If the connection is refused, either
sshd does not listen on the port, or a firewall's REJECT rule answers in place of sshd. "No route to host" means that
the host is down or a firewall rejects the connection with an ICMP "prohibited" message (as firewalld does). If the
connection attempt gets no answer, the host is down or a firewall's DROP rule discards the packets. Other possible
failures are an unresolved host name, a silent sshd, a connection that is closed before the banner, and an sshd that
supports only obsolete algorithms. If sshd closes a connection before sending its banner, the usual reason is the
MaxStartups limit. With the default MaxStartups of 10:30:100, sshd starts to drop new connections at random when ten
connections are waiting for authentication. If the server closes the connection, nccl-doctor tries again with increasing
delays before it reports the fault. If the host refuses nccl-doctor's connection or does not answer, up to two other
hosts try to connect to the host's SSH port. If another host gets an answer, the unreachable host is up, but
nccl-doctor's machine is cut off from it.

If a jump host (ProxyJump) can't be reached, neither can the hosts behind it, and the message names the jump host.

Fix: follow the instructions in the diagnosis, which depend on the step that failed. nccl-doctor takes the SSH address,
user and port from the hosts file and from ~/.ssh/config. `ssh -G HOST` shows the settings that ssh uses for the host.

References: ssh_config(5): HostName, Port, ProxyJump. sshd_config(5): MaxStartups, AllowTcpForwarding. connect(2),
"ERRORS".
"""

import re
from collections.abc import Collection
from functools import partial

from nccl_doctor.checks.access._failures import FOLLOWS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade, generic, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, Scene, not_logged_in
from nccl_doctor.model.finding import Fix, Severity
from nccl_doctor.snapshot.access import SshUnreachable
from nccl_doctor.snapshot.network import Names
from nccl_doctor.text.hostlist import fold

_SUMMARY = {
    "invalid-name": "Correct the address or the SSH user in the hosts file.",
    "name-unresolved": "Correct the name, or give the host's address in the hosts file; or make the name known to this "
    "machine and the other hosts, or to the jump host where that looks it up (DNS or /etc/hosts).",
    "refused": "Start sshd on the host, or give the port that it listens on, under ssh: port in the hosts file. If "
    "sshd listens on this port, find the firewall rule that rejects the connections.",
    "timed-out": "Check that the host is up, that its address is right, and that no firewall drops connections "
    "to the SSH port.",
    "no-route": "Check that the host is up and that no firewall on it or before it rejects connections to the "
    "SSH port.",
    "unreachable": "Give this machine a route to the host's network, or give the host an address that it can reach.",
    "no-banner": "See on the host's console whether sshd hangs (full disk, no memory), and what listens on that port.",
    "dropped": "Check again in a minute. If the fault persists, sshd's log on the host says why (journalctl -u ssh -u "
    "sshd): sshd can't start a session, has too many (MaxStartups), or bars this machine (PerSourcePenalties, "
    "fail2ban, hosts.deny).",
    "not-ssh": "Give the port that sshd listens on, under ssh: port in the hosts file.",
    "handshake": "See the host's sshd log (journalctl -u ssh -u sshd); ssh -v to the host shows where it stops.",
    "no-algorithm": "Update sshd on the host, or enable algorithms that today's ssh accepts (Ciphers, MACs, "
    "KexAlgorithms, HostKey in its sshd_config). Until then, a line below its Host in ~/.ssh/config allows an old "
    "algorithm, such as Ciphers +aes128-cbc; ssh -G with the host's name shows the settings in effect.",
    "no-session": "Raise MaxSessions in the host's sshd_config (0 forbids all commands) and reload sshd; its log "
    "(journalctl -u ssh -u sshd) shows other reasons.",
    "stalled": "The host answers, so no rule drops the connection. If ssh to it takes as long, try again with "
    "--connect-timeout 60; the host's sshd log (journalctl -u ssh -u sshd) shows what the login waits for (a name "
    "service, PAM, a home directory that hangs). The handshake also hangs if the path loses large packets: then "
    "ping -M do -s 1472 (8972 with an MTU of 9000) gets no answer but ping -s 100 does, and a smaller MTU at both "
    "ends helps.",
    "proxy": "Correct the ProxyCommand in ~/.ssh/config.",
    "forwarding": "Set AllowTcpForwarding yes (or local) in the jump host's sshd_config and reload sshd.",
    "ssh-config": "Correct ~/.ssh/config; ssh -G with the host's name shows its effect.",
}
ANSWERS = ("stranger", "intercepted", "reset")
"""Connection results which show that sshd or another process answered instead of nccl-doctor's listener."""
UNANSWERED = ("timed-out", "no-route", "unreachable")
"""Connection results which show that no process answered."""
_PADDED = re.compile(r"(?<=[A-Za-z-])0+(?=\d)")
_OTHER = "See whether ssh with the host's name works; its -v shows where it stops."


@check("NCD101", severity=Severity.ERROR, explains=FOLLOWS, scope="ssh")
def ssh_unreachable(view: View) -> Findings:
    return findings(view, SshUnreachable, _remedy, addition=partial(_from_peers, view))


def _from_peers(view: View, failure: SshUnreachable) -> str:
    """Describe which other hosts can reach the host, can't reach the host, or can't resolve the host's name."""
    name = failure.unresolved or ""
    resolutions = ((host.name, facts.resolution) for host, facts in view.facts)
    answers = ((host, names.get(name)) for host, names in resolutions if isinstance(names, Names))
    if lost := [host for host, answer in answers if answer is not None and not answer.addresses]:
        return f", nor on {fold(lost)}"
    up, refused, cut_off = (_who(failure, outcomes) for outcomes in (ANSWERS, ("refused",), UNANSWERED))
    here, is_refused = _dialler(failure), failure.facts.reason == "refused"
    if up:
        refusal = f" from {here}, although sshd is reachable from {{}}"
        what = refusal if is_refused else ", but the SSH port is reachable from {}"
        apart = f"{here} and {fold(cut_off)} are" if cut_off else f"only {here} is"
        return f"{what.format(fold(up))}: the host is up, and {apart} cut off from it"
    reason = ": no sshd is listening on the SSH port, or a firewall rejects the connections" if is_refused else ""
    if refused:
        means = f" from {here} and from" if is_refused else ", but refused connections from"
        return f"{means} {fold(refused)}: no sshd is listening on the SSH port, or a firewall rejects the connections"
    return f"{reason}, and {fold(cut_off)} can't reach the host either" if cut_off else reason


def _dialler(failure: SshUnreachable) -> str:
    return "the jump host" if failure.facts.via else "this machine"


def _who(failure: SshUnreachable, outcomes: Collection[str]) -> list[str]:
    return [name for name, outcome in failure.facts.others.items() if outcome in outcomes]


def _remedy(failures: tuple[SshUnreachable, ...]) -> Fix:
    up = _who(failures[0], ANSWERS)
    if up:
        return Fix(
            summary=f"Find out what cuts off {_dialler(failures[0])} from the host: a route, a firewall between "
            "them, or "
            f"the host's own firewall (fail2ban). Until then, connect through {up[0]} (ProxyJump in ~/.ssh/config), "
            "or run nccl-doctor on that host."
        )
    return Fix(summary=_SUMMARY.get(str(failures[0].facts.reason), _OTHER) + _zeros(failures))


def _zeros(failures: tuple[SshUnreachable, ...]) -> str:
    """Return a hint if the numbers in all unresolved names have leading zeros, as in node[01-09], otherwise ""."""
    names = [failure.unresolved for failure in failures if failure.unresolved]
    bare = [_PADDED.sub("", name) for name in names]
    if not names or any(name == other for name, other in zip(names, bare, strict=True)):
        return ""
    return f" Leading zeros matter: if the hosts are called {fold(bare)}, write them that way."


_NOT_REACHED = r"host=(?P<host>\S+) was not reachable via ssh"
"""Pattern for a message that deepspeed/launcher/runner.py prints before any rank is started."""
_SSH_FAILED = r"pdsh@\S+: (?P<host>\S+): ssh exited with exit code 255\b"
"""Pattern for pdsh's message about ssh's exit status, which is 255 if ssh itself failed (ssh(1))."""

# Messages of OpenSSH's client, and of an MPI launcher whose daemons do not start.
RULES = (
    root(r"ssh: connect to host (?P<host>\S+) port \d+: ", "ssh: connect to host gpu-17 port 22: Connection timed out"),
    root(
        r"(?:ssh|kex)_exchange_identification: |rcmd: socket: Permission denied"
        r"|Connection (?:closed|reset) by (?P<ip>[0-9.]+) port 22\b",
        "kex_exchange_identification: Connection closed by remote host",
    ),
    root(
        _NOT_REACHED,
        "RuntimeError: Using hostfile at hostfile but host=gpu-17 was not reachable via ssh. If you are running with a "
        "single node please remove hostfile or setup passwordless ssh.",
    ),
    generic(_SSH_FAILED, "pdsh@gpu-01: gpu-17: ssh exited with exit code 255"),
    hint(
        r"(?:ORTE|PRTE|PRRTE) (?:was unable to reliably start|has lost communication with|does not know how to route"
        r"|daemon has unexpectedly failed)",
        "ORTE was unable to reliably start one or more daemons.",
    ),
)


def _weigh(_event: Event, scene: Scene) -> Grade:
    """Grade messages of a launcher's daemons as mere hints if NCCL's log lines show that ranks had started."""
    facts = scene.log.facts
    return Grade.HINT if facts.processes or facts.nccl_versions else Grade.GENERIC


_SILENT = not_logged_in("it does not answer", "Start sshd there and open its port, or correct the name.")
_REFUSED = not_logged_in(
    "it refused the connection", "Start sshd there, or give the launcher the port that it listens on (ssh -p)."
)
_DROPPED = not_logged_in(
    "its sshd closed the connection before it sent its banner, often because too many logins begin at once",
    "Start fewer logins at once (pdsh -f, plm_rsh_num_concurrent of Open MPI), or raise MaxStartups in the host's "
    "sshd_config; journalctl -u ssh -u sshd on the host shows the reason.",
)
_FAILED = not_logged_in(
    "it does not answer, its host key is unknown, or it accepts no key of this user", "See which of them it is:"
)


_CLOSED = re.compile(r"(?:ssh|kex)_exchange_identification: .{0,80}[Cc]onnection (?:closed|reset) by")


def _advice(case: Case) -> Advice:
    if case.first.wording in (_SSH_FAILED, _NOT_REACHED):
        return _FAILED(case)
    if any(_CLOSED.search(event.text) for event in case.cause.events):
        return _DROPPED(case)
    return (_REFUSED if "refused" in case.first.text else _SILENT)(case)


SIGNS = LogSigns(RULES, _advice, weigh=_weigh)
