"""Each printed command that changes something is an operation, which ``fix`` can run and undo, or is by hand for a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Command
from tests.checks.live import LIVE, folder
from tests.checks.snapshots import load

LOOKS = (
    r"(cat|df|dmesg|grep|iptables-save|lspci|printenv) ?.*|(ip route get|ip rule show|nft list ruleset|docker ps) ?.*"
    r"|ip -6 address show|sysctl [\w.]+|nccl-doctor fix-port .*(--next|--wait)"
)
JOB = r"(torchrun|accelerate launch|python|vllm serve|ray start) .*|ray stop|export \w+=\S+"  # what is set for the job goes to env
BY_HAND = {
    r"ssh-copy-id .*|ssh-add .*|eval \"\$\(ssh-agent -s\)\"|ssh-keygen -y .*": "keys are the user's own",
    r"(install -d -m 700 \S.*\.ssh'?|printf '%s\\n' .* >> \S.*known_hosts'?)": "trust in a host key is the user's own",
    r"usermod -aG render,video \w+": "it counts from the next login only",
    r"nccl-doctor fix-port .*--next --write": "another port is a choice",
}
"""Commands that change something and are no operation, and why."""


def _commands() -> Iterator[Command]:
    for check in LIVE:
        for path in sorted(folder(check).glob("fires*.json")):
            for diagnosis in judge(load(path), "check").diagnoses:
                yield from diagnosis.fix.commands


def test_what_changes_something_is_an_operation_or_is_by_hand_for_a_reason() -> None:
    texts = {command.command for command in _commands() if command.operation is None}
    kinds = (LOOKS, JOB, *BY_HAND)
    used = {kind for kind in kinds for text in texts if re.fullmatch(kind, text, re.DOTALL)}
    assert used == {*kinds}
    assert [text for text in sorted(texts) if not any(re.fullmatch(kind, text, re.DOTALL) for kind in kinds)] == []


def test_no_operation_is_only_a_look() -> None:
    assert [one.command for one in _commands() if one.operation is not None and re.fullmatch(LOOKS, one.command)] == []
