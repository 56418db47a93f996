"""A host or its firewall turns connections away as unreachable.

What it means: The kernel got "host unreachable" for the address. Between hosts that can ping each other that is a
firewall's REJECT (firewalld's default), else an interface on another net or an address that nobody has.

How we know: NCCL's "Connect to 10.0.0.2<4242> failed : No route to host", or retries with these words up to the last
one (NCCL 2.24 and later retry 34 times, at INFO level only), torch's and gloo's errno 113.

Fix: Let the cluster's own addresses in on the host that rejects: `nccl-doctor check` names the rule and the narrow
command. NCCL's ports are drawn from the whole ephemeral range, so opening the master port alone does not help.

References: NCCL's src/misc/socket.cc and src/os/linux.cc; connect(2) on EHOSTUNREACH.
"""

from __future__ import annotations

from nccl_doctor.model.register import from_logs

from_logs(__name__, "NCD311", job_wide=False, errors=("EHOSTUNREACH",))
