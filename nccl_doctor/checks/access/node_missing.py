"""A node of the job did not join the check, or left the check before the end.

What it means: a job waits for all of its nodes. If one node is missing, the other nodes wait until the rendezvous times
out. Either nccl-doctor was not started on the missing node, or the node can't connect to node 0. The job's ranks on the
missing node would also need to reach node 0, so the job would fail for the same reason.

How we know: with `check --join`, every node connects to node 0 on port 29499 (`--join-port`) and proves that it has the
job's token. Node 0 waits up to 300 s for the other nodes (`--join-timeout`). The evidence lists the connections that
node 0 refused. Node 0 refuses a node that has a different token, nccl-doctor release, number of nodes or master port.
Node 0 also refuses a node whose rank is already in use, or that arrives after the check has begun.

Fix: look at the missing node's own output, which shows why the node could not join. If the connection to node 0 is
refused, nccl-doctor has not started on node 0, or MASTER_ADDR is the address of another host. If the connection to node
0 gets no answer, a firewall on node 0 probably drops the packets. If the missing node can't resolve MASTER_ADDR, it
can't connect to node 0.

References: PyTorch, "torchrun (Elastic Launch)", "Environment Variables"; srun(1), "OUTPUT ENVIRONMENT VARIABLES".
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
    """Yield a line of evidence for each firewall rule of node 0 that blocks other nodes' connections to the port."""
    first = view.snapshot.hosts[0]
    chosen = view.nccl.interfaces.get(first.name)
    if first.facts is None or chosen is None or not isinstance(first.facts.firewall, FirewallFacts):
        return
    address = address_of(chosen.address)
    neighbour = type(address)(int(address) ^ 1)
    packet = Packet("input", neighbour, address, DIALLING, (port, port), iif=chosen.name, path_back=True)
    for verdict in compile_rules(first.facts.firewall).objections(packet):
        if verdict.rule is not None and verdict.blocks:
            yield f"rule    {first.name}: {describe(verdict.rule, first.facts.firewall)}"
