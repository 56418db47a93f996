from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.transport.ssh import known_hosts
from nccl_doctor.transport.ssh.known_hosts import KnownKeys, entry_name, match_key, parse

FILE = Path("known_hosts")
OUTCOMES = ("known", "unknown", "changed", "revoked")


def key(name: str, kind: str = "ssh-ed25519") -> bytes:
    return len(kind).to_bytes(4, "big") + kind.encode() + name.encode()


def known(text: str) -> KnownKeys:
    return KnownKeys(parse(FILE, text))


def line(patterns: str, name: str, kind: str = "ssh-ed25519") -> str:
    return f"{patterns} {kind} {base64.b64encode(key(name, kind)).decode()} comment\n"


@pytest.mark.parametrize(
    ("patterns", "name", "outcome"),
    [
        ("node1", "node1", "known"),
        ("node1,10.0.0.1", "10.0.0.1", "known"),
        ("NODE1", "node1", "known"),
        ("node1", "node11", "unknown"),
        ("node*", "node11", "known"),
        ("node?", "node11", "unknown"),
        ("*,!node1", "node1", "unknown"),
        ("*,!node1", "node2", "known"),
        ("[node1]:2222", "[node1]:2222", "known"),
        ("[node1]:2222", "node1", "unknown"),
        ("[node*]:2222", "[node1]:2222", "known"),
        ("node1", "[node1]:2222", "known"),
        ("[1]", "1", "unknown"),
        ("|1|bad", "node1", "unknown"),
        ("|1|AAAA|BBBB", "node1", "unknown"),
    ],
)
def test_patterns(patterns: str, name: str, outcome: str) -> None:
    assert match_key(known(line(patterns, "a")), name, key("a")).outcome == outcome


@pytest.mark.parametrize(
    ("text", "outcome", "number"),
    [
        ("", "unknown", None),
        (line("n", "b"), "changed", 1),
        (line("n", "b") + line("n", "a"), "known", 2),
        ("\n# n\n" + line("n", "b", "ssh-rsa") + line("n", "b"), "changed", 4),
        (line("n", "b", "ssh-rsa"), "changed", 1),
        (line("n", "a") + "@revoked " + line("*", "a"), "revoked", 2),
        (line("*", "b") + line("m,n", "c") + line("N,n", "d"), "changed", 1),
        (line("m,n", "c") + line("*", "b"), "changed", 1),
        ("@cert-authority " + line("n", "a"), "unknown", None),
        ("@nonsense " + line("n", "a"), "unknown", None),
        ("n ssh-ed25519 !!!\nn ssh-ed25519\n" + line("n", "a"), "known", 3),
    ],
)
def test_verdicts(text: str, outcome: str, number: int | None) -> None:
    verdict = match_key(known(text), "n", key("a"))
    assert (verdict.outcome, verdict.by.line if verdict.by else None) == (outcome, number)


def test_another_key_under_the_name_without_port_is_no_change() -> None:
    """OpenSSH looks there too, but only for the same key."""
    assert match_key(known(line("n", "b")), "[n]:2222", key("a")).outcome == "unknown"


def test_a_key_revoked_under_the_name_without_port() -> None:
    text = line("n", "a") + "@revoked " + line("n", "a")
    assert match_key(known(text), "[n]:2222", key("a")).outcome == "revoked"


@pytest.mark.parametrize(
    ("patterns", "name", "vouched"),
    [("n", "n", True), ("n", "[n]:2222", True), ("[n]:2222", "[n]:2222", True), ("m", "n", False)],
)
def test_a_ca_that_may_vouch(patterns: str, name: str, vouched: bool) -> None:
    assert known("@cert-authority " + line(patterns, "a")).has_authority(name) is vouched


def test_a_line_that_lies_of_its_type_is_none() -> None:
    assert match_key(known(line("n", "a").replace("ssh-ed25519", "ssh-rsa", 1)), "n", key("a")).outcome == "unknown"


@pytest.mark.parametrize(
    ("hostname", "port", "alias", "wanted"),
    [("Node1", 22, None, "node1"), ("node1", 23, None, "[node1]:23"), ("node1", 23, "Big", "big")],
)
def test_entry_name(hostname: str, port: int, alias: str | None, wanted: str) -> None:
    assert entry_name(hostname, port, alias) == wanted


@given(st.text(), st.text(), st.binary())
def test_no_text_breaks_the_parser(text: str, name: str, presented: bytes) -> None:
    assert match_key(known(text), name, presented).outcome in OUTCOMES


@given(st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True), st.binary(min_size=1), st.integers(1, 65535))
def test_the_line_made_for_a_key_makes_it_known(host: str, rest: bytes, port: int) -> None:
    presented, name = key("") + rest, entry_name(host, port)
    assert match_key(known(known_hosts.line_for(name, presented)), name, presented).outcome == "known"
