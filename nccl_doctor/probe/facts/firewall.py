"""The firewall rules of this host, as ``snapshot.FirewallFacts`` in JSON form.

Reading the rules changes nothing and loads no kernel module: iptables-save lists only tables that already exist, and
programs that use nf_tables are run only if the kernel has nf_tables. Only root may read firewall rules. If the user is
not root, the programs that read the rules are run with ``sudo -n``, which never asks for a password. Programs are
searched for only in the system's directories, because root runs these programs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from contextlib import closing, suppress
from typing import Any, Callable, Dict

from nccl_doctor.probe import tools
from nccl_doctor.probe.tools import Unavailable, fact

MAX_BYTES = 8 << 20
"""Maximum size of one command's output in bytes.

The limit is enough for tens of thousands of rules, such as the rules of kube-proxy. A larger output would block the
connection to the controller for too long.
"""
CAP_NET_ADMIN = 12  # its bit (linux/capability.h, capabilities(7))


class Root:
    """An object that runs programs as root and stops waiting for them at a deadline.

    The constructor raises :class:`Unavailable` if root privileges are not available.
    """

    def __init__(self, deadline: float, sudo: bool) -> None:
        self.deadline = deadline
        self._sudo: list[str] = []
        self._wraps = True
        self._late = ""  # which program used all the time
        if os.geteuid() == 0:
            match = re.search(r"^CapEff:\s*(\w+)", tools.read("/proc/self/status") or "", re.MULTILINE)
            if match and not int(match[1], 16) >> CAP_NET_ADMIN & 1:
                raise Unavailable("root of this container has no CAP_NET_ADMIN")
            self._wraps = False
            return
        if not sudo:
            raise Unavailable("only root may read the rules")
        if (program := find("sudo")) is None:
            raise Unavailable("only root may read the rules, and there is no sudo")
        self._sudo = [program, "-n"]
        # Whether anything may be run without a password; each program's own attempt shows more: a right to nft alone is
        # enough for its rules.
        status, _output, complaint = self._run([*self._sudo, "-l"], "sudo")
        if status:
            asks = "password" in complaint or "authentication is required" in complaint  # sudo-rs says the latter
            wants = "sudo needs a password" if asks else f"sudo refuses: {complaint.strip()}"
            raise Unavailable(wants)
        # sudo -l also lists commands for which it would ask a password.
        timeout, true = find("timeout"), find("true")
        bounded = [timeout, "5", true] if timeout and true else []
        self._wraps = bool(bounded) and all(
            self._run([*self._sudo, *words], "sudo")[0] == 0 for words in (["-l", *bounded], bounded)
        )

    def attempt(self, command: list[str]) -> tuple[int, str, str]:
        """Run a program with a time limit and return the program's exit status, stdout and stderr."""
        program = find(command[0])
        if program is None:
            raise Unavailable("%s is not installed" % command[0])
        # timeout(1) runs under sudo with the program, since we can't end a process of root's ourselves. If sudo allows
        # the program but not timeout, a program that hangs ends when its pipe is closed.
        seconds = "%.2f" % max(self.deadline - time.monotonic(), 0.01)
        timeout = find("timeout") if self._wraps else None
        bound = [timeout, "-k", "1", seconds] if timeout else []
        return self._run([*self._sudo, *bound, program, *command[1:]], command[0])

    def _run(self, command: list[str], name: str) -> tuple[int, str, str]:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Unavailable(self._late or "no time was left to run " + name)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env={**os.environ, "PATH": os.pathsep.join(tools.SYSTEM), "LC_ALL": "C"},
            )
        except OSError as error:
            raise Unavailable("%s could not be run: %s" % (name, error)) from error
        try:
            printed, complaint = process.communicate(timeout=left + (2 if self._wraps else 0))
        except subprocess.TimeoutExpired as error:
            with suppress(PermissionError):  # root's process, under sudo: it ends when it writes to its closed pipes
                process.kill()
                process.wait(2)
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
            raise self._too_late(name, left) from error
        if process.returncode in (124, 137):
            raise self._too_late(name, left)
        if len(printed) > MAX_BYTES:
            raise Unavailable("%s prints more than %d MiB of rules" % (name, MAX_BYTES >> 20))
        text, words = (data.decode("utf-8", "backslashreplace") for data in (printed, complaint))
        return process.returncode, text, words

    def _too_late(self, name: str, seconds: float) -> Unavailable:
        self._late = "%s did not end in %.1f s" % (name, seconds)
        return Unavailable(self._late)

    def output(self, *command: str) -> str:
        """Return the stdout of a program. Raise :class:`Unavailable` with the program's stderr if the program fails."""
        status, printed, complaint = self.attempt(list(command))
        if status:
            words = " ".join((complaint or printed).split()) or "exit status %d" % status
            raise Unavailable("%s: %s" % (" ".join(command), words[:200]))
        return printed


def find(program: str) -> str | None:
    """Return the path of a program in the system's directories.

    Return None if the program is missing or can be changed by users other than root.
    """
    return tools.find(program, tools.SYSTEM, for_root=True)


END_S = 5.0  # time to end a program that missed its deadline
FIREWALLD_DOWN = 252
"""Exit status of firewall-cmd if the daemon is not running (NOT_RUNNING in firewalld's firewall/errors.py)."""
XTABLES = ('"xt"', '"PREROUTING"', '"INPUT"', '"OUTPUT"', '"POSTROUTING"')
"""Strings in the JSON of a table that iptables-nft created. nft can't list all rules of a table that iptables-nft
created.
"""
XT_TABLES = ("filter", "nat", "mangle", "raw", "security")
FEW_TABLES = 16  # tables that nft lists one by one
FIREWALLD = ("firewalld", "_ZONES", "_direct")
"""Names of firewalld's table in nftables and of firewalld's chains in iptables (firewall/core/nftables.py,
ipXtables.py).
"""
UFW = ("ufw-", "ufw6-")  # beginnings of ufw's chains (/usr/share/ufw)
RULES = ('"table"', '"chain"', '"rule"')  # found in nft's JSON of every rule set that has an effect
MANY_CHAINS = 256  # of a table, from which on its rules are read only if needed
MANY = 1 << 20
"""Length of nft's JSON output, in characters, above which nft's text output is read only if it is needed.

Reading nft's text output takes as long as reading its JSON output.
"""
RATES = ('"limit"', '"ct count"')
FLAGS = re.compile(r'"table": \{[^}]*"flags"')
"""Pattern of a table with flags in nft's JSON. nft 1.0.6 prints invalid flags in JSON, whereas its text output shows
which table is dormant.
"""
INTERFACES = "/sys/class/net"
NF_TABLES = "/sys/module/nf_tables"
BUILT_IN = "/lib/modules/%s/modules.builtin" % os.uname().release
"""File that lists the modules that are built into the kernel (Documentation/kbuild/kbuild.rst)."""
LEGACY_TABLES = {"ip": "/proc/net/ip_tables_names", "ip6": "/proc/net/ip6_tables_names"}
"""Files that list the kernel's x_tables tables, one for each address family.

Only root may read the lists of x_tables tables.
"""


@fact("firewall", slow=True)
def read_firewall(deadline: float, sudo: bool = True, again: bool = False) -> dict[str, object]:
    """Return the fields of ``snapshot.FirewallFacts``.

    A field that can't be read is ``{"$unknown": reason}``.

    If firewall rules matter for the diagnosis, the rules are read a second time (``again``). If there are many rules,
    their text form and all rules of large tables are read only if ``again`` is true. If there are few rules, reading
    them again only updates the packet counters.
    """
    root = Root(deadline, sudo)
    chains = [] if _lacks_nf_tables() else _chains(root)
    tables = _tables(chains)
    written = {table for table, is_written in tables.items() if is_written}
    iptables = _part(lambda: _iptables(root, hidden=True)) if written else None
    # nft takes three times as long for such tables as iptables-save, and prints four times as much
    others = [table for table in tables if table not in written & _saved(iptables)]
    large = [table for table in _large(chains) if table not in written]
    filters = {} if again else {table: _filters(root, table, chains) for table in large}
    left_out = [table for table, entries in filters.items() if entries is not None]
    small = [table for table in others if table not in left_out]
    few = small if len(small) <= FEW_TABLES and len(small) < len(tables) else None
    left_out = [] if few is None else left_out
    nft = _part(lambda: _nft(root, "-j", few, [entry for table in left_out for entry in filters[table] or ()]))
    if iptables is None:
        hidden = any(sign in nft for sign in XTABLES) if isinstance(nft, str) else not _lacks_nf_tables()
        iptables = _part(lambda: _iptables(root, hidden))
    long = isinstance(nft, str) and (len(nft) > MANY or bool(left_out))
    judged_by_text = isinstance(nft, str) and (any(sign in nft for sign in RATES) or bool(FLAGS.search(nft)))
    # the second look does not know whether the first one left a large table out, so it reads the text again
    many = (long and not judged_by_text) or (again and bool(large))
    brief = again or (isinstance(nft, str) and not any(sign in nft for sign in RULES) and iptables == [])
    wants_sets = not again and isinstance(iptables, list) and any("--match-set" in save["text"] for save in iptables)
    try:
        interfaces = sorted(os.listdir(INTERFACES))
    except OSError:
        interfaces = []
    return {
        "nft": nft,
        "nft_left_out": [" ".join(table) for table in left_out],
        "nft_text": _part(lambda: _nft(root, "-a", few) if again == many and (again or not brief) else None),
        "iptables": iptables,
        "ipsets": _part(lambda: root.output("ipset", "save") if wants_sets else None),
        "firewalld": _part(
            lambda: _firewalld(root, iptables) if not brief and _signed(FIREWALLD, nft, iptables) else None
        ),
        "ufw": _part(lambda: _ufw(root) if not brief and _signed(UFW, nft, iptables) else None),
        "docker": os.path.exists("/var/run/docker.sock") or os.path.exists("/sys/class/net/docker0"),
        "groups": {name: int(tools.read(f"{INTERFACES}/{name}/netdev_group") or 0) for name in interfaces},
        "bridges": [name for name in interfaces if os.path.isdir(f"{INTERFACES}/{name}/bridge")],
    }


def read_again(request: dict[str, Any]) -> dict[str, Any]:
    """Return the current firewall rules.

    A field of ``snapshot.FirewallFacts`` that can't be read is ``{"$unknown": reason}``.
    """
    from nccl_doctor.probe import facts

    deadline = time.monotonic() + request["deadline_s"]
    return facts.run({"firewall": lambda: read_firewall(deadline, request["sudo"], again=True)}, request["deadline_s"])


RULES_PATIENCE_S = 5.0
MOST_NAMED = 64
NAMED = re.compile(r"(?:\bdports?|\belements =|\"dport\"\}\}, \"right\":)\s*\{?\s*(\d[\d,:\s-]*)")
"""Pattern of destination ports and set elements in the output of nft (text and JSON) and iptables-save."""
SPAN = re.compile(r"(\d{1,5})(?:[:-]\d+)?")


def named(_request: dict[str, Any]) -> dict[str, Any]:
    """Return the destination ports in this host's firewall rules.

    Only the first port of each port range is included.

    The list is empty if the rules can't be read without sudo.
    """
    try:
        rules = read_firewall(time.monotonic() + RULES_PATIENCE_S, sudo=False)
        if rules["nft_left_out"]:
            rules = read_firewall(time.monotonic() + RULES_PATIENCE_S, sudo=False, again=True)
    except Unavailable:
        return {"ports": []}
    return {"ports": named_ports(rules)}


def named_ports(rules: dict[str, Any]) -> list[int]:
    saves = rules["iptables"] if isinstance(rules["iptables"], list) else []
    text = "\n".join([str(rules["nft_text"] or rules["nft"] or ""), *(save["text"] for save in saves)])
    first = (int(span) for match in NAMED.findall(text) for span in SPAN.findall(match))
    return list(dict.fromkeys(port for port in first if 0 < port < 1 << 16))[:MOST_NAMED]


def _signed(signs: tuple[str, ...], nft: object, iptables: object) -> bool:
    """Return whether the firewall rules contain one of the strings in ``signs``.

    Each string is a name, or the beginning of a name, that a firewall manager uses. The result is also True if the
    rules could not be read.
    """
    if not isinstance(nft, str) or not isinstance(iptables, list):
        return True
    return any(sign in text for text in (nft, *(save["text"] for save in iptables)) for sign in signs)


def _part(reader: Callable[[], object]) -> object:
    try:
        return reader()
    except Unavailable as error:
        return {"$unknown": str(error)}


Chain = Dict[str, str]  # as nft's JSON describes it; a chain without a "hook" is called by others


def _lacks_nf_tables() -> bool:
    """Return whether nf_tables is a kernel module that is not loaded, in which case no nftables rules exist.

    The first request from nft or iptables-nft would load the nf_tables module (``nfnetlink_rcv_msg`` in
    net/netfilter/nfnetlink.c).
    """
    if os.path.exists(NF_TABLES):
        return False
    built_in = tools.read(BUILT_IN)
    return built_in is not None and "/nf_tables.ko" not in built_in


def _chains(root: Root) -> list[Chain]:
    """Return all chains without their rules, or an empty list if the chains can't be read."""
    try:
        entries = json.loads(root.output("nft", "-j", "list", "chains"))["nftables"]
        chains = [entry["chain"] for entry in entries if "chain" in entry]
        return [chain for chain in chains if all(isinstance(chain[key], str) for key in ("family", "table", "name"))]
    except (Unavailable, ValueError, KeyError, TypeError):
        return []


def _table(chain: Chain) -> tuple[str, str]:
    return chain["family"], chain["table"]


def _tables(chains: list[Chain]) -> dict[tuple[str, str], bool]:
    """Return a dictionary with an entry for each table that has chains.

    The keys are pairs (family, name). A value is True if iptables-nft created the table.

    A table created by iptables-nft has base chains that are named after their hooks, such as INPUT for "input"
    (iptables/nft.c).
    """
    tables: dict[tuple[str, str], bool] = {}
    for chain in chains:
        is_base = chain["table"] in XT_TABLES and chain["name"] == str(chain.get("hook", "")).upper()
        tables[_table(chain)] = tables.get(_table(chain), False) or is_base
    return tables


def _large(chains: list[Chain]) -> list[tuple[str, str]]:
    count: dict[tuple[str, str], int] = {}
    for chain in chains:
        count[_table(chain)] = count.get(_table(chain), 0) + 1
    return [table for table, chains_in_it in count.items() if chains_in_it > MANY_CHAINS]


def _filters(root: Root, table: tuple[str, str], chains: list[Chain]) -> list[dict[str, Any]] | None:
    """Return the chains, rules and sets that are reachable from a table's filter chains, in nft's JSON form.

    Return None if the whole table must be read.

    Chains for address translation are left out, together with chains that are reachable only from them.
    """
    by_name = {item["name"]: item for item in chains if _table(item) == table}
    first = [item["name"] for item in by_name.values() if "hook" in item and item.get("type") != "nat"]
    if not first:
        return [{"chain": item} for item in by_name.values() if "hook" in item]
    from nccl_doctor.probe.facts.nft_chains import MOST_CHAINS, Chains, OtherExpressionError, sets, targets

    try:
        with closing(Chains(*table)) as kernel:
            if kernel.is_dormant():
                return []
            todo = list(first)
            rules: dict[str, list[dict[str, Any]]] = {}
            maps: dict[str, list[dict[str, Any]]] = {}
            while todo:
                chain = todo.pop()
                if chain in rules:
                    continue
                if len(rules) == MOST_CHAINS:
                    return None
                rules[chain] = kernel.rules(chain)
                for kind, name in sets(rules[chain]):
                    if name not in maps:
                        listing = json.loads(root.output("nft", "-j", "list", kind, *table, name))["nftables"]
                        maps[name] = [entry for entry in listing if kind in entry]
                        todo += [to for entry in maps[name] for to in targets(entry[kind].get("elem", []))]
                todo += targets([part for rule in rules[chain] for part in rule["expr"]])
    except (OtherExpressionError, OSError, Unavailable, KeyError, ValueError):  # as without this short cut
        return None
    return [
        {"table": {"family": table[0], "name": table[1]}},
        *({"chain": by_name[name]} for name in rules),
        *(entry for entries in maps.values() for entry in entries),
        *({"rule": rule} for chain_rules in rules.values() for rule in chain_rules),
    ]


def _saved(iptables: object) -> set[tuple[str, str]]:
    saves = iptables if isinstance(iptables, list) else []
    lines = ((save["family"], line) for save in saves if save["backend"] == "nft" for line in save["text"].splitlines())
    return {(family, line[1:].strip()) for family, line in lines if line.startswith("*")}


def _nft(
    root: Root, form: str, tables: list[tuple[str, str]] | None = None, more: list[dict[str, Any]] | None = None
) -> str | None:
    """Return nft's listing of the given tables, or of the whole rule set if ``tables`` is None.

    If ``tables`` is given and ``form`` is ``-j`` (JSON), the entries in ``more`` are appended to the listing.
    """
    if tables is not None:
        texts = [root.output("nft", form, "list", "table", *table) for table in tables]
        if form != "-j":
            return "".join(texts)
        listed = [entry for text in texts for entry in json.loads(text)["nftables"]]
        return json.dumps({"nftables": [*listed, *(more or ())]})
    if _lacks_nf_tables():
        return None
    if find("nft"):
        return root.output("nft", form, "list", "ruleset")
    if not os.path.exists(NF_TABLES):
        return None
    raise Unavailable("nft is not installed, though the kernel has nf_tables")


def _iptables(root: Root, hidden: bool) -> list[dict[str, Any]]:
    saves: list[dict[str, Any]] = []
    for family, tables in LEGACY_TABLES.items():
        kept = tools.read(tables)
        if kept is None and os.path.exists(tables):
            kept = root.output("cat", tables).strip()
        for backend in (*(["legacy"] if kept else []), *(["nft"] if hidden else [])):
            program = _program(root, family, backend)
            if program is None and backend == "legacy":
                raise Unavailable("no %stables of the legacy kind is installed to show its rules" % family)
            if program is not None:
                text = root.output(program + "-save", "-c")
                saves.append({"command": program, "family": family, "backend": backend, "text": text})
    return saves


def _program(root: Root, family: str, backend: str) -> str | None:
    """Return the iptables program that uses the given backend, or None if no such program is installed."""
    plain = family + "tables"
    named = "%s-%s" % (plain, backend)
    if find(named + "-save"):
        return named
    if find(plain + "-save") is None:
        return None
    kind = "nft" if "nf_tables" in root.output(plain, "--version") else "legacy"
    return plain if kind == backend else None


def _firewalld(root: Root, iptables: object) -> dict[str, str] | None:
    if find("firewall-cmd") is None:
        return None
    questions = {
        "default_zone": ("--get-default-zone",),
        "runtime": ("--list-all-zones",),
        "permanent": ("--permanent", "--list-all-zones"),
        # the kernel stores them as iptables' rules with both back ends
        **({"direct": ("--direct", "--get-all-rules")} if iptables != [] else {}),
    }

    def ask(name: str) -> tuple[int, str, str] | Unavailable:
        try:
            return root.attempt(["firewall-cmd", *questions[name]])
        except Unavailable as why:
            return why

    # starting it takes a third of a second each time
    results = tools.side_by_side(ask, list(questions), root.deadline + END_S)
    answers = {"direct": ""}
    for name, words in questions.items():
        answer = results.get(name) or Unavailable("firewall-cmd gave no answer in time")
        if isinstance(answer, Unavailable):
            raise answer
        status, printed, complaint = answer
        if status == FIREWALLD_DOWN:
            return None
        if status:
            raise Unavailable(f"firewall-cmd {words[-1]}: {' '.join((complaint or printed).split())[:200]}")
        answers[name] = printed
    return {**answers, "default_zone": answers["default_zone"].strip()}


def _ufw(root: Root) -> str | None:
    if find("ufw") is None:
        return None
    status = root.output("ufw", "status", "verbose")
    return None if "Status: inactive" in status else status
