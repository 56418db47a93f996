"""The report as the one JSON document that scripts read."""

from __future__ import annotations

import json

from nccl_doctor.model import Report


def document(report: Report) -> str:
    """The report's JSON: every field, but ``entities`` only where a log named some.

    ASCII only, so that whatever a host name or a log holds can neither upset a terminal nor an encoding. Numbers that
    JSON doesn't know (infinities, not-a-number) become null.
    """
    tree = json.loads(report.model_dump_json(by_alias=True))
    for diagnosis in tree["diagnoses"]:
        if diagnosis["entities"] is None:
            del diagnosis["entities"]
    return json.dumps(tree, indent=2, allow_nan=False) + "\n"
