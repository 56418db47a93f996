"""What hosts that were reached see of one that was not: whether it is down, or only this machine is cut off from it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping

from nccl_doctor.collect import answers
from nccl_doctor.collect.answers import Dialled, DialRow
from nccl_doctor.collect.asking import ask_once
from nccl_doctor.collect.controller_names import look_up
from nccl_doctor.collect.session import ProbeSession
from nccl_doctor.snapshot import AnyAccessFailure, DialOutcome, SshUnreachable
from nccl_doctor.text.inet import numeric

WITNESSES = 2
"""Hosts that look."""

TARGETS = 64
"""Addresses that each looks at."""

DIAL_S = 2.0
NAMES_S = 2.0
ANSWER_S = 3.0
TAKES_S = NAMES_S + 2 * DIAL_S + ANSWER_S
"""What all of it may take: what is silent is spoken to, and waited for as long again."""

WORTH_ASKING = ("timed-out", "no-route", "unreachable", "refused")
"""Where nothing of the host's own was seen."""

LOOKS: tuple[DialOutcome, ...] = (
    "stranger", "intercepted", "reset", "refused", "timed-out", "no-route", "unreachable",
)  # fmt: skip
"""What a witness saw, the most telling first, as of a host's several addresses one counts; the others are no look:
it could not open a socket, or had no address of its own to dial from."""


def run(
    sessions: list[ProbeSession], failures: Mapping[str, AnyAccessFailure], until: float
) -> dict[str, SshUnreachable]:
    """The failures of the hosts that were looked at, with what was seen: sshd greets all, so a stranger is up.

    This machine itself, where it is one of the hosts, is no witness: it has looked already.
    Nothing is looked at where it might not have ended by ``until`` (:func:`time.monotonic`).
    """
    latest = time.monotonic() + TAKES_S
    chosen = [session for session in sessions if not session.node.local][:WITNESSES]
    lost = {
        name: failure
        for name, failure in failures.items()
        if isinstance(failure, SshUnreachable)
        and failure.facts.reason in WORTH_ASKING
        and failure.facts.jump_host is None
    }
    places = _places(lost)[:TARGETS] if chosen and latest <= until else []
    if not places:
        return {}
    nonce = secrets.token_hex(16)
    targets = [[address, [lost[name].facts.port], nonce] for name, address in places]

    def look(session: ProbeSession) -> Dialled:
        return session.ask(answers.DIALLED, "dial", latest, targets=targets, timeout_s=DIAL_S)

    seen: dict[str, dict[str, DialOutcome]] = {}
    for session, told in zip(chosen, ask_once(look, chosen), strict=True):
        rows = () if isinstance(told, Exception) else told.failed
        for row in sorted(filter(_is_look, rows), key=lambda row: LOOKS.index(row.outcome)):
            if row.target < len(places):
                seen.setdefault(places[row.target][0], {}).setdefault(session.node.name, row.outcome)
    return {
        name: lost[name].model_copy(update={"facts": lost[name].facts.model_copy(update={"others": others})})
        for name, others in seen.items()
    }


def _places(lost: Mapping[str, SshUnreachable]) -> list[tuple[str, str]]:
    """Hosts and their addresses as this machine resolves them: a witness may know the name as another's, or not at all.

    An address that means another machine elsewhere is left out: 127.0.0.1 of a forward (ssh -L), a link's own.
    """
    if not lost:
        return []
    known = look_up((failure.facts.address for failure in lost.values()), NAMES_S)
    found = []
    for name, failure in lost.items():
        for text in known.get(failure.facts.address, (failure.facts.address,)):
            address = numeric(text)
            if address and not (address.is_loopback or address.is_link_local or address.is_unspecified):
                found.append((name, text))
    return found


def _is_look(row: DialRow) -> bool:
    """Whether it shows anything of the host: nothing where somebody took the connection and was silent."""
    return row.outcome in LOOKS and row.error != "SILENT"
