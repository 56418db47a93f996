"""Regular expressions whose time grows with the text alone, whoever wrote the text: RE2 instead of :mod:`re`.

A pattern of three gaps takes :mod:`re` twelve seconds on one line of 4 kB that was made for it. What RE2 leaves out for
its promise: looking around and references back.
"""

from __future__ import annotations

import re
from typing import cast


def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern, with the interface of :mod:`re`; its classes of characters know ASCII alone.

    Raises:
        re2.error: it looks around, refers back, or is no pattern.
    """
    import re2  # ten milliseconds that most commands need not spend

    return cast("re.Pattern[str]", re2.compile(pattern))
