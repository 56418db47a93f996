"""Which diagnosis somebody means who asks for its page: by code, number, name, or in the error's own words."""

from __future__ import annotations

import difflib
import errno
import os

from nccl_doctor.errors import UsageError
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.model.register import Check, all_checks, find
from nccl_doctor.text.hostlist import quoted


def page_of(word: str) -> Check:
    """The diagnosis that a word, or the line of an error, means.

    Raises:
        UsageError: it means none.
    """
    asked = word.strip()
    code = f"NCD{asked}" if asked.isdigit() else asked
    named = [check for check in find(code) if code.lower() != check.category]
    found = named or find(_by_error(asked) or "") or find(_by_line(asked) or "")
    if found:
        return found[0]
    near = difflib.get_close_matches(asked, [text for check in all_checks() for text in (check.code, check.name)], 1)
    hint = f"; did you mean {quoted(near[0])}?" if near else '; "nccl-doctor codes" lists them'
    raise UsageError(f"{quoted(asked)} is no diagnosis{hint}")


def _by_error(text: str) -> str | None:
    """An error of the kernel's by its name, or by what the C library calls it."""
    for check in all_checks():
        for name in check.errors:
            if text.upper() == name or text.lower() == os.strerror(getattr(errno, name)).lower():
                return check.name
    return None


def _by_line(text: str) -> str | None:
    """The diagnosis whose wording fits a line as a log has it."""
    causes = diagnose([LogSource("words", [text.encode(errors="replace") + b"\n"])]).causes
    return causes[0].name if causes else None
