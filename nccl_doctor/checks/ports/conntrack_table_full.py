"""A host's conntrack table is full, or has too few free entries for the job.

What it means: with a stateful firewall, NAT or kube-proxy, the kernel keeps an entry for each connection in its
conntrack table. The table holds at most `net.netfilter.nf_conntrack_max` entries, which all programs in the host's
network namespace share. The connections of most containers are also counted in this namespace. If the table is full,
the kernel drops packets of new connections, even if the firewall's rules allow the connections. Different ranks hang in
each run, and "nf_conntrack: table full, dropping packet" appears in the kernel log.

How we know: nccl-doctor reads nf_conntrack_count and nf_conntrack_max on each host. A host is reported if less than a
tenth of the table is free, or if the job's connections need more entries than are free (see ephemeral-ports-few for the
estimate).

Fix: raise the limit of the conntrack table. The setting exists only once the kernel module nf_conntrack is loaded, so a
permanent limit needs nf_conntrack in a .conf file in /etc/modules-load.d, too. kube-proxy sets the limit itself when it
starts (--conntrack-max-per-core). An entry occupies about 300 bytes of memory. Entries of closed connections remain for
a few minutes, but entries of connections that were never closed remain for five days
(nf_conntrack_tcp_timeout_established). Find out which program opens most of the connections.

References: the kernel's Documentation/networking/nf_conntrack-sysctl.rst; net/netfilter/nf_conntrack_core.c.
"""

from nccl_doctor.checks.effects import SILENCE
from nccl_doctor.checks.view import Findings, View, check, failed_where, on_each, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, make_advice
from nccl_doctor.model.base import known
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.model.operations.system import SysctlSet
from nccl_doctor.snapshot.hosts import connections, world_size
from nccl_doctor.text.hostlist import fold, grouped

MAX = "net.netfilter.nf_conntrack_max"
FREE = 10  # a tenth of the table
USUAL, LARGEST = 1 << 18, 1 << 24  # the kernel's default from 4 GiB of memory on; 5 GiB of entries


@check(
    "NCD313",
    phrase="conntrack table is full",
    severity=Severity.WARNING,
    needs=("conntrack",),
    explains=("port-unreachable", SILENCE),
)
def conntrack_table_full(view: View) -> Findings:
    short: list[tuple[tuple[int, int, int], str]] = []
    world = world_size(view.snapshot)
    for host, facts in view.facts:
        table = known(facts.conntrack)  # without a rule that needs it, the kernel tracks nothing
        need = connections(view.nproc(host, facts), world)
        if table is not None and table.used and table.most - table.used < max(need, table.most // FREE):
            short.append(((table.most, table.used, need), host.name))
    for (most, used, need), hosts in grouped(short).items():
        lost = {
            dial
            for dial in view.dials.unexplained
            if not {dial.src, dial.dst}.isdisjoint(hosts) and (dial.outcome == "timed-out" or dial.error == "EPERM")
        }
        full = used >= most
        state = "full" if full else "too small" if need > most - used else "nearly full"
        raised = min(max(4 * most, USUAL), LARGEST)
        end = f", but the job might need up to {need} more" if need > most - used else ""
        yield Finding(
            hosts=tuple(hosts),
            message=f"The conntrack table on {fold(hosts)} is {state}: {used} of {most} entries are in use"
            f"{', so the kernel drops new connections' if full else end}.",
            evidence=(f"net.netfilter.nf_conntrack_count is {used}, {MAX} is {most}",),
            facts={"used": used, "most": most, "needed": need},
            details=Details(failed=failed_where(view, lost.__contains__)),
            severity=Severity.ERROR if full else None,
            fix=pasted(
                "Raise the limit (for good: the same setting in a .conf file in /etc/sysctl.d, and nf_conntrack in one "
                "in /etc/modules-load.d, since the setting exists only once that module is loaded), and find out what "
                "has so many connections (conntrack -L):",
                on_each(hosts, SysctlSet(((MAX, str(raised)),), (str(most),))) if raised > most else (),
                needs_root=True,
            ),
        )


ADVICE = make_advice(
    "The kernel's conntrack table on {who} is full, so packets of new connections are dropped.",
    f"Raise {MAX} there, and find out what has so many connections (conntrack -L).",
    command=None,
)

# net/netfilter/nf_conntrack_core.c
RULES = (
    root(
        r"nf_conntrack: (?:nf_conntrack: )?(?:expectation )?table full",
        "[81240.1] nf_conntrack: nf_conntrack: table full, dropping packet",
    ),
)

SIGNS = LogSigns(RULES, ADVICE)
