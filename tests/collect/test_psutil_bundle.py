from __future__ import annotations

import json
import os

import pytest

from nccl_doctor.collect import psutil_bundle
from nccl_doctor.probe import psutil_memory


def test_the_bundle_is_json_small_and_says_what_it_is_for() -> None:
    bundle = psutil_bundle.pack(os.uname().machine, psutil_memory.libc())
    assert len(json.dumps(bundle)) < 250_000
    assert (bundle["machine"], bundle["libc"]) == (os.uname().machine, psutil_memory.libc())
    assert {"__init__.py", "_common.py", "_pslinux.py", psutil_bundle.EXTENSION} <= set(bundle["files"])


@pytest.mark.parametrize(
    ("machine", "needed", "expected"),
    [
        (62, b"libc.so.6", ("x86_64", "glibc")),
        (183, b"libc.musl-aarch64.so.1", ("aarch64", "musl")),
        (8, b"libc.so.6", ("ELF machine 8", "glibc")),
    ],
)
def test_a_library_tells_machine_and_libc(machine: int, needed: bytes, expected: tuple[str, str]) -> None:
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little")
    assert psutil_bundle.built_for(header + bytes(44) + needed + b"\0") == expected
