"""A name resolves to different addresses on different hosts, or a host's own name resolves to another host's address.

What it means: ranks that look up the master by name connect to different machines or to unreachable addresses, and wait
until they time out. If a host's own name resolves to an old address or to another host's address, gloo falls back to
127.0.0.1, which other hosts can't reach. If other hosts can't connect to the address that gloo advertises, all jobs
that use gloo fail, including NCCL jobs that use gloo for checkpoints or monitored barriers. If gloo can still connect
because of the order of the addresses (see hostname-loopback), the diagnosis is only a note. If one host's name resolves
to an IPv6 address and another host's name resolves to an IPv4 address, gloo aborts with "ss1.ss_family ==
ss2.ss_family". The usual cause is an outdated /etc/hosts on one host.

How we know: each host resolved its own name and every name in the hosts file. A name is reported if two hosts resolve
it to entirely different addresses. The master's name is not reported for a host that reached the master by this name. A
host's own name is at fault if none of the host's interfaces has an address to which the name resolves. If a host's own
name resolves to a loopback address, the diagnosis is hostname-loopback.

Fix: make /etc/hosts the same on all hosts, or use IP addresses in the hosts file. If only a host's own name is at
fault, setting GLOO_SOCKET_IFNAME also helps.
"""

from collections import Counter

from nccl_doctor.checks.effects import NAMES
from nccl_doctor.checks.own_names import CHANCE, OwnName, finding, own_names
from nccl_doctor.checks.view import Findings, View, check, failed_by, on_each, pasted
from nccl_doctor.logs.rule import root
from nccl_doctor.logs.signs import LogSigns, Role, make_advice
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.snapshot.mesh import Mesh
from nccl_doctor.snapshot.network import Names, ResolverAnswer, deviations
from nccl_doctor.text.hostlist import fold, grouped, quoted
from nccl_doctor.text.shell import line


@check(
    "NCD205",
    phrase="names resolve differently",
    severity=Severity.WARNING,
    needs=("resolution", "identity", "interfaces", "env"),
    explains=("port-unreachable", NAMES, "master-addr-not-local"),
)
def hostname_mismatch(view: View) -> Findings:
    stale = [record for record in own_names(view) if record.is_stale]
    master = view.snapshot.cluster.master_addr
    if stale:
        fatal = any(record.host == view.snapshot.cluster.nodes[0].name and record.name == master for record in stale)
        what = ": gloo advertises 127.0.0.1 to the other hosts" if any(record.lost for record in stale) else CHANCE
        where = fold(record.host for record in stale)
        words = f"On {where}, the hostname resolves to an address that the host does not have{what}."
        about_own = finding(view, stale, words)
        yield about_own.model_copy(update={"severity": Severity.ERROR}) if fatal else about_own
    lost = [
        record for record in own_names(view) if record.lost and record.resolution.addresses and not record.is_loopback
    ]
    address_list = {record.host: record.gloo for record in own_names(view)}
    for each in lost:
        if not each.is_stale:
            yield finding(view, [each], _lost_words(each, [address_list.get(host) for host in each.lost]))
    record = {(each.host, each.name) for each in (*stale, *lost)}
    hosts = {host.name: facts.resolution for host, facts in view.facts if isinstance(facts.resolution, Names)}
    for name, deviating in deviations(hosts).items():
        shared = view.snapshot.names.get(name)
        if not any(_real(answer) not in ((), _real(shared)) for answer in deviating.values()):
            continue  # a host's loopback address for itself is not a contradiction
        answers = {host: _real(names.get(name)) for host, names in hosts.items()}
        column = {host: real for host, real in answers.items() if real and (host, name) not in record}
        common, _ = Counter(column.values()).most_common(1)[0] if column else ((), 0)
        others = (host for host, real in column.items() if not set(real) & set(common))
        if outliers := tuple(host for host in others if not _reached(view, host, name)):
            by_answer = grouped((real, host) for host, real in column.items())
            yield Finding(
                hosts=outliers,
                message=f"{fold(outliers)} and the other hosts resolve {quoted(name)} to different addresses.",
                evidence=tuple(
                    f"{fold(those)}: {quoted(name)} is {', '.join(real)}" for real, those in by_answer.items()
                ),
                facts={
                    "name": name,
                    "is_master": name == master,
                    "matrix": {host: list(real) for host, real in column.items()},
                },
                details=Details(failed=failed_by(view, name, outliers)),
                fix=pasted(
                    f"Make {quoted(name)} resolve to the same address on all hosts, or use IP addresses in the hosts "
                    "file. If these commands print no line, the name comes from DNS:",
                    on_each(outliers, line("grep -nwF -- {name} /etc/hosts", name=name)),
                ),
                severity=Severity.ERROR if name == master else None,
            )


def _lost_words(own_name: OwnName, values: list[str | None]) -> str:
    """Describe why the host's own name prevents gloo from connecting the host to some other hosts."""
    words = f"On {own_name.host}, the hostname resolves to {own_name.gloo}"
    mine = ":" in own_name.gloo
    if values and all(address is not None and (":" in address) != mine for address in values):
        family = "IPv4" if mine else "IPv6"
        return f"{words}, but gloo uses {family} on {fold(own_name.lost)}. Gloo can't mix address families."
    return f"{words}, but gloo can't use this address to connect {own_name.host} and {fold(own_name.lost)}."


def _reached(view: View, host: str, name: str) -> bool:
    cluster, mesh = view.snapshot.cluster, view.snapshot.mesh
    master = cluster.nodes[0].name
    if not isinstance(mesh, Mesh) or name != cluster.master_addr or host == master:
        return False
    answered = host in mesh.answered.get(master, {}).get(name, ()) and cluster.master_port in mesh.ports.get(master, ())
    return answered and all(dial.address != name for dial in mesh.failures.get((host, master), ()))


def _real(answer: ResolverAnswer | None) -> tuple[str, ...]:
    addresses = answer.addresses if answer is not None else ()
    return tuple(sorted(address for address in addresses if not address.startswith("127.") and address != "::1"))


ADVICE = make_advice(
    "gloo on {who} has an address of a different family from the other ranks': hosts' own names resolve to IPv6 on "
    "some hosts and to IPv4 on others, or to ::1.",
    "Set GLOO_SOCKET_IFNAME on every host to the interface of the job's network, or give each host's name its real "
    "address in /etc/hosts. To see which:",
)

# gloo compares the addresses of two ranks (gloo/transport/tcp/device.cc).
RULES = (
    root(
        r"ss1\.ss_family == ss2\.ss_family",
        "RuntimeError: [enforce fail at gloo/transport/tcp/device.cc:285] ss1.ss_family == ss2.ss_family. 2 vs 10",
    ),
)

SIGNS = LogSigns(RULES, ADVICE, roles=frozenset({Role.NETWORK}))
