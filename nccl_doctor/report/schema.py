"""Generates a JSON Schema for the JSON documents that a command prints, from the documents' models.

Later versions of nccl-doctor keep all fields of a schema, but might add new fields. A schema contains no enumerations
to which later versions of nccl-doctor might add values. A schema also contains no limits on values, because these
limits only protect nccl-doctor from untrusted hosts.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from pydantic import TypeAdapter

from nccl_doctor.model.acts import FixReport
from nccl_doctor.model.base import SCHEMA, Document
from nccl_doctor.model.documents import (
    Codes,
    Difference,
    HangReport,
    HostList,
    InterfaceAnswers,
    Launch,
    Page,
    Topic,
    TopicList,
)
from nccl_doctor.model.ports import PortReport
from nccl_doctor.model.report import Report

DOCUMENTS: dict[str, tuple[type[Document], ...]] = {
    "check": (Report,),
    "smoke": (Report,),
    "logs": (Report,),
    "fix": (FixReport,),
    "fix-port": (PortReport,),
    "hang": (HangReport,),
    "ifname": (InterfaceAnswers,),
    "hosts": (HostList,),
    "launch": (Launch,),
    "diff": (Difference,),
    "codes": (Codes,),
    "explain": (Page, Topic, TopicList),
}
"""Models of the documents that each command prints."""

_BOUNDS = frozenset({"maxLength", "minLength", "maxItems", "maximum", "minimum", "pattern", "propertyNames"})
_GROWING = (("FailedDial", "outcome"), ("RankReport", "stage"))
_OF_SOME = ("entities", "page")  # fields of diagnoses that only logs have, or only packages that name a site


def adapter_of(command: str) -> TypeAdapter[Document]:
    """Return the type adapter for a command's documents, or raise KeyError if the command prints no documents."""
    return TypeAdapter(reduce(or_, DOCUMENTS[command]))


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a command's documents, or raise KeyError if the command prints none."""
    made: dict[str, Any] = _promised(adapter_of(command).json_schema(mode="serialization", by_alias=True))
    for noun, name in _GROWING:
        made.get("$defs", {}).get(noun, {}).get("properties", {}).get(name, {}).pop("enum", None)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:nccl-doctor:schema:{command}:{SCHEMA}",
        "title": f"nccl-doctor {command} {'--format' if command == 'launch' else '-o'} json, schema {SCHEMA}",
    }
    return {**made, **head}


def _promised(tree: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Return a part of a schema without limits on values.

    All fields are required, except ``entities`` and ``page``.
    """
    if isinstance(tree, list):
        return [_promised(inner) for inner in tree]
    if not isinstance(tree, dict):
        return tree
    made = {key: _promised(inner) for key, inner in tree.items() if key not in _BOUNDS or isinstance(inner, dict)}
    if "properties" in made and isinstance(made["properties"], dict) and tree.get("type") == "object":
        made["required"] = [name for name in made["properties"] if name not in _OF_SOME]
        made.pop("additionalProperties", None)
    return made
