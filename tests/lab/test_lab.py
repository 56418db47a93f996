"""The lab stands as promised, and goes without a trace."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import neighbours
from tests.lab.cluster import Lab, MakeLab
from tests.lab.errors import CommandFailed, LabError
from tests.lab.host import LabHost
from tests.lab.looking import dial, ssh
from tests.lab.state import STATE
from tests.lab.warm import plain, tool
from tests.patience import LONG_S

pytestmark = pytest.mark.lab

_KINDS = ("net", "mnt", "pid", "uts", "ipc")


def _namespaces(pid: int) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in _KINDS}


def _inhabited() -> set[str]:
    """Every namespace that a process of this machine is in."""
    found: set[str] = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                found |= _namespaces(int(directory.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has just ended, or is the machine's own init, which a sandbox hides even from root
    return found


def _surroundings() -> tuple[str, str, set[str]]:
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    directories = [Path("/", name) for name in ("home", "mnt", "root", "run", "srv", "tmp", "dev/shm")]
    files = {path.name for directory in directories for path in directory.iterdir() if "lab" in path.name}
    # Another lab on this machine may write these; their own tests see to them.
    return Path("/proc/self/mountinfo").read_text(), links, files - {STATE.name, neighbours.RECORD.name}


def _gone(lab: Lab, namespaces: set[str]) -> bool:
    return not namespaces & _inhabited() and not any(host.alive() for host in [*lab.hosts, lab.controller])


def _own_namespaces(lab: Lab) -> set[str]:
    hosts = [_namespaces(host.pid) for host in [*lab.hosts, lab.controller]]
    return set().union(*hosts, {str(Path(f"/proc/{lab.supervisor}/ns/net").readlink())})


def test_down_leaves_nothing() -> None:
    before = _surroundings()
    lab = Lab.up(2)
    namespaces = _own_namespaces(lab)
    assert len(namespaces) == 5 * 3 + 1
    assert namespaces <= _inhabited()
    lab.hosts[0].background(["sleep", "1000"])
    with lab.hosts[1].popen(["sleep", "1000"]) as foreground:
        lab.down()
        assert foreground.wait(LONG_S) == -signal.SIGKILL
    assert _gone(lab, namespaces)
    assert _surroundings() == before
    lab.down()
    with pytest.raises(LabError, match="node1 is dead"):
        lab.hosts[0].run(["true"])


_CRASH = """\
import json, os, signal
from tests.lab.cluster import Lab
lab = Lab.up(2)
lab.hosts[0].background(["sleep", "1000"])
hosts = [{"name": host.name, "address": host.address, "pid": host.pid} for host in [*lab.hosts, lab.controller]]
print(json.dumps({"supervisor": lab.supervisor, "hosts": hosts}), flush=True)
signal.pause()
"""


def _kill_maker(maker: int, supervisor: int) -> None:
    os.kill(maker, signal.SIGKILL)


def _kill_supervisor(maker: int, supervisor: int) -> None:
    os.kill(supervisor, signal.SIGKILL)


@pytest.mark.parametrize("crash", [_kill_maker, _kill_supervisor])
def test_crash_leaves_nothing(crash: Callable[[int, int], None]) -> None:
    project = Path(__file__).parents[2]
    command = [sys.executable, "-c", _CRASH]
    with contextlib.ExitStack() as stack:
        maker = stack.enter_context(subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True))
        assert maker.stdout is not None
        stack.callback(maker.kill)
        state = json.loads(maker.stdout.readline())
        lab = Lab(state["supervisor"], [LabHost(**host) for host in state["hosts"]])
        namespaces = _own_namespaces(lab)
        crash(maker.pid, lab.supervisor)
        lab.hosts[0].wait_until(lambda: _gone(lab, namespaces), "the end of the lab")


def test_controller_reaches_every_host_by_ssh(lab: Lab) -> None:
    for host in lab.hosts:
        for user in ("root", "alice"):
            done = ssh(lab, host, "hostname; id -un; pwd", user=user)
            home = "/root" if user == "root" else "/home/alice"
            assert (done.stdout.split(), done.stderr) == ([host.name, user, home], "")


def test_ssh_takes_an_address_and_its_host_key_is_known(lab: Lab) -> None:
    assert lab.controller.run(["ssh", "-o", "BatchMode=yes", lab.hosts[2].address, "hostname"]).stdout == "node3\n"


def test_host_keys_differ(lab: Lab) -> None:
    keys = {host.run(["ssh-keygen", "-yf", "/etc/ssh/ssh_host_ed25519_key"]).stdout for host in lab.hosts}
    assert len(keys) == 3


def test_names_resolve_everywhere(lab: Lab) -> None:
    everybody = [*lab.hosts, lab.controller]
    for host in everybody:
        assert host.run("hostname").stdout.strip() == host.name
        for other in everybody:
            assert host.run(["getent", "ahostsv4", other.name]).stdout.split()[0] == other.address


def test_nothing_leads_out_of_the_lab(lab: Lab) -> None:
    assert lab.hosts[0].run(["getent", "hosts", "example.org"], check=False).returncode == 2
    assert dial(lab.hosts[0], "192.0.2.1", 80) == "timed out"


def test_processes_are_the_hosts_own(lab: Lab) -> None:
    first, second = lab.hosts[:2]
    with first.popen(["sleep", "4321"]) as process:
        first.wait_until(lambda: "sleep 4321" in [line for _, line in first.processes()], "its command line")
        assert "sleep 4321" not in [line for _, line in second.processes()]
        assert first.run(["kill", "-0", str(process.pid)], check=False).returncode == 1
        process.kill()
    assert first.processes()[0] == (1, "sleep infinity")


def test_a_program_ends_with_the_test_that_failed_beside_it(lab: Lab) -> None:
    with pytest.raises(LookupError), lab.hosts[0].popen(["sleep", "4322"]):
        raise LookupError
    assert "sleep 4322" not in [line for _, line in lab.hosts[0].processes()]


def test_orphans_belong_to_init_and_leave_no_zombie(fresh_lab: Lab) -> None:
    host = fresh_lab.hosts[0]
    pid = host.background(["sleep", "0.2"])
    assert host.read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1] == "1"
    host.wait_until(lambda: pid not in dict(host.processes()), "the orphan's end")


def test_files_are_the_hosts_own(lab: Lab) -> None:
    first, second = lab.hosts[:2]
    for directory in ("/etc", "/root", "/run", "/tmp", "/home/alice", "/dev/shm", "/usr/local", "/var/log"):
        path = f"{directory}/lab-was-here"
        first.write(path, "x\n")
        assert first.read(path) == "x\n"
        assert second.run(["test", "-e", path], check=False).returncode == 1
        assert not Path(path).exists()
        first.run(["rm", path])


def test_interfaces_are_lo_and_eth0(lab: Lab) -> None:
    links = lab.hosts[0].run("ls /sys/class/net").stdout.split()
    assert links == ["eth0", "lo"]
    assert "tentative" not in lab.hosts[0].run("ip address").stdout
    assert lab.hosts[0].listeners() == [("0.0.0.0", 22), ("::", 22)]


def test_interpreter_is_there_for_alice_too(lab: Lab) -> None:
    done = ssh(lab, lab.hosts[0], f"{sys.executable} -c 'import psutil, os; print(os.getuid())'", user="alice")
    assert (done.stdout, done.stderr) == ("1000\n", "")


def test_controller_has_the_tool(lab: Lab) -> None:
    found = lab.controller.run(["which", "-a", "nccl-doctor"]).stdout.split()
    assert found == [tool(), f"{Path(sys.executable).parent}/nccl-doctor"]


def test_hosts_file_is_ready(lab: Lab) -> None:
    assert lab.hosts_file() == f"python: {plain()}\nhosts:\n- node1\n- node2\n- node3\n"
    text = lab.hosts_file(by_address=True, python=None, master_port=29501)
    assert text == "master_port: 29501\nhosts:\n- 10.77.0.1\n- 10.77.0.2\n- 10.77.0.3\n"


def test_run_is_as_in_subprocess(lab: Lab) -> None:
    host = lab.hosts[0]
    assert host.run(["cat"], input="grüße").stdout == "grüße"
    assert host.run('echo "$X $USER $HOME"', env={"X": "1"}, user="alice").stdout == "1 alice /home/alice\n"
    with pytest.raises(CommandFailed, match="no such thing"):
        host.run("echo no such thing >&2; exit 3")
    with pytest.raises(subprocess.TimeoutExpired):
        host.run("sleep 1001 & sleep 1001", timeout=0.2)
    host.wait_until(lambda: "sleep 1001" not in dict(host.processes()).values(), "the end of what timed out")


def test_signals_reach_a_program(lab: Lab) -> None:
    with lab.controller.popen("trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done", stdout=-1) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(LONG_S) == 7
        finally:
            process.kill()


def test_a_large_lab_has_room_for_all_neighbours(make_lab: MakeLab) -> None:
    large = make_lab(25)
    assert int((neighbours.LIMITS / "gc_thresh3").read_text()) >= 65536
    assert dial(large.hosts[0], large.hosts[24].address, 22) == "connected"


def test_the_neighbour_table_is_made_small_again_once_it_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the namespaces that just went are there for a moment more: below them nobody finds a neighbour."""

    def limits() -> list[int]:
        return [int((tmp_path / f"gc_thresh{number}").read_text()) for number in (1, 2, 3)]

    for number, limit in ((1, 128), (2, 512), (3, 1024)):
        (tmp_path / f"gc_thresh{number}").write_text(str(limit))
    monkeypatch.setattr(neighbours, "LIMITS", tmp_path)
    monkeypatch.setattr(neighbours, "RECORD", tmp_path / "record")
    monkeypatch.setattr(neighbours, "TABLE", tmp_path / "table")
    monkeypatch.setattr(neighbours, "EMPTY_S", 0.0)
    for entries, after in (("00000e3e", 65536), ("0000004b", 1024)):
        (tmp_path / "table").write_text(f"entries  allocs\n{entries} 00000000\n")
        with neighbours.room_for(25):
            assert limits()[2] == 65536
            with neighbours.room_for(26):
                pass
            assert limits()[2] == 65536
        assert limits()[2] == after
    assert (limits(), (tmp_path / "record").exists()) == ([128, 512, 1024], False)


def test_unknown_host_is_named(lab: Lab) -> None:
    with pytest.raises(LabError, match="No lab host is named 'node9'; there are node1, node2, node3, ctl"):
        lab.host("node9")


@pytest.mark.parametrize("hosts", [0, 1001])
def test_size_is_bounded(hosts: int) -> None:
    with pytest.raises(LabError, match="1 to 1000 hosts"):
        Lab.up(hosts)
