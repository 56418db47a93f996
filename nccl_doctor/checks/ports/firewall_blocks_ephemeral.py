"""A firewall rule on a host blocks the ephemeral ports on which NCCL and gloo listen.

What it means: opening only the master port in the firewall is not sufficient. NCCL and gloo have no setting for their
ports. Each rank listens on ports that the kernel chooses from `net.ipv4.ip_local_port_range`, and ranks on other hosts
connect to these ports. If a rule blocks these connections, the job completes its rendezvous but hangs at the first
collective.

How we know: every host listened on ephemeral ports, and the other hosts tried to connect to these ports. A connection
failed, and the kernel's rules on the two hosts block a packet of this connection or a reply (see firewall-blocks-port).
If the connections succeeded, but a rule limits their rate or number (iptables limit, hashlimit, connlimit or recent;
nft limit or ct count), the diagnosis is a warning. A limit is reported if it allows fewer connections than the ranks of
two hosts might need. The required number of connections is estimated as the number of ranks on the peer * (6 + 2 * the
number of ranks on the host) (see ephemeral-ports-few).

Fix: run the commands in the report, which allow connections from the cluster's own addresses to the whole ephemeral
range. The commands use the tool that manages the host's rules.

References: ip-sysctl (ip_local_port_range); NCCL's ncclSocketListen binds port 0 (src/misc/socket.cc).
"""

from nccl_doctor.checks.ports.firewall_blocks_port import EXPLAINS, OWN, alike, by_rule, finding, gaps, rule_of, whose
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.snapshot.hosts import connections_of_peer


@check("NCD302", severity=Severity.ERROR, needs=("mesh",), explains=EXPLAINS, row="firewall")
def firewall_blocks_ephemeral(view: View) -> Findings:
    """Yield an error for each rule that blocks only ephemeral ports, and a warning for each rate limit."""
    for blames in by_rule(view, master=False):
        what = whose(blames)
        who = "the other hosts'" if blames[0].direction == "output" and what == OWN else "NCCL's"
        yield finding(blames, view, f"{rule_of(blames)} {what} to {who} ephemeral ports.")
    for limits in alike(view.dials.firewall.limits):
        most = max(connections_of_peer(view.snapshot, blame.host.name) for blame in limits)
        words = (
            f"{rule_of(limits)} {whose(limits)}. The port test opened only a few connections, but the job might need "
            f"up to {most} per host."
        )
        yield finding(limits, view, words).model_copy(update={"severity": Severity.WARNING})
    yield from gaps(view, master=False)
