"""What this host makes of the cluster's names, and from which of its addresses it would reach them."""

from __future__ import annotations

import base64
import errno
import json
import socket
import zlib
from collections import Counter
from typing import Any

from nccl_doctor.probe.reading import fact, side_by_side


def unpacked(text: str) -> dict[str, list[Any] | None]:
    """The cluster's names, thousands of them, as collect/facts/names.py sends them: JSON, zlib, base64."""
    names: dict[str, list[Any] | None] = json.loads(zlib.decompress(base64.b64decode(text)).decode())
    return names


@fact("resolution")
def resolve_names(names: dict[str, list[Any] | None], deadline: float) -> dict[str, Any]:
    """snapshot.Names; a name that hangs until ``deadline`` is told as such.

    Args:
        names: what others made of each, ``[addresses, error]``, or None where nobody was asked yet; it is told only
            where this host makes something else of it, as of its own host name.
        deadline: on the clock of ``time.monotonic``.
    """
    wanted = list(dict.fromkeys([*names, socket.gethostname()]))
    found = {name: look_up(name) for name in wanted if is_literal(name)}
    pending = [name for name in wanted if name not in found]
    found.update(side_by_side(look_up, pending, deadline))
    late = {"addresses": [], "error": "no answer in time"}
    return deviating({name: found.get(name, late) for name in wanted}, names)


def deviating(found: dict[str, dict[str, Any]], names: dict[str, list[Any] | None]) -> dict[str, Any]:
    """snapshot.Names of all that was found: what others made otherwise, and from where most is sent."""
    sources = Counter(told["source"] for told in found.values() if told.get("source"))
    source = sources.most_common(1)[0][0] if sources else None
    own = {}
    for name, told in found.items():
        known = names.get(name) or ([[name], None] if source and is_literal(name) else None)
        usual = not told["addresses"] or (told.get("source"), told.get("source_error")) == (source, None)
        if not usual or [told["addresses"], told["error"]] != known:
            own[name] = told
    return {"own": own, "source": source}


def look_up(name: str) -> dict[str, Any]:
    """snapshot.Resolution of one name: getaddrinfo(3) as torch and gloo call it; a literal is only parsed."""
    flags = socket.AI_NUMERICHOST if is_literal(name) else 0
    try:
        answers = socket.getaddrinfo(name, 9, socket.AF_UNSPEC, socket.SOCK_STREAM, 0, flags)
    except socket.gaierror as error:
        return {"addresses": [], "error": error.strerror}
    except UnicodeError:  # what the IDNA codec makes of an empty or over-long label
        return {"addresses": [], "error": "not a valid host name"}
    source, source_error = source_to(*answers[0][::4])
    addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return {"addresses": addresses, "error": None, "source": source, "source_error": source_error}


def source_to(family: int, address: tuple[Any, ...]) -> tuple[str | None, str | None]:
    """The local address that the kernel would send from, or the errno name; connect(2) on UDP sends no packet."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return probe.getsockname()[0], None
    except OSError as error:
        return None, errno.errorcode.get(error.errno or 0, str(error))


def is_literal(name: str) -> bool:
    """Whether this is an IP address, not a name."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, name.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False
