"""Wordings that several diagnoses share: one line of a program, another errno in it.

NCCL's sockets: src/include/socket.h to 2.11, src/misc/socket.cc from 2.12, src/os/linux.cc from 2.29.
"""

from __future__ import annotations

from nccl_doctor.logs.rule import Grade, LogRule, hint

C10D_CLIENT = r"client socket has failed to connect to .*"
"""torch's store (torch/csrc/distributed/c10d/socket.cpp); the errno follows."""


def failed_connects(grade: Grade, errno: str, text: str) -> tuple[LogRule, ...]:
    """A failed connect of NCCL; while it is only retried it is a hint.

    ``errno`` is the pattern of strerror's text, ``text`` one that it fits.
    """
    warn = f"n1:1:2 [0] misc/socket.cc:534 NCCL WARN socketStartConnect: Connect to 10.0.0.2<4242> failed : {text}"
    last = f"Last error:  socketPollConnect: connect to 10.0.0.2<4242> returned {text}, exceeded error retry count"
    retry = f"n1:1:2 [0] NCCL INFO Call to connect returned {text}, retrying"
    return (
        LogRule(grade, f"WARN .*[Cc]onnect to .*(?:failed|returned).*{errno}", warn),
        LogRule(grade, f"onnect (?:to .* )?returned .*{errno}.*exceeded error retry", last),
        hint(f"INFO .*connect.* returned .*{errno}.*retrying", retry),
    )


def failed_pairs(grade: Grade, errno: str, text: str) -> tuple[LogRule, ...]:
    """A failed connect of gloo (gloo/transport/tcp): the peer's address stands behind ``remote=``."""
    full = f"RuntimeError: [enforce fail at gloo/transport/tcp/pair.cc:799] connect [10.0.0.2]:31337: {text}"
    return (
        LogRule(
            grade,
            rf"SO_ERROR: .*{errno}",
            f"RuntimeError: timed out connecting: SO_ERROR: {text}, remote=[10.0.0.2]:9",
        ),
        LogRule(grade, rf"connect \[\S+\]:\d+: {errno}", full),
    )
