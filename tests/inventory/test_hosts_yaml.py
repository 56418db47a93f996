from __future__ import annotations

import pytest

from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.model.engines.ssh import SshOptions
from tests.inventory.conftest import Refusal, Understand

FULL = """\
master_addr: 192.168.1.2
master_port: 29400
nproc_per_node: 2
python: /opt/train/bin/python
ssh: {user: ubuntu, port: 22, identity_file: ~/.ssh/id_ed25519}
env:
  NCCL_SOCKET_IFNAME: eno1
  NCCL_IB_DISABLE: 1
  FLAG: true
  VERSION: 1.10
hosts:
  - 192.168.1.2
  - node[02-03]
  - name: big
    address: 192.168.1.100
    nproc_per_node: 1
    cuda_visible_devices: "0,1"
    python: python3.11
    ssh: {port: 2222}
    env: {NCCL_SOCKET_IFNAME: ens1, EMPTY: ""}
  - {name: big-b, address: 192.168.1.100, ssh: {port: 2222}, cuda_visible_devices: "2, 3"}
"""


def test_every_field(understand: Understand) -> None:
    cluster = understand(FULL)
    assert (cluster.master_addr, cluster.master_port, cluster.source) == ("192.168.1.2", 29400, "hosts.yaml")
    assert [node.name for node in cluster.nodes] == ["192.168.1.2", "node02", "node03", "big", "big-b"]
    assert [node.node_rank for node in cluster.nodes] == [0, 1, 2, 3, 4]
    first, big = cluster.nodes[0], cluster.nodes[3]
    assert first.address == "192.168.1.2"
    assert (first.nproc_per_node, first.python) == (2, "/opt/train/bin/python")
    assert first.options(SshOptions) == SshOptions(user="ubuntu", port=22, identity_file="~/.ssh/id_ed25519")
    assert first.env == {"NCCL_SOCKET_IFNAME": "eno1", "NCCL_IB_DISABLE": "1", "FLAG": "true", "VERSION": "1.10"}
    assert (big.address, big.nproc_per_node, big.python) == ("192.168.1.100", 1, "python3.11")
    assert big.options(SshOptions) == SshOptions(user="ubuntu", port=2222, identity_file="~/.ssh/id_ed25519")
    assert big.env == {**first.env, "NCCL_SOCKET_IFNAME": "ens1", "EMPTY": ""}
    assert [node.cuda_visible_devices for node in cluster.nodes[2:]] == [None, "0,1", "2,3"]


def test_containers_of_all_hosts_and_of_one(understand: Understand) -> None:
    cluster = understand(
        "inside: {docker: train}\nhosts:\n- a\n- {name: b, inside: {enter: 4711}}\n"
        "- {name: c, address: b, inside: {podman: x.y_2}}"
    )
    told = [node.options(InsideOptions) for node in cluster.nodes]
    assert [(one.runtime, one.name) for one in told] == [("docker", "train"), ("enter", "4711"), ("podman", "x.y_2")]
    assert cluster.origins["a.inside.name"] == "hosts.yaml:1 (for all hosts)"
    assert cluster.origins["b.inside.runtime"] == "hosts.yaml:4"


def test_where_each_value_came_from(understand: Understand) -> None:
    origins = understand(FULL).origins
    assert origins["master_addr"] == "hosts.yaml:1"
    assert origins["master_port"] == "hosts.yaml:2"
    assert origins["node02.address"] == "hosts.yaml:13"
    assert origins["node02.python"] == "hosts.yaml:4 (for all hosts)"
    assert origins["node02.env.FLAG"] == "hosts.yaml:9 (for all hosts)"
    assert origins["big.address"] == "hosts.yaml:15"
    assert origins["big.nproc_per_node"] == "hosts.yaml:16"
    assert origins["big.ssh.user"] == "hosts.yaml:5 (for all hosts)"
    assert origins["big.ssh.port"] == "hosts.yaml:19"
    assert origins["big.env.NCCL_SOCKET_IFNAME"] == "hosts.yaml:20"


def test_defaults(understand: Understand) -> None:
    cluster = understand("hosts:\r\n- node1\r\n- node2\r\nenv:\r\n")
    node = cluster.nodes[0]
    assert (cluster.master_addr, cluster.master_port) == ("node1", 29500)
    assert (node.nproc_per_node, node.python, node.env, node.options(SshOptions)) == (None, "python3", {}, SshOptions())
    assert cluster.origins["master_addr"] == "default: the first host's address"
    assert cluster.origins["master_port"] == cluster.origins["node1.python"] == "default"
    assert (
        cluster.origins["node1.nproc_per_node"]
        == "default: the number of GPUs; without GPUs, 1 (or 2 on the only host)"
    )


def test_patterns_on_a_host_with_settings(understand: Understand) -> None:
    cluster = understand('hosts:\n- {name: "gpu[1-2]", address: "10.0.0.[7-8]", nproc_per_node: 8}\n- root@b[1-2]')
    assert [(n.name, n.address, n.nproc_per_node, n.options(SshOptions).user) for n in cluster.nodes] == [
        ("gpu1", "10.0.0.7", 8, None),
        ("gpu2", "10.0.0.8", 8, None),
        ("b1", "b1", None, "root"),
        ("b2", "b2", None, "root"),
    ]


def test_the_devices_of_env_move_to_their_own_field(understand: Understand) -> None:
    cluster = understand(
        "env: {CUDA_VISIBLE_DEVICES: 7, A: b}\nhosts:\n- a\n- {name: b, cuda_visible_devices: 3}\n"
        "- {name: c, env: {CUDA_VISIBLE_DEVICES: GPU-8f4}}"
    )
    assert [node.cuda_visible_devices for node in cluster.nodes] == ["7", "3", "GPU-8f4"]
    assert [node.env for node in cluster.nodes] == [{"A": "b"}] * 3


H = "hosts: [a]\n"
NOT_A_HOST = (
    'is not a host name: letters, digits, "-" and "_" in parts of up to 63, joined by "."; or an IPv4 or IPv6 address'
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # keys
        (
            "a: 1\n\nmaster_prot: 1",
            (
                ':1: unknown key "a"; allowed are master_addr, master_port, python, ssh, inside, env, nproc_per_node, same, engine, hosts'
            ),
        ),
        (
            "hosts:\n- name: a\n  nproc_per_node: 4\n  cuda_visible_devices: '0,1'",
            ':3: "a" would start 4 ranks but sees 2 GPUs (cuda_visible_devices "0,1"); give each rank one',
        ),
        ("hosts:\n- a\nmaster_prot: 1", ':3: unknown key "master_prot"; did you mean "master_port"?'),
        (H + "inside: docker", ':2: "inside" must be a mapping of "key: value", not the single value "docker"'),
        (H + "inside: {}", ':2: "inside" names one container, as in inside: {docker: NAME}; it has 0 keys'),
        (
            H + "inside: {docker: a, podman: b}",
            ':2: "inside" names one container, as in inside: {docker: NAME}; it has 2 keys',
        ),
        (H + "inside: {dokcer: a}", ':2: unknown key "dokcer"; did you mean "docker"?'),
        (
            H + "inside: {docker: '-v'}",
            ':2: "-v" is not a container name: letters, digits, "_", "." and "-", a letter or digit first',
        ),
        (H + "inside: {enter: 0}", ':2: "0" is not a PID: enter takes the number of a process on the host'),
        (H + "ssh: {usr: x}", ':2: unknown key "usr"; did you mean "user"?'),
        ("hosts:\n- {nmae: a}", ':2: unknown key "nmae"; did you mean "name"?'),
        (
            "hosts:\n- node1: 8",
            (
                ':2: unknown key "node1"; allowed are name, address, python, ssh, inside, env, nproc_per_node, '
                "cuda_visible_devices"
            ),
        ),
        (
            "hosts:\n- {name: a, cuda_visible_devices: 0,1}",
            (':2: unknown key "1"; between { } a value with a comma needs quotes, as in "0,1"'),
        ),
        (H + "user: root", ':2: the key "user" can\'t stand here; it stands under "ssh"'),
        (H + "cuda_visible_devices: 1", ':2: the key "cuda_visible_devices" can\'t stand here; it stands on a host'),
        (
            "hosts:\n- {name: a, master_port: 1}",
            (':2: the key "master_port" can\'t stand here; it stands at the top of the file'),
        ),
        (H + "hosts: [b]", ':2: the key "hosts" is set twice (first on line 1); keep one'),
        (H + "env:\n  A: 1\n  A: 2", ':4: the key "A" is set twice (first on line 3); keep one'),
        (H + "? [a]\n: b", ":2: a key of the hosts file must be a single value, not a list"),
        (
            H + '"\\e[31m": 1',
            (
                ':2: unknown key "?[31m"; allowed are master_addr, master_port, python, ssh, inside, env, nproc_per_node, same, engine, hosts'
            ),
        ),
        # types
        ("env: {}", ': no "hosts"; write "hosts:" and below it each host on a line that begins with "- "'),
        ("hosts:", ':1: "hosts" names no host; at least one is needed'),
        ("hosts: []", ':1: "hosts" names no host; at least one is needed'),
        ("hosts: a", ':1: "hosts" must be a list, each part on a line that begins with "- ", not the single value "a"'),
        ("hosts: {a: b}", ':1: "hosts" must be a list, each part on a line that begins with "- ", not a mapping'),
        ("hosts:\n- [a]", ":2: a host must be a single value, not a list"),
        ("hosts:\n- a\n-", ":3: a host has no value; write one or leave the key out"),
        ("hosts:\n- {python: a}", ':2: the host has no name; write "name", "address" or both'),
        (H + "env: [a]", ':2: "env" must be a mapping of "key: value", not a list'),
        (H + "env: {A: [1]}", ':2: "A" must be a single value, not a list'),
        (H + "env: {A: }", ':2: "A" has no value; write one or leave the key out'),
        (H + "env: {A: null}", ':2: "A" has no value; write one or leave the key out'),
        (H + "env:\n  A:\n\n  # C\n  B: 1", ':3: "A" has no value; write one or leave the key out'),
        (H + "master_addr:\n", ':2: "master_addr" has no value; write one or leave the key out'),
        (H + "master_addr:", ':2: "master_addr" has no value; write one or leave the key out'),
        (H + "ssh: root", ':2: "ssh" must be a mapping of "key: value", not the single value "root"'),
        # values
        (H + "master_port: 70000", ':2: "70000" is not a valid port (1 to 65535)'),
        (H + "master_port: 0", ':2: "0" is not a valid port (1 to 65535)'),
        (H + "ssh: {port: 22.0}", ':2: "22.0" is not a valid port (1 to 65535)'),
        (H + "nproc_per_node: 0", ':2: "0" is not a valid number of processes (1 to 1024, gpu, auto)'),
        (H + "nproc_per_node: two", ':2: "two" is not a valid number of processes (1 to 1024, gpu, auto)'),
        (H + "env: {1A: x}", ':2: "1A" is not a variable name: letters, digits and "_", not beginning with a digit'),
        (
            H + 'env: {A: "x\\ny"}',
            ":2: \"x?y\" can't be a variable's value: control characters and line breaks are not allowed",
        ),
        (
            H + "python: python3 -u",
            (
                ':2: "python3 -u" is not an interpreter: a name such as python3.11 or a path such as '
                "/opt/train/bin/python, without arguments"
            ),
        ),
        (
            H + "ssh: {identity_file: -x}",
            ':2: "-x" is not a file path: it is empty, has control characters, or begins with "-"',
        ),
        (
            H + "ssh: {user: -lroot}",
            (
                ':2: "-lroot" is not a user name: up to 64 letters, digits, "_", ".", "-", "+" and "@", a '
                'letter, digit or "_" first'
            ),
        ),
        # host names
        (
            "hosts: [-oProxyCommand=x]",
            (':1: "-oProxyCommand=x" is not a host name: it begins with "-", which ssh would read as an option'),
        ),
        ("hosts: [a b]", f':1: "a b" {NOT_A_HOST}'),
        ("hosts: [$(x)]", f':1: "$(x)" {NOT_A_HOST}'),
        ("hosts: [a;b]", f':1: "a;b" {NOT_A_HOST}'),
        ("hosts: [a..b]", f':1: "a..b" {NOT_A_HOST}'),
        ("hosts: [é]", f':1: "é" {NOT_A_HOST}'),
        ('hosts: ["a\\x07"]', f':1: "a?" {NOT_A_HOST}'),
        ("hosts: [1.2.3.400]", ':1: "1.2.3.400" is not an IPv4 address: four numbers from 0 to 255, joined by "."'),
        ("hosts: [1]", ':1: "1" is not an IPv4 address: four numbers from 0 to 255, joined by "."'),
        ("hosts: ['a:22']", ":1: \"a:22\" is not an IPv6 address, and a port can't stand in a host's name"),
        (
            "hosts: ['fe80::1%$(x)']",
            ":1: \"fe80::1%$(x)\" is not an IPv6 address, and a port can't stand in a host's name",
        ),
        ("hosts:\n- {address: u@a}", ':2: "u@a" is not a host name; the user stands apart, as in ssh: {user: ubuntu}'),
        ("hosts:\n- node[1-3", ':2: "node[1-3" has an unmatched "["; write node[01-04,07]'),
        (
            "hosts:\n- {name: 'a[1-2]', address: 'b[1-3]'}",
            (':2: "name" stands for 2 hosts and "address" for 3; give as many names as addresses'),
        ),
        ("hosts:\n- a[1-65536]\n- b", ':3: "b" stands for 1 hosts; at most 0 more are allowed'),
        # the list as a whole
        (
            "hosts:\n- a\n- b\n- a",
            (
                ':4: host "a" is listed twice (first on line 2); keep one, or give one machine that is two '
                "nodes two names"
            ),
        ),
        (
            "hosts:\n- {name: a, address: 10.0.0.1}\n- {name: b, address: 10.0.0.1}",
            (':3: "b" and "a" are the same machine; set cuda_visible_devices on each, to GPUs of its own'),
        ),
        (
            "hosts:\n- {name: a, address: N}\n- {name: b, address: n, cuda_visible_devices: 0}",
            (':2: "b" and "a" are the same machine; set cuda_visible_devices on each, to GPUs of its own'),
        ),
        (
            (
                "hosts:\n- {name: a, address: n, cuda_visible_devices: '0,1'}\n- name: b\n  address: n\n"
                "  cuda_visible_devices: 1,2"
            ),
            ':5: "b" and "a" are the same machine, and both use GPU 1; give each GPUs of its own',
        ),
        (
            (
                "hosts:\n- {name: a, address: '::1:2', cuda_visible_devices: GPU-8f}\n"
                "- {name: b, address: '0::1:2', cuda_visible_devices: GPU-8f4}"
            ),
            ':3: "b" and "a" are the same machine, and both use GPU GPU-8f4; give each GPUs of its own',
        ),
        ("hosts:\n- {name: a, cuda_visible_devices: '1,1'}", ':2: "1,1" names a GPU twice; name each once'),
        (
            "hosts:\n- {name: a, cuda_visible_devices: all}",
            (':2: "all" is not a list of GPUs: indexes such as "0,1", or identifiers that begin with GPU- or MIG-'),
        ),
        (
            "hosts:\n- {name: a, cuda_visible_devices: 1, env: {CUDA_VISIBLE_DEVICES: 1}}",
            (":2: CUDA_VISIBLE_DEVICES in env repeats cuda_visible_devices; keep one of them"),
        ),
    ],
)
def test_refuses(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == "hosts.yaml" + message


def test_another_ssh_port_is_another_machine(understand: Understand) -> None:
    cluster = understand(
        "hosts:\n- {name: a, address: n, ssh: {port: 2201}}\n- {name: b, address: n, ssh: {port: 2202}}"
    )
    assert len(cluster.nodes) == 2


@pytest.mark.parametrize("host", ["a", "A-1.b_c.org", "10.0.0.1", "::1", "fe80::1%eth0", "a" * 63, "2001:db8::1"])
def test_host_names_that_are_taken(understand: Understand, host: str) -> None:
    assert understand(f"hosts: ['{host}']").nodes[0].address == host


def test_paths_that_have_to_be_the_same(understand: Understand, refusal: Refusal) -> None:
    cluster = understand("same: [train.py, ~/data/index.json, train.py]\nhosts: [a]\n")
    assert cluster.same == ("train.py", "~/data/index.json")
    assert cluster.origins["same"] == "hosts.yaml:1"
    assert understand("hosts: [a]\n").same == ()
    assert "must be a list" in refusal("same: train.py\nhosts: [a]\n")
    assert "not a file path" in refusal("same: ['-rf']\nhosts: [a]\n")
    assert "at most 100" in refusal(f"same: [{', '.join(['x'] * 101)}]\nhosts: [a]\n")


@pytest.mark.parametrize("word", ["gpu", "auto"])
def test_torchruns_words_for_as_many_ranks_as_gpus(understand: Understand, word: str) -> None:
    first, second = understand(f"nproc_per_node: 2\nhosts: [a, {{name: b, nproc_per_node: {word}}}]\n").nodes
    assert (first.nproc_per_node, second.nproc_per_node) == (2, None)
