"""The interface that NCCL is told to use is down or has no carrier.

What it means: from 2.28.3 on NCCL passes over interfaces that are not running, and ends with "Bootstrap : no socket
interface found" where none is left. Before, it uses them as long as they have an address, and the other hosts wait in
vain.

How we know: IFF_RUNNING in the interface's flags (netdevice(7)), which the kernel clears where the interface was
switched off, the cable is out, or the other end is down; and NCCL's rules for the host's version.

Fix: bring the interface up (`ip link set NAME up`), look at the cable and the switch port, or use another interface.
"""

from nccl_doctor.checks.nccl_choice import MISLED, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import Kind


@check("NCD211", severity=Severity.ERROR, needs=NEEDS, needs_nccl=True, explains=MISLED)
def interface_down(view: View) -> Findings:
    """Fires where what the variable lets through is not running."""
    yield from findings(view, Kind.DOWN)
