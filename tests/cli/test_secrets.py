"""No form of any command shows a secret of a command line, a log line, a URL or a variable; --show-secrets does."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.cli.fix_port import PortOptions
from nccl_doctor.cli.fix_port import run as run_fix_port
from nccl_doctor.cli.output import Out
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.report import Phase
from nccl_doctor.report.render import FORMS
from nccl_doctor.snapshot.hosts import Snapshot
from tests.checks.snapshots import patched
from tests.cli.program import run
from tests.hang.made_up import IN_LOADER, Job
from tests.patience import LONG_S
from tests.planted import MIXED, PLANTED, VARIABLES

TOKEN = f"hf_{MIXED}"
SECRETS = {kind: secret for kind, (_, secret) in PLANTED.items()} | {
    name: value.split()[-1] for name, value in VARIABLES.items()
}


def planted() -> Snapshot:
    """A cluster whose hosts, jobs, variables and all-reduce hold every secret."""
    lines = [line for line, _ in PLANTED.values()]
    rest = {
        "kind": "ranks", "ranks": 2, "launcher": "torchrun", "left_behind": True, "user": "ann", "own": True,
        "age_s": 9000.0, "ppid": 1, "parent": None, "terminal": False, "unit": None, "ticks": 5,
    }  # fmt: skip
    jobs = [{**rest, "pid": pid, "pids": [pid], "command": line} for pid, line in enumerate(lines, 2000)]
    jobs += [{**rest, "pid": 1999, "pids": [1999], "command": "python x.py", "env": VARIABLES, "parent": lines[0]}]
    holder = {
        "pid": 4711, "ppid": 1, "user": "ann", "command": lines[0], "started": 0.0, "age_s": 9.0, "orphan": True, "own": True,
    }  # fmt: skip
    taken = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener", "holders": [holder]}
    failed = {
        "outcome": "failed",
        "output": {"node2": [f"ValueError: {line}" for line in lines]},
        "ranks": [{"rank": r, "host": f"node{r + 1}", "local_rank": 0, "stage": "started", "ok": False, "error": line}
                  for r, line in enumerate(lines[:3])],
    }  # fmt: skip
    env = {**VARIABLES, "NCCL_SOCKET_IFNAME": TOKEN, "NCCL_MY_TOKEN": "s3cr3tVar1"}
    config = [{"path": "/etc/nccl.conf", "text": f"NCCL_DEBUG=INFO\nNCCL_MY_TOKEN={TOKEN}\n"}]
    node2 = {"processes": jobs, "env": env, "config_files": config}
    node3 = {
        "facts": None,
        "failure": {"kind": "probe-failed", "detail": lines[0], "evidence": lines, "facts": {"stage": "facts"}},
    }
    hosts = {
        "node1": {"facts": {"master_port": taken}},
        "node2": {"facts": node2, "node": {"env": env}},
        "node3": node3,
    }
    return patched({"hosts": hosts, "smoke": failed, "cluster": {"nodes": [{**n, "env": env} for n in _nodes()]}})


def _nodes() -> list[dict[str, Any]]:
    return [{"name": f"node{n}", "address": f"10.0.0.{n}", "node_rank": n - 1} for n in (1, 2, 3)]


def flat(text: str) -> str:
    """As a reader would have it: entities and escapes read, breaks of lines and indents gone."""
    read = html.unescape(text).replace('\\"', '"').replace("\\\\", "\\").replace("\\u2026", "…")
    return re.sub(r"\s+", "", read)


def leaks(text: str) -> list[str]:
    shown = flat(text)
    return [kind for kind, secret in SECRETS.items() if re.sub(r"\s+", "", secret) in shown]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    seen = planted()
    (tmp_path / "seen.json").write_text(seen.model_dump_json(by_alias=True))
    (tmp_path / "before.json").write_text(patched({}).model_dump_json(by_alias=True))
    stuck = (
        Job()
        .stands(3, IN_LOADER)
        .snapshot.model_copy(update={"other_jobs": tuple(line for line, _ in PLANTED.values())})
    )
    (tmp_path / "hang.json").write_text(stuck.model_dump_json(by_alias=True))
    logs = [f"[rank{n}]: ValueError: can't reach it: {line}\n" for n, (line, _) in enumerate(PLANTED.values())]
    (tmp_path / "train.log").write_text("Traceback (most recent call last):\n" + "".join(logs))
    variables = "".join(f"  {name}: {value}\n" for name, value in VARIABLES.items())
    (tmp_path / "hosts.yaml").write_text(f"hosts: [node1, node2]\nenv:\n{variables}")
    return tmp_path


def words(command: str, form: str) -> list[str]:
    """A call that judges what was planted."""
    given = {
        "check": ["--from", "seen.json", "-v"],
        "logs": ["train.log", "-v"],
        "hang": ["--from", "hang.json", "-v"],
        "diff": ["before.json", "seen.json"],
        "ifname": ["--from", "seen.json"],
        "hosts": ["hosts.yaml"],
    }
    return [command, *given[command], "-o", form]


@pytest.mark.parametrize(
    ("command", "form"),
    [(command, form) for command in ("check", "logs", "hang", "diff", "ifname", "hosts") for form in FORMS[command]],
)
def test_no_form_of_a_command_shows_one(folder: Path, command: str, form: str) -> None:
    call = words(command, form)
    done = run(*call, cwd=folder)
    assert done.returncode in (0, 1, 3), done.stderr
    assert leaks(done.stdout + done.stderr) == []
    whole = run(*call, "--show-secrets", cwd=folder)
    assert whole.returncode == done.returncode
    if form != "prometheus":
        assert leaks(whole.stdout)


def test_show_secrets_shows_all_of_them(folder: Path) -> None:
    shown = run("check", "--from", "seen.json", "-o", "json", "--show-secrets", cwd=folder).stdout
    assert set(leaks(shown)) == set(SECRETS)


@pytest.mark.parametrize("form", FORMS["smoke"])
def test_nor_does_the_all_reduces(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    Out("smoke", form, verbose=True).report(judge(planted(), "smoke"))
    assert leaks(capsys.readouterr().out) == []
    Out("smoke", form, verbose=True, show_secrets=True).report(judge(planted(), "smoke"))
    assert leaks(capsys.readouterr().out) or form == "prometheus"


def test_rows_of_the_checklist_are_hidden_too() -> None:
    rows = (Phase(name="ports", outcome="error", text=f"held by {PLANTED['api key'][0]}"),)
    assert leaks(str(Out("check").hidden(rows))) == []


def test_save_keeps_what_it_kept_whether_secrets_are_shown_or_not(folder: Path) -> None:
    for options, file in (((), "a.json"), (("--show-secrets",), "b.json")):
        run("check", "--from", "seen.json", "--save", file, *options, cwd=folder)
    assert (folder / "a.json").read_text() == (folder / "b.json").read_text()
    assert leaks((folder / "a.json").read_text()) == []


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[int]:
    """A process that holds a port, its first words so short that its secrets are on the screen, too."""
    code = (
        "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    (tmp_path / "x.py").write_text(code)
    argv = ["py", "x.py", "--api-key", "s3cr3tPw10", TOKEN, "--storage", "postgres://optuna:s3cr3tPw1@db:5432/study"]
    with subprocess.Popen(
        argv,
        executable=Path(sys.executable).resolve(),
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait(LONG_S)


@pytest.mark.parametrize("form", FORMS["fix-port"])
def test_fix_port_shows_whose_process_it_is_and_none_of_its_secrets(holder: int, form: str, tmp_path: Path) -> None:
    done = run("fix-port", str(holder), "-o", form, cwd=tmp_path)
    assert (done.returncode, leaks(done.stdout + done.stderr)) == (1, [])
    assert "py x.py --api-key (left out)" in done.stdout
    assert TOKEN not in done.stdout
    whole = run("fix-port", str(holder), "-o", "json", "--show-secrets", cwd=tmp_path).stdout
    assert {"database", "api key"} <= set(leaks(whole))


def test_the_question_before_an_end_shows_none(
    holder: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def no() -> str:
        asked.append("")
        return "n\n"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", no, raising=False)
    run_fix_port(PortOptions(port=str(holder), kill=True, force=True), Out("fix-port"))
    shown = capsys.readouterr()
    assert asked
    assert "End " in shown.err
    assert TOKEN not in flat(shown.err + shown.out)
    assert leaks(shown.err + shown.out) == []


def test_a_plain_call_of_fix_port_shows_none_either(holder: int, tmp_path: Path) -> None:
    done = run("fix-port", str(holder), cwd=tmp_path)
    assert (done.returncode, leaks(done.stdout + done.stderr)) == (1, [])


@pytest.mark.parametrize(
    "call",
    [
        ("check", "--from", f"{TOKEN}.json"),
        ("check", f"https://ann:s3cr3tPw3@h/{TOKEN}.yaml"),
        ("check", "--from", "x.json", f"--api-key={TOKEN}"),
        ("check", "--mesh", TOKEN),
        ("explain", TOKEN),
        ("diff", TOKEN, TOKEN),
        ("fix-port", TOKEN),
    ],
)
def test_a_sentence_of_refusal_quotes_none(tmp_path: Path, call: tuple[str, ...]) -> None:
    for form in ("human", "json"):
        done = run(*call, "-o", form, cwd=tmp_path)
        assert done.returncode == 2
        assert TOKEN not in flat(done.stdout + done.stderr)
        assert leaks(done.stdout + done.stderr) == []
        assert (json.loads(done.stdout)["status"] == "error") if form == "json" else not done.stdout


def test_what_tee_passes_through_stays_as_it_is(folder: Path) -> None:
    done = run("logs", "train.log", "--tee", "-o", "json", cwd=folder)
    assert done.stderr.startswith((folder / "train.log").read_text())
    assert leaks(done.stdout) == []


@pytest.mark.parametrize("form", ["shell", "ssh", "json"])
def test_the_lines_of_launch_hold_the_scripts_own_secrets_and_it_says_so(folder: Path, form: str) -> None:
    call = ("launch", "hosts.yaml", "--nproc-per-node", "1", "--format", form, "--", "train.py")
    done = run(*call, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert leaks(done.stdout + done.stderr) == []
    assert 'HF_TOKEN="$HF_TOKEN"' in done.stdout.replace('\\"', '"')
    assert "secrets are not printed: export AWS_SECRET_ACCESS_KEY, HF_TOKEN, " in done.stdout
    assert "text that looks like a secret" not in done.stderr
    done = run(*call, "--hub-token", VARIABLES["HF_TOKEN"], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert VARIABLES["HF_TOKEN"] in done.stdout
    assert "text that looks like a secret" in done.stderr
    assert leaks(done.stderr) == []


def test_files_of_reports_are_their_owners_alone(folder: Path) -> None:
    kept = folder / "kept.html"
    kept.write_text("")
    kept.chmod(0o640)
    for form, file in (("html", "new.html"), ("html", "kept.html"), ("json", "new.json"), ("junit", "new.xml")):
        run("check", "--from", "seen.json", "--save", "new.seen", "-o", form, "--output-file", file, cwd=folder)
    run("check", "--from", "seen.json", "-o", "junit", "--output-file", "all.xml", "--show-secrets", cwd=folder)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    private = ("new.html", "new.json", "new.seen", "all.xml")
    assert {name: modes[name] for name in private} == dict.fromkeys(private, 0o600)
    assert modes["kept.html"] == 0o640
    assert modes["new.xml"] & 0o077  # another user's CI reads it
