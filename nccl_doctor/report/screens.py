"""Renders the output of ``hosts``, ``ifname``, ``launch``, ``diff``, ``explain`` and ``codes``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.documents import (
    Change,
    Codes,
    Difference,
    HostList,
    InterfaceAnswer,
    InterfaceAnswers,
    Launch,
    Page,
    RankPlace,
    Topic,
    TopicList,
)
from nccl_doctor.report.human import diagnosis
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import WIDTH, Screen, apart, joined, painter, table, wrap
from nccl_doctor.text.hostlist import fold, fold_numbers, grouped, nouns, plural
from nccl_doctor.text.inet import numeric
from nccl_doctor.text.shell import clean, pasteable


def render_hosts(cluster: HostList, _options: RenderOptions) -> str:
    """Return a table of hosts and ranks, followed by a table of settings with values, hosts and origins."""
    count = plural(len(cluster.nodes), "host")
    title = wrap(f"{cluster.source}: {count}, master {cluster.master_addr}:{cluster.master_port}", WIDTH)
    rows, first = [], 0
    for node in cluster.nodes:
        ranks = "one per GPU"
        if node.nproc_per_node is not None:
            numbers = f"{first}-{first + node.nproc_per_node - 1}" if node.nproc_per_node > 1 else str(first)
            ranks = plural(node.nproc_per_node, "rank") if first < 0 else numbers
        rows.append((str(node.node_rank), node.name, node.address, ranks, node.python))
        # negative from the first host with an unknown count on
        first = -1 if first < 0 or node.nproc_per_node is None else first + node.nproc_per_node
    nodes = table(("node", "host", "address", "ranks", "python"), rows, WIDTH)
    settings = table(("setting", "value", "hosts", "from"), _settings(cluster), WIDTH)
    return joined((title, nodes, settings))


def _settings(cluster: Cluster) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row per setting and origin, with the value if it is the same on all hosts of the row."""
    for name, value in (("master_addr", cluster.master_addr), ("master_port", str(cluster.master_port))):
        yield name, value, "", cluster.origins.get(name, "")
    if cluster.engine:
        yield "engine", cluster.engine, "", cluster.origins.get("engine", "")
    if cluster.same:
        yield "same", ", ".join(cluster.same), "", cluster.origins.get("same", "")
    settings = [(name, value, node.name) for node in cluster.nodes for name, value in _values(node)]
    for name, entries in grouped((name, (value, host)) for name, value, host in settings).items():
        origins = ((cluster.origins.get(f"{host}.{name}"), (value, host)) for value, host in entries)
        for origin, pairs in grouped(origins).items():
            values = {value for value, _ in pairs}
            if origin is not None:
                value = values.pop() if len(values) == 1 else "each its own"
                yield name, value, fold(host for _, host in pairs), origin


def _values(node: Node) -> Iterator[tuple[str, str]]:
    """Yield a node's settings under the names that ``Cluster.origins`` uses."""
    yield "address", node.address
    yield "nproc_per_node", "" if node.nproc_per_node is None else str(node.nproc_per_node)
    yield "python", node.python
    yield "cuda_visible_devices", node.cuda_visible_devices or ""
    for engine, options in node.access.items():
        yield from ((f"{engine}.{name}", str(option)) for name, option in options.items())
    yield from ((f"env.{name}", value) for name, value in node.env.items())
    yield "local", "without SSH"


def render_ifname(answers: InterfaceAnswers, options: RenderOptions) -> str:
    """Return the table of interfaces, with one row for similar hosts, followed by the recommended settings."""
    paint, width = painter(options.color), options.width
    if answers.asked is None:
        text = table(("host", "NCCL uses", "why"), _interface_rows(answers.hosts), width)
    else:
        text = table(("host", "interface", "why"), _asked_rows(answers.hosts), width)
    if answers.asked is None and any(host.rdma for host in answers.hosts):
        text += ["", *table(("RDMA, by place", "device", "GID", "network"), _rdma_rows(answers.hosts), width)]
    rows = list(_advertised_rows(answers, verbose=options.verbose))
    text += ["", *table(("advertises", "host", "address", "why"), rows, width)] if rows else []
    for block in answers.exports:
        shown = [line for line in block.lines if pasteable(line)]
        if len(shown) < len(block.lines):
            text += ["", "The setting can't be shown safely here; see -o json."]
            continue
        where = "every host" if block.hosts is None else fold(block.hosts)
        where += f" ({block.place})" if block.place else ""
        text += ["", *wrap(f"Set on {where}, or under env in the hosts file:", width), ""]
        text += [paint(line, "bold") for line in shown]
    for item in answers.diagnoses:
        text += ["", *diagnosis(item, Screen.of(options))]
    return "\n".join(text) + "\n"


def _advertised_rows(answers: InterfaceAnswers, *, verbose: bool) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each program and reason, with the hosts and the addresses that the program advertises.

    Without ``verbose``, only the addresses that the cluster's engine advertises are included.
    """
    entries = [(name, it, answer.name) for answer in answers.hosts for name, it in answer.advertises.items()]
    for name, pairs in grouped((name, (it, host)) for name, it, host in entries).items():
        if verbose or name == answers.engine:
            for why, alike in grouped((it.why, (it.address or "none", host)) for it, host in pairs).items():
                yield name, fold(host for _, host in alike), _shared([address for address, _ in alike]), why


_SAYS = {"libnccl": "according to libnccl", "model": "according to our model of NCCL"}


def _interface_rows(answers: Sequence[InterfaceAnswer]) -> Iterator[tuple[str, str, str]]:
    def chosen(answer: InterfaceAnswer) -> str:
        return answer.nccl_interface.name if answer.nccl_interface else "nothing" if answer.known else "not known"

    for (name, reason), alike in grouped(((chosen(item), item.reason), item) for item in answers).items():
        interfaces = [item.nccl_interface for item in alike if item.nccl_interface is not None]
        sources = sorted({" ".join(filter(None, (_SAYS[item.source], item.nccl_version))) for item in interfaces})
        uses = f"{name}  {_shared([interface.address for interface in interfaces])}" if interfaces else name
        yield fold(item.name for item in alike), uses, reason + (f" ({', '.join(sources)})" if sources else "")


def _rdma_rows(answers: Sequence[InterfaceAnswer]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the RDMA devices at each index; hosts with the same values share one row. Fused ports share an index."""
    rows = [(answer.name, each) for answer in answers for each in answer.rdma]
    for place in sorted({each.place for _, each in rows}):
        alike = grouped(
            ((each.device, each.port, each.netdev, each.gid_index, each.network, each.trouble), (name, each))
            for name, each in rows
            if each.place == place
        )
        for (device, port, netdev, index, network, trouble), pairs in alike.items():
            label = f"{device}:{port}" if port > 1 else device
            gids = [each.gid for _, each in pairs if each.gid is not None]
            gid = f"{index}  {_shared(gids)}" if gids else f"{index}  empty"
            where = network or (pairs[0][1].link_layer if netdev is None else None) or "not known"
            words = (fold(name for name, _ in pairs), f"[{place}]")
            ends = "  ".join(filter(None, (where, trouble)))
            yield " ".join(words), f"{label} on {netdev}" if netdev else label, gid, ends


def _asked_rows(answers: Sequence[InterfaceAnswer]) -> Iterator[tuple[str, str, str]]:
    rows = (((row.has[0] if row.has else "none" if row.known else "not known", row.reason), row) for row in answers)
    for (name, reason), alike in grouped(rows).items():
        addresses = [row.has[1] for row in alike if row.has]
        yield fold(row.name for row in alike), f"{name}  {_shared(addresses)}" if addresses else name, reason


def _shared(addresses: Sequence[str]) -> str:
    """Return a single address, or the common part of several addresses, such as ``10.0.0.x`` or ``2001:db8::/64``."""
    if len(set(addresses)) == 1:
        return addresses[0]
    if any(numeric(text) is None for text in addresses):
        return "each its own"
    parsed = {ipaddress.ip_address(text.partition("%")[0]) for text in addresses}
    if all(address.version == 4 for address in parsed):
        parts = [str(address).split(".") for address in parsed]
        same = next((n for n in range(4) if len({tuple(part[: n + 1]) for part in parts}) > 1), 4)
        return ".".join(parts[0][:same] + ["x"] * (4 - same)) if same else "several"
    nets = {ipaddress.ip_network((address, 64 if address.version == 6 else 32), strict=False) for address in parsed}
    return str(nets.pop()) if len(nets) == 1 else "several"


_LAUNCH_WIDTH = 100
_RANK_ROWS = 64  # with more ranks, each row is a whole node


def render_launch(plan: Launch, _options: RenderOptions) -> str:
    """Return a table of the ranks, followed by the command for each host on its own line."""
    ranks = grouped((place.host, place) for place in plan.ranks)
    master = f"master {plan.master_addr}:{plan.master_port}"
    title = f"# {plural(len(ranks), 'node')}, {plural(plan.world_size, 'rank')}, {master}"
    blocks = [[title, *_draw_ranks(plan.ranks)]]
    if plan.notes:
        blocks.append([f"# {clean(note)}" for note in plan.notes])
    for command in plan.commands:
        where = "here, for all hosts"
        if command.host is not None:
            places = ranks[command.host]
            numbers = f"{nouns(len(places), 'rank')} {fold_numbers(place.rank for place in places)}"
            where = ", ".join(filter(None, (f"on {clean(command.host)}", command.place, numbers)))
        blocks.append([f"# {where}:", command.command])
    return joined(blocks)


def render_script(plan: Launch, _options: RenderOptions) -> str:
    return plan.commands[0].command


def _draw_ranks(places: tuple[RankPlace, ...]) -> Iterator[str]:
    """Yield a row per rank, with each node named once, or a row per node if there are many ranks."""
    rows: list[tuple[str, ...]] = []
    for node, group in grouped((place.node_rank, place) for place in places).items():
        numbers = [[str(place.local_rank), str(place.rank), place.gpu or "-"] for place in group]
        if len(places) > _RANK_ROWS:
            ends = zip(numbers[0], numbers[-1], strict=True)
            both = (first if len(group) == 1 or first == "-" else f"{first} to {last}" for first, last in ends)
            rows.append((str(node), group[0].host, *both))
            continue
        for place, its_numbers in zip(group, numbers, strict=True):
            rows.append((*(("", "") if place.local_rank else (str(node), place.host)), *its_numbers))
    for line in table(("node", "host", "local rank", "global rank", "GPU"), rows, _LAUNCH_WIDTH):
        yield f"#   {line}".rstrip()


_VALUE = 60
_NOTHING = ("nothing", "null", "", "[]", "{}")
_WORDS = {"nothing": "none", "null": "none", "[]": "none", "{}": "none", "": "none", "true": "yes", "false": "no"}
_INTERNAL = ("ways", "firewall_after", "libnccl", "pci", "outside")
"""Facts that are collected only for the checks, and that ``diff`` shows only with ``-v``."""
_FACT_NAMES = {  # beginnings of facts' paths, as other screens name them
    "limits.nofile_soft": "nofile",
    "limits.memlock_soft": "memlock",
    "torch.version": "torch",
    "torch.cuda": "torch's CUDA",
    "torch.nccl": "NCCL",
    "torch.nccl_library": "NCCL library",
    "python.version": "python",
    "shm.total_bytes": "shared memory in bytes",
    "port_range": "ephemeral ports",
    "interfaces.links": "interface",
    "interfaces.addresses": "address of",
    "routes": "route",
    "gpus": "GPU",
    "processes": "training process",
    "gpu_processes": "process on a GPU",
    "sysctls": "",
    "env": "",
}


def render_diff(difference: Difference, options: RenderOptions) -> str:
    """Return resolved and new diagnoses, followed by changed facts grouped by host."""
    blocks = []
    for turn, diagnoses in (("gone  ", difference.diagnoses.gone), ("new   ", difference.diagnoses.new)):
        block: list[str] = []
        for item in diagnoses:
            on = f" on {fold(item.hosts)}" if item.hosts else ""
            block += wrap(f"{item.severity.value} {item.code} {item.name}{on}: {item.message}", WIDTH, turn)
        blocks.append(block)
    lines = 0
    known = difference.changes if options.verbose else _without_rules(difference.changes)
    for hosts, changes in grouped((item.hosts, item) for item in known).items():
        every = (f"{item.what}: {_short(item.before)} -> {_short(item.after)}" for item in changes)
        shown = list(every if options.verbose else _changed_facts(changes))
        lines += len(shown)
        if shown:
            blocks.append([fold(hosts) or "the cluster", *(line for text in shown for line in wrap(text, WIDTH, "  "))])
    screen = joined(blocks)
    more = "; -v shows each" if lines < len(difference.changes) else ""
    end = f"{plural(len(difference.changes), 'fact')} changed{more}." if difference.changes else ""
    end = end or "Nothing changed."
    return f"{screen}\n{end}\n" if screen else f"{end}\n"


def _without_rules(changes: Sequence[Change]) -> list[Change]:
    """Return the changes without internal facts, and with all changes of firewall rules merged into one."""
    facts = [(re.split(r"[.\[]", change.what, maxsplit=1)[0], change) for change in changes]
    hosts = dict.fromkeys(host for fact, change in facts if fact == "firewall" for host in change.hosts)
    rules = [Change(what="firewall", before="rules", after="other rules", hosts=tuple(hosts))] if hosts else []
    return rules + [change for fact, change in facts if fact not in ("firewall", *_INTERNAL)]


def _changed_facts(changes: Sequence[Change]) -> Iterator[str]:
    """Yield a line per changed fact, and one line per new or missing item of a list."""
    known = [change for change in changes if not (change.before in _NOTHING and change.after in _NOTHING)]
    # by the entry of a list that contains the fact
    entries = (("".join(change.what.partition("]")[:2]), change) for change in known)
    for place, group in grouped(entries).items():
        before, after = ([getattr(change, name) for change in group] for name in ("before", "after"))
        if len(group) > 1 and set(before) == {"nothing"}:
            yield f"{_fact_name(place)}: none -> {_all_of(after)}"
        elif len(group) > 1 and set(after) == {"nothing"}:
            yield f"{_fact_name(place)}: {_all_of(before)} -> none"
        else:
            for change in group:
                yield f"{_fact_name(change.what)}: {_short(change.before)} -> {_short(change.after)}"


def _fact_name(what: str) -> str:
    """Return a fact's display name, such as ``interface eno1 mtu`` for ``interfaces.links[eno1].mtu``."""
    begins = (known for known in _FACT_NAMES if re.match(rf"{re.escape(known)}(?:[.\[]|$)", what))
    start = max(begins, key=len, default="")
    rest = what[len(start) :]
    # a field's "_" is a blank on the screen, a variable's is not
    named = re.sub(r"(?<=[a-z])_+(?=[a-z])", " ", re.sub(r"[.\[\]]+", " ", rest))
    words = rest if start in ("sysctls", "env") else named
    return f"{_FACT_NAMES[start]} {words.strip(' .')}".strip() if start else words.strip()


def _all_of(values: Iterable[str]) -> str:
    return _short(", ".join(value for value in values if value not in _WORDS))


def _short(value: str) -> str:
    value = _WORDS.get(value, value)
    return value if len(value) <= _VALUE else f"{value[: _VALUE - 1]}…"


_ITEM = re.compile(r"\s*(?:[-*]|\d+[.)])\s+")


def render_page(page: Page | Topic | TopicList, _options: RenderOptions) -> str:
    """Return a page as ``explain`` prints it, with paragraphs and list items rewrapped."""
    if isinstance(page, TopicList):
        rows = [(each.name, each.title) for each in page.topics]
        more = "nccl-doctor explain TOPIC prints one; nccl-doctor codes lists the diagnoses."
        return "\n".join(table(("topic", "content"), rows, WIDTH)) + f"\n\n{more}\n"
    if isinstance(page, Topic):
        head = apart(page.name, page.title, WIDTH - 2)
    else:
        head = apart(f"{page.code} {page.name}", f"{page.severity.value}, {page.category}", WIDTH - 2)
    return joined((head, *(list(_flow(block)) for block in re.split(r"\n(?:[ \t]*\n)+", page.text.strip("\n")))))


def render_codes(document: Codes, _options: RenderOptions) -> str:
    rows = [(each.code, each.name, each.severity.value, each.category) for each in document.codes]
    return "\n".join(table(("code", "name", "severity", "category"), rows, WIDTH)) + "\n"


def _flow(block: str) -> Iterator[str]:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):  # commands or output
        yield from (clean(line.rstrip()) for line in lines)
        return
    pieces: list[tuple[str, list[str]]] = []
    for line in lines:
        marker = _ITEM.match(line)
        if marker or not pieces:
            start = marker[0] if marker else ""
            pieces.append((start, [line[len(start) :]]))
        else:
            pieces[-1][1].append(line)
    for start, words in pieces:
        yield from wrap(" ".join(word.strip() for word in words), WIDTH - 2, start)
