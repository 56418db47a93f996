"""The bases of all data here: models that don't change, and documents, which commands print."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema

from nccl_doctor import __version__

SCHEMA = 1
_COLLECTIONS = frozenset({"dict", "frozenset", "list", "set", "tuple"})
_MOST_FIELDS = 100
"""More than any model has."""
_NO_SCHEMA = frozenset({"config", "default", "metadata", "serialization"})


def _fail_fast(schema: Any, *, within: bool = False) -> None:  # noqa: ANN401 - dictionaries, lists and tuples of them
    """Marks the collections of a model; models within it have marked their own."""
    if isinstance(schema, (list, tuple)):
        for inner in schema:
            _fail_fast(inner, within=within)
    if not isinstance(schema, dict):
        return
    kind = schema.get("type")  # of fields by name, that may be one of them
    if within and kind == "model":
        return
    if isinstance(kind, str) and kind in _COLLECTIONS:
        schema["fail_fast"] = True
    for key, inner in schema.items():
        if key not in _NO_SCHEMA:
            _fail_fast(inner, within=within or kind == "model")


class FrozenModel(BaseModel):
    """Base of pydantic models that can't be changed and refuse unknown fields.

    Of a list or an object, the first member that does not fit ends it, and unknown fields are one fault together: each
    fault of its own would take a hundred times the memory of what it is about.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _no_crowd(cls, told: Any) -> Any:  # noqa: ANN401 - whatever was given
        if isinstance(told, dict) and len(told) > _MOST_FIELDS:
            raise ValueError(f"{len(told):,} fields, of which most are unknown")
        return told

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler, /) -> CoreSchema:
        """The schema as pydantic makes it, of which every collection fails fast."""
        schema = handler(source)
        _fail_fast(handler.resolve_ref_schema(schema))
        return schema


class Document(FrozenModel):
    """What a command prints: its JSON is the answer to ``-o json``; fields are added to it, never changed."""

    schema_: int = Field(default=SCHEMA, alias="schema", serialization_alias="schema")
    version: str = __version__
    command: str

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
