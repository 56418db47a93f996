"""What an HTML report says besides its document: who asked, when, and the pages of the diagnoses."""

from __future__ import annotations

import getpass
import os
import socket
import sys
import time
import webbrowser
from pathlib import Path

from nccl_doctor.model.register import all_checks
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.safe import clean


def for_html(options: RenderOptions) -> RenderOptions:
    """The options of a report that others read, elsewhere and later."""
    pages = {check.code: check.page for check in all_checks()}
    return options._replace(pages=pages, made_at=time.time(), asked_by=f"{_user()} on {socket.gethostname()}")


def open_in_browser(path: Path) -> None:
    """Opens the file in the user's browser; where there is none, says so."""
    if not webbrowser.open(path.resolve().as_uri()):
        sys.stderr.write(clean(f"{path}: written, but no browser was found to open it with") + "\n")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry for the user; KeyError before Python 3.13
        return f"user {os.getuid()}"
