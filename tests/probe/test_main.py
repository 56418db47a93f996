"""The probe's loop, as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.patience import LONG_S

PROGRAM = """
import os, time
from nccl_doctor.probe import children
from nccl_doctor.probe.main import Server

def ended(request):
    reading, writing = os.pipe()
    child = children.start(["sleep", "3600"], dict(os.environ), writing)
    return {"killed by": -child.wait()}

children.remove_scratch = lambda: time.sleep(0.5)  # so that what waited for the child can speak
server = Server("nonce", 3600, 0.5, str)
server._handler = lambda _name: ended
server.serve()
"""


def test_what_it_ends_itself_where_it_hears_nothing_is_not_told_as_the_hosts_doing() -> None:
    """Else a controller that stood still reads first, when it goes on, that the all-reduce was killed."""
    probe = subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with probe:
        assert probe.stdin is not None
        assert probe.stdout is not None
        probe.stdin.write(b'{"id": 1, "do": "facts"}\n')
        probe.stdin.flush()  # and then it hears nothing more
        said = [line.partition(b" ")[2] for line in probe.stdout if line.startswith(b"nonce ")]
        assert probe.wait(LONG_S) == 0
    assert [list(json.loads(line)) for line in said] == [["hello"], ["silent"]]


SLOW = """
import subprocess, time
from nccl_doctor.probe import children
from nccl_doctor.probe.main import Server

def start(*argv, _start=subprocess.Popen, **options):
    time.sleep(0.5)  # as on a busy host
    return _start(*argv, **options)

subprocess.Popen = start
server = Server("nonce", 3600, 3600, str)
server._handler = lambda _name: lambda _request: children.scratch()
server.serve()
"""


def test_a_folder_that_is_being_made_as_the_controller_goes_is_removed(tmp_path: Path) -> None:
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    probe = subprocess.Popen([sys.executable, "-c", SLOW], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env)
    with probe:
        assert probe.stdin is not None
        probe.stdin.write(b'{"id": 1, "do": "facts"}\n')
        probe.stdin.flush()
        while probe.poll() is None and not list(tmp_path.glob("nccl-doctor-*")):
            time.sleep(0.01)
        probe.stdin.close()
        assert probe.wait(LONG_S) == 0
    assert not list(tmp_path.iterdir())
