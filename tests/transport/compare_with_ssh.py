"""Runs on a lab's controller: connects by ``ssh`` and by our own transport, and prints what either says of each case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nccl_doctor.model.cluster import Node
from nccl_doctor.transport.base import AccessError
from nccl_doctor.transport.ssh.choice import ChoosingTransport
from nccl_doctor.transport.ssh.openssh import OpensshTransport
from tests.patience import LONG_S
from tests.transport.ssh_cases import CASES, Case

ROOT = Path("/root/diff")
COMMAND = 'cat "$SSH_USER_AUTH"; hostname; echo "${SSH_CONNECTION##* }"'
STRICT = ("BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", f"ConnectTimeout={LONG_S:.0f}")
SECONDS = LONG_S
_WORDS = (("Host key verification failed", "host-key"), ("Permission denied", "login"), ("Too many auth", "login"))


class Counting(OpensshTransport):
    """Notes that it was used."""

    used = False

    def open(self, *arguments: Any) -> Any:
        """As it is."""
        self.used = True
        return super().open(*arguments)


def write(case: Case, number: int, variables: dict[str, str]) -> tuple[Path, dict[str, str]]:
    folder = ROOT / f"case-{number}"
    names = {**variables, "D": str(folder), "K": str(ROOT / "keys")}
    for name, text in case.texts().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**names))
    command = ["sh", "-c", case.prepare.format(**names)]
    subprocess.run(command, check=True, timeout=SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return folder, names


def by_ssh(folder: Path) -> tuple[str, str]:
    options = [word for option in STRICT for word in ("-o", option)]
    done = subprocess.run(
        ["ssh", "-T", "-F", str(folder / "config"), *options, "target", COMMAND],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode == 0:
        return "in", done.stdout
    return next((verdict for words, verdict in _WORDS if words in done.stderr), "unreached"), done.stderr


def by_us(folder: Path) -> tuple[str, str, bool]:
    transport = ChoosingTransport("auto", folder / "config")
    transport._openssh = counting = Counting(folder / "config")
    deadline = time.monotonic() + SECONDS
    try:
        channel = transport.open(Node(name="target", address="target", node_rank=0), COMMAND, deadline)
        lines = []
        while (line := channel.read_line(deadline)) is not None:
            lines.append(line.decode() + "\n")
        channel.close()
    except AccessError as error:
        kind = error.failure.kind
        verdict = "host-key" if "host-key" in kind else "login" if kind == "ssh-auth-failed" else "unreached"
        return verdict, str(error), counting.used
    finally:
        transport.close()
    return "in", "".join(lines), counting.used


def compare(number: int, case: Case, variables: dict[str, str]) -> dict[str, Any]:
    folder, _ = write(case, number, variables)
    known = (folder / "known_hosts").read_text()
    ours, our_words, by_program = by_us(folder)
    unwritten = (folder / "known_hosts").read_text() == known
    theirs, their_words = by_ssh(folder)
    return {
        "name": case.name,
        "wanted": case.verdict,
        "ssh": theirs,
        "ours": ours,
        "same_key": theirs != "in" or ours != "in" or our_words == their_words,
        "by_program": by_program,
        "unwritten": unwritten,
        "words": [their_words[-600:], our_words[-600:]],
    }


def main() -> None:
    variables: dict[str, str] = json.load(sys.stdin)
    os.environ.update(
        DIFF_AGENT=str(ROOT / "keys/agent-id"), DIFF_KEYS=str(ROOT / "keys"), SSH_AUTH_SOCK=str(ROOT / "keys/agent-id")
    )
    with ThreadPoolExecutor(6) as pool:
        results = pool.map(lambda pair: compare(pair[0], pair[1], variables), enumerate(CASES))
        sys.stdout.write(json.dumps(list(results)))


main()
