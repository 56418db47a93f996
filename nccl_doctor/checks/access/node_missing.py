"""A node of the job did not join the check, or went away from it.

What it means: a job waits for all of its nodes, so the others would wait in the rendezvous until it times out. The node
was not started, or can't reach node 0, which is what its ranks would have to do, too.

How we know: with `check --join`, every node connects to node 0 at `--join-port` (29499) and proves that it has the
job's token. Node 0 waits for `--join-timeout` (300 s). The evidence lists connections that node 0 refused in the
meantime: by a node with another token, another release of nccl-doctor, another number of nodes, or a rank that another
node has.

Fix: look at the node's own output, in which it says why it could not join: MASTER_ADDR does not resolve there, nothing
listens at node 0 (it has not started, or MASTER_ADDR is another host), or nothing answers, which is what a firewall on
node 0 causes that drops the port.

References: torchrun(1), "Environment Variables"; srun(1), "OUTPUT ENVIRONMENT VARIABLES".
"""

from collections.abc import Iterator

from nccl_doctor.checks.access._failures import FOLLOWS, of_engine
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.firewall.connection import compile_rules
from nccl_doctor.firewall.manager import describe
from nccl_doctor.firewall.rules import Packet
from nccl_doctor.model.engines.joined import JoinedOptions
from nccl_doctor.model.finding import Fix, Severity
from nccl_doctor.snapshot.network import FirewallFacts
from nccl_doctor.text.inet import address_of

DIALLING = (1024, 65535)  # ports from which a node may dial


@check("NCD111", severity=Severity.ERROR, explains=FOLLOWS, scope="joined")
def node_missing(view: View) -> Findings:
    port = view.snapshot.cluster.nodes[0].options(JoinedOptions).port
    for finding in of_engine(view, "node-missing"):
        rules = () if port is None else tuple(_rules(view, port))
        fix = Fix(summary=f"Open port {port} on node 0 for the other nodes, and check again.") if rules else finding.fix
        yield finding.model_copy(update={"evidence": (*finding.evidence, *rules), "fix": fix})


def _rules(view: View, port: int) -> Iterator[str]:
    """Yield a line for each rule of node 0 that blocks a new connection to a port from a neighbour."""
    first = view.snapshot.hosts[0]
    chosen = view.nccl.interfaces.get(first.name)
    if first.facts is None or chosen is None or not isinstance(first.facts.firewall, FirewallFacts):
        return
    own = address_of(chosen.address)
    neighbour = type(own)(int(own) ^ 1)
    packet = Packet("input", neighbour, own, DIALLING, (port, port), iif=chosen.name, path_back=True)
    for verdict in compile_rules(first.facts.firewall).objections(packet):
        if verdict.rule is not None and verdict.blocks:
            yield f"rule    {first.name}: {describe(verdict.rule, first.facts.firewall)}"
