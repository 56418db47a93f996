"""The project's site, if the package names one; each diagnosis has a page there, at a stable address."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nccl_doctor.model.base import Document

LABEL = "Documentation"
"""The label of the site's address among ``project.urls`` of pyproject.toml."""

Shown = TypeVar("Shown", bound="Document")


def site_of(urls: Iterable[str]) -> str | None:
    """Return the site's address, with a slash at its end, from a package's URLs ("Label, https://…"); else None."""
    for url in urls:
        label, _, address = url.partition(", ")
        if label == LABEL and address.startswith("https://"):
            return address.rstrip("/") + "/"
    return None


def own_site() -> str | None:
    """Return the address of this package's site; None if it names none, or is not installed."""
    try:
        return site_of(metadata("nccl-doctor").get_all("Project-URL", []))
    except PackageNotFoundError:
        return None


def with_pages(document: Shown) -> Shown:
    """Return the document with the address of its page in each diagnosis."""
    diagnoses = getattr(document, "diagnoses", ())
    site = own_site() if isinstance(diagnoses, tuple) and diagnoses else None
    if site is None:
        return document
    found = tuple(one.model_copy(update={"page": f"{site}{one.code}/"}) for one in diagnoses)
    return document.model_copy(update={"diagnoses": found})
