"""A program that is like systemd: it has its name, adopts orphans, and starts what it is told, a JSON line each.

``{"argv", "env", "orphan"}``: started by itself, or by a shell that ends at once. It answers with the PID once the
program has written a line.
"""

import ctypes
import json
import os
import subprocess
import sys

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
libc = ctypes.CDLL(None)
libc.prctl(PR_SET_NAME, b"systemd", 0, 0, 0)
libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
for line in sys.stdin:
    wish = json.loads(line)
    reader, writer = os.pipe()
    argv = ["sh", "-c", '"$@" &', "sh", *wish["argv"]] if wish["orphan"] else wish["argv"]
    process = subprocess.Popen(argv, env={**os.environ, **wish["env"]}, stdout=writer, stdin=subprocess.DEVNULL)
    os.close(writer)
    said = os.read(reader, 100).decode()
    if wish["orphan"]:
        process.wait()
    print(said.strip(), flush=True)  # noqa: T201 - the answer
