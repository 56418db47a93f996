"""Runs nccl-doctor on a lab's controller, as a user would."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.program import run_in
from tests.lab.cluster import Lab
from tests.lab.host import LabHost


@dataclass(frozen=True)
class Run:
    """What one call left: its exit code, its JSON document, and stderr."""

    code: int
    report: dict[str, Any]
    stderr: str

    @property
    def names(self) -> list[str]:
        """The diagnoses, gravest first."""
        return [diagnosis["name"] for diagnosis in self.report["diagnoses"]]

    @property
    def first(self) -> dict[str, Any]:
        """The gravest diagnosis."""
        first: dict[str, Any] = self.report["diagnoses"][0]
        return first

    def check(self, name: str) -> dict[str, Any]:
        """What became of one check."""
        return next(check for check in self.report["checks"] if check["name"] == name)


def doctor(lab: Lab, *arguments: str, hosts: str | None = None) -> Run:
    """``nccl-doctor ARGUMENTS`` with a hosts file of all the lab's hosts, or the text given, and JSON read back."""
    lab.controller.write("/root/hosts.yaml", hosts if hosts is not None else lab.hosts_file())
    command, *rest = arguments
    done = run_in(lab.controller, command, "hosts.yaml", *rest, "-o", "json")
    assert "Traceback" not in done.stderr, done.stderr
    report = json.loads(done.stdout)
    found = json.dumps(report.get("diagnoses"), indent=1)
    sys.stdout.write(f"nccl-doctor {command} ended with {done.returncode}\n{done.stderr}\n{found}\n")  # if a test fails
    return Run(done.returncode, report, done.stderr)


def ours(host: LabHost) -> list[tuple[int, str]]:
    """Processes of nccl-doctor that still run on a host."""
    marks = re.compile(r"nccl-doctor|zlib\.decompress|torch\.distributed\.run|/proc/(?:self|\d+)/fd/|multiprocessing")
    return [(pid, line) for pid, line in host.processes() if marks.search(line)]


def files(host: LabHost) -> set[str]:
    """Every file in the places where a program might leave one; of /var/tmp hosts see this machine's own, too."""
    found = host.run("find /tmp /root /home /dev/shm /var/tmp -xdev -not -name .bash_history 2>/dev/null; true")
    return {path for path in found.stdout.split("\n") if not (path.startswith("/var/tmp") and Path(path).exists())}
