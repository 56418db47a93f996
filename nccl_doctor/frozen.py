"""The bases of all data here: models that don't change, and documents, which commands print."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from nccl_doctor import __version__

SCHEMA = 1


class FrozenModel(BaseModel):
    """Base of pydantic models that can't be changed and refuse unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Document(FrozenModel):
    """What a command prints: its JSON is the answer to ``-o json``; fields are added to it, never changed."""

    schema_: int = Field(default=SCHEMA, alias="schema", serialization_alias="schema")
    version: str = __version__
    command: str

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
