from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from nccl_doctor.model.cluster import Cluster, Node, access
from nccl_doctor.model.documents import HostList
from nccl_doctor.model.engines.ssh import SshOptions
from nccl_doctor.report.render import render
from nccl_doctor.text.shell import clean
from tests.report.strategies import TEXT

ORIGINS = {
    "master_addr": "default: the first host's address",
    "master_port": "hosts.yaml:1",
    **{f"node{n}.address": f"hosts.yaml:{n + 3}" for n in (1, 2)},
    "node3.address": "hosts.yaml:5",
    **{f"node{n}.python": "default" for n in (1, 2)},
    "node3.python": "hosts.yaml:6",
    **{f"node{n}.nproc_per_node": "hosts.yaml:2" for n in (1, 2, 3)},
    **{f"node{n}.env.NCCL_SOCKET_IFNAME": "hosts.yaml:3" for n in (1, 2, 3)},
    "node3.ssh.user": "hosts.yaml:6",
    "node1.local": "10.0.0.1 is an address of this machine",
}

TABLE = """\
hosts.yaml: 3 hosts, master 10.0.0.1:29400

node  host   address   ranks  python
0     node1  10.0.0.1  0-1    python3
1     node2  10.0.0.2  2-3    python3
2     node3  10.0.0.3  4-5    /opt/train/bin/python

setting                 value                  hosts      from
master_addr             10.0.0.1                          default: the first
                                                          host's address
master_port             29400                             hosts.yaml:1
address                 10.0.0.1               node1      hosts.yaml:4
address                 each its own           node[2-3]  hosts.yaml:5
nproc_per_node          2                      node[1-3]  hosts.yaml:2
python                  python3                node[1-2]  default
python                  /opt/train/bin/python  node3      hosts.yaml:6
env.NCCL_SOCKET_IFNAME  eno1                   node[1-3]  hosts.yaml:3
local                   without SSH            node1      10.0.0.1 is an address
                                                          of this machine
ssh.user                ubuntu                 node3      hosts.yaml:6
"""


def node(number: int, **more: object) -> Node:
    fields = {"nproc_per_node": 2, "env": {"NCCL_SOCKET_IFNAME": "eno1"}, **more}
    name, address = f"node{number}", f"10.0.0.{number}"
    return Node.model_validate({"name": name, "address": address, "node_rank": number - 1, **fields})


def cluster(*nodes: Node, origins: dict[str, str]) -> Cluster:
    return Cluster(nodes=nodes, master_addr="10.0.0.1", master_port=29400, source="hosts.yaml", origins=origins)


def table(described: Cluster) -> str:
    return render("hosts", "human", HostList(**dict(described)))


def test_every_value_with_its_place() -> None:
    third = node(3, python="/opt/train/bin/python", access=access(SshOptions(user="ubuntu")))
    assert table(cluster(node(1, local=True), node(2), third, origins=ORIGINS)) == TABLE


def test_ranks_are_not_guessed_behind_a_host_of_unknown_gpus() -> None:
    nodes = (node(1, nproc_per_node=1), node(2, nproc_per_node=None), node(3))
    lines = table(cluster(*nodes, origins={})).split("\n")
    assert [line[23:34].strip() for line in lines[3:6]] == ["0", "one per GPU", "2 ranks"]


NODES = st.builds(
    Node,
    name=TEXT,
    address=TEXT,
    node_rank=st.integers(0, 9),
    nproc_per_node=st.none() | st.integers(1, 8),
    python=TEXT,
    env=st.dictionaries(TEXT, TEXT, max_size=2),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(NODES, min_size=1, max_size=3), TEXT)
def test_whatever_the_text_the_table_is_safe(nodes: list[Node], text: str) -> None:
    origins = {"master_addr": text} | {f"{each.name}.address": text for each in nodes}
    shown = table(Cluster(nodes=tuple(nodes), master_addr=text, source=text, origins=origins))
    assert all(clean(line) == line and cell_len(line) <= 80 for line in shown.split("\n"))
