"""What looks like a secret is cut from texts and documents, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.logs.prefix import QUOTED, quote
from nccl_doctor.model.documents import Change, Launch
from nccl_doctor.model.finding import Command, Fix, LogLine
from nccl_doctor.model.register import all_checks
from nccl_doctor.text.secrets import LEFT_OUT, hide_secrets, part, without_secrets
from tests.checks.live import LIVE, folder
from tests.checks.snapshots import load
from tests.planted import BODY, HARMLESS, MIXED, PLANTED, VARIABLES

CORPUS = Path(__file__).parents[1] / "logs"
TOKEN = f"hf_{MIXED}"


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_cut_wherever_it_stands(kind: str) -> None:
    line, secret = PLANTED[kind]
    for text in (line, f"pid 4711 of ann, 3 h old: {line}", f"[rank3]: {line}\nnext", f"({line})"):
        shown = without_secrets(text)
        assert secret not in shown
        assert LEFT_OUT in shown
        assert without_secrets(shown) == shown


def test_letters_that_no_screen_shows_hide_none() -> None:
    for mark in ("\u200b", "\x1b[1m", "\x00"):
        text = f"login {TOKEN[:12]}{mark}{TOKEN[12:]}"
        assert without_secrets(text) == f"login {LEFT_OUT}"
        assert without_secrets(f"fine{mark} text") == f"fine{mark} text"


@pytest.mark.parametrize("text", HARMLESS)
def test_what_matters_stays(text: str) -> None:
    assert without_secrets(text) == text


def test_no_line_of_the_logs_is_cut() -> None:
    logs = [path for path in sorted(CORPUS.rglob("*")) if path.suffix in (".log", ".txt", ".err", ".out")]
    lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()]
    assert len(lines) > 1000
    assert [line for line in lines if without_secrets(line) != line] == []


def test_no_page_of_explain_is_cut() -> None:
    assert [check.code for check in all_checks() if without_secrets(check.page) != check.page] == []


def test_no_report_of_a_fixture_is_cut() -> None:
    """Our own sentences, and what hosts say that is none: addresses, keys' fingerprints, versions, commands."""
    for path in (path for check in LIVE for path in sorted(folder(check).glob("fires*.json"))):
        report = judge(load(path), "check")
        assert hide_secrets(report) == report, path


class Kept(NamedTuple):
    """As fix-port's documents are."""

    command: str
    pids: tuple[int, ...]


@dataclass(frozen=True)
class Noted:
    """As others may be."""

    text: str


def test_every_kind_of_document_is_walked() -> None:
    line = LogLine(file="a.log", line=3, text=f"login with {TOKEN}")
    tree: dict[str, Any] = {
        "a": [Kept(f"x {TOKEN}", (1, 2)), Noted(f"y {TOKEN}")],
        "b": (line, {f"path {TOKEN}": 1}),
        "c": 1.5,
    }
    shown: dict[str, Any] = hide_secrets(tree)
    assert TOKEN not in str(shown)
    assert shown["a"][0] == Kept(f"x {LEFT_OUT}", (1, 2))
    assert shown["b"][0] == line.model_copy(update={"text": f"login with {LEFT_OUT}"})
    assert (shown["c"], TOKEN in str(tree)) == (1.5, True)


def test_what_holds_none_is_the_very_same() -> None:
    tree = {"a": [Kept("x", (1, 2)), Noted("y")], "b": (LogLine(file="a.log", line=3, text="z"),)}
    assert hide_secrets(tree) is tree


def test_variables_go_by_their_names() -> None:
    shown = hide_secrets({"env": {**VARIABLES, "NCCL_DEBUG": "INFO"}, "SECRETS": {"x": ["s3cr3tVar1", 3]}})
    assert shown["env"] == {**dict.fromkeys(VARIABLES, LEFT_OUT), "NCCL_DEBUG": "INFO"}
    assert shown["SECRETS"] == {"x": [LEFT_OUT, 3]}


def test_the_lines_of_a_private_key_go_and_those_around_it_stay() -> None:
    texts = (
        "[rank0]: loading",
        "[rank0]: -----BEGIN RSA PRIVATE KEY-----",
        f"[rank0]: {BODY}",
        "[rank0]: Zm9vYmE=",
        "[rank0]: -----END RSA PRIVATE KEY-----",
        "[rank0]: loaded",
        f"[rank1]: {BODY}",
        "[rank1]: 3f9a1c0b77de4a6b8c0d1e2f3a4b5c6d7e8f9a0b1c2d3e4f5a6b7c8d9e0f1a2b",
    )
    shown = hide_secrets(tuple(LogLine(file="a", line=n, text=text) for n, text in enumerate(texts)))
    stay = (0, 4, 5, 7)
    assert [shown[n].text for n in stay] == [texts[n] for n in stay]
    assert not any(word in one.text for one in shown for word in (BODY, "Zm9vYmE"))


def test_a_command_with_a_secret_becomes_prose() -> None:
    fix = Fix(summary="Log in:", risk="safe", commands=(Command(host="node1", command=f"login --token {TOKEN}"),))
    shown = hide_secrets(fix)
    assert (shown.commands, shown.risk) == ((), "manual")
    assert shown.summary.startswith("Log in. ")
    assert "--show-secrets" in shown.summary
    other = Fix(summary="Log in:", risk="safe", commands=(Command(host="node1", command="login"),))
    assert hide_secrets(other) == other


def test_a_changed_variable_that_is_a_secret_shows_neither_value() -> None:
    shown = hide_secrets(Change(what="node.env.HF_TOKEN", before="s3cr3tVar1", after="nothing"))
    assert (shown.what, shown.before, shown.after) == ("node.env.HF_TOKEN", LEFT_OUT, LEFT_OUT)


def test_the_lines_of_launch_stay_fit_to_be_pasted() -> None:
    command = Command(host="node1", command=f"HF_TOKEN={TOKEN} torchrun train.py")
    plan = Launch(
        launcher="torchrun", master_addr="node1", master_port=1, world_size=1, ranks=(), commands=(command,), notes=(TOKEN,)
    )  # fmt: skip
    shown = hide_secrets(plan)
    assert (shown.commands, shown.notes) == ((command,), (LEFT_OUT,))


@pytest.mark.parametrize("at", range(0, 40, 7))
def test_no_cut_leaves_half_a_secret(at: int) -> None:
    text = f"{'x ' * 30}{TOKEN} {'y ' * 30}"
    begin = text.index(TOKEN) + at
    for shown in (part(text, 0, begin), part(text, begin, len(text))):
        assert not any(piece in without_secrets(shown) for piece in (TOKEN[3:9], TOKEN[-6:]))


def test_a_long_line_of_a_log_is_quoted_without_half_a_secret() -> None:
    for before in range(QUOTED - 60, QUOTED + 60, 5):
        text = f"{'x' * before} --password s3cr3tPw1 {'y ' * 400}fault here {'z ' * 200}"
        for start in (text.index("fault"), 0):
            shown = without_secrets(quote(text, start, start + 5))
            assert "s3cr" not in shown
            assert "tPw1" not in shown
