"""A snapshot in a log: lines that bear prefixes, time stamps and other lines between them, and tell when one is lost.

``nccl-doctor-snapshot NUMBER/COUNT DIGEST BASE64``: zlib's compression of the JSON in pieces, and the first eight
digits of the SHA-256 of the whole in each. A container's runtime cuts lines at 16 KiB; these are far shorter.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Iterable

from nccl_doctor.errors import SnapshotError

WRITER = """\
import base64,hashlib,sys,zlib
data=base64.b64encode(zlib.compress(open(sys.argv[1],'rb').read(),9)).decode()
mark=hashlib.sha256(data.encode()).hexdigest()[:8]
parts=[data[i:i+4000] for i in range(0,len(data),4000)]
for i,part in enumerate(parts,1):print('nccl-doctor-snapshot %d/%d %s %s'%(i,len(parts),mark,part),flush=True)
"""
"""Prints the file that it is given so; it runs in the pod, by the Python of the job."""

MAX_JSON = 512 << 20
_LINE = re.compile(r"nccl-doctor-snapshot ([0-9]{1,6})/([0-9]{1,6}) ([0-9a-f]{8}) ([A-Za-z0-9+/=]{1,8000})")


def read(lines: Iterable[str], source: str) -> bytes:
    """The JSON of the last snapshot that the log holds whole.

    Raises:
        SnapshotError: there is none, or lines of it are missing.
    """
    found: dict[tuple[str, int], dict[int, str]] = {}
    for line in lines:
        if told := _LINE.search(line):
            found.setdefault((told[3], int(told[2])), {})[int(told[1])] = told[4]
    if not found:
        raise SnapshotError(
            f"{source}: holds no snapshot; it is in the log of the check's pod 0, once the check is through"
        )
    (mark, count), parts = list(found.items())[-1]
    missing = count - len(parts)
    data = "".join(text for _, text in sorted(parts.items()))
    if missing or hashlib.sha256(data.encode()).hexdigest()[:8] != mark:
        raise SnapshotError(f"{source}: of the snapshot {missing or 'some'} of {count} lines are missing or cut")
    try:
        packed = zlib.decompressobj()
        whole = packed.decompress(base64.b64decode(data, validate=True), MAX_JSON)
    except (zlib.error, binascii.Error) as error:
        raise SnapshotError(f"{source}: the snapshot is damaged: {error}") from error
    if not packed.eof:
        raise SnapshotError(f"{source}: the snapshot is damaged, or larger than {MAX_JSON >> 20} MiB")
    return whole
