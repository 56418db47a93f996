"""Judging a file prints no command for the machine that judges, and says of those for hosts what they rest on."""

from __future__ import annotations

import html
import json
import socket
from pathlib import Path

import pytest

from nccl_doctor.judge.diagnose import judge
from nccl_doctor.judge.from_file import FROM, LEFT_OUT, judged_from_file
from tests.checks.live import LIVE, folder
from tests.checks.snapshots import load, patched
from tests.cli.program import run

FIXTURES = [path for check in LIVE for path in sorted(folder(check).glob("fires*.json"))]
CHECKS = Path(__file__).parents[1] / "checks"


def test_no_fixture_leaves_a_command_for_this_machine() -> None:
    before = after = 0
    for path in FIXTURES:
        report = judge(load(path), "check")
        left = judged_from_file(report, {"node2"})
        before += sum(one.host in (None, "node2") for found in report.diagnoses for one in found.fix.commands)
        commands = [one for found in left.diagnoses for one in found.fix.commands]
        after += len(commands)
        assert all(one.host not in (None, "node2") and str(one.place).endswith(FROM) for one in commands), path
        assert left.next_step is None
        for old, new in zip(report.diagnoses, left.diagnoses, strict=True):
            lost = old.fix.commands and not new.fix.commands
            assert new.fix.summary == old.fix.summary + (f" {LEFT_OUT}" if lost else "")
    assert before > 20
    assert after > 20


def saved(folder: Path, path: Path) -> None:
    (folder / "seen.json").write_text(load(path).model_dump_json(by_alias=True))


@pytest.mark.parametrize("form", ["human", "json", "html"])
@pytest.mark.parametrize(
    ("fixture", "words"),
    [
        ("access/ssh_auth_failed", ("chmod 600 ", "ssh-copy-id -p", "ssh-add /")),
        ("access/ssh_host_key_unknown", ("printf '%s", "install -d")),
        ("interfaces/hostname_unresolvable", ("kubectl apply -f -",)),
        ("ports/network_policy_blocks", ("kubectl apply -f -",)),
        ("processes/stale_process", ("nccl-doctor fix-port --h", "--kill --yes")),
    ],
)
def test_the_command_line_prints_none(tmp_path: Path, fixture: str, words: tuple[str, ...], form: str) -> None:
    printed = 0
    for path in sorted((CHECKS / fixture).glob("fires*.json")):
        saved(tmp_path, path)
        commands = [one for found in judge(load(path), "check").diagnoses for one in found.fix.commands]
        printed += sum(one.host is None and any(word in one.command for word in words) for one in commands)
        for call in (("check", "--from", "seen.json"), ("diff", "seen.json", "seen.json")):
            done = run(*call, "-o", form, cwd=tmp_path)
            assert done.returncode in (0, 1, 3)
            shown = html.unescape(done.stdout).replace('\\"', '"').replace("\\\\", "\\")
            assert not any(one.command in shown for one in commands if one.host is None)
    assert printed


def test_a_hosts_command_says_that_it_rests_on_the_file(tmp_path: Path) -> None:
    saved(tmp_path, CHECKS / "ports/firewall_blocks_port/fires.json")
    shown = run("check", "--from", "seen.json", cwd=tmp_path).stdout
    assert "from the snapshot" in shown
    assert "from the snapshot" in run("check", "--from", "seen.json", "-o", "html", cwd=tmp_path).stdout
    document = json.loads(run("check", "--from", "seen.json", "-o", "json", cwd=tmp_path).stdout)
    commands = [one for found in document["diagnoses"] for one in found["fix"]["commands"]]
    assert commands
    assert {one["place"] for one in commands} == {"from the snapshot"}


@pytest.mark.parametrize("own", [{"local": True}, {"address": "127.0.0.1"}, {"name": socket.gethostname()}])
def test_a_file_that_calls_a_host_this_machine_prints_nothing_for_it(tmp_path: Path, own: dict[str, object]) -> None:
    seen = load(CHECKS / "ports/firewall_blocks_port/fires.json")
    document = json.loads(seen.model_dump_json(by_alias=True))
    target = judge(seen, "check").diagnoses[0].fix.commands[0].host
    for node in [*document["cluster"]["nodes"], *(host["node"] for host in document["hosts"])]:
        if node["name"] == target:
            node.update(own)
    text = json.dumps(document)
    (tmp_path / "seen.json").write_text(text.replace(f'"{target}"', json.dumps(own["name"])) if "name" in own else text)
    assert any(found.fix.commands for found in judge(load(tmp_path / "seen.json"), "check").diagnoses)
    shown = json.loads(run("check", "--from", "seen.json", "-o", "json", cwd=tmp_path).stdout)
    here = {None, own.get("name", target)}
    assert not any(one["host"] in here for found in shown["diagnoses"] for one in found["fix"]["commands"])


def test_the_next_step_is_not_made_of_a_files_words(tmp_path: Path) -> None:
    source = {"cluster": {"source": "/tmp/evil.yaml"}}
    assert judge(patched(source), "check").next_step
    (tmp_path / "seen.json").write_text(patched(source).model_dump_json(by_alias=True))
    done = run("check", "--from", "seen.json", cwd=tmp_path)
    assert done.returncode == 0
    assert "nccl-doctor launch" not in done.stdout


def test_no_sentence_has_a_command_with_a_files_words() -> None:
    """A stranger's ``cluster.source``, pasted behind ``--hosts``, would be a program's inventory on this machine."""
    evil = "/tmp/evil-inventory.ini"
    for path in FIXTURES:
        snapshot = load(path)
        cluster = snapshot.cluster.model_copy(update={"source": evil})
        left = judged_from_file(judge(snapshot.model_copy(update={"cluster": cluster}), "check"), set())
        sentences = [text for one in left.diagnoses for text in (one.message, one.fix.summary)]
        assert not [text for text in sentences if evil in text], path


def test_what_to_set_on_this_machine_is_not_printed(tmp_path: Path) -> None:
    names = {"NCCL_SOCKET_IFNAME": "lo"}
    hosts = {f"node{n}": {"facts": {"env": names}} for n in (1, 2, 3)}
    (tmp_path / "seen.json").write_text(patched({"hosts": hosts}).model_dump_json(by_alias=True))
    shown = run("ifname", "--from", "seen.json", cwd=tmp_path).stdout
    assert "Set on node[1-3] (from the snapshot)" in " ".join(shown.split())
    local = json.loads(patched({"hosts": hosts}).model_dump_json(by_alias=True))
    for node in [*local["cluster"]["nodes"], *(host["node"] for host in local["hosts"])]:
        node["local"] = node["name"] == "node1"
    (tmp_path / "seen.json").write_text(json.dumps(local))
    shown = run("ifname", "--from", "seen.json", cwd=tmp_path).stdout
    assert "Set on node[2-3] (from the snapshot)" in " ".join(shown.split())


def test_a_launch_line_of_a_file_is_never_one_to_paste(tmp_path: Path) -> None:
    saved(tmp_path, CHECKS / "environment/launch_line_wrong/fires-for-one-machine.json")
    arguments = ("check", "--from", str(tmp_path / "seen.json"), "-o", "json")
    assert [
        found
        for found in json.loads(run(*arguments, cwd=tmp_path).stdout)["diagnoses"]
        if found["name"] == "launch-line-wrong"
    ] == []
    again = json.loads(run(*arguments, "--", "torchrun", "--standalone", "own.py", cwd=tmp_path).stdout)["diagnoses"]
    [found] = [found for found in again if found["name"] == "launch-line-wrong"]
    assert found["message"].startswith("--standalone starts a separate job")
