"""Lists: the same three hosts, written as people write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.lab.cluster import Lab

Text = Callable[[Lab], str]


@dataclass(frozen=True)
class HostList:
    """One way to write the hosts.

    Attributes:
        setup: what is odd, in words.
        text: the file.
        says: the one diagnosis' name, its hosts, and words that stand in it; empty where nothing is said; "2" and
            words where the file is refused.
        options: further ones of ``check``.
        files: what stands beside it, taken away again.
    """

    setup: str
    text: Text
    says: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)


def hosts(*entries: object) -> Text:
    """Our own YAML; {address} is that of node1."""

    def write(lab: Lab) -> str:
        return lab.hosts_file(hosts=list(entries)).replace("ADDRESS", lab.hosts[0].address)

    return write


def plain(text: str) -> Text:
    """A file of another program's."""
    return lambda _lab: text


PYTHON = ("--python", sys.executable)
TWICE = "are the same machine, so the job would use one machine as 2 nodes."
INI = f"[gpus]\nnode1\nnode2 ansible_user=alice\n[gpus:vars]\nansible_python_interpreter={sys.executable}\n"
YAML = f"all:\n  vars: {{ansible_python_interpreter: {sys.executable}}}\n  children:\n    gpus:\n      hosts: {{node1: , node2: {{ansible_user: alice}}}}\n"
VARS = {
    "group_vars/all.yml": f"---\nansible_python_interpreter: {sys.executable}\nsecret: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n",
    "group_vars/gpus/vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
    "group_vars/gpus/main.yml": "ansible_user: nobody\n",
    "host_vars/node1.yml": "ansible_user: root\n",
    "host_vars/node2": "ansible_user: alice\n",
}
SECRET = "---\nansible_user: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n"
VAULT = "all:\n  hosts:\n    node1:\n      ansible_user: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        6162\n"

LISTS = (
    HostList("one machine twice, by name and by address", hosts("node1", "ADDRESS", "node2"),
             ("host-listed-twice", "10.77.0.1 node1", TWICE, "cuda_visible_devices")),
    HostList("one machine twice, by another name", hosts("node1", {"name": "big", "address": "ADDRESS"}, "node2"),
             ("host-listed-twice", "big node1", TWICE)),
    HostList("one machine as two nodes, said by GPUs of their own",
             hosts({"name": "node1", "cuda_visible_devices": "0"}, {"name": "b", "address": "ADDRESS", "cuda_visible_devices": "1"}, "node2"),
             ("gpu-count-low", "b node1", "have no GPU, but the job requests GPUs")),
    HostList("one name twice", hosts("node1", "node1", "node2"), ("2", 'host "node1" is listed twice')),
    HostList("the controller among them", hosts("ctl", "node1", "node2")),
    HostList("the controller in the middle", hosts("node1", "ctl", "node2")),
    HostList("the controller as localhost", hosts("localhost", "node1"),
             ("master-addr-loopback", "localhost node1", 'The master address "localhost" is a loopback address', "by a name or an address")),
    HostList("the controller as 127.0.0.1", hosts("127.0.0.1", "node1"),
             ("master-addr-loopback", "127.0.0.1 node1", 'The master address "127.0.0.1" is a loopback address', "by a name or an address")),
    HostList("localhost, and not the master", hosts("node1", "localhost")),
    HostList("a hostfile of Open MPI", plain("# gpus\nnode1 slots=1 max_slots=2\nnode2 slots=1\n"), (), PYTHON),
    HostList("a hostfile of MPICH", plain("node1:1\nnode2:1\n"), (), PYTHON),
    HostList("a hostfile of DeepSpeed", plain("node1 slots=2\nnode2 slots=2\n"), (), PYTHON),
    HostList("a node file of PBS", plain("node1\nnode1\nnode2\nnode2\n"), (), PYTHON),
    HostList("an inventory of Ansible in INI", plain(INI)),
    HostList("an inventory of Ansible in YAML", plain(YAML)),
    HostList("what group_vars and host_vars say", plain("[gpus]\nnode1\nnode2\n"), files=VARS),
    HostList("what they say beside hosts without a group", plain("node1\nnode2\n"), files=VARS),
    HostList("a value in them that Ansible encrypted, and that counts", plain("node1\nnode2\n"),
             ("2", "host_vars/node2.yml:2", "ansible-vault"), files=VARS | {"host_vars/node2.yml": SECRET}),
    HostList("a value that Ansible encrypted", plain(VAULT), ("2", "hosts.yaml:4", "ansible-vault")),
    HostList("an inventory that Ansible encrypted as a whole", plain("$ANSIBLE_VAULT;1.1;AES256\n6162\n"), ("2", "ansible-vault")),
)  # fmt: skip
