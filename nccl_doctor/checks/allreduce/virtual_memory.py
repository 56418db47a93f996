"""Adds limits on virtual memory (``ulimit -v``) to findings, because torch's errors do not mention these limits."""

from nccl_doctor.model.base import Unknown
from nccl_doctor.model.finding import Finding, Fix
from nccl_doctor.snapshot.hosts import HostFacts, Snapshot
from nccl_doctor.text.hostlist import fold, grouped

ENOUGH = 4 << 30
"""Amount of virtual memory, in bytes, that always suffices to start torch.

Importing torch 2.13 on two CPUs used 0.7 GiB, and each additional thread uses more virtual memory.
"""


def with_limits(finding: Finding, snapshot: Snapshot) -> Finding:
    """Add the limits on virtual memory to a finding about failed ranks if these limits might be the cause."""
    hosts = ((host, host.facts) for host in snapshot.reached if host.facts and host.name in finding.hosts)
    limits = grouped((size, host.name) for host, facts in hosts if (size := _too_little(facts)))
    if not limits:
        return finding
    words = ", ".join(f"{size >> 20} MiB on {fold(names)}" for size, names in limits.items())
    return finding.model_copy(
        update={
            "message": f"{finding.message.rstrip('.')}. The virtual memory of each process is limited to {words}.",
            "evidence": (*finding.evidence, f"ulimit -v, as a command on the host has it: {words}"),
            "fix": Fix(
                summary="Lift that limit, which torch may exceed: ulimit -v unlimited in the shell that starts "
                "the job; for good in its start-up files, or in a .conf file in /etc/security/limits.d (as)."
            ),
        }
    )


def _too_little(facts: HostFacts) -> int:
    size = 0 if isinstance(facts.limits, Unknown) else facts.limits.address_space or 0
    return size if size < ENOUGH else 0
