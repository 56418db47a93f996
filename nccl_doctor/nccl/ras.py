"""What NCCL's RAS service answers (``ncclras``, port 28028): communicators, ranks, counts, and who is missing.

Text since NCCL 2.24, JSON (``SET FORMAT json``) since 2.28.7 (src/ras/client_support.cc). Text names only the ranks of
small groups and never who is well; JSON names all ranks, but not the processes of which no communicator is known.
"""

from __future__ import annotations

from nccl_doctor.nccl.ras_answer import MalformedAnswerError, RasAnswer
from nccl_doctor.nccl.ras_text import parse_json, parse_lines
from nccl_doctor.text.bounds import CrowdedError

_MOST_LINES = 200_000
"""Of a report: more than fit into the 8 MiB of it that are taken from a host."""


def parse(text: str) -> RasAnswer:
    """The answer to ``STATUS`` or ``VERBOSE STATUS``, in either form.

    Raises:
        CrowdedError: it asks for more than an answer holds.
        MalformedAnswerError: it is neither.
    """
    if text.lstrip().startswith("{"):
        return parse_json(text)
    if "NCCL version" not in text and "Communicators..." not in text:
        raise MalformedAnswerError("RAS answered neither a report nor JSON")
    if text.count("\n") > _MOST_LINES:
        raise CrowdedError(f"more than {_MOST_LINES:,} lines")
    return parse_lines(text.split("\n"))
