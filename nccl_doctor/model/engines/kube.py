"""Engine that treats pods as hosts and runs commands with ``kubectl exec`` under the user's own permissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from nccl_doctor.model.engines.base import Engine, Flag, OptionWords

if TYPE_CHECKING:
    from nccl_doctor.model.cluster import Cluster


@dataclass(frozen=True)
class NotReady:
    """The reason why commands can't be run in a selected pod.

    ``detail`` continues a sentence that begins with the pod's name.
    """

    detail: str
    remedy: str
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True)
class KubeOptions:
    """A pod, and the job's container in this pod. All names have the form that the API server requires (RFC 1123)."""

    engine: ClassVar[str] = "kube"

    namespace: str = ""
    pod: str = ""
    container: str = ""
    machine: str | None = None
    not_ready: NotReady | None = None


class KubeEngine(Engine):
    """An engine that runs commands in pods."""

    name = KubeOptions.engine
    options = KubeOptions
    way = "in the pod"
    absent = "no host is a pod"
    finds_hosts = True
    flags = (
        Flag(
            "kube",
            ("--kube",),
            "Use the pods of job/NAME, pytorchjob/NAME, … as hosts, or all pods that match -l.",
            metavar="[KIND/NAME]",
            bare=True,
        ),
        Flag("namespace", ("-n", "--namespace"), "Namespace of the pods that --kube selects.", metavar="NS"),
        Flag("selector", ("-l", "--selector"), "Label selector of the pods that --kube selects.", metavar="LABELS"),
    )

    def cluster_words(self, cluster: Cluster) -> OptionWords:
        asked = cluster.access.get(self.name, {}).get("asked", ())
        words = tuple(map(str, asked)) if isinstance(asked, (list, tuple)) else ()
        job = words[1:2] if len(words) % 2 == 0 else ()
        pairs = zip(words[1 + len(job) :: 2], words[2 + len(job) :: 2], strict=True)
        chosen = tuple(("-n" if option == "-n" else "-l", value) for option, value in pairs)
        return (("--kube", job[0] if job else None), *chosen) if words else ()


ENGINE = KubeEngine()
