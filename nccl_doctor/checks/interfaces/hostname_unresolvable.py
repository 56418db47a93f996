"""A name that the job uses does not resolve on a host.

What it means: every rank looks up the master address. If the lookup fails, torch warns "The IPv6 network addresses of
(…) cannot be retrieved (gai error: -2 - Name or service not known)" and repeats the lookup. After the timeout, the rank
fails with "The client socket has timed out". In older versions of torch, the rank fails with "The IPv4 network
addresses of (…) cannot be retrieved". On a host that can't resolve its own name, gloo falls back to 127.0.0.1, which
the other hosts can't reach (hostname-loopback explains when this matters).

How we know: each host calls getaddrinfo(3) for the master address, for every host's address in the hosts file, and for
the host's own name. If a name is defined only in ~/.ssh/config (Host, HostName) on the machine that runs nccl-doctor,
getaddrinfo(3) can't resolve the name on any machine. A name from ~/.ssh/config works only for SSH, and affects the
ranks only if it is the master's name.

Fix: if the master's name is an alias in ~/.ssh/config, set `master_addr` to the master's IP address. If the name is not
an alias in ~/.ssh/config, add the name to DNS or to /etc/hosts, or use IP addresses in the hosts file. Pods get DNS
names from a headless Service with a matching selector. A pod that is not ready has no DNS name unless the Service sets
publishNotReadyAddresses: true.
"""

import re
from collections import Counter
from ipaddress import IPv4Address

from nccl_doctor.checks.effects import NAMES
from nccl_doctor.checks.own_names import CHANCE, finding, is_without_gpus, own_names
from nccl_doctor.checks.view import Findings, View, apply, check, common_labels, failed_where, folded, pasted
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import C10D_CLIENT, WEB, Grade, hint, root
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Role, Scene, advise, having
from nccl_doctor.model.base import Unknown, known
from nccl_doctor.model.finding import Details, Finding, Fix, Severity, on
from nccl_doctor.model.operations.programs import ServicePatch
from nccl_doctor.model.operations.system import HostsEntry
from nccl_doctor.snapshot.access import SshUnreachable
from nccl_doctor.snapshot.hosts import Snapshot, corroborated_by_name
from nccl_doctor.snapshot.network import Names, Resolution, deviations
from nccl_doctor.snapshot.surroundings import KubeFacts, Service
from nccl_doctor.text.hostlist import fold, grouped, nouns, quoted
from nccl_doctor.text.inet import Address, numeric

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")


@check(
    "NCD204",
    phrase="name does not resolve",
    severity=Severity.WARNING,
    needs=("resolution", "identity", "interfaces", "env"),
    explains=(NAMES, "master-addr-not-local", "port-unreachable"),
    in_logs=("port-in-use", "ssh-unreachable"),
)
def hostname_unresolvable(view: View) -> Findings:
    cluster = view.snapshot.cluster
    resolved = {host.name: known(facts.resolution) for host, facts in view.facts}
    common = next(iter(resolved.values())).common if resolved else {}
    lost_on = {name for name, answers in deviations(resolved).items() if not all(a.addresses for a in answers.values())}
    lost_on |= {name for name, answer in common.items() if not answer.addresses}
    entries = [name for name in own_names(view) if not name.resolution.addresses]
    # pods that don't exist or are not ready have no name in the cluster yet; pod-not-ready says why
    away = {host.name for host in view.snapshot.hosts if host.facts is None}
    absent = {name for name, pod in view.kube.pods.items() if name in away or not pod.addresses}
    used = ((cluster.master_addr, cluster.nodes[0].name), *((node.address, node.name) for node in cluster.nodes))
    # hosts that this machine can't log in to by these names: ssh-unreachable names those that share the fault
    failures = [host.failure for host in view.snapshot.hosts]
    nowhere = {failure.unresolved for failure in failures if isinstance(failure, SshUnreachable)}
    names = dict.fromkeys(name for name, of in used if of not in absent and name not in nowhere)
    answers = {name: [(host, table.get(name)) for host, table in resolved.items()] for name in names if name in lost_on}
    aliases = {name for name, pairs in answers.items() if name in view.snapshot.aliases and all(map(_is_lost, pairs))}
    if cluster.master_addr in aliases:
        yield _alias(view, cluster.master_addr)
    answers = {name: pairs for name, pairs in answers.items() if name not in aliases}
    lost = (
        (tuple(host for host, entry in pairs if entry and not entry.addresses), name) for name, pairs in answers.items()
    )
    for hosts, those in grouped(lost).items():
        fails = is_without_gpus(view) and any(each.name in those and each.lost for each in entries)
        yield _finding(view, hosts, those, is_fatal=fails or cluster.master_addr in those)
    caught = [each for each in entries if each.name not in names]
    if caught:
        what = ": gloo falls back to 127.0.0.1" if any(each.lost for each in caught) else CHANCE
        whose = "its own name" if len(caught) == 1 else "their own names"
        message = f"{fold(each.host for each in caught)} can't resolve {whose}{what}."
        yield finding(view, caught, message)


def _is_lost(answer: tuple[str, Resolution | None]) -> bool:
    return answer[1] is not None and not answer[1].addresses


def _alias(view: View, name: str) -> Finding:
    hosts = tuple(host.name for host in view.snapshot.reached)
    master = view.snapshot.cluster.nodes[0].name
    address = view.nccl.addresses.get(master)
    setting = f"{address} in the hosts file (--master-addr {address})" if address else f"an address of {master}"
    failed = {dial for dial in view.dials.unexplained if dial.outcome == "failed" and dial.address == name}
    return Finding(
        hosts=hosts,
        message=f"{quoted(name)} is only an alias in this machine's ~/.ssh/config: ranks on {fold(hosts)} "
        "can't resolve it.",
        evidence=(f"{quoted(name)} resolves neither on {fold(hosts)} nor on this machine",),
        facts={"names": [name]},
        details=Details(failed=failed_where(view, failed.__contains__)),
        fix=f"Set master_addr: {setting}; the other hosts' names may stay.",
        severity=Severity.ERROR,
    )


def _finding(view: View, hosts: tuple[str, ...], names: list[str], *, is_fatal: bool) -> Finding:
    lines = {host: _entry(view.snapshot, names, host) for host in hosts}
    commands = tuple(command for host in hosts for command in on(host, lines[host])) if all(lines.values()) else ()
    single = len(names) == 1
    s = "" if single else "s"
    unserved = next((cause for name in names if (cause := why(view.kube, name)) is not None), None)
    whose = "" if single or view.snapshot.cluster.master_addr not in names else ", including the master's"
    resolved = [(host.name, known(facts.resolution)) for host, facts in view.facts if host.name in hosts]
    answers = ((host, name, resolution.get(name)) for name in names for host, resolution in resolved)
    # not a fault of the host itself
    failed = (dial for dial in view.dials.unexplained if dial.outcome == "failed")
    lost = {dial for dial in failed if dial.src in hosts and dial.address in names}
    summary = (
        f"Add the name{s} to the DNS or to /etc/hosts, or use IP addresses in the hosts file. If cloud-init "
        "(manage_etc_hosts) or a container engine writes /etc/hosts at each start, change cloud-init's template or "
        "use --add-host instead."
    )
    fix = pasted(summary, commands, needs_root=bool(commands))
    return Finding(
        hosts=hosts,
        message=f"The name{s} {quoted(fold(names))} {'does' if single else 'do'} not resolve on {fold(hosts)}{whose}"
        f"{'' if unserved is None else f': {unserved[0]}'}.",
        evidence=folded((host, f"{quoted(name)}: {each.error}") for host, name, each in answers if each is not None),
        facts={"names": names},
        details=Details(failed=failed_where(view, lost.__contains__)),
        fix=fix if unserved is None else unserved[1],
        severity=Severity.ERROR if is_fatal else None,
    )


def _entry(snapshot: Snapshot, names: list[str], host: str) -> HostsEntry | None:
    """Return the entries to add to /etc/hosts, or None if the address of any name is uncertain."""
    entries = tuple((str(_address(snapshot, name, host) or ""), name) for name in names)
    return HostsEntry(entries) if all(address for address, _ in entries) else None


def _address(snapshot: Snapshot, name: str, host: str) -> Address | None:
    """Return the address of a name, preferring IPv4, or None if the address is uncertain."""
    resolutions = [each.facts.resolution for each in snapshot.hosts if each.facts]
    answers = [names.get(name) for names in resolutions if isinstance(names, Names)]
    texts = {str(address) for answer in answers if answer is not None for address in answer.addresses}
    claimed = {numeric(text) for text in texts.union(snapshot.resolved.get(name, ()))}
    addresses = corroborated_by_name(snapshot, name, host) & claimed
    some: list[Address] = [address for address in addresses if isinstance(address, IPv4Address)] or [*addresses]
    return some[0] if len(some) == 1 and _NAME.fullmatch(name) else None


def why(kube: KubeFacts, name: str) -> tuple[str, Fix] | None:
    """Return the reason why a pod's name does not resolve, and the remedy.

    The result is None if the pod's Service is not the cause.
    """
    if not kube.pods:
        return None
    pod_name, _, service_name = name.partition(".")
    service_name = service_name.partition(".")[0] or pod_name
    if isinstance(kube.services, Unknown):
        summary = f"See with kubectl get service {service_name} whether there is a headless Service of that name."
        return (
            f"the Service {quoted(service_name)} might be missing, but nccl-doctor can't check: {kube.services.reason}",
            Fix(summary=summary),
        )
    service = next((candidate for candidate in kube.services if candidate.name == service_name), None)
    if service is None:
        return f"there is no Service named {quoted(service_name)} in the namespace {quoted(kube.namespace)}", _make(
            kube, service_name
        )
    return _of(kube, service, pod_name) if "." in name else None


def _of(kube: KubeFacts, service: Service, pod_name: str) -> tuple[str, Fix] | None:
    """Return the reason why an existing Service does not give the pod a DNS name, and the remedy."""
    pod = next((candidate for candidate in kube.pods.values() if pod_name in (candidate.hostname, candidate.pod)), None)
    if not service.headless:
        summary = "Recreate the Service with clusterIP: None: only a headless Service gives pods DNS names."
        return f"the Service {quoted(service.name)} is not headless, so its pods have no DNS names", Fix(
            summary=summary
        )
    if pod is not None and service.selector and not service.selector.items() <= pod.labels.items():
        chosen = ", ".join(f"{key}={value}" for key, value in service.selector.items())
        summary = "Give the Service's selector labels that the job's pods have."
        by = f"the {nouns(len(service.selector), 'label')} {chosen}"
        return f"the Service {quoted(service.name)} selects pods by {by}, which {pod.pod} does not have", Fix(
            summary=summary
        )
    if pod is not None and pod.unready and not service.early:
        commands = on(None, ServicePatch(service.name, kube.namespace))
        summary = "Have the Service publish DNS names before pods are ready, since ranks need the names to start:"
        sentence = f"{pod.pod} is not ready, and the Service {quoted(service.name)} gives DNS names only to ready pods"
        return sentence, pasted(summary, commands)
    return None


def _make(kube: KubeFacts, name: str) -> Fix:
    """Return a fix that creates a headless Service for the job's pods."""
    labels = common_labels(kube)
    summary = "Make a headless Service of that name for the job's pods"
    if not labels:
        return Fix(summary=f"{summary} (clusterIP: None, publishNotReadyAddresses: true).")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": kube.namespace},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels},
    }
    return pasted(f"{summary}:", on(None, apply(service)))


def _advice(case: Case) -> Advice:
    name = case.address.host
    return advise(
        f"{case.who} could not resolve {name or 'the name of another host'}.",
        "Use the master's address instead of its name, or put the name into DNS or /etc/hosts on every host. In "
        "Kubernetes, the Service's record might appear later than the pod: wait for it before the start.",
        case.check(),
    )


# Errors of getaddrinfo as libc, Windows, Go, Java, torch and SSH print them.
RULES = (
    root(
        r"[Cc]ould not resolve (?:host|hostname|proxy)?:? ?(?P<host>[A-Za-z0-9._-]+)(?::? Name|:? Temp|: No address|$)",
        "ssh: Could not resolve hostname gpu-17: Name or service not known",
    ),
    root(
        r"(?:Name or service not known|Temporary failure in name resolution|nodename nor servname provided)",
        "ValueError: host not found: Name or service not known",
        unless=WEB,
    ),
    root(
        r"No address associated with hostname",
        "socket.gaierror: [Errno -5] No address associated with hostname",
        unless=WEB,
    ),
    root(
        r"[Tt]he IPv4 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[E socket.cpp:810] [c10d] The IPv4 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        r"Error: (?:The client socket has .{0,120} )?[Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) "
        r"(?:cannot|could not) be",
        "RuntimeError: The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 - Name or "
        "service not known).",
    ),
    hint(
        r"[Tt]he IPv6 network addresses of \((?P<host>\S+), (?P<port>\d+)\) (?:cannot|could not) be (?:retrieved"
        r"|resolved)",
        "[W socket.cpp:601] [c10d] The IPv6 network addresses of (head-0, 29500) cannot be retrieved (gai error: -2 "
        "- Name or service not known).",
    ),
    root(
        r"(?:[Nn]o such host is known|\[Errno 1100[1-4]\]|ENOTFOUND|EAI_(?:AGAIN|NONAME|FAIL)"
        r"|gethostby\w+ (?:failed|error)"
        r"|[Uu]nknown host:? |[Hh]ost ?name lookup fail"
        r"|(?:[Uu]nable|[Ff]ailed|[Cc]annot|[Cc]ould not) to resolve (?:host|name|\S+:\d)"
        r"|DNS (?:resolution|lookup|query) failed|Domain name not found|[Nn]ame resolution fail"
        r"|[Nn]o address found for host"
        r"|cannot resolve (?:host|own|local|the host))",
        "socket.gaierror: [Errno 11001] getaddrinfo failed",
        unless=WEB + r"|Using the loopback address",
    ),
    root(
        r"gloo.{0,160}(?:10049|requested address is not valid)",
        "RuntimeError: [enforce fail at gloo/transport/uv/device.cc:153] rv != -1. bind: (10049) The requested address "
        "is not valid in its context",
    ),
    root(
        r"rp != nullptr\. Unable to find address for:? ?(?P<host>[A-Za-z0-9._-]+)",
        "RuntimeError: [enforce fail at gloo/transport/uv/device.cc:153] rp != nullptr. Unable to find address for: "
        "DESKTOP-7QK2",
    ),
    root(
        r"\(gai error: -\d+ - .{0,60}\)",
        "RuntimeError: The hostname of the server socket cannot be retrieved (gai error: -3 - Temporary failure in "
        "name resolution).",
        unless=r"IPv6 network addresses|client socket cannot be retrieved",
    ),
    root(
        r"error encountered when getting address info ?:",
        "n1:7:7 [0] misc/socket.cc:317 NCCL WARN Net : error encountered when getting address info : Name or service "
        "not known",
    ),
    root(
        r"(?:gaierror|getaddrinfo).{0,40}(?:fail|\[Errno -?\d+\])",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        unless=WEB,
    ),
    root(
        r"(?:lookup (?P<host>[\w.-]+)(?: on \S+)?: no such host|Name does not resolve|UnknownHostException"
        r"|[Hh]ost ?name .{0,60}could not be resolved)",
        "dial tcp: lookup worker-0.train on 10.96.0.10:53: no such host",
    ),
    hint(
        C10D_CLIENT + r"system error: 10049 - ",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [own-name.local]:29500 (system error: "
        "10049 - The requested address is not valid in its context.).",
    ),
)

_AGAIN = 3
"""Number of failed lookups after which an unresolved name counts as the cause. One connection attempt makes up to two
lookups, one for each address family, so a third lookup means that torch has retried (c10d/socket.cpp, tryConnect).
"""


def _never_resolved(scene: Scene) -> list[Event]:
    """Return the events, with failed lookups of a name as the root cause if no rank tried to connect to the name."""
    dialled = {event.address.host for event in scene.events if event.name in having(Role.DIALS)}
    given_up = {event.address.host for event in scene.events if event.name == "rendezvous-timeout"}
    hints = [event for event in scene.events if event.name == "hostname-unresolvable" and event.grade is Grade.HINT]
    asked = Counter(event.address.host for event in hints if event.address.host is not None)
    unknown = {host for host, times in asked.items() if times >= _AGAIN and host in given_up - dialled}
    blamed = {event for event in hints if event.address.host in unknown}
    return scene.renamed("hostname-unresolvable", Grade.ROOT, blamed.__contains__)


SIGNS = LogSigns(
    RULES,
    _advice,
    hint_beside=("connection-refused", "connection-timed-out", "no-route-to-host", "rendezvous-timeout"),
    passes={PassStage.GIVING_UP: _never_resolved},
)
