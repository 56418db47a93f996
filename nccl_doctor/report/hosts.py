"""What the hosts file was understood to say, and where each value came from."""

from __future__ import annotations

from collections.abc import Iterator

from nccl_doctor.model.cluster import Cluster, Node
from nccl_doctor.model.documents import HostList
from nccl_doctor.report.render import RenderOptions
from nccl_doctor.report.text import table, wrap
from nccl_doctor.text.hostlist import fold, plural

_WIDTH = 80


def render(cluster: HostList, _options: RenderOptions) -> str:
    """The hosts with their ranks, then every setting with the place that it came from; hosts alike are folded."""
    count = plural(len(cluster.nodes), "host")
    title = wrap(f"{cluster.source}: {count}, master {cluster.master_addr}:{cluster.master_port}", _WIDTH)
    nodes = table(("node", "host", "address", "ranks", "python"), _nodes(cluster), _WIDTH)
    settings = table(("setting", "value", "hosts", "from"), _settings(cluster), _WIDTH)
    return "\n\n".join("\n".join(lines) for lines in (title, nodes, settings)) + "\n"


def _nodes(cluster: Cluster) -> Iterator[tuple[str, str, str, str, str]]:
    first: int | None = 0
    for node in cluster.nodes:
        yield str(node.node_rank), node.name, node.address, _ranks(first, node.nproc_per_node), node.python
        first = None if first is None or node.nproc_per_node is None else first + node.nproc_per_node


def _ranks(first: int | None, count: int | None) -> str:
    """``0-7``; where the count of an earlier host is not known, only how many."""
    if count is None:
        return "one per GPU"
    if first is None:
        return plural(count, "rank")
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _settings(cluster: Cluster) -> Iterator[tuple[str, str, str, str]]:
    """One row per setting and origin; the value where the hosts of the row share it."""
    for name, value in (("master_addr", cluster.master_addr), ("master_port", str(cluster.master_port))):
        yield name, value, "", cluster.origins.get(name, "")
    if cluster.same:
        yield "same", ", ".join(cluster.same), "", cluster.origins.get("same", "")
    places: dict[str, dict[str, dict[str, str]]] = {}
    for node in cluster.nodes:
        for name, value in _values(node):
            origin = cluster.origins.get(f"{node.name}.{name}")
            if origin is not None:
                places.setdefault(name, {}).setdefault(origin, {})[node.name] = value
    for name, origins in places.items():
        for origin, values in origins.items():
            distinct = set(values.values())
            yield name, distinct.pop() if len(distinct) == 1 else "each its own", fold(values), origin


def _values(node: Node) -> Iterator[tuple[str, str]]:
    """The settings of a node, by the names that ``Cluster.origins`` gives them."""
    yield "address", node.address
    yield "nproc_per_node", "" if node.nproc_per_node is None else str(node.nproc_per_node)
    yield "python", node.python
    yield "cuda_visible_devices", node.cuda_visible_devices or ""
    for engine, options in node.access.items():
        for name, option in options.items():
            yield f"{engine}.{name}", str(option)
    for name, value in node.env.items():
        yield f"env.{name}", value
    yield "local", "without SSH"
