"""A firewall rule on a host keeps the others from the master port.

What it means: every rank connects to the master port first (torch's TCPStore). With a rule that drops the packets, the
ranks wait until they time out; with one that rejects them, they fail with "No route to host" or "Connection refused";
with one that redirects them (DNAT or REDIRECT of a container or a proxy), they talk to somebody else.

How we know: every host dialled the master port while nccl-doctor itself listened there, and the dial failed. The rules
that the kernel really has on both hosts (nftables, both kinds of iptables, ipset) were then evaluated for that very
packet: out of the dialler, into the listener, and the answers back. The rule named is the one the packet meets first;
its counter is shown as it was before and after the dials.

Fix: the commands let the cluster's own addresses reach the master port and the ports that NCCL and gloo pick for
themselves (`net.ipv4.ip_local_port_range`), in the language of whatever manages the rules: firewalld, ufw, nftables or
iptables. They may be pasted twice. Do not switch the firewall off: it keeps everybody else out, and that is its job.

References: nft(8), iptables-extensions(8), firewall-cmd(1), ufw(8).
"""

from nccl_doctor.checks.ports._firewall import EXPLAINS, by_rule, finding, gaps, rule_of, stops_master, to_master, whose
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.firewall.blame import Blame
from nccl_doctor.model.finding import Severity
from nccl_doctor.snapshot.hosts import Snapshot


@check("NCD301", severity=Severity.ERROR, needs=("mesh",), explains=EXPLAINS, row="firewall")
def firewall_blocks_port(view: View) -> Findings:
    """Yields one finding a rule that stops the master port on some host."""
    for blames in by_rule(view, master=True):
        what = _answers(blames, view.snapshot) or f"{whose(blames)} {_ports(blames, view.snapshot)}"
        yield finding(blames, view, f"{rule_of(blames)} {what}, so the ranks can't meet.")
    yield from gaps(view, master=True)


def _answers(blames: list[Blame], snapshot: Snapshot) -> str:
    """Names both that rules for incoming packets stop; "" where it is one."""
    met = [dial for blame in blames for dial in blame.dials if dial.dst == blame.host.name]
    if not met or blames[0].direction == "output" or any(to_master(dial, snapshot) for dial in met):
        return ""
    return "the answers to its own connections and the other hosts' connections to the ports that NCCL picks"


def _ports(blames: list[Blame], snapshot: Snapshot) -> str:
    """The ports: of hosts whose rule does not meet the master port, NCCL's, too."""
    master = f"to port {snapshot.cluster.master_port}"
    if blames[0].direction == "output" and any(blame.host.node.node_rank for blame in blames):
        master += " of the master"
    if all(stops_master(blame, snapshot) for blame in blames):
        return master
    return f"to the ports that NCCL picks and {master}"
