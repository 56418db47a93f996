"""What is waited for, and for how long, on stderr."""

from __future__ import annotations

import sys

from nccl_doctor.report.safe import clean


class Countdown:
    """One live line on a terminal; elsewhere a line for each new thing that is waited for; nothing for ``-q``."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._kind = ""

    def __call__(self, text: str) -> None:
        """Shows the text in place of the one before."""
        kind = text.partition(" ")[0]
        if self._quiet or (not self._live and kind == self._kind):
            return
        self._kind = kind
        sys.stderr.write("\r\x1b[2K" + clean(text)[:79] if self._live else clean(text) + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Clears the line."""
        if self._live and self._kind:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
