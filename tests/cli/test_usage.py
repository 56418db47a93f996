"""What a user gets for a slip of the finger: one sentence, exit 2, no traceback, nobody contacted."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.cli import snapshots
from nccl_doctor.cli.options import SelectOptions
from nccl_doctor.errors import HostsFileError, SnapshotError, UsageError
from nccl_doctor.inventory import sources
from tests.checks.snapshots import healthy, load, patched
from tests.cli.program import assert_one_sentence, run
from tests.lab.warm import tool
from tests.patience import LONG_S

MALFORMED = [
    ("hosts: [a]\nmaster_prot: 1\n", 'hosts.yaml:2: unknown key "master_prot"; did you mean "master_port"?'),
    ("hosts:\n\t- a\n", "hosts.yaml:2:"),
    ("hosts: [a]\nhosts: [b]\n", "hosts.yaml:2:"),
    ("hosts: [a]\nmaster_port: many\n", "hosts.yaml:2:"),
    ("hosts: !!python/object/apply:os.system [id]\n", "hosts.yaml:1:"),
    ("a: &a [x]\nb: &b [*a, *a]\nhosts: *b\n", "hosts.yaml:"),
    ("hosts: [-oProxyCommand=id]\n", "hosts.yaml:1:"),
    ("hosts: ['a;id']\n", "hosts.yaml:1:"),
    ("", "hosts.yaml"),
    ("\x00\x01\x7fELF", "hosts.yaml"),
]


@pytest.mark.parametrize(("text", "words"), MALFORMED)
def test_a_malformed_hosts_file(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "hosts.yaml").write_text(text)
    assert_one_sentence(run("check", "hosts.yaml", cwd=tmp_path), words)


def test_a_hosts_file_that_is_not_there(tmp_path: Path) -> None:
    assert_one_sentence(run("check", "hosts.yaml", cwd=tmp_path), "hosts.yaml")


def test_json_is_one_document_even_then(tmp_path: Path) -> None:
    done = run("check", "hosts.yaml", "-o", "json", cwd=tmp_path)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["status"] == "error"
    assert document["complete"] is False
    assert "hosts.yaml" in document["error"]


@pytest.mark.parametrize("option", ["--only", "--skip"])
def test_an_unknown_check_gets_the_nearest_name(tmp_path: Path, option: str) -> None:
    done = run("check", option, "port-in-us", cwd=tmp_path)
    assert_one_sentence(done, '"port-in-us" is not the code, name or category of a check; did you mean "port-in-use"?')


def test_explain_takes_a_code_a_number_a_name_or_the_errors_own_words(tmp_path: Path) -> None:
    by_code = run("explain", "NCD304", cwd=tmp_path)
    assert by_code.returncode == 0
    for words in ("port-in-use", "304", "EADDRINUSE", "Address already in use"):
        assert run("explain", words, cwd=tmp_path).stdout == by_code.stdout
    assert "TIME_WAIT" in by_code.stdout
    assert max(map(len, by_code.stdout.splitlines())) <= 80


def test_explain_takes_the_codes_that_a_report_names(tmp_path: Path) -> None:
    done = run("explain", "NCD301,", "NCD302", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("NCD301 firewall-blocks-port")
    assert "\n\nNCD302 firewall-blocks-ephemeral" in done.stdout
    assert "NCD304 port-in-use" in run("explain", "Address", "already", "in", "use", cwd=tmp_path).stdout


def test_a_document_holds_the_page_of_one_code(tmp_path: Path) -> None:
    assert run("explain", "NCD301,", "NCD302", cwd=tmp_path).stdout.count("firewall-blocks-") >= 2
    done = run("explain", "NCD301", "NCD302", "-o", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "-o json prints one page; name one code, not 2"


def test_explain_alone_lists_its_topics_and_prints_each(tmp_path: Path) -> None:
    listed = run("explain", cwd=tmp_path)
    assert listed.returncode == 0
    assert "slurm         Slurm jobs\n" in listed.stdout
    assert run("explain", "slurm", cwd=tmp_path).stdout.startswith("slurm  ")
    topic = json.loads(run("explain", "slurm", "-o", "json", cwd=tmp_path).stdout)
    assert (topic["command"], topic["name"], topic["title"]) == ("explain", "slurm", "Slurm jobs")
    topics = json.loads(run("explain", "-o", "json", cwd=tmp_path).stdout)["topics"]
    assert {"name": "slurm", "title": "Slurm jobs"} in topics
    assert_one_sentence(run("explain", "slurn", cwd=tmp_path), 'did you mean "slurm"?')


def test_explain_does_not_know_every_word(tmp_path: Path) -> None:
    assert_one_sentence(run("explain", "port-in-us", cwd=tmp_path), 'did you mean "port-in-use"?')


def test_codes_lists_all(tmp_path: Path) -> None:
    done = run("codes", cwd=tmp_path)
    assert done.returncode == 0
    assert "NCD304" in done.stdout
    assert "port-in-use" in done.stdout
    listed = json.loads(run("codes", "-o", "json", cwd=tmp_path).stdout)["codes"]
    assert {"code": "NCD304", "name": "port-in-use", "severity": "error", "category": "ports"} in listed


def test_hosts_contacts_nobody_and_shows_where_values_come_from(tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("master_port: 29501\nhosts: ['node[1-2]']\n")
    done = run("hosts", "hosts.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert "29501" in done.stdout
    assert "hosts.yaml:1" in done.stdout
    document = json.loads(run("hosts", "hosts.yaml", "-o", "json", cwd=tmp_path).stdout)
    assert [node["name"] for node in document["nodes"]] == ["node1", "node2"]


def saved(folder: Path, patch: dict[str, object]) -> str:
    path = folder / "seen.json"
    path.write_text(patched(patch).model_dump_json(by_alias=True))
    return str(path)


TAKEN = {"port": 29500, "free": False, "error": "EADDRINUSE", "cause": "listener"}
PRIVILEGED: dict[str, object] = {
    "cluster": {"master_port": 80},
    "hosts": {"node1": {"facts": {"master_port": {"port": 80, "free": True}, "identity": {"uid": 0}}}},
    "mesh": {"ports": {"node1": [80, 40001], "node2": [40002], "node3": [40003]}},
}
CODES: list[tuple[dict[str, object], list[str], int]] = [
    ({}, [], 0),
    ({"hosts": {"node1": {"facts": {"master_port": TAKEN}}}}, [], 1),
    ({"hosts": {"node1": {"facts": {"master_port": TAKEN}}}}, ["--fail-on", "never"], 0),
    ({"hosts": {"node1": {"facts": {"master_port": TAKEN}}}}, ["--skip", "port-in-use"], 0),
    ({"hosts": {"node1": {"facts": {"master_port": {"$unknown": "no answer in 8 s"}}}}}, [], 3),
    (PRIVILEGED, [], 0),
    (PRIVILEGED, ["--fail-on", "warning"], 1),
]


@pytest.mark.parametrize(("patch", "options", "code"), CODES)
def test_exit_codes(tmp_path: Path, patch: dict[str, object], options: list[str], code: int) -> None:
    done = run("check", "--from", saved(tmp_path, dict(patch)), *options, cwd=tmp_path)
    assert done.returncode == code, done.stdout


@pytest.mark.parametrize(("state", "code"), [("fires-before-2.28", 1), ("quiet", 0)])
def test_ifname_fails_if_nccl_chooses_an_interface_that_is_down(tmp_path: Path, state: str, code: int) -> None:
    seen = load(Path(__file__).parents[1] / f"checks/interfaces/interface_down/{state}.json")
    (tmp_path / "seen.json").write_text(seen.model_dump_json(by_alias=True))
    done = run("ifname", "--from", "seen.json", cwd=tmp_path)
    assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{}", "version: Field required"),
        ('{"schema": 2, "version": "9.9"}', "schema: Input should be 1"),
        ("hosts: [a]\n", "Invalid JSON: expected value at line 1 column 1"),
    ],
)
def test_from_needs_a_snapshot(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "x.json").write_text(text)
    done = run("check", "--from", "x.json", cwd=tmp_path)
    assert_one_sentence(done, f"x.json is not an nccl-doctor snapshot: {wrong}\n")


@pytest.mark.parametrize(
    ("of_all", "of_node", "wrong"),
    [
        ({"kube": {"pods": 7}}, {}, "pods: Input should be a valid dictionary"),
        (
            {"kube": {"pods": {"node1": {"pod": "9" * 5_000}}}},
            {},
            "pods.node1.pod: String should have at most 4096 characters",
        ),
        ({}, {"inside": {"runtime": "docker", "name": 7}}, "name: Input should be a valid string"),
        ({}, {"ssh": {"port": "many"}}, "port: Input should be a valid integer"),
    ],
)
def test_from_needs_the_engines_options(
    tmp_path: Path, of_all: dict[str, Any], of_node: dict[str, Any], wrong: str
) -> None:
    document = healthy()
    document["cluster"]["access"] = of_all
    document["cluster"]["nodes"][1]["access"] = of_node
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SnapshotError, match=re.escape(f"{path} is not an nccl-doctor snapshot: {wrong}")):
        snapshots.read_snapshot(path)


def test_from_waits_for_no_pipe_and_reads_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.setattr(snapshots, "PATIENCE_S", 0.1)
    monkeypatch.setattr(sources, "_PIPE_SECONDS", 0.05)
    with pytest.raises(HostsFileError, match=r"nothing arrived through the pipe within 0\.1 s"):
        snapshots.read_snapshot(tmp_path / "fifo")
    assert_one_sentence(
        run("check", "--from", "/dev/zero", cwd=tmp_path), "/dev/zero: is a device or socket; a snapshot"
    )


@pytest.mark.parametrize(
    "words", [["-w", "node1"], ["-x", "node1"], ["--master-port", "29600"], ["--kube", "job/a"], ["hosts.yaml"]]
)
@pytest.mark.parametrize("command", ["check", "ifname"])
def test_from_judges_no_hosts_but_its_own(tmp_path: Path, command: str, words: list[str]) -> None:
    done = run(command, "--from", saved(tmp_path, {}), *words, cwd=tmp_path)
    assert_one_sentence(done, f"--from uses the hosts and settings of the snapshot: leave out {words[0]}")


@pytest.mark.parametrize("words", [["--only", "seen-in-logs"], ["--only", "ports", "--skip", "ports"]])
def test_a_selection_of_nothing_finds_nothing_and_is_refused(tmp_path: Path, words: list[str]) -> None:
    done = run("check", "--from", saved(tmp_path, {}), *words, cwd=tmp_path)
    assert_one_sentence(done, "--only and --skip leave no check that runs on hosts")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--only", "allreduce", "--no-smoke"], "needs the all-reduce, which --no-smoke leaves out"),
        (["--only", "allreduce-slow", "--no-smoke"], "needs the all-reduce"),
        (["--only", "port-unreachable", "--mesh", "none"], "needs the port tests, which --mesh none leaves out"),
        (
            ["--only", "allreduce", "--only", "port-unreachable", "--no-smoke", "--mesh", "none"],
            "needs the all-reduce, which --no-smoke leaves out, or the port tests, which --mesh none leaves out",
        ),
        (["--from", "seen.json", "--only", "allreduce"], "which the snapshot lacks: not requested (--no-smoke)"),
    ],
)
def test_what_is_selected_and_left_out_finds_nothing_either(tmp_path: Path, words: list[str], why: str) -> None:
    saved(tmp_path, {"smoke": {"$skipped": "not requested (--no-smoke)"}})
    assert_one_sentence(run("check", *words, cwd=tmp_path), why)


@pytest.mark.parametrize("option", ["--python", "--user", "--master-addr"])
def test_an_empty_value_is_none_that_was_left_out(tmp_path: Path, option: str) -> None:
    """``--python "$(which python)"`` where there is none."""
    assert_one_sentence(run("check", option, "", cwd=tmp_path), f'{option}: "" is not ')


@pytest.mark.parametrize("option", ["--timeout", "--connect-timeout", "--smoke-timeout"])
@pytest.mark.parametrize("seconds", ["inf", "1e10", "many"])
def test_no_timer_holds_more_and_json_says_so_too(tmp_path: Path, option: str, seconds: str) -> None:
    done = run("check", option, seconds, "-o", "json", cwd=tmp_path)
    assert (done.returncode, option in done.stderr) == (2, True)
    document = json.loads(done.stdout)
    assert (document["command"], document["status"], option in document["error"]) == ("check", "error", True)


def test_the_report_goes_to_a_file_whole_or_not_at_all(tmp_path: Path) -> None:
    seen = saved(tmp_path, {})
    assert run("check", "--from", seen, "-o", "json", "--output-file", "report.json", cwd=tmp_path).stdout == ""
    assert json.loads((tmp_path / "report.json").read_text())["status"] == "ok"
    assert_one_sentence(run("check", "--from", seen, "--output-file", "no/where", cwd=tmp_path), "no/where")
    assert {path.name for path in tmp_path.iterdir()} == {"seen.json", "report.json"}


@pytest.mark.parametrize(("when", "env", "escapes"), [("always", {}, True), ("auto", {}, False), ("never", {}, False)])
def test_colour_only_where_asked_or_on_a_terminal(
    tmp_path: Path, when: str, env: dict[str, str], escapes: bool
) -> None:
    done = run("check", "--from", saved(tmp_path, {}), "--color", when, cwd=tmp_path, **env)
    assert ("\x1b[" in done.stdout) is escapes


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_a_locale_without_our_characters_costs_these_alone(tmp_path: Path, environment: dict[str, str]) -> None:
    """Nor are the probe's sources read in it, nor is what machines read written in it."""

    def doctor(*words: str) -> tuple[int, str]:
        program = Path(sys.executable).parent / "nccl-doctor"
        variables = {**os.environ, **environment}
        done = subprocess.run([program, *words], capture_output=True, timeout=LONG_S, check=False, env=variables)
        assert "nccl-doctor itself" not in done.stderr.decode()
        return done.returncode, done.stdout.decode()

    assert doctor("ifname", "-q", "--python", sys.executable)[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        code, shown = doctor("fix-port", port)
    assert (code, "torchrun --master_port" in shown, shown.isascii()) == (1, True, True)
    code, page = doctor("check", "--from", saved(tmp_path, {}), "-o", "html")
    assert (code, page.isascii()) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "code", "says"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 2, "the report can't be written to stdout: No space left on device\n"),
    ],
)
def test_a_stream_that_is_closed_or_full_is_no_fault_of_ours(
    tmp_path: Path, streams: str, code: int, says: str
) -> None:
    program = Path(sys.executable).parent / "nccl-doctor"
    for words, status in ((f"check --from {saved(tmp_path, {})}", code), ("ifname --output-file answer", 0)):
        command = ["sh", "-c", f"{program} {words} {streams}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False, cwd=tmp_path)
        assert done.returncode == status
        assert "nccl-doctor itself" not in done.stderr
        assert not status or done.stderr == says
        assert ("Ready" in done.stdout) is (streams.startswith("2>") and words.startswith("check"))


@pytest.mark.parametrize("words", ["--version", "check -h", "check --from nope -o json", "check --timeout x -o json"])
def test_a_full_disk_takes_no_other_text_either_and_gets_no_traceback(tmp_path: Path, words: str) -> None:
    command = ["sh", "-c", f"{tool()} {words} >/dev/full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr, bool(done.stderr)) == (2, False, True)


def test_a_snapshot_through_stdin_is_read_whole(tmp_path: Path) -> None:
    """It is longer than a hosts file may be."""
    text = Path(saved(tmp_path, {})).read_text() + " " * sources.MAX_BYTES
    command = [tool(), "check", "--from", "/dev/stdin", "-q"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=LONG_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "wanted"),
    [("check -qo json --bad", True), ("check -qojson --bad", True), ("launch --bad -- t.py -o json", False)],
)
def test_json_is_what_our_own_options_ask_for(tmp_path: Path, words: str, wanted: bool) -> None:
    done = run(*words.split(), cwd=tmp_path)
    assert (done.returncode, bool(done.stdout)) == (2, wanted)


@pytest.mark.parametrize(("terminal", "escapes"), [("xterm", True), ("dumb", False), ("", False)])
def test_a_terminal_that_obeys_no_escapes_gets_none(tmp_path: Path, terminal: str, escapes: bool) -> None:
    words = shlex.join([tool(), "check", "--from", saved(tmp_path, {})])
    environment = {**os.environ, "TERM": terminal}
    command = ["script", "-qec", words, "/dev/null"]
    done = subprocess.run(
        command, capture_output=True, stdin=subprocess.DEVNULL, env=environment, timeout=LONG_S, check=True
    )
    assert (b"\x1b" in done.stdout) is escapes


def test_a_reader_that_leaves_early_is_no_fault(tmp_path: Path) -> None:
    line = f"{tool()} check --from {saved(tmp_path, {})} -v | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=LONG_S, check=True)
    assert "Traceback" not in done.stderr


BESIDE_A_WRITER = """
import fcntl, sys, termios, threading, time
from nccl_doctor.cli import main

def command():
    threading.Thread(target=lambda: sys.stderr.write("x" * (1 << 21)), daemon=True).start()
    queued, size = bytearray(4), fcntl.fcntl(2, fcntl.F_GETPIPE_SZ)
    while int.from_bytes(queued, sys.byteorder) < size:  # from then on it holds the lock of stderr for good
        time.sleep(0.01)
        fcntl.ioctl(2, termios.FIONREAD, queued)
    print("the report", end="", flush=True)
    leave()

def interrupt():
    raise KeyboardInterrupt

def leave_and_interrupt():
    sys.stdout.flush = interrupt
    sys.exit(130)

leave = {"exit": lambda: sys.exit(130), "interrupt": interrupt, "both": leave_and_interrupt}[sys.argv.pop()]
main.app = lambda *_: command
main.main()
"""


@pytest.mark.parametrize("leaving", ["exit", "interrupt", "both"])
def test_a_thread_that_writes_as_we_leave_costs_no_exit_code(leaving: str) -> None:
    """The interpreter waits for the lock of stderr that it holds, or ends by SIGABRT; so, too, after a second Ctrl-C."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as stderr:
        arguments = [sys.executable, "-c", BESIDE_A_WRITER, leaving]
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=stderr, text=True, check=False, timeout=LONG_S)
    assert (done.returncode, done.stdout) == (130, "the report")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("la", ["launch"]),
        ("check --output js", ["json"]),
        ("check --engine v", ["vllm"]),
        ("check --transport ope", ["openssh"]),
        ("check --only rdma-g", ["rdma-gid-missing"]),
        ("explain slur", ["slurm"]),
        ("explain port-in-u", ["port-in-use"]),
        ("launch --format sl", ["slurm"]),
    ],
)
def test_the_shell_completes_commands_and_values(typed: str, completed: list[str]) -> None:
    """Its script calls the program by its name, with what was typed so far."""
    place = {"COMP_WORDS": f"nccl-doctor {typed}", "COMP_CWORD": str(len(typed.split()))}
    env = {**os.environ, "_NCCL_DOCTOR_COMPLETE": "complete_bash", **place}
    done = subprocess.run([tool()], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == completed


def test_an_html_report_is_made_of_a_snapshot_and_opened(tmp_path: Path) -> None:
    (tmp_path / "seen.json").write_text(patched({}).model_dump_json(by_alias=True))
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    words = ("check", "--from", "seen.json", "-o", "html", "--output-file", "report.html", "--open")
    done = run(*words, cwd=tmp_path, BROWSER=str(browser))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "opened").read_text() == (tmp_path / "report.html").as_uri()


def test_only_an_html_file_is_opened(tmp_path: Path) -> None:
    done = run("check", "--from", "seen.json", "-o", "html", "--open", cwd=tmp_path)
    assert_one_sentence(done, "--open requires an HTML report: add -o html --output-file report.html")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--kube", "job/train", "--render"), "No such option: --render"),
        (("--image", "train:1"), "No such option: --image"),
        (("--from-logs", "check.log"), "No such option: --from-logs"),
        (("-w", "node1", "--transport", "dial-back"), "'dial-back' is not one of"),
    ],
)
def test_nothing_prints_or_reads_a_job_that_dials_back(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    done = run("check", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["-w", "a,b", "--only", "access"], "--rate needs the check link-slow, which --only or --skip leaves out"),
        (["-w", "a,b", "--skip", "link-slow"], "--rate needs the check link-slow"),
        (["--from", "SAVED"], "--rate, which measures the hosts, can't be combined with --from"),
    ],
)
def test_rates_that_nobody_would_measure_are_refused(tmp_path: Path, words: list[str], why: str) -> None:
    given = [saved(tmp_path, {}) if word == "SAVED" else word for word in words]
    assert_one_sentence(run("check", *given, "--rate", cwd=tmp_path), why)


def test_options_that_name_hosts_and_checks_add_up(tmp_path: Path) -> None:
    done = run("hosts", "-w", "node[1-2]", "-w", "node3,node4", "-x", "node1", "-x", "node4", cwd=tmp_path)
    assert [word for word in ("node1", "node2", "node3", "node4") if word in done.stdout] == ["node2", "node3"]


def test_checks_are_named_by_several_options_or_with_commas() -> None:
    several = SelectOptions(only=["access,shm-small", "NCD301"], skip=["ssh-unreachable,NCD102"]).codes()
    assert several is not None
    assert {"NCD301", "NCD605"} <= several
    assert not {"NCD101", "NCD102"} & several
    with pytest.raises(UsageError, match='"nosuch" is not the code'):
        SelectOptions(skip=["shm-small,nosuch"]).codes()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--fail-on", "warn"],
            "Invalid value for '--fail-on': 'warn' is not one of 'info', 'warning', 'error', 'never'.",
        ),
        (["--timeout", "0"], "Invalid value for '--timeout': it must be at least 1"),
        (["--timeout", "soon"], "Invalid value for '--timeout': it must be a number"),
        (["--nproc-per-node", "two"], "it must be a whole number"),
    ],
)
def test_a_value_is_refused_in_words_of_ours(tmp_path: Path, words: list[str], said: str) -> None:
    done = run("check", *words, cwd=tmp_path)
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("name", "begins"), [("r.html", "<!doctype html>"), ("r.json", "{"), ("r.xml", "<?xml"), ("r.txt", "3 hosts")]
)
def test_a_report_s_form_is_the_one_that_its_file_is_named_for(tmp_path: Path, name: str, begins: str) -> None:
    run("check", "--from", saved(tmp_path, {}), "--output-file", name, cwd=tmp_path)
    assert (tmp_path / name).read_text().startswith(begins)


def test_what_was_asked_for_wins_over_a_file_s_name(tmp_path: Path) -> None:
    run("check", "--from", saved(tmp_path, {}), "-o", "json", "--output-file", "r.html", cwd=tmp_path)
    assert (tmp_path / "r.html").read_text().startswith("{")


def test_a_word_that_begins_names_explains_the_first(tmp_path: Path) -> None:
    assert "firewall-blocks-port" in run("explain", "firewall", cwd=tmp_path).stdout
