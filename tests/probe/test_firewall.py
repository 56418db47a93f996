from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from nccl_doctor.model.base import Unknown
from nccl_doctor.probe import tools
from nccl_doctor.probe.facts import firewall
from nccl_doctor.probe.facts.firewall import find
from nccl_doctor.probe.tools import Unavailable
from nccl_doctor.snapshot.network import Firewalld, FirewallFacts, IptablesSave
from tests.patience import LONG_S, crowd

LISTING = '{"nftables": []}'
XT = '{"nftables": [{"rule": {"expr": [{"xt": {}}]}}]}'
SUDO = '[ "$2" = -l ] && exit 0; shift; exec "$@"'
NARROW = """
case "$2 $3" in
  "-l ") exit 0 ;;
  "-l "*) exit OTHERS ;;
  */nft*) shift; exec "$@" ;;
  *) echo "sudo: a password is required" >&2; exit 1 ;;
esac"""
"""As sudo does with a right to nft alone; it lists another program with 1 where it is forbidden, with 0 where it needs
a password (both seen with sudo 1.9.13)."""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose only programs are the ones a test writes, besides a shell's own."""
    monkeypatch.setattr(tools, "SYSTEM", (str(tmp_path),))
    monkeypatch.setattr(firewall, "NF_TABLES", str(tmp_path / "nf_tables"))
    monkeypatch.setattr(firewall, "BUILT_IN", str(tmp_path / "modules.builtin"))
    monkeypatch.setattr(firewall, "LEGACY_TABLES", {name: f"{tmp_path}/{name}_tables_names" for name in ("ip", "ip6")})
    host = Host(tmp_path)
    for name in ("timeout", "cat", "true", "sleep", "head", "tr", "sh"):
        real = next(Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists())
        (tmp_path / name).symlink_to(real)
    return host


class Host:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def program(self, name: str, script: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(stat.S_IRWXU)


def collect(*, sudo: bool = True, seconds: float = LONG_S) -> FirewallFacts:
    return FirewallFacts.model_validate(firewall.read_firewall(time.monotonic() + seconds, sudo))


def test_a_host_without_any_firewall_has_none(host: Host) -> None:
    facts = collect()
    assert (facts.nft, facts.iptables, facts.ipsets, facts.firewalld, facts.ufw) == (None, (), None, None, None)
    assert "lo" in facts.groups


def test_rules_that_only_a_missing_program_could_show_are_unknown(host: Host) -> None:
    (host.folder / "nf_tables").mkdir()
    (host.folder / "ip_tables_names").write_text("filter\n")
    facts = collect()
    assert isinstance(facts.nft, Unknown)
    assert "nft is not installed" in facts.nft.reason
    assert isinstance(facts.iptables, Unknown)
    assert "legacy" in facts.iptables.reason


@pytest.mark.parametrize(("built_in", "is_read"), [("nf_conntrack.ko", False), ("nf_tables.ko", True), (None, True)])
def test_no_module_is_loaded(host: Host, *, built_in: str | None, is_read: bool) -> None:
    if built_in is not None:
        (host.folder / "modules.builtin").write_text(f"kernel/net/netfilter/{built_in}\n")
    host.program("nft", f": > {host.folder}/asked; echo '{LISTING}'")
    host.program("iptables-nft-save", f": > {host.folder}/asked; echo '*filter'")
    facts = collect()
    assert (host.folder / "asked").exists() == isinstance(facts.nft, str) == is_read
    assert facts.nft is None or is_read


def test_legacy_tables_are_read_beside_nftables(host: Host) -> None:
    (host.folder / "ip_tables_names").write_text("filter\n")
    host.program("nft", f"echo '{LISTING}'")
    host.program("iptables-legacy-save", "echo '*filter'")
    assert collect().iptables == (
        IptablesSave(command="iptables-legacy", family="ip", backend="legacy", text="*filter\n"),
    )


def test_for_the_counters_nobody_but_the_kernel_is_asked(host: Host) -> None:
    host.program("nft", f"[ $1 = -j ] && echo '{XT}' || exit 1")
    host.program("iptables-nft-save", "echo '-A INPUT -m set --match-set s src -j DROP'")
    for name in ("ipset", "firewall-cmd", "ufw"):
        host.program(name, "exit 1")
    facts = FirewallFacts.model_validate(firewall.read_firewall(time.monotonic() + LONG_S, again=True))
    assert (facts.nft, facts.nft_text, facts.ipsets, facts.firewalld, facts.ufw) == (XT + "\n", None, None, None, None)
    assert isinstance(facts.iptables, tuple)
    assert len(facts.iptables) == 1


CHAINS = """{"nftables": [{"metainfo": {}},
{"chain": {"family": "ip", "table": "filter", "name": "INPUT", "hook": "input"}},
{"chain": {"family": "ip", "table": "nat", "name": "PREROUTING", "hook": "prerouting"}},
{"chain": {"family": "inet", "table": "filter", "name": "input", "hook": "input"}}]}"""
LISTS = f"""
case "$*" in
  "-j list chains") echo '{CHAINS}' ;;
  "-j list table "*) echo "{{\\"nftables\\": [\\"$4 $5\\"]}}" ;;
  "-a list table "*) echo "table $4 $5" ;;
  *) exit 1 ;;
esac"""


@pytest.mark.parametrize(
    ("saved", "listed"),
    [("*filter\\n*nat", ["inet filter"]), ("*nat\\n# Table filter is incompatible", ["ip filter", "inet filter"])],
)
def test_nft_lists_no_table_that_iptables_shows(host: Host, saved: str, listed: list[str]) -> None:
    """It takes three times as long for the rules of a Kubernetes node."""
    host.program("nft", LISTS)
    host.program("iptables-nft-save", f'printf %b "{saved}\\n"')
    facts = collect()
    assert isinstance(facts.nft, str)
    assert json.loads(facts.nft) == {"nftables": listed}
    assert facts.nft_text == "".join(f"table {name}\n" for name in listed)


@pytest.mark.parametrize("part", ["", '{"limit": {}}', '{"table": {"name": "x", "flags": "y"}}'])
def test_the_text_of_many_rules_is_read_only_where_they_matter(host: Host, part: str) -> None:
    """It takes as long as all else. Rates are judged by their text, and nft 1.0.6 garbles a table's flags in JSON."""
    (host.folder / "many").write_text(f'{{"nftables": [{{"rule": {{}}}}, {part or "{}"}]}}' + " " * firewall.MANY)
    host.program("nft", f"[ $1 = -j ] && cat {host.folder}/many || echo 'table inet t'")
    first = collect().nft_text
    again = FirewallFacts.model_validate(firewall.read_firewall(time.monotonic() + LONG_S, again=True)).nft_text
    assert (first, again) == (("table inet t\n", None) if part else (None, "table inet t\n"))


def test_the_rules_of_a_table_with_many_chains_are_read_only_where_they_matter(host: Host) -> None:
    """kube-proxy has a chain for each service, which takes half a second to list."""
    services = [{"family": "ip", "table": "kube-proxy", "name": f"s{i}"} for i in range(firewall.MANY_CHAINS)]
    hook = {"family": "ip", "table": "kube-proxy", "name": "pre", "hook": "prerouting", "type": "nat"}
    other = {"family": "inet", "table": "filter", "name": "in", "hook": "input"}
    told = json.dumps({"nftables": [{"chain": one} for one in (*services, hook, other)]})
    (host.folder / "chains").write_text(told)
    host.program(
        "nft",
        f'case "$*" in "-j list chains") cat {host.folder}/chains ;; "-j list table inet filter") '
        """echo '{"nftables": [{"rule": "small"}]}' ;; *"list ruleset") echo '{"chain": "all"}' ;; *) exit 1 ;; esac""",
    )
    first = collect()
    assert isinstance(first.nft, str)
    assert json.loads(first.nft) == {"nftables": [{"rule": "small"}, {"chain": hook}]}
    assert (first.nft_left_out, first.nft_text) == (("ip kube-proxy",), None)
    again = FirewallFacts.model_validate(firewall.read_firewall(time.monotonic() + LONG_S, again=True))
    assert (again.nft, again.nft_left_out) == ('{"chain": "all"}\n', ())
    assert isinstance(again.nft_text, str)
    (host.folder / "chains").write_text(
        told.replace('"nat"', '"filter"')
    )  # which may limit what the dials did not reach
    assert collect().nft_left_out == ()
    host.program(
        "nft",
        f"""case "$*" in "-j list chains") cat {host.folder}/chains ;; "-a "*) echo text ;; """
        """*) echo '{"nftables": [{"rule": {"expr": [{"limit": {}}]}}]}' ;; esac""",
    )
    assert isinstance(collect().nft_text, str)  # a limit is judged by its text, also where nothing fails


MANAGED = "-A INPUT -m set --match-set s src -j DROP\\n-A INPUT -j INPUT_ZONES\\n-A INPUT -j ufw-before-input\\n"


def test_everything_is_captured(host: Host) -> None:
    host.program("nft", f"[ $1 = -j ] && echo '{XT}' || echo 'table inet t'")
    host.program("iptables-nft-save", f"printf %b '{MANAGED}'")
    host.program("ipset", "echo 'create s hash:ip'")
    host.program("firewall-cmd", '[ "$1" = --get-default-zone ] && echo public || echo "zones $1"')
    host.program("ufw", "echo 'Status: active'")
    facts = collect()
    assert (facts.nft, facts.nft_text, facts.ipsets, facts.ufw) == (
        XT + "\n", "table inet t\n", "create s hash:ip\n", "Status: active\n",
    )  # fmt: skip
    assert facts.iptables == (
        IptablesSave(command="iptables-nft", family="ip", backend="nft", text=MANAGED.replace("\\n", "\n")),
    )
    assert facts.firewalld == Firewalld(
        default_zone="public",
        runtime="zones --list-all-zones\n",
        permanent="zones --permanent\n",
        direct="zones --direct\n",
    )


def test_firewalld_is_asked_everything_at_once(host: Host) -> None:
    """Each start of firewall-cmd takes a third of a second."""
    started = host.folder / "started"
    started.mkdir()
    host.program("nft", f"[ $1 = -j ] && echo '{XT}' || echo 'table inet t'")
    host.program("iptables-nft-save", f"printf %b '{MANAGED}'")
    wait = f'PATH=/usr/bin:/bin; touch {started}/$$; until [ "$(ls {started} | wc -l)" = 4 ]; do sleep 0.01; done'
    host.program("firewall-cmd", f'{wait}; echo "$1"')
    facts = collect()
    assert isinstance(facts.firewalld, Firewalld)
    assert (facts.firewalld.default_zone, facts.firewalld.direct) == ("--get-default-zone", "--direct\n")


def test_managers_that_have_no_rule_in_force_are_not_asked(host: Host) -> None:
    host.program("nft", f"[ $1 = -j ] && echo '{XT}' || echo 'table inet t'")
    host.program("iptables-nft-save", "echo '-A INPUT -p tcp --dport 22 -j ACCEPT'")
    for name in ("firewall-cmd", "ufw"):
        host.program(name, f"echo > {host.folder}/asked; exit 1")
    facts = collect()
    assert (facts.firewalld, facts.ufw) == (None, None)
    assert not (host.folder / "asked").exists()


def test_iptables_is_left_alone_where_it_wrote_nothing(host: Host) -> None:
    host.program("nft", f"echo '{LISTING}'")
    host.program("iptables-nft-save", f"echo > {host.folder}/asked; exit 1")
    assert collect().iptables == ()
    assert not (host.folder / "asked").exists()


def test_the_plain_name_serves_where_it_is_of_the_right_kind(host: Host) -> None:
    host.program("nft", f"echo '{XT}'")
    host.program("iptables", "echo 'iptables v1.8.9 (nf_tables)'")
    host.program("iptables-save", "echo '*filter'")
    facts = collect()
    assert isinstance(facts.iptables, tuple)
    assert [(save.command, save.backend) for save in facts.iptables] == [("iptables", "nft")]


def test_managers_that_do_not_run_are_none(host: Host) -> None:
    host.program("firewall-cmd", "echo 'FirewallD is not running' >&2; exit 252")
    host.program("ufw", "echo 'Status: inactive'")
    facts = collect()
    assert (facts.firewalld, facts.ufw) == (None, None)


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("echo 'Operation not permitted' >&2; exit 1", LONG_S, "nft -j list ruleset: Operation not permitted"),
        ("exec sleep 600", 1, "nft did not end in"),
        ("head -c 9000000 /dev/zero | tr '\\0' x", LONG_S, "more than 8 MiB"),
    ],
)
def test_what_fails_hangs_or_floods_is_unknown_with_its_reason(
    host: Host, script: str, seconds: float, reason: str
) -> None:
    host.program("nft", script)
    started = time.monotonic()
    facts = collect(seconds=seconds)
    assert isinstance(facts.nft, Unknown)
    assert reason in facts.nft.reason
    assert time.monotonic() - started < 4 * crowd()


def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


def test_a_user_without_sudo_may_not_look(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    with pytest.raises(Unavailable, match="there is no sudo"):
        collect()
    with pytest.raises(Unavailable, match="only root may read the rules"):
        collect(sudo=False)


def test_sudo_never_asks_for_a_password(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    host.program("sudo", '[ "$1" = -n ] || exit 9; echo "sudo: a password is required" >&2; exit 1')
    with pytest.raises(Unavailable, match=r"^sudo needs a password$"):
        collect()


def test_sudo_serves_where_it_needs_no_password(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    host.program("sudo", SUDO)
    host.program("nft", f"echo '{LISTING}'")
    assert collect().nft == LISTING + "\n"


@pytest.mark.parametrize("others", ["1", "0"])
def test_a_right_to_nft_alone_serves_for_its_rules(others: str, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch)
    host.program("sudo", NARROW.replace("OTHERS", others))
    host.program("nft", f"echo '{XT}'")
    host.program("iptables-nft-save", "echo '*filter'")
    facts = collect()
    assert facts.nft == XT + "\n"
    assert isinstance(facts.iptables, Unknown)
    assert "a password is required" in facts.iptables.reason


def test_what_hangs_where_no_wrapper_is_allowed_is_left_at_the_deadline(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch)
    host.program("sudo", NARROW.replace("OTHERS", "1"))
    host.program("nft", "exec sleep 30")
    facts = collect(seconds=1)
    assert isinstance(facts.nft, Unknown)
    assert "nft did not end in" in facts.nft.reason


def test_programs_are_root_s_own_or_not_there(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host.program("nft", f"echo '{LISTING}'")
    assert find("nft") == str(host.folder / "nft")
    (host.folder / "nft").chmod(0o777)
    assert find("nft") is None
    (host.folder / "nft").chmod(0o755)
    os.chown(host.folder / "nft", 1000, 1000)
    assert find("nft") is None
    os.chown(host.folder / "nft", 0, 0)
    host.folder.chmod(0o777)
    assert find("nft") is None


def test_bytes_that_are_no_text_do_no_harm(host: Host) -> None:
    host.program("nft", "printf 'comment \\377'")
    assert collect().nft == "comment \\xff"
