"""A firewall rule on a host blocks the ephemeral ports that NCCL and gloo choose.

What it means: opening the master port is not enough. NCCL and gloo have no port setting: each rank listens on a port
that the kernel chooses from `net.ipv4.ip_local_port_range`, and all hosts connect to each other there, in both
directions. If a rule blocks these connections, the job passes its rendezvous, then hangs at the first collective.

How we know: every host listened on such ports and every other host tried to connect to them; an attempt failed, and the
kernel's actual rules on the two hosts, evaluated for its first packet, block it (firewall-blocks-port explains how).
The diagnosis is only a warning if the connections succeeded although a rule limits their number at a time (iptables:
limit, hashlimit, connlimit, recent; nft: limit, ct count) to fewer than the ranks of two hosts may need, that is, the
number of ranks on the peer * (6 + 2 * the number of ranks on the host), as for ephemeral-ports-few.

Fix: the commands let the cluster's own addresses reach the whole range, in the syntax of the tool that manages the
rules.

References: ip-sysctl (ip_local_port_range); NCCL's ncclSocketListen binds port 0 (src/misc/socket.cc).
"""

from nccl_doctor.checks.ports.firewall_blocks_port import EXPLAINS, OWN, alike, by_rule, finding, gaps, rule_of, whose
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.snapshot.hosts import connections_of_peer


@check("NCD302", severity=Severity.ERROR, needs=("mesh",), explains=EXPLAINS, row="firewall")
def firewall_blocks_ephemeral(view: View) -> Findings:
    """Yield an error for each rule that blocks only ephemeral ports, and a warning for each that limits connections."""
    for blames in by_rule(view, master=False):
        what = whose(blames)
        who = "the other hosts'" if blames[0].direction == "output" and what == OWN else "NCCL's"
        yield finding(blames, view, f"{rule_of(blames)} {what} to {who} ephemeral ports.")
    for limits in alike(view.dials.firewall.limits):
        most = max(connections_of_peer(view.snapshot, blame.host.name) for blame in limits)
        words = (
            f"{rule_of(limits)} {whose(limits)}: the port test opened only a few, but the job may need {most} per host."
        )
        yield finding(limits, view, words).model_copy(update={"severity": Severity.WARNING})
    yield from gaps(view, master=False)
