"""Reads the pods of a job (``--kube KIND/NAME`` or ``--kube -l LABELS``) as hosts, and sorts the pods by index."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nccl_doctor.errors import UsageError
from nccl_doctor.inventory import kube_api, kube_facts, values
from nccl_doctor.inventory.kube_api import POD_LIST, Container, Pod, typed
from nccl_doctor.inventory.kube_facts import facts, not_ready, training_container
from nccl_doctor.inventory.sources import Entry, ParsedInventory, Settings, Sourced, SourceLocation
from nccl_doctor.model.engines.kube import KubeOptions
from nccl_doctor.snapshot.surroundings import KubeFacts
from nccl_doctor.text.hostlist import quoted
from nccl_doctor.transport.kube.kubectl import KubectlError, kubectl

SECONDS = 30.0  # time for one request to the API server: 10,000 pods take 3 s, and a link may be slow

_LABELS = {
    "job": "job-name={}",
    "jobset": "jobset.sigs.k8s.io/jobset-name={}",
    "trainjob": "jobset.sigs.k8s.io/jobset-name={}",
    "pytorchjob": "training.kubeflow.org/job-name={}",
    "mpijob": "training.kubeflow.org/job-name={}",
    "lws": "leaderworkerset.sigs.k8s.io/name={}",
    "statefulset": "",
}
"""Labels that the controller for each kind of object sets on the object's pods.

The entry for StatefulSets is empty, because the selector in the StatefulSet itself is used.
"""
_ALIASES = {"sts": "statefulset", "jobs": "job", "leaderworkerset": "lws", "pytorchjobs": "pytorchjob"}
_TWICE = "--kube names the hosts, and so does a hosts file or -w; give one of them"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PORTS = ("MASTER_PORT", "PET_MASTER_PORT")
_MASTER = ("MASTER_ADDR", "PET_MASTER_ADDR", "LWS_LEADER_ADDRESS")


@dataclass(frozen=True)
class KubeRequest:
    """The pods that are requested on the command line, by KIND/NAME or by labels for ``kubectl -l``."""

    job: str = ""
    selector: str | None = None
    namespace: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The command-line arguments that select the pods of this request."""
        options = (("-n", self.namespace), ("-l", self.selector))
        job = (self.job,) if self.job else ()
        return ("--kube", *job, *(word for option, value in options if value is not None for word in (option, value)))

    @property
    def login(self) -> str:
        """The reason why ``--user`` and ``--port`` have no effect on pods."""
        return "pods are entered as the user of their container"

    def read(self, where: str | None, environ: Mapping[str, str]) -> ParsedInventory:  # noqa: ARG002 - pods know nothing of ours
        """Return the requested pods as listed by the API server."""
        if where is not None:
            raise UsageError(_TWICE)
        pods, what = _pods_of(self)
        if kube_facts.over(pods):
            raise UsageError(f"--kube: all pods of {what} have ended; check while they run")
        namespace = kube_api.read_namespace(pods[0].metadata.namespace)
        place = SourceLocation(f"--kube {what}", is_file=False)
        return parsed(pods, place, asked=self.words, **namespace)


def request(
    options: Mapping[str, Any],
    transport: str | None,  # noqa: ARG001 - options alone choose pods
    environ: Mapping[str, str],  # noqa: ARG001 - likewise
    *,
    named: bool,
) -> KubeRequest | None:
    """Return the request from ``--kube``, ``-l`` and ``-n``, or None if ``--kube`` is not given."""
    if "kube" not in options:
        if "namespace" in options or "selector" in options:
            raise UsageError("-n and -l select pods; use them with --kube")
        return None
    if named:
        raise UsageError(_TWICE)
    return KubeRequest(options["kube"], options.get("selector"), options.get("namespace"))


def _pods_of(wanted: KubeRequest) -> tuple[list[Pod], str]:
    kind, name = _split(wanted)
    where = ("-n", _checked(wanted.namespace, "-n")) if wanted.namespace is not None else ()
    labels = _LABELS[kind].format(name) if kind else ""
    if kind == "statefulset":
        answer = _ask("get statefulsets", *where, "get", kind, name, "-o", "json", what=f"statefulset/{name}")
        try:
            pairs = json.loads(answer)["spec"]["selector"]["matchLabels"].items()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"--kube: statefulset/{name} has no selector by labels; give them with -l") from error
        labels = ",".join(f"{key}={value}" for key, value in pairs)
    selector = ",".join(part for part in (labels, wanted.selector) if part)
    listed = typed(POD_LIST, _ask("list pods", *where, "get", "pods", "-l", selector, "-o", "json"), "list of pods")
    pods = [pod for pod in listed.items if kind != "statefulset" or (pod.owner and pod.owner.name == name)]
    what = f"{kind}/{name}" if kind else f"-l {selector}"
    if not pods:
        place = f" in the namespace {where[1]}" if where else " in the current namespace"
        if kind:
            full = {"lws": "leaderworkerset"}.get(kind, kind)
            _ask(f"get {full}s", *where, "get", full, name, "-o", "name", what=f"{what}{place}")
        labelled = " ".join(("kubectl get pods --show-labels", *where))
        hint = "it has made none yet, or is suspended" if kind else f"{labelled} shows what labels there are"
        raise UsageError(f"--kube: {what} has no pods{place}; {hint}")
    groups = sorted({pod.metadata.labels.get(kube_facts.GROUP, "") for pod in pods})
    if len(groups) > 1:  # groups of a LeaderWorkerSet
        hint = f"add -l {kube_facts.GROUP}={groups[0]}"
        raise UsageError(f"--kube: {what} has {len(groups)} groups, each a job of its own; {hint}")
    return kube_facts.current(pods), what


def _split(wanted: KubeRequest) -> tuple[str, str]:
    if not wanted.job:
        if not wanted.selector:
            raise UsageError("--kube needs KIND/NAME, for example job/train, or labels: --kube -l app=train")
        return "", ""
    kind, slash, name = wanted.job.partition("/")
    kind = _ALIASES.get(kind.lower(), kind.lower())
    if not slash or kind not in _LABELS:
        hint = f"kinds are {', '.join(_LABELS)}; or choose pods with -l LABELS"
        raise UsageError(f"--kube: {quoted(wanted.job)} is not a KIND/NAME; {hint}")
    return kind, _checked(name, "--kube")


def _checked(name: str, option: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f'{option}: {quoted(name)} is not a name in Kubernetes: small letters, digits, "-" and "."')
    return name


def _ask(right: str, *arguments: str, what: str = "the pods") -> bytes:
    try:
        return kubectl(*arguments, seconds=SECONDS)
    except FileNotFoundError:
        url = "https://kubernetes.io/docs/tasks/tools/"
        raise UsageError(f"--kube needs kubectl, which is not on PATH: {url}") from None
    except TimeoutError:
        raise UsageError(f"--kube: the cluster's API server did not answer within {SECONDS:.0f} s") from None
    except KubectlError as error:
        asked = " ".join(("kubectl auth can-i", right, *(arguments[:2] if arguments[0] == "-n" else ())))
        words = {
            "forbidden": f"you are not allowed to {right} ({asked}): ask its administrator",
            "unauthorized": "the cluster's API server does not know you; log in to it again",
            "gone": f"there is no {what}",
            "no-such-kind": "the cluster knows no objects of this kind",
            "no-server": "the cluster's API server can't be reached from here",
            "not-configured": "kubectl is not set up for a cluster here (KUBECONFIG, ~/.kube/config)",
        }.get(error.trouble)
        detail = f"its words: {error.last}"
        message = f"the cluster was not asked; {detail}" if words is None else f"{words} ({detail})"
        raise UsageError(f"--kube: {message}") from error


def parsed(pods: Sequence[Pod], place: SourceLocation, **more: object) -> ParsedInventory:
    """Return the pods as hosts. ``more`` contains additional fields of KubeFacts."""
    chosen = [(pod, training_container(pod)) for pod in pods]
    known = {pod.metadata.name: facts(pod, container) for pod, container in chosen}
    ports = (Sourced(values.port(text, place), noted) for text, noted in _variables(chosen, _PORTS, place))
    return ParsedInventory(
        place,
        [_entry(pod, container, place) for pod, container in chosen],
        master_addr=_master(chosen, place),
        master_port=next(ports, None),
        access=(KubeFacts(namespace=pods[0].metadata.namespace, pods=known).model_copy(update=more),),
    )


def _entry(pod: Pod, container: Container, place: SourceLocation) -> Entry:
    name, spec = pod.metadata.name, pod.spec
    address = pod.status.pod_ip or (f"{spec.hostname or name}.{spec.subdomain}" if spec.subdomain else name)
    options = KubeOptions(
        namespace=pod.metadata.namespace,
        pod=name,
        container=container.name,
        machine=spec.node,
        not_ready=not_ready(pod, container),
    )
    gpus = sum(count for device, count in facts(pod, container).devices.items() if device.endswith("/gpu"))
    ranks = Sourced(gpus, place.noted("its container's nvidia.com/gpu")) if 0 < gpus <= values.MAX_NPROC else None
    settings = Settings(nproc_per_node=ranks)
    return Entry(Sourced(name, place), Sourced(values.host(address, place), place), settings, access=(options,))


def _master(chosen: Sequence[tuple[Pod, Container]], place: SourceLocation) -> Sourced[str] | None:
    for address, noted in _variables(chosen, _MASTER, place):
        if address != "localhost":
            return Sourced(values.host(address, place), noted)
    first = chosen[0][0]
    if not first.spec.subdomain:
        return None
    name = f"{first.spec.hostname or first.metadata.name}.{first.spec.subdomain}"
    return Sourced(values.host(name, place), place.noted("its name in the headless Service"))


def _variables(
    chosen: Sequence[tuple[Pod, Container]], names: Sequence[str], place: SourceLocation
) -> Iterator[tuple[str, SourceLocation]]:
    for pod, container in (*chosen[1:2], *chosen[:1]):
        env = {entry.name: entry.value for entry in container.env}
        for variable in names:
            value = env.get(variable)
            if value and "$" not in value:
                yield value, place.noted(f"{variable} of {pod.metadata.name}")
