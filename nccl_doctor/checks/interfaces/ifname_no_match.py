"""NCCL_SOCKET_IFNAME lets none of the host's interfaces through.

What it means: NCCL does not fall back to another interface. It ends at once with "Bootstrap : no socket interface
found" and ncclInvalidUsage (ncclInternalError before 2.24.3). A prefix matches the beginning of a name ("eth" means
eth0 and eth1, and not enp3s0); "=" in front asks for the whole name, "^" for all but these. Blanks and capitals count.

How we know: the interfaces of the host in the kernel's order, its variables from the hosts file, the SSH environment
and NCCL's config files, and NCCL's rules for the version that torch loads there, or libnccl's own answer.

Fix: name an interface that the host has. Where the hosts' names differ, the variable must differ too.

See NCCL's documentation of NCCL_SOCKET_IFNAME, and src/misc/socket.cc in its source.
"""

from __future__ import annotations

from nccl_doctor.checks.nccl_choice import EXPLAINS, NEEDS, findings
from nccl_doctor.checks.view import Findings, View, check
from nccl_doctor.model.finding import Severity
from nccl_doctor.nccl.cluster_nccl import Kind


@check(
    "NCD206",
    severity=Severity.ERROR,
    needs=NEEDS,
    needs_nccl=True,
    explains=EXPLAINS,
    in_logs=("ib-fault", "plugin-fault", "wrong-interface"),
)
def ifname_no_match(view: View) -> Findings:
    """Fires where NCCL finds no interface at all, although some are running."""
    yield from findings(view, Kind.NO_MATCH)
