from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.errors import HostsFileError, UsageError
from nccl_doctor.inventory.build import Overrides, ThisMachine
from nccl_doctor.inventory.load import load
from nccl_doctor.model.cluster import Cluster
from nccl_doctor.model.engine import ClusterSource
from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.model.engines.ssh import SshOptions
from tests.inventory.conftest import ELSEWHERE

NODE2 = ThisMachine(frozenset({"node2"}), frozenset({"10.0.0.2"}))


def cluster(
    path: str | None = None,
    where: str | None = None,
    exclude: str | None = None,
    here: ThisMachine = ELSEWHERE,
    **environ: str,
) -> Cluster:
    return load(path, where=where, exclude=exclude, environ=environ, here=here)


def names(found: Cluster) -> list[tuple[str, int]]:
    return [(node.name, node.node_rank) for node in found.nodes]


@pytest.fixture
def hosts_file(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts:\n- node[1-3]\n- {name: big, address: 10.0.0.9}\n")
    return str(path)


def test_a_file_goes_before_slurm(hosts_file: str) -> None:
    found = cluster(hosts_file, SLURM_JOB_NODELIST="other[1-2]")
    assert names(found) == [("node1", 0), ("node2", 1), ("node3", 2), ("big", 3)]
    assert found.source == hosts_file
    assert found.origins["big.address"] == f"{hosts_file}:3"


def test_where_goes_before_slurm() -> None:
    found = cluster(where="node[01-02],root@10.0.0.3", SLURM_JOB_NODELIST="other[1-2]")
    assert names(found) == [("node01", 0), ("node02", 1), ("10.0.0.3", 2)]
    assert (found.source, found.master_addr) == ("-w", "node01")
    assert found.nodes[2].options(SshOptions).user == "root"
    assert found.origins["10.0.0.3.ssh.user"] == "-w"


def test_w_chooses_among_a_files_hosts(hosts_file: str) -> None:
    found = cluster(hosts_file, where="10.0.0.9,node[2-3]", exclude="node3")
    assert names(found) == [("node2", 0), ("big", 1)]
    assert (found.source, found.master_addr) == (hosts_file, "node2")
    assert ClusterSource(found).arguments == (hosts_file, "-w", "10.0.0.9,node[2-3]", "-x", "node3")
    with pytest.raises(
        UsageError, match=r"^-w: node\[4-5\] is not a host of .*hosts.yaml; did you mean \"node[123]\"\?$"
    ):
        cluster(hosts_file, where="node[3-5]")


def test_exclusion_renumbers_and_finds_a_new_master(hosts_file: str) -> None:
    found = cluster(hosts_file, exclude="node[1,3],10.0.0.9")
    assert names(found) == [("node2", 0)]
    assert found.master_addr == "node2"
    assert "node1.address" not in found.origins
    assert names(cluster(where="a[1-3]", exclude="a2")) == [("a1", 0), ("a3", 1)]
    assert names(cluster(SLURM_JOB_NODELIST="a[1-3]", exclude="a1")) == [("a2", 0), ("a3", 1)]


def test_the_environment_says_the_master_where_nobody_else_does(hosts_file: str) -> None:
    said = {"MASTER_PORT": "29777", "MASTER_ADDR": "10.0.0.9"}
    found = load(hosts_file, where=None, exclude=None, environ=said, here=ELSEWHERE)
    assert (found.master_addr, found.master_port) == ("10.0.0.9", 29777)
    assert found.origins["master_port"] == "MASTER_PORT (of the environment)"
    assert found.variables == {"master_port": "MASTER_PORT", "master_addr": "MASTER_ADDR"}
    again = ("--master-port", "29777", "--master-addr", "10.0.0.9")
    assert ClusterSource(found).arguments == (hosts_file, *again)
    options = Overrides(master_port=29600, master_addr="node2")
    both = load(hosts_file, where=None, exclude=None, environ=said, overrides=options, here=ELSEWHERE)
    assert (both.master_addr, both.master_port) == ("node2", 29600)
    path = Path(hosts_file)
    path.write_text(f"master_port: 29500\nmaster_addr: node1\n{path.read_text()}")
    file = load(hosts_file, where=None, exclude=None, environ=said, here=ELSEWHERE)
    assert (file.master_addr, file.master_port) == ("node1", 29500)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"where": "a", "exclude": "a"}, "-x leaves out every host of -w; at least one has to remain"),
        ({"where": "node[1-3]", "exclude": "nod2"}, '-x: nod2 is not a host of -w; did you mean "node2"?'),
        ({"where": "a", "MASTER_PORT": "port"}, 'MASTER_PORT: "port" is not a valid port (1 to 65535)'),
        ({"where": "a[1"}, '-w: "a[1" has an unmatched "["; write node[01-04,07]'),
        ({"where": ""}, '-w: "" has an empty name; separate names by single commas'),
        ({"where": "a,a"}, '-w: host "a" is listed twice; keep one, or give one machine that is two nodes two names'),
        ({"where": "-x"}, '-w: "-x" is not a host name: it begins with "-", which ssh would read as an option'),
        ({"where": "a", "exclude": "b["}, '-x: "b[" has an unmatched "["; write node[01-04,07]'),
        (
            {"SLURM_JOB_NODELIST": "(null)"},
            (
                'SLURM_JOB_NODELIST: "(null)" is not a host name: letters, digits, "-" and "_" in '
                'parts of up to 63, joined by "."; or an IPv4 or IPv6 address'
            ),
        ),
    ],
)
def test_refuses(arguments: dict[str, str], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        cluster(**arguments)  # type: ignore[arg-type]  # environment variables and arguments alike
    assert str(caught.value) == problem


def test_a_missing_file_ends_it() -> None:
    with pytest.raises(HostsFileError, match=r"^absent\.yaml: no such file$"):
        cluster("absent.yaml")


@pytest.mark.parametrize(
    ("environ", "ranks", "origin"),
    [
        ({"SLURM_GPUS_ON_NODE": "8", "SLURM_NTASKS_PER_NODE": "1"}, 8, "SLURM_GPUS_ON_NODE"),
        ({"SLURM_NTASKS_PER_NODE": "4"}, 4, "SLURM_NTASKS_PER_NODE"),
        ({"SLURM_NTASKS_PER_NODE": "1"}, None, "default: the number of GPUs; without GPUs, 1 (or 2 on the only host)"),
        (
            {"SLURM_GPUS_ON_NODE": "a100:8"},
            None,
            "default: the number of GPUs; without GPUs, 1 (or 2 on the only host)",
        ),
        ({"SLURM_GPUS_ON_NODE": "0"}, None, "default: the number of GPUs; without GPUs, 1 (or 2 on the only host)"),
    ],
)
def test_slurm(environ: dict[str, str], ranks: int | None, origin: str) -> None:
    found = load(
        None,
        where=None,
        exclude=None,
        environ={"SLURM_JOB_NODELIST": "node[01-02],login", **environ},
        here=ThisMachine(frozenset({"node01"}), frozenset()),
    )
    assert names(found) == [("node01", 0), ("node02", 1), ("login", 2)]
    assert [node.local for node in found.nodes] == [True, False, False]
    assert {node.nproc_per_node for node in found.nodes} == {ranks}
    assert found.origins["login.nproc_per_node"] == origin
    assert found.source == "SLURM_JOB_NODELIST"


def test_this_machine_alone() -> None:
    found = load(None, where=None, exclude=None, environ={"VIRTUAL_ENV": "/v", "SLURM_JOB_NODELIST": ""})
    (node,) = found.nodes
    assert (node.address, node.local, node.python) == ("127.0.0.1", True, "python3")
    assert (found.master_addr, found.source) == ("127.0.0.1", "this machine")
    assert found.origins["master_addr"] == "this machine"
    with pytest.raises(UsageError, match=r"^-x leaves out every host of this machine"):
        cluster(exclude=node.name)


def test_options_can_not_start_more_ranks_than_a_host_sees_gpus(hosts_file: str) -> None:
    devices = ("CUDA_VISIBLE_DEVICES=0,1",)

    def said(**options: Any) -> Cluster:
        return load(hosts_file, where=None, exclude=None, environ={}, overrides=Overrides(**options), here=ELSEWHERE)

    found = said(nproc_per_node=2, env=devices)
    assert {(node.cuda_visible_devices, tuple(node.env)) for node in found.nodes} == {("0,1", ())}
    assert ClusterSource(found).arguments == (hosts_file, "--nproc-per-node", "2", "--env", *devices)
    for options, place in (({"nproc_per_node": 4, "env": devices}, "--nproc-per-node"), ({"env": devices}, "--env")):
        Path(hosts_file).write_text("nproc_per_node: 4\nhosts: [node1, node2]\n")
        with pytest.raises(UsageError, match=f'^{place}: "node1" would start 4 ranks but sees 2 GPUs'):
            said(**options)


def test_a_container_of_every_host_and_of_this_machine_alone(hosts_file: str) -> None:
    """What is in the container knows nothing in the environment that nccl-doctor runs in."""
    said = Overrides(inside="docker:train")
    alone = load(None, where=None, exclude=None, environ={}, overrides=said)
    assert [(node.local, node.python) for node in alone.nodes] == [(True, "python3")]
    many = load(hosts_file, where=None, exclude=None, environ={}, overrides=said, here=ELSEWHERE)
    assert {node.options(InsideOptions).place for node in many.nodes} == {'the Docker container "train"'}
    assert ClusterSource(many).arguments == (hosts_file, "--inside", "docker:train")


@pytest.mark.parametrize(
    ("inside", "problem"),
    [
        ("train", "--inside: 'train' is not a RUNTIME:NAME, as in docker:train"),
        ("lxc:a", "allowed are docker, podman, nerdctl, apptainer, enter"),
        ("docker:a b", '--inside: "a b" is not a container name'),
        ("enter:self", '--inside: "self" is not a PID: enter takes the number of a process on the host'),
    ],
)
def test_no_container(hosts_file: str, inside: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(hosts_file, where=None, exclude=None, environ={}, overrides=Overrides(inside=inside), here=ELSEWHERE)
    assert problem in str(caught.value)


def test_this_machine_among_the_hosts_needs_no_ssh() -> None:
    found = cluster(where="node1,10.0.0.2,root@localhost", here=NODE2)
    assert [node.local for node in found.nodes] == [False, True, False]
    assert found.origins["10.0.0.2.local"] == "one of this machine's addresses"
    with pytest.raises(UsageError, match=r'"10\.0\.0\.2" and "node2" are the same machine'):
        cluster(where="node2,10.0.0.2", here=NODE2)


def test_ssh_for_all_hosts_leaves_this_machine_local(tmp_path: Path) -> None:
    path = tmp_path / "h"
    path.write_text("ssh: {user: ubuntu}\nhosts:\n- node2\n- {name: other, address: 10.0.0.2, ssh: {port: 2222}}\n")
    assert [node.local for node in cluster(str(path), here=NODE2).nodes] == [True, False]


def test_many_nodes_on_one_machine_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "h"
    hosts = "".join(f"- {{name: n{n}, address: a, cuda_visible_devices: {n}}}\n" for n in range(1025))
    path.write_text("hosts:\n" + hosts)
    with pytest.raises(HostsFileError, match=r"h:1026: more than 1024 nodes on one machine"):
        cluster(str(path))
