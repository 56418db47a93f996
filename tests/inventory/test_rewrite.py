"""``--write`` changes the master port and nothing else."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.errors import HostsFileError
from nccl_doctor.inventory import files
from nccl_doctor.inventory.edits import read_env, with_env, with_master_port, write_env, write_master_port
from nccl_doctor.inventory.sources import Entry

CHANGED = [
    ("master_port: 29500  # why\nhosts: [a]\n", "master_port: 29511  # why\nhosts: [a]\n"),
    ("hosts:\n  - a   # one\n\nmaster_port:   '29500'\n", "hosts:\n  - a   # one\n\nmaster_port:   '29511'\n"),
    ('{"hosts": [a], "master_port": "1"}', '{"hosts": [a], "master_port": "29511"}'),
    ("{hosts: [a]}\n", "{master_port: 29511, hosts: [a]}\n"),
    ("# ours\n\nhosts:\n- a # x\n", "# ours\n\nmaster_port: 29511\nhosts:\n- a # x\n"),
    ("hosts:\r\n- a\r\n", "master_port: 29511\r\nhosts:\r\n- a\r\n"),
    ("---\n  ssh: {port: 22}\n  hosts: [a]\n", "---\n  master_port: 29511\n  ssh: {port: 22}\n  hosts: [a]\n"),
    ("# grün 🐍\nmaster_port: 29500\nhosts: [a]\n", "# grün 🐍\nmaster_port: 29511\nhosts: [a]\n"),
    ("env: {master_port: 1}\nhosts: [a]\n", "master_port: 29511\nenv: {master_port: 1}\nhosts: [a]\n"),
]


@pytest.mark.parametrize(("before", "after"), CHANGED)
def test_the_value_alone_changes(before: str, after: str) -> None:
    assert with_master_port(before, 29511, "hosts.yaml") == after


@pytest.mark.parametrize("text", ["node1 slots=8\n", "[train]\nnode1\n", "all:\n  hosts:\n    node1:\n"])
def test_a_file_without_a_place_for_it_is_refused(text: str) -> None:
    with pytest.raises(HostsFileError, match="has no place for a master port"):
        with_master_port(text, 29511, "hosts")


def test_an_alias_is_left_to_its_author() -> None:
    with pytest.raises(HostsFileError):
        with_master_port("master_port: *x\nhosts: [a]\n", 29511, "hosts.yaml")


def test_a_file_keeps_its_mode_its_link_and_its_byte_order_mark(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_bytes(b"\xef\xbb\xbfmaster_port: 29500\nhosts: [a]\n")
    real.chmod(0o640)
    link = tmp_path / "hosts.yaml"
    link.symlink_to(real)
    write_master_port(str(link), 29511)
    assert real.read_bytes() == b"\xef\xbb\xbfmaster_port: 29511\nhosts: [a]\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts.yaml", "real.yaml"]


def test_what_cant_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(HostsFileError, match="can't be changed"):
        write_master_port(str(tmp_path), 29511)


_comment = st.text(alphabet="ab #:'\"{}[]é", max_size=12).map(lambda text: f"  # {text}")
_line = st.sampled_from(["python: /opt/bin/python", "nproc_per_node: 8", "env: {NCCL_DEBUG: INFO}", "master_addr: a"])


@given(st.lists(_line, unique=True), st.lists(_comment, min_size=6, max_size=6), st.integers(1, 65535), st.booleans())
def test_any_layout_keeps_all_but_one_line(lines: list[str], comments: list[str], port: int, flow: bool) -> None:
    rows = [*lines, "master_port: 29500", "hosts: [a, b]" if flow else "hosts:\n  - a\n  - {name: b}"]
    text = "\n".join(row + comment for row, comment in zip(rows, comments, strict=False)) + "\n"
    after = with_master_port(text, port, "hosts.yaml")
    changes = [
        line
        for line in difflib.ndiff(text.splitlines(), after.splitlines())
        if line[0] in "+-" and "master_port" not in line
    ]
    assert changes == []
    said = files.read(after, "hosts.yaml").master_port
    assert said is not None
    assert said.value == port


IFNAME = {"NCCL_SOCKET_IFNAME": "=eno1"}
SET = [
    ("hosts:\n- a\n", "env:\n  NCCL_SOCKET_IFNAME: '=eno1'\nhosts:\n- a\n"),
    ("{hosts: [a]}\n", "{env: {NCCL_SOCKET_IFNAME: '=eno1'}, hosts: [a]}\n"),
    (
        "env:   # ours\n  NCCL_DEBUG: INFO  # why\nhosts: [a]\n",
        "env:   # ours\n  NCCL_SOCKET_IFNAME: '=eno1'\n  NCCL_DEBUG: INFO  # why\nhosts: [a]\n",
    ),
    ("env: {NCCL_SOCKET_IFNAME: eth0, A: b}\nhosts: [a]\n", "env: {NCCL_SOCKET_IFNAME: '=eno1', A: b}\nhosts: [a]\n"),
    ("env: {}\nhosts: [a]\n", "env: {NCCL_SOCKET_IFNAME: '=eno1'}\nhosts: [a]\n"),
    ("hosts:\r\n- a\r\n", "env:\r\n  NCCL_SOCKET_IFNAME: '=eno1'\r\nhosts:\r\n- a\r\n"),
    ("hosts:\n- {name: a, env: {X: y}}\n", "env:\n  NCCL_SOCKET_IFNAME: '=eno1'\nhosts:\n- {name: a, env: {X: y}}\n"),
]


@pytest.mark.parametrize(("before", "after"), SET)
def test_a_variable_is_set_for_all_hosts_and_taken_out_again(before: str, after: str) -> None:
    assert with_env(before, IFNAME, "hosts.yaml") == after
    there = files.read(with_env(after, {"NCCL_SOCKET_IFNAME": None}, "hosts.yaml"), "hosts.yaml")
    assert not any("NCCL_SOCKET_IFNAME" in host.shared.env for host in there.entries)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node1 slots=8\n", "has no place for variables"),
        ("hosts:\n- {name: a, env: {NCCL_SOCKET_IFNAME: eth0}}\n", "an env of its own"),
        ("env:\nhosts: [a]\n", "without touching the rest"),
        ("env: *x\nhosts: [a]\n", "without touching the rest"),
    ],
)
def test_a_variable_that_cant_be_set_is_left(text: str, words: str) -> None:
    with pytest.raises(HostsFileError, match=words):
        with_env(text, IFNAME, "hosts.yaml")


_variables = st.dictionaries(st.sampled_from(["A", "NCCL_DEBUG", "PATH"]), st.sampled_from(["1", "a b", "it's"]))
_env = st.builds(
    lambda env, flow: (
        "env: {" + ", ".join(f'{k}: "{v}"' for k, v in env.items()) + "}"
        if flow or not env
        else "env:\n" + "\n".join(f'  {k}: "{v}"  # {k}' for k, v in env.items())
    ),
    _variables,
    st.booleans(),
)


@given(st.lists(_line.filter(lambda line: "env" not in line), unique=True), _env, st.booleans(), st.text("=,^'\"a:# "))
def test_a_variable_set_and_taken_out_leaves_the_others(lines: list[str], env: str, last: bool, value: str) -> None:
    rows = [*lines, "hosts: [a, b]", env] if last else [*lines, env, "hosts: [a, b]"]
    text = "\n".join(rows) + "\n"
    with_it = with_env(text, {"NCCL_ALGO": value}, "hosts.yaml")
    for part in filter(None, (*lines, *env.splitlines()[1:])):
        assert part in with_it
    without = with_env(with_it, {"NCCL_ALGO": None}, "hosts.yaml")
    before, after = (files.read(each, "hosts.yaml").entries for each in (text, without))
    assert [variables(host) for host in before] == [variables(host) for host in after]


def variables(host: Entry) -> dict[str, str]:
    return {name: value.value for name, value in host.shared.env.items()}


def test_the_values_before_are_returned(tmp_path: Path) -> None:
    file = tmp_path / "hosts.yaml"
    file.write_text("env: {A: b}\nhosts: [a]\n", encoding="utf-8")
    assert read_env(str(file), {"A", "D"}) == {"A": "b", "D": None}
    write_env(str(file), {"A": "c", "D": "e"})
    assert read_env(str(file), {"A", "D"}) == {"A": "c", "D": "e"}
    write_env(str(file), {"A": "b", "D": None})
    assert file.read_text(encoding="utf-8") == "env: {A: 'b'}\nhosts: [a]\n"
