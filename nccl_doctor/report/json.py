"""Any document as the one JSON document that scripts read."""

from __future__ import annotations

import json
from typing import Any

from nccl_doctor.model.base import Document
from nccl_doctor.report.render import RenderOptions


def render(document: Document, _options: RenderOptions) -> str:
    """The document's JSON: every field, but ``entities`` only where a log named some.

    ASCII only, so that whatever a host name or a log holds can neither upset a terminal nor an encoding. Numbers that
    JSON doesn't know (infinities, not-a-number) become null.
    """
    tree = _without_entities(json.loads(document.model_dump_json(by_alias=True)))
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"


def _without_entities(tree: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(tree, dict):
        kept = (item for item in tree.items() if item != ("entities", None))
        return {name: _without_entities(value) for name, value in kept}
    return [_without_entities(one) for one in tree] if isinstance(tree, list) else tree
