"""What the diagnoses of hosts that differ say; that they fire and stay quiet is shown by the fixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.checks.ports.link_slow import SHARED
from nccl_doctor.checks.software.cuda_driver_mismatch import needed
from nccl_doctor.checks.view import difference
from nccl_doctor.judge.diagnose import judge
from nccl_doctor.model.finding import Diagnosis, Severity
from nccl_doctor.model.operations.system import SysctlSet
from tests.checks.snapshots import NAMES, load, patched
from tests.firewall.facts import nft_facts

HERE = Path(__file__).parent


def only(name: str, fixture: str) -> Diagnosis:
    """The diagnosis of that name in one of its fixtures."""
    (folder,) = HERE.glob(f"*/{name.replace('-', '_')}")
    report = judge(load(folder / f"{fixture}.json"), "check", lambda check: check.name == name)
    (found,) = report.diagnoses
    return found


def test_what_asks_for_gpus_is_named_by_its_origin() -> None:
    node = {"cuda_visible_devices": "0,1", "env_origins": {"CUDA_VISIBLE_DEVICES": "--env"}}
    report = judge(patched({"hosts": {"node1": {"node": node}}}), "check")
    (found,) = (each for each in report.diagnoses if each.name == "gpu-count-low")
    assert str(found.evidence[0]).startswith("node1: --env asks for them")
    assert "nvidia-smi is not installed, or shows none" in str(found.evidence[1])


def test_the_majority_comes_first_and_outliers_are_folded() -> None:
    values = {f"node{n:02}": "2.8.0" if n in (3, 16) else "2.9.1" for n in range(1, 17)}
    found = difference("torch", values)
    assert found is not None
    assert str(found) == "torch: 2.9.1 on node[01-02,04-15], 2.8.0 on node[03,16]"
    assert found.outliers == ("node03", "node16")
    assert difference("torch", dict.fromkeys(values, "2.9.1")) is None


SEVERITIES = [
    ("version-mismatch", "fires-plugin", Severity.ERROR),
    ("version-mismatch", "fires-driver-branch", Severity.WARNING),
    ("gpu-count-low", "fires", Severity.ERROR),
    ("gpu-count-low", "fires-one-gpu-less", Severity.WARNING),
    ("gpu-errors", "fires", Severity.WARNING),
    ("gpu-errors", "fires-fallen-off-the-bus", Severity.ERROR),
    ("gpu-errors", "fires-an-error-that-was-not-contained", Severity.ERROR),
    ("memlock-low", "fires", Severity.ERROR),
    ("memlock-low", "fires-a-warning", Severity.WARNING),
    ("shm-small", "fires", Severity.WARNING),
    ("shm-small", "fires-dockers-default", Severity.ERROR),
    ("nofile-low", "fires", Severity.WARNING),
    ("clock-skew", "fires-so-much-that-c10d-breaks", Severity.WARNING),
    ("rdma-hca-no-match", "fires", Severity.WARNING),
    ("rdma-hca-no-match", "fires-where-nccl-must-have-it", Severity.ERROR),
    ("rdma-gid-missing", "fires-the-gid-index-that-is-set", Severity.ERROR),
    ("code-mismatch", "fires", Severity.ERROR),
    ("code-mismatch", "fires-missing-on-all", Severity.WARNING),
    ("login-environment-differs", "fires", Severity.WARNING),
    ("login-environment-differs", "fires-a-search-path", Severity.INFO),
]


@pytest.mark.parametrize(("name", "fixture", "severity"), SEVERITIES)
def test_severity_follows_the_effect(name: str, fixture: str, severity: Severity) -> None:
    assert only(name, fixture).severity is severity


OUTLIERS = [
    ("version-mismatch", "fires-plugin", ("node3",)),
    ("version-mismatch", "fires-nccl-that-is-really-loaded", ("node3",)),
    ("gpu-model-mismatch", "fires", ("node3",)),
    ("gpu-model-mismatch", "fires-within-one-host", ("node1",)),
    ("rdma-mismatch", "fires-fewer-devices", ("node3",)),
    ("rdma-link-slow", "fires-half-the-rate", ("node2",)),
    ("rdma-pair-unreachable", "fires", ("node2",)),
    ("rdma-pair-unreachable", "fires-one-down", ("node2",)),
    ("rdma-gid-missing", "fires-no-address", ("node2",)),
    ("rdma-hca-no-match", "fires-on-one", ("node2",)),
    ("code-mismatch", "fires-another-commit", ("node3",)),
    ("code-mismatch", "fires-missing-on-one", ("node3",)),
    ("code-mismatch", "fires-missing-on-two", ("node2", "node3")),
    ("clock-skew", "fires", ("node2",)),
    ("gpu-overlap", "fires", ("node1", "node2")),
]


@pytest.mark.parametrize(("name", "fixture", "hosts"), OUTLIERS)
def test_the_ones_that_differ_are_named(name: str, fixture: str, hosts: tuple[str, ...]) -> None:
    assert only(name, fixture).hosts == hosts


def test_differing_files_are_listed() -> None:
    found = only("code-mismatch", "fires-a-file-in-a-folder")
    assert found.facts["files"] == ["b.py"]
    assert "b.py: differs on node2" in found.evidence


def test_hosts_with_the_same_fault_share_a_finding() -> None:
    low = {"facts": {"limits": {"nofile_soft": 256, "nofile_hard": 256}}}
    report = judge(patched({"hosts": {"node1": low, "node3": low}}), "check")
    (found,) = report.diagnoses
    assert found.hosts == ("node1", "node3")
    assert found.facts["needed"] == 256 + 16 * 3


def test_small_shared_memory_everywhere_is_one_finding() -> None:
    patch = {
        f"node{number}": {"facts": {"shm": {"total_bytes": 64 << 20, "free_bytes": free << 20}}}
        for number, free in ((1, 60), (2, 60), (3, 50))
    }
    (found,) = judge(patched({"hosts": patch}), "check").diagnoses
    assert found.message.startswith(
        "Shared memory (/dev/shm) on node[1-3] has as little as 50 MiB free, but 1 rank needs"
    )
    assert found.evidence == ("node[1-2]: 64 MiB in all, 60 MiB free", "node3: 64 MiB in all, 50 MiB free")
    assert [command.host for command in found.fix.commands] == ["node1", "node2", "node3"]


def test_an_interpreter_without_torch_is_told_the_one_that_has_it() -> None:
    lacks = {"python": {"executable": "/usr/bin/python"}, "torch": None}
    (found,) = judge(patched({"hosts": {"node2": {"facts": lacks}}}), "check").diagnoses
    assert 'In the hosts file ("python: /usr/bin/python3")' in found.fix.summary
    assert '("python: /path/to/python")' in only("torch-missing", "fires").fix.summary, "its own path is no help"


def test_commands_are_only_what_mends_it() -> None:
    inside = only("shm-small", "fires-dockers-default")
    assert inside.fix.commands == ()
    assert "--ipc=host" in inside.fix.summary
    (start,) = only("fabric-manager-down", "fires").fix.commands
    assert (start.host, start.command) == ("node2", "systemctl enable --now nvidia-fabricmanager")
    assert only("fabric-manager-down", "fires-not-installed").fix.commands == ()
    (loading,) = only("gpudirect-hindered", "fires").fix.commands
    assert loading.command == "modprobe nvidia_peermem"


def test_a_module_that_can_not_be_had_is_no_command() -> None:
    """A stub of nvidia_peermem can't be loaded, and DKMS builds only what it knows."""
    for name, path, key, words in (
        ("gpudirect-hindered", "rdma/gpudirect_hindered/fires", '"peermem_built"', "open kernel modules"),
        ("gpu-driver-down", "software/gpu_driver_down/fires", '"dkms"', "or boot a kernel that has it"),
    ):
        text = (HERE / f"{path}.json").read_text()
        found = judge(patched(json.loads(text.replace(f"{key}: true", f"{key}: false"))), "check").diagnoses
        fix = next(each for each in found if each.name == name).fix
        assert fix.commands == ()
        assert words in fix.summary


@pytest.mark.parametrize(("own", "earlier"), [(None, ()), ("0", ("0",)), ("1", ("1",))])
def test_the_filter_of_an_interface_is_compared_with_its_own_value(own: str | None, earlier: tuple[str, ...]) -> None:
    """conf.all alone might make it strict."""
    patch = json.loads((HERE / "interfaces/reverse_path_filtered/fires.json").read_text())
    if own is not None:
        patch["hosts"]["node1"]["facts"]["sysctls"]["net.ipv4.conf.eno1.rp_filter"] = own
    report = judge(patched(patch), "check")
    (command,) = next(each for each in report.diagnoses if each.name == "reverse-path-filtered").fix.commands
    assert isinstance(command.operation, SysctlSet)
    assert command.operation.earlier == earlier


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [
        ("13.0", "580.65.06"),
        ("12.8", "525.60.13"),
        ("11.3", "450.80.02"),
        ("10.2", "440.33"),
        ("99.1", None),
        ("9", None),
    ],
)
def test_the_least_driver(cuda: str, driver: str | None) -> None:
    assert needed(cuda) == driver


def test_the_next_step_names_the_hosts_as_they_were_named() -> None:
    def step(patch: dict[str, Any], command: str = "check") -> str | None:
        return judge(patched(patch), command).next_step

    assert step({}) == "To get the launch commands:  nccl-doctor launch hosts.yaml -- train.py"
    assert (
        step({"cluster": {"source": "-w"}})
        == "To get the launch commands:  nccl-doctor launch -w 'node[1-3]' -- train.py"
    )
    assert (
        step({"cluster": {"source": "my hosts"}})
        == "To get the launch commands:  nccl-doctor launch 'my hosts' -- train.py"
    )
    assert step({"cluster": {"master_addr": "127.0.0.1"}}) is None
    assert step({"hosts": {"node2": {"facts": {"limits": {"$unknown": "x"}}}}}) is None
    assert step({}, "smoke") is None


def test_a_vlans_setting_is_written_with_slashes() -> None:
    """sysctl(8): a dot in the interface's name would be read as one between the parts."""
    text = (HERE / "interfaces/reverse_path_filtered/fires.json").read_text()
    report = judge(patched(json.loads(text.replace('"eno1"', '"eno1.100"'))), "check")
    found = next(each for each in report.diagnoses if each.name == "reverse-path-filtered")
    (command,) = found.fix.commands
    assert command.command == "sysctl -w 'net/ipv4/conf/eno1.100/rp_filter=2'"


def test_a_host_that_nobody_reaches_itself_included_is_one_finding() -> None:
    def found(*sources: str) -> list[str]:
        failed = [
            {"src": src, "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}
            for src in sources
        ]
        return [each.message for each in judge(patched({"mesh": {"failed": failed}}), "check").diagnoses]

    assert found("node1", "node2", "node3") == ["node[2-3] can't reach node1 on port 29500."]
    assert found("node1") == ["node1 can't reach itself at its own address 10.0.0.1."]


def test_rules_that_nobody_could_read_come_before_the_network_team() -> None:
    def remedy(*unread: str) -> str:
        failed = [{"src": "node2", "dst": "node1", "address": "10.0.0.1", "port": 29500, "outcome": "timed-out"}]
        rules = {"facts": {"firewall": nft_facts().model_dump(mode="json")}}
        hosts = {
            name: {"facts": {"firewall": {"$unknown": "needs root"}}} if name in unread else rules for name in NAMES
        }
        report = judge(patched({"mesh": {"failed": failed}, "hosts": hosts}), "check")
        return next(each for each in report.diagnoses if each.name == "port-unreachable").fix.summary

    assert remedy().startswith("Ask your network administrator")
    assert remedy("node1").startswith("Look at the rules of node1 as root first; check --sudo reads them")
    assert "If nothing there drops it, ask your network administrator" in remedy("node1")
    assert "network" not in only("port-unreachable", "fires-oneself").fix.summary


def test_a_nic_that_the_rates_accuse_is_told_once_with_its_lanes() -> None:
    rates = json.loads((HERE / "ports/link_slow/fires.json").read_text())["rates"]
    lanes = json.loads((HERE / "ports/link_slow/fires-nic-lost-lanes.json").read_text())["hosts"]["node2"]
    (slow,) = only("link-slow", "fires").hosts
    address = {"interface": "eno1", "family": "inet", "address": f"10.0.0.{slow[-1]}", "netmask": "255.255.255.0"}
    lanes["facts"]["interfaces"]["addresses"][1] = address

    def found(rates: dict[str, Any] | None) -> list[bool]:
        seen = patched({"hosts": {slow: lanes}, **({} if rates is None else {"rates": rates})})
        report = judge(seen, "check", lambda check: check.name == "link-slow")
        return ["usual" in one.facts for one in report.diagnoses]

    assert found(None) == [False]
    assert found(rates) == [True]


def test_a_lost_lane_of_an_rdma_device_is_the_cause_of_its_slow_rate_and_of_no_gpus() -> None:
    spark = json.loads((HERE / "rdma/rdma_link_slow/fires-gb10-two-lanes.json").read_text())["hosts"]
    gpu = json.loads((HERE / "ports/link_slow/fires-gpu-awake.json").read_text())["hosts"]["node2"]["facts"]
    spark["node2"]["facts"] |= gpu
    report = judge(patched({"hosts": spark}), "check", lambda check: "link-slow" in check.name)
    assert [one.name for one in report.diagnoses] == ["link-slow", "rdma-link-slow"]


def test_a_gpu_that_shares_the_processors_memory_is_known_by_its_name() -> None:
    assert all(map(SHARED.search, ("NVIDIA GB10", "NVIDIA GH200 480GB", "NVIDIA GB200")))
    assert not any(map(SHARED.search, ("NVIDIA H100 80GB HBM3", "NVIDIA GeForce GTX 1080", "NVIDIA B200")))


def test_hosts_whose_subnet_holds_two_interfaces_alike_are_one_finding() -> None:
    fires = json.loads((HERE / "interfaces/shared_subnet_nics/fires.json").read_text())
    text = json.dumps(fires["hosts"]["node2"])
    fires["hosts"]["node3"] = json.loads(text.replace('"10.0.0.2"', '"10.0.0.3"').replace("10.0.0.102", "10.0.0.103"))
    (found,) = (each for each in judge(patched(fires), "check").diagnoses if each.name == "shared-subnet-nics")
    assert found.hosts == ("node2", "node3")
    assert found.message.startswith("On node[2-3], NCCL's sockets use eno1 and eno2, both on 10.0.0.0/24, so")
    assert str(found.evidence[0]).startswith("node[2-3]: eno1: rp_filter=")


def test_no_shared_memory_and_too_little_are_one_look_with_a_command_for_each_host() -> None:
    little: dict[str, Any] = {"total_bytes": 64 << 20, "free_bytes": 32 << 20}
    hosts = {name: {"facts": {"shm": little}} for name in NAMES}
    hosts["node3"] = {"facts": {"shm": {"total_bytes": 0, "free_bytes": 0, "problem": "missing"}}}
    (found,) = (each for each in judge(patched({"hosts": hosts}), "check").diagnoses if each.name == "shm-small")
    assert found.hosts == ("node3", "node1", "node2")
    assert found.message.startswith("There is no shared memory (/dev/shm) on node3, so")
    assert "Shared memory (/dev/shm) on node[1-2] has only 32 MiB free" in found.message
    assert [(one.host, "remount" in one.command) for one in found.fix.commands] == [
        ("node3", False),
        ("node3", False),
        ("node1", True),
        ("node2", True),
    ]


def test_a_master_address_of_the_environment_is_taken_out_there() -> None:
    cluster = {"master_addr": "127.0.0.1", "variables": {"master_addr": "MASTER_ADDR"}}
    (found,) = (
        one for one in judge(patched({"cluster": cluster}), "check").diagnoses if one.name == "master-addr-loopback"
    )
    assert found.fix.summary.startswith("The environment here says so: `unset MASTER_ADDR`, or give --master-addr 10.0")
