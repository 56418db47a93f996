"""A service mesh's sidecar or a transparent proxy intercepts connections between the hosts.

What it means: the sidecar's rules redirect every connection to a proxy, and the proxy accepts the connection before
connecting to the target. A proxy might wait until the client sends data, require TLS, close idle connections, or
replace the client's address. Behind a proxy, NCCL and gloo hang, fail with "Connection reset", or are slow because a
single process forwards all of a host's data.

Behind a proxy, torch's store client repeatedly logs a message with "failed to connect/validate" and "got 0 bytes". The
message "got 0 bytes" means that the connections were accepted and then immediately closed. Without a proxy, the master
refuses connections to the master port until torch's store starts.

How we know: each host bound a port without listening on it, and a connection from another host to this port was
accepted instead of refused. nccl-doctor tests ports without a listener only if the hosts are pods, or if a connection
in the port test was accepted but did not reach nccl-doctor's listener. In the port test, nccl-doctor's listeners send a
random word immediately after they accept a connection. A proxy is also reported if the listener's random word arrived
only after the connecting host had sent data. If no sidecar exists and a host's own firewall rule redirects the
connections, the diagnosis is firewall-blocks-port.

Fix: exclude the job's pods from the mesh, and start the job again. For Istio, set the `sidecar.istio.io/inject:
"false"` label in the pod template or, in Istio's ambient mode, which has no sidecars, the `istio.io/dataplane-mode:
none` label. For Linkerd, set the `linkerd.io/inject: disabled` annotation in the pod template. Alternatively, exclude
the whole ephemeral range, which contains NCCL's ports, from the proxy.

References: Istio, "Installing the Sidecar" and "Protocol Selection" (server-first protocols). Linkerd, "Protocol
Detection".
"""

import re
from collections import Counter

from nccl_doctor.checks.effects import CONNECTIONS
from nccl_doctor.checks.view import Findings, View, check, pairs_of, ports_of
from nccl_doctor.logs.log import Event
from nccl_doctor.logs.rule import Grade
from nccl_doctor.logs.signs import Advice, Case, LogSigns, PassStage, Scene, advise
from nccl_doctor.model.finding import Details, Finding, Severity
from nccl_doctor.text.hostlist import fold, grouped, listed, nouns

SIDECARS = {
    "istio-proxy": 'label sidecar.istio.io/inject: "false"',
    "linkerd-proxy": "annotation linkerd.io/inject: disabled",
}
HEARD = "the listener was heard only after the client had sent data"
TAKEN = ("stranger", "intercepted", "reset")
WITHOUT = (
    "Set the {} in the template of the job's pods, and start the job again, so that its pods are outside "
    "the service mesh."
)
OTHERWISE = (
    'Leave the job\'s pods out of the service mesh (for Istio the label sidecar.istio.io/inject: "false" in their '
    "template, or istio.io/dataplane-mode: none in the ambient mode, which has no sidecars), or exclude all TCP ports "
    "between the hosts from the proxy."
)


@check(
    "NCD309",
    severity=Severity.WARNING,
    needs=("mesh",),
    explains=("port-unreachable", "firewall-blocks-port", "firewall-blocks-ephemeral", CONNECTIONS),
)
def proxy_intercepts(view: View) -> Findings:
    """Yield one finding for all affected pairs of hosts. If connections failed, the finding is an error."""
    mesh = view.mesh
    sidecars = {
        name: next((item for item in pod.containers if item in SIDECARS), None) for name, pod in view.kube.pods.items()
    }
    intercepted = mesh.intercepted
    spoken = [dial for dial in mesh.failed if dial.outcome == "intercepted"]
    if not any(sidecars.values()):  # then the fault is a rule of the host itself that redirects the dials
        explained = {dial for blame in view.dials.firewall.blames for dial in blame.dials}
        intercepted = tuple(item for item in intercepted if item not in view.dials.firewall.redirected)
        spoken = [dial for dial in spoken if dial not in explained]
    endpoints = {end for item in intercepted for end in (item.src, item.dst)}
    endpoints |= {end for dial in spoken for end in (dial.src, dial.dst)}
    if not endpoints:
        return
    ends = [node.name for node in view.snapshot.cluster.nodes if node.name in endpoints]
    proxied = [name for name in ends if sidecars.get(name)] or ends
    # each host was tried, so any failed pair with a proxied end may be explained by it
    failed = [dial for dial in mesh.failed if dial.outcome in TAKEN or not {dial.src, dial.dst}.isdisjoint(proxied)]
    kinds = sorted({item for name in ends if (item := sidecars.get(name))})
    who = f"The {listed(kinds)} {nouns(len(kinds), 'sidecar')} in" if kinds else "A proxy on or between"
    yield Finding(
        hosts=tuple(proxied),
        message=f"{who} {fold(proxied)} accept{'s' * (len(kinds) < 2)} connections that are meant for other hosts.",
        evidence=(
            *(
                f"{item.src} -> {item.dst}:{item.port}: accepted, although no process listens there"
                for item in intercepted[:8]
            ),
            *(
                f"{fold(dict.fromkeys(dial.src for dial in dials))} -> {target}:{ports_of(dials)}: {HEARD}"
                for target, dials in grouped((dial.dst, dial) for dial in spoken).items()
            ),
        ),
        facts={"sidecars": kinds},
        details=Details(failed=pairs_of(failed)),
        fix=WITHOUT.format(SIDECARS[kinds[0]]) if len(kinds) == 1 else OTHERWISE,
        severity=Severity.ERROR if failed else None,
        explains=None if kinds else ("port-unreachable", CONNECTIONS),
    )


def _advice(case: Case) -> Advice:
    return advise(
        f"Connections from {case.who} to the store at {case.target} are accepted and closed at once, so "
        "something other "
        "than torch's store answers there: the sidecar of a service mesh, a proxy, or another program on that port.",
        f"{OTHERWISE} On hosts without a mesh, see which program listens on that port of the master "
        "(nccl-doctor fix-port there).",
        case.check(),
    )


_CLOSED = re.compile(r"TCP client failed to connect/validate to host .{1,300}retrying.{1,200}got 0 bytes")
"""Pattern for the message of torch's store client if it gets no answer (torch/csrc/distributed/c10d/TCPStore.cpp)."""


def _repeated(scene: Scene) -> list[Event]:
    """Return the events, with a proxy as the likely cause if a rank's store connections are closed repeatedly."""
    closed = [event for event in scene.events if event.name == "peer-died" and _CLOSED.search(event.text)]
    times = Counter((event.file, event.prefix.host, event.rank) for event in closed)
    repeated = [event for event in closed if times[event.file, event.prefix.host, event.rank] > 1]
    return scene.renamed("proxy-intercepts", Grade.LIKELY, lambda event: event in repeated)


SIGNS = LogSigns((), _advice, passes={PassStage.MEANING: _repeated})
