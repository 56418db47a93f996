"""No field of what hosts told takes anything at all: every text has a bound, every number too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import Field, JsonValue, ValidationError

from nccl_doctor.model.base import _MOST_FIELDS, Observed
from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.report import NcclInterface, RankReport
from nccl_doctor.snapshot.hang import HangHost, HangSnapshot
from nccl_doctor.snapshot.hosts import HostFacts, Snapshot
from nccl_doctor.snapshot.mesh import Mesh
from tests.checks.snapshots import healthy

OURS = (Cluster, Node, NcclInterface)
"""What the user wrote, and no host: the inventory has its own rules; a choice is held to HostFacts' own."""


def loose(schema: Any, defined: dict[str, Any], owner: type[Any] = object, path: str = "") -> Iterator[str]:
    """Where a core schema of pydantic's takes anything, or a text or a number without bounds."""
    if isinstance(schema, (list, tuple)):
        for one in schema:
            yield from loose(one, defined, owner, path)
    if not isinstance(schema, dict) or schema.get("cls") in OURS:
        return
    match schema.get("type"):
        case "definitions":
            defined.update({one["ref"]: one for one in schema["definitions"]})
        case "definition-ref" if schema["schema_ref"] in defined:
            yield from loose(defined.pop(schema["schema_ref"]), defined, owner, path)
        case "model":
            owner, path = schema["cls"], schema["cls"].__name__
        case str(kind) if _unbounded(kind, schema, issubclass(owner, Observed)):
            yield f"{path}: {kind}"
    for key, inner in schema.items():
        if key not in ("metadata", "serialization", "config", "definitions"):
            yield from loose(inner, defined, owner, path if "type" in schema else f"{path}.{key}")


def _unbounded(kind: str, schema: dict[str, Any], observed: bool) -> bool:
    return {
        "any": True,
        "str": not (observed or "max_length" in schema or "pattern" in schema),
        "int": not ("le" in schema and "ge" in schema),
        "float": not ("le" in schema and "ge" in schema),
    }.get(kind, False)


@pytest.mark.parametrize("document", [Snapshot, HangHost])
def test_nothing_in_a_snapshot_takes_anything_at_all(document: type[Any]) -> None:
    assert [*loose(document.__pydantic_core_schema__, {})] == []


def collections(schema: Any, defined: dict[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """Each list, tuple or object of a core schema, and whether it ends at its first wrong member."""
    if isinstance(schema, (list, tuple)):
        for one in schema:
            yield from collections(one, defined, path)
    if not isinstance(schema, dict) or path.endswith(".access"):  # what engines keep there is any JSON
        return
    match schema.get("type"):
        case "definitions":
            defined.update({one["ref"]: one for one in schema["definitions"]})
        case "definition-ref" if schema["schema_ref"] in defined:
            yield from collections(defined.pop(schema["schema_ref"]), defined, path)
        case "model":
            path = schema["cls"].__name__
            assert len(schema["cls"].model_fields) <= _MOST_FIELDS
        case "dict" | "frozenset" | "list" | "set" | "tuple":
            yield path, bool(schema.get("fail_fast"))
    for key, inner in schema.items():
        if key not in ("metadata", "serialization", "config", "definitions"):
            yield from collections(inner, defined, path if "type" in schema else f"{path}.{key}")


@pytest.mark.parametrize("document", [Snapshot, HangSnapshot])
def test_every_collection_ends_at_its_first_wrong_member(document: type[Any]) -> None:
    found = [*collections(document.__pydantic_core_schema__, {})]
    assert len(found) > 50
    assert [path for path, ends in found if not ends] == []


class Lax(Observed):
    anything: Any
    nested: dict[str, tuple[JsonValue, ...]]
    number: int
    seconds: float
    fine: Annotated[int, Field(ge=0, le=9)]


def test_the_walk_sees_what_is_loose() -> None:
    found = [*loose(Lax.__pydantic_core_schema__, {})]
    assert "Lax.anything: any" in found
    assert "Lax.number: int" in found
    assert "Lax.seconds: float" in found
    assert any(one.startswith("Lax.nested") for one in found)
    assert not any("fine" in one for one in found)


@pytest.mark.parametrize(
    ("kind", "where", "change"),
    [
        (HostFacts, ("hosts", 0, "facts"), {"sysctls": {"net.ipv4.conf.eno1.rp_filter": "Infinity"}}),
        (HostFacts, ("hosts", 0, "facts"), {"sysctls": {"net.ipv4.neigh.default.gc_thresh3": "\u00b2"}}),
        (Mesh, ("mesh",), {"pairs": 0}),
        (Mesh, ("mesh",), {"tested": 7}),
        (RankReport, ("smoke", "ranks", 1), {"stage": ""}),
        (RankReport, ("smoke", "ranks", 1), {"stage": "nowhere"}),
        (RankReport, ("smoke", "ranks", 1), {"state": ""}),
    ],
)
def test_what_checks_count_with_is_what_it_says(kind: Any, where: tuple[Any, ...], change: dict[str, Any]) -> None:
    fact: Any = healthy()
    for step in where:
        fact = fact[step]
    kind.model_validate(fact)
    with pytest.raises(ValidationError):
        kind.model_validate(fact | change)
