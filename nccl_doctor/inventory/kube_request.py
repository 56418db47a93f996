"""Which pods are asked for; apart from those who ask, whose types take long to import."""

from __future__ import annotations

from dataclasses import dataclass

from nccl_doctor.errors import UsageError


@dataclass(frozen=True)
class KubeRequest:
    """What the options say: ``job`` is KIND/NAME or empty, ``selector`` labels as ``kubectl -l`` takes them."""

    job: str = ""
    selector: str | None = None
    namespace: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The same on a command line."""
        said = (("-n", self.namespace), ("-l", self.selector))
        job = (self.job,) if self.job else ()
        return ("--kube", *job, *(word for option, value in said if value is not None for word in (option, value)))


def request(kube: str | None, selector: str | None, namespace: str | None) -> KubeRequest | None:
    """What ``--kube``, ``-l`` and ``-n`` mean together; None where none was given.

    Raises:
        UsageError: -n or -l without --kube.
    """
    if kube is None and (namespace is not None or selector is not None):
        raise UsageError("-n and -l choose pods; say --kube with them")
    return None if kube is None else KubeRequest(kube, selector, namespace)
