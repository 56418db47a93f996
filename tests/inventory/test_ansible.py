"""Both spellings of an Ansible inventory: what one says in YAML it says in INI."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_doctor.errors import DoctorError
from nccl_doctor.inventory import ansible
from nccl_doctor.inventory import files as hosts_files
from nccl_doctor.inventory.ansible import MAX_GROUPS
from nccl_doctor.inventory.build import build
from nccl_doctor.model.engines.ssh import SshOptions
from tests.inventory.conftest import ELSEWHERE, Refusal, Understand

INI = """\
; ours
bastion.example.com:2222

[gpu]
node[01:02] ansible_user=root nccl_version=2.27   # comment
big ansible_host=10.0.0.9 ansible_port=2200 ansible_ssh_common_args='-o ProxyJump=bastion -o "A=b c"'

[storage]
disk-[a:b]
big

[cluster:children]
gpu
storage

[gpu:vars]
ansible_user=ubuntu
ansible_python_interpreter="/opt/my train/bin/python"  # quoted

[cluster:vars]
ansible_user=nobody
ansible_ssh_private_key_file=~/.ssh/cluster

[all:vars]
ansible_user=admin
ansible_password={{ vault_password }}
"""

YAML = """\
all:
  vars:
    ansible_user: admin
    ansible_password: !vault |
      $ANSIBLE_VAULT;1.1;AES256
  hosts:
    bastion.example.com: {ansible_port: 2222}
  children:
    cluster:
      children:
        gpu:
          hosts:
            node[01:02]: {ansible_user: root, nccl_version: 2.27}
            big:
              ansible_host: 10.0.0.9
              ansible_port: 2200
              ansible_ssh_common_args: -J bastion -q -o "A=b c"
          vars:
            ansible_user: ubuntu
            ansible_python_interpreter: /opt/my train/bin/python
        storage:
          hosts:
            disk-[a:b]:
            big:
      vars: {ansible_user: nobody, ansible_ssh_private_key_file: ~/.ssh/cluster}
"""


BY_BASTION = ("ProxyJump=bastion", "A=b c")


@pytest.mark.parametrize("text", [INI, YAML], ids=["ini", "yaml"])
def test_groups_hand_down_and_hosts_keep_the_order_of_the_file(understand: Understand, text: str) -> None:
    nodes = understand(text).nodes
    key, python = "~/.ssh/cluster", "/opt/my train/bin/python"
    assert [(n.name, n.address, n.options(SshOptions), n.python) for n in nodes] == [
        ("bastion.example.com", "bastion.example.com", SshOptions(user="admin", port=2222), "python3"),
        ("node01", "node01", SshOptions(user="root", identity_file=key), python),
        ("node02", "node02", SshOptions(user="root", identity_file=key), python),
        ("big", "10.0.0.9", SshOptions(user="ubuntu", port=2200, identity_file=key, options=BY_BASTION), python),
        ("disk-a", "disk-a", SshOptions(user="nobody", identity_file=key), "python3"),
        ("disk-b", "disk-b", SshOptions(user="nobody", identity_file=key), "python3"),
    ]


def test_where_each_value_came_from(understand: Understand) -> None:
    origins = understand(INI).origins
    assert origins["node01.ssh.user"] == "hosts.yaml:5"
    assert origins["big.address"] == "hosts.yaml:6"
    assert origins["big.ssh.user"] == 'hosts.yaml:17 (group "gpu")'
    assert origins["disk-a.ssh.identity_file"] == 'hosts.yaml:22 (group "cluster")'


def test_groups_without_all_and_hosts_without_groups(understand: Understand) -> None:
    in_yaml = understand("gpu:\n  hosts:\n    n[1:3:2]:\nungrouped:\n  hosts: {m: }\n")
    assert [node.name for node in in_yaml.nodes] == ["n1", "n3", "m"]
    in_ini = understand("n1 ansible_host=10.0.0.1\nn2 ansible_host=10.0.0.2")
    assert [node.address for node in in_ini.nodes] == ["10.0.0.1", "10.0.0.2"]


def test_connection_and_interpreter_words(understand: Understand) -> None:
    nodes = understand(
        "[g]\na ansible_connection=local\nb ansible_connection=ssh\n[g:vars]\nansible_python_interpreter=auto_silent"
    ).nodes
    assert [n.local for n in nodes] == [True, False]
    assert [n.python for n in nodes] == ["python3", "python3"]


def test_of_two_groups_on_one_level_the_last_by_name_wins(understand: Understand) -> None:
    text = "[b]\nn\n[a]\nn\n[a:vars]\nansible_user=from_a\n[b:vars]\nansible_user=from_b\n"
    assert understand(text).nodes[0].options(SshOptions).user == "from_b"


def test_all_groups_together_are_bounded(refusal: Refusal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ansible, "MAX_MEMBERS", 5)
    assert refusal("[a]\nn[1:3]\n[b]\nn[1:3]") == "hosts.yaml:4: more than 5 hosts in all groups together"


TEMPLATE = "holds a template, which only Ansible can fill in; write the value"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[g]\nn x", ':2: "x" is not understood; behind a host stand variables, as ansible_host=10.0.0.1'),
        ("[g]\nn ansible_host='{{ ip }}'", f":2: ansible_host {TEMPLATE}"),
        ("[g]\nn\n[g:vars]\nansible_user='{{ u }}'", f":4: ansible_user {TEMPLATE}"),
        ("[g]\nn\n[g:vars]\nansible_user={{ u }}", f":4: ansible_user {TEMPLATE}"),
        ("[g]\nn[01-04]", ':2: "n[01-04]" has a bracket that is not an Ansible range, such as node[01:04]'),
        ("[g]\nn[4:1]", ':2: the range "[4:1]" runs backwards; write the smaller end first'),
        ("[g]\nn[1:4:0]", ':2: "[1:4:0]" is not a range: two numbers, padded alike, or two letters, as in [01:04]'),
        ("[g]\nn[01:100]", ':2: "[01:100]" is not a range: two numbers, padded alike, or two letters, as in [01:04]'),
        ("[g]\nn[1:999999999]", ':2: "[1:999999999]" stands for 999999999 hosts; at most 65536 are allowed'),
        ("[g]\nn[1:999][1:999]", ':2: "n[1:999][1:999]" stands for 998001 hosts or more; at most 65536 are allowed'),
        ("[g]\nn[1:65536]\nm", ":3: more than 65536 hosts"),
        ("[g]\nn 'x", ":2: an unmatched quote or a trailing backslash"),
        ("[g]\n''", ":2: \"''\" has no value"),
        ("[g]\n" + "n" * 70_000, ":2: a line of more than 65536 characters"),
        ("[g:hosts]\nn", ':1: unknown section "[g:hosts]"; allowed are [group], [group:vars], [group:children]'),
        ("[g:vars]\nansible_user", ':2: "ansible_user" is not understood; a line here is variable=value'),
        ("[g:vars]\nansible_user=a b", ":2: ansible_user must be one value; put a value with spaces in quotes"),
        ("[g]\n-x", ':2: "-x" is not a host name: it begins with "-", which ssh would read as an option'),
        ("[g]\nn ansible_port=x", ':2: "x" is not a valid port (1 to 65535)'),
        ("[g]\n", ": the inventory names no host; at least one is needed"),
        (
            "[c]\nn\n[a:children]\nb\n[b:children]\na\nc",
            (':4: the group "b" stands within itself; take it out of its own children'),
        ),
        (
            "[a]\nn\n[a:children]\nb\n[b:children]\na",
            ':6: the group "a" stands within itself; take it out of its own children',
        ),
        ("[g]\nn\n" + "".join(f"[g{i}]\n" for i in range(MAX_GROUPS)), f":{MAX_GROUPS + 1}: more than 1000 groups"),
        ("all: {host: {n: }}", ':1: unknown key "host" in a group; allowed are hosts, children, vars'),
        ("all:\n  hosts:\n  - n", ':3: "hosts" of the group "all" must be a mapping of "key: value", not a list'),
        ("all: {hosts: {n: {ansible_host: }}}", ":1: ansible_host has no value; write one or leave the key out"),
        (
            "all: {hosts: {n: {ansible_host: !vault x}}}",
            ":1: the value is encrypted by ansible-vault; write the plain value (ansible-vault view shows it)",
        ),
        ("all: {hosts: {n: {ansible_host: '{{ x }}'}}}", f":1: ansible_host {TEMPLATE}"),
        (
            "all: {hosts: {n: }, children: {all: }}",
            ':1: the group "all" stands within itself; take it out of its own children',
        ),
        ("[g]\nn\n[g:children]\nall", ':4: the group "all" stands within itself; take it out of its own children'),
    ],
)
def test_refuses(refusal: Refusal, text: str, message: str) -> None:
    assert refusal(text) == "hosts.yaml" + message


def test_arguments_for_ssh_add_up_and_a_hosts_own_win(understand: Understand) -> None:
    text = """\
[gpu]
a
b ansible_ssh_common_args='-o ProxyCommand="ssh -W %h:%p jump"'
[gpu:vars]
ansible_ssh_common_args=-J bastion -4  # ours
ansible_ssh_extra_args=-o Compression=no
"""
    a, b = (node.options(SshOptions).options for node in understand(text).nodes)
    assert a == ("ProxyJump=bastion", "AddressFamily=inet", "Compression=no")
    assert b == ("ProxyCommand=ssh -W %h:%p jump", "Compression=no")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("-F x", '"-F" is not understood'), ("-o", '"-o" of ssh needs'), ("x", '"x" is not'), ("-o 'A", "No closing")],
)
def test_arguments_that_ssh_alone_understands_are_refused(refusal: Refusal, arguments: str, words: str) -> None:
    said = refusal(f'all:\n  hosts:\n    a: {{ansible_ssh_common_args: "{arguments}"}}\n')
    assert said.startswith("hosts.yaml:3: ")
    assert words in said


def test_the_folders_beside_it_win_and_what_is_encrypted_there_is_no_matter(tmp_path: Path) -> None:
    files = {
        "hosts": "[gpu]\na ansible_user=own\nb\nc.example.com\n[gpu:vars]\nansible_user=group\nansible_port=1\n",
        "group_vars/all": "ansible_port: 2\nansible_python_interpreter: /opt/all/python\npackages: [one, {two: three}]\n",
        "group_vars/gpu/a_vault.yml": "$ANSIBLE_VAULT;1.1;AES256\n6162\n",
        "group_vars/gpu/main.yml": "# ours\n---\nansible_user: folder\ntoken: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n",
        "group_vars/gpu/nothing.yml": "---\n",
        "group_vars/others.yml": "no: [yaml",
        "host_vars/a.yml": "ansible_user: host\n",
        "host_vars/c.example.com.json": '{"ansible_host": "10.0.0.3"}',
        "host_vars/b.yaml": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cluster = build(hosts_files.read(files["hosts"], str(tmp_path / "hosts")), (), ELSEWHERE)
    assert [(n.address, n.options(SshOptions).user, n.options(SshOptions).port, n.python) for n in cluster.nodes] == [
        ("a", "host", 2, "/opt/all/python"),
        ("b", "folder", 2, "/opt/all/python"),
        ("10.0.0.3", "folder", 2, "/opt/all/python"),
    ]
    assert cluster.origins["b.ssh.user"] == f"{tmp_path}/group_vars/gpu/main.yml:3"
    (tmp_path / "host_vars" / "b.yaml").write_text("ansible_user: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  6162\n")
    with pytest.raises(DoctorError, match=r"host_vars/b.yaml:1: the value is encrypted by ansible-vault"):
        hosts_files.read(files["hosts"], str(tmp_path / "hosts"))
