"""Checks of the containers that jobs run in, with real ones on every host."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from nccl_doctor.model.engines.containers import InsideOptions
from nccl_doctor.transport.containers.transport import enter_line
from tests.cli.doctor import Run, doctor, files, ours
from tests.cli.program import run_in, start_in
from tests.cli.smoking import all_reduce_processes
from tests.lab.cluster import Lab
from tests.lab.containers import end, feign_gpu, prepare, start
from tests.patience import LONG_S, crowd

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("users_python")]

HEALTHY = ("--network=host", "--ipc=host")
ALL = ["node1", "node2", "node3"]


@pytest.fixture(scope="module")
def boxes() -> Iterator[Lab]:
    """Three hosts, each with a container "train" that is as good as the host."""
    with Lab.up(3) as lab:
        for host in lab.hosts:
            prepare(host)
            start(host, "train", *HEALTHY)
        yield lab


def check(lab: Lab, inside: str | list[dict[str, Any]], *options: str, **keys: Any) -> Run:
    """Without the all-reduce; ``inside`` are podman's container on all hosts, or what each host has there."""
    if isinstance(inside, str):
        keys |= {"inside": {"podman": inside}}
    else:
        keys |= {
            "hosts": [{"name": host.name, "inside": dict(its)} for host, its in zip(lab.hosts, inside, strict=True)]
        }
    return doctor(lab, "check", "--no-smoke", *options, hosts=lab.hosts_file(**keys))


def is_healthy(run: Run) -> None:
    assert (run.names, run.code) == ([], 0), run.report["diagnoses"] or run.report["checks"]


def only(run: Run, name: str, hosts: list[str]) -> dict[str, Any]:
    assert (run.names, run.code, run.first["hosts"]) == ([name], 1, hosts), run.report["diagnoses"]
    return run.first


def gone(lab: Lab) -> None:
    """Nothing of ours runs any more; what entered a container ends a moment after the probe that it waits for."""
    for host in lab.hosts:
        host.wait_until(lambda host=host: not ours(host), "the end of what was started there", 10 * crowd())  # type: ignore[misc]


def paste(lab: Lab, diagnosis: dict[str, Any]) -> None:
    assert diagnosis["fix"]["commands"]
    for command in diagnosis["fix"]["commands"]:
        lab.host(command["host"]).run(command["command"])


def test_a_healthy_container_is_silent_and_nothing_stays_in_it(boxes: Lab) -> None:
    before = [files(host) for host in boxes.hosts]
    is_healthy(check(boxes, "train"))
    boxes.controller.write("/root/hosts.yaml", boxes.hosts_file())
    words = ("fix-port", "--hosts", "hosts.yaml", "--host", "node1", "--inside", "podman:train", "-o", "json")
    port = run_in(boxes.controller, *words)
    assert (port.returncode, json.loads(port.stdout)["free"]) == (0, True)
    pids = [host.run(["podman", "inspect", "-f", "{{.State.Pid}}", "train"]).stdout.strip() for host in boxes.hosts]
    is_healthy(check(boxes, [{"enter": int(pid)} for pid in pids], "--transport", "openssh"))
    gone(boxes)
    assert [files(host) for host in boxes.hosts] == before


def test_a_shell_in_a_process_namespaces_has_no_capability_that_the_process_lacks(boxes: Lab) -> None:
    """As the runtime's own exec has it; a hostile shell gets nothing of the host by way of "enter"."""
    host = boxes.hosts[1]
    start(host, "bound", "--cap-drop=all", "--cap-add=CHOWN", "--security-opt=no-new-privileges", "--pid=private")
    pid = host.run(["podman", "inspect", "-f", "{{.State.Pid}}", "bound"]).stdout.strip()
    asked = "grep -E '^(Cap|NoNewPrivs)' /proc/self/status; hostname; echo $$; ls -di /"
    by_podman = host.run(enter_line(InsideOptions("podman", "bound"), asked)).stdout.splitlines()
    entered = host.run(enter_line(InsideOptions("enter", pid), asked)).stdout.splitlines()
    number = len(by_podman) - 2  # each shell has a PID of its own
    assert (entered[:number], entered[number + 1 :]) == (by_podman[:number], by_podman[number + 1 :])
    assert {"CapEff:\t0000000000000001", "CapBnd:\t0000000000000001", "NoNewPrivs:\t1"} <= set(entered)
    assert int(entered[number]) < 1000  # of the container's own
    for script, status in (("exit 7", 7), ("kill -TERM $$", 143), ("exec /no/such", 127)):
        done = host.run(f"({enter_line(InsideOptions('enter', pid), script)}); echo $?")
        assert done.stdout.strip() == str(status)
    end(host, "bound")


def test_this_machines_own_container(boxes: Lab) -> None:
    said = ("--inside", "podman:train", "--python", sys.executable, "-o", "json")
    done = run_in(boxes.hosts[0], "check", "--no-smoke", *said)
    report = json.loads(done.stdout)
    assert (done.returncode, report["diagnoses"]) == (0, [])
    assert report["hosts"][0]["seen"]["container"] == 'the Podman container "train", on node1'


def test_a_controller_that_is_killed_leaves_nothing_inside(boxes: Lab) -> None:
    two = boxes.hosts[1]
    hosts = ["node1", "node2"]  # each more imports torch
    boxes.controller.write("/root/hosts.yaml", boxes.hosts_file(hosts=hosts, inside={"podman": "train"}))
    long = ("--smoke-budget", "60", "--max-bytes", str(1 << 28))  # a busy machine looks seldom
    with start_in(boxes.controller, "smoke", "hosts.yaml", *long) as running:
        two.wait_until(lambda: len(all_reduce_processes(two)) > 1, "the all-reduce")
        running.kill()
    gone(boxes)


def test_what_keeps_out(boxes: Lab) -> None:
    _, two, three = boxes.hosts
    start(two, "stopped", *HEALTHY)
    two.run(["podman", "stop", "-t", "0", "stopped"])
    start(three, "bare", *HEALTHY, lacks="programs")
    run = check(boxes, [{"podman": "trian"}, {"podman": "stopped"}, {"podman": "bare"}])
    told = {found["hosts"][0]: found for found in run.report["diagnoses"]}
    assert {found["name"] for found in told.values()} == {"container-unreachable"}
    assert {host: found["message"] for host, found in told.items()} == {
        "node1": 'node1: the Podman container "trian" does not exist (running containers: train).',
        "node2": 'node2: the Podman container "stopped" is not running (running containers: train).',
        "node3": 'node3: the Podman container "bare" has no /bin/sh.',
    }
    paste(boxes, told["node2"])
    run = check(boxes, [{"nerdctl": "train"}, {"podman": "stopped"}, {"enter": 4_000_000}])
    assert [(found["hosts"], found["message"]) for found in run.report["diagnoses"]] == [
        (["node1"], "node1: there is no program nerdctl."),
        (["node3"], "node3: no process 4000000 is running on the host."),
    ]
    run = check(boxes, [{"podman": "train"}] * 3, ssh={"user": "alice"})
    assert only(run, "container-unreachable", ALL)["message"].endswith(
        " (the user who logs in has no running containers)."
    )
    end(two, "stopped")
    end(three, "bare")
    gone(boxes)


def test_no_python_inside(boxes: Lab) -> None:
    one = boxes.hosts[0]
    start(one, "bare", *HEALTHY, lacks="python")
    run = check(boxes, [{"podman": "bare"}, {"podman": "train"}, {"podman": "train"}])
    message = only(run, "python-missing", ["node1"])["message"]
    assert message == f'node1: in the Podman container "bare" the interpreter "{sys.executable}" does not exist.'
    end(one, "bare")


def test_a_bridge_is_one_diagnosis_and_its_options_end_it(boxes: Lab) -> None:
    """On all hosts, then on one among healthy ones."""
    one, two, three = boxes.hosts
    for host in boxes.hosts:
        start(host, "bridged", "--network=bridge")
    found = only(check(boxes, "bridged"), "container-differs", ALL)
    assert (found["facts"]["differs"], found["severity"]) == (["network", "shm"], "error")
    assert "port-unreachable" in {effect["name"] for effect in found["explains"]}
    options = re.search(r"add ((?:--\S+ )+)to its podman run", found["fix"]["summary"])
    assert options
    end(one, "bridged")
    end(three, "bridged")
    run = check(boxes, [{"podman": "train"}, {"podman": "bridged"}, {"podman": "train"}])
    only(run, "container-differs", ["node2"])
    end(two, "bridged")
    for host in boxes.hosts:
        start(host, "bridged", *shlex.split(options[1]))
    is_healthy(check(boxes, "bridged"))
    for host in boxes.hosts:
        end(host, "bridged")


def test_little_shared_memory_is_enlarged_from_outside(boxes: Lab) -> None:
    for host in boxes.hosts:
        start(host, "small", "--network=host", "--shm-size=64m")
    found = only_warning(check(boxes, "small", "--fail-on", "warning"))
    assert (
        found["message"] == 'The Podman container "small" on node[1-3] has a /dev/shm of only 64 MiB (host: 1024 MiB).'
    )
    paste(boxes, found)
    is_healthy(check(boxes, "small"))
    for host in boxes.hosts:
        end(host, "small")


def only_warning(run: Run) -> dict[str, Any]:
    found = only(run, "container-differs", ALL)
    assert found["severity"] == "warning"
    return found


def test_the_containers_torch_counts_and_not_the_hosts(boxes: Lab) -> None:
    two = boxes.hosts[1]
    spec = find_spec("torch")
    assert spec is not None
    version = str(Path(spec.origin or "").with_name("version.py"))
    two.write("/opt/version.py", two.read(version).replace(metadata.version("torch"), "2.9.1+cpu"))
    start(two, "older", *HEALTHY, f"--volume=/opt/version.py:{version}:ro")
    run = check(boxes, [{"podman": "train"}, {"podman": "older"}, {"podman": "train"}])
    assert "2.9.1 on node2" in str(only(run, "version-mismatch", ["node2"])["evidence"])
    end(two, "older")


def test_gpus_that_are_not_there_and_that_do_not_open(boxes: Lab) -> None:
    # the project may be in a folder that only its owner may search
    stranger = ("--user=1000", "--cap-add=DAC_READ_SEARCH")
    ways = {"without": (), "refused": ("--device=/dev/nvidia0", *stranger), "given": ("--device=/dev/nvidia0",)}
    for host, (name, options) in zip(boxes.hosts, ways.items(), strict=True):
        feign_gpu(host)
        start(host, name, *HEALTHY, *options)
    run = check(boxes, [{"podman": name} for name in ways])
    for host, name in zip(boxes.hosts, ways, strict=True):
        end(host, name)
        host.run("umount -l /dev")
    assert [(found["name"], found["hosts"], found["message"]) for found in run.report["diagnoses"]] == [
        ("container-differs", ["node1"], "The Podman container \"without\" on node1 has no GPU: the host's /dev/nvidia0 is missing from the container's /dev (ENOENT)."),
        ("container-differs", ["node2"], "The Podman container \"refused\" on node2 has no access to /dev/nvidia0 (EACCES)."),
    ]  # fmt: skip


@pytest.mark.parametrize("phase", ["facts", "smoke"])
def test_a_container_that_stops_in_the_middle_is_named(boxes: Lab, phase: str) -> None:
    """Its interpreter takes its time there, so that it is stopped in that phase: in the last the others' ranks wait."""
    one, two, _ = boxes.hosts
    tried = 2 if phase == "smoke" else 3  # each more imports torch
    slow = f"import os, time\ntime.sleep({LONG_S} * (('NCDOCTOR_ALLREDUCE' in os.environ) is {phase == 'smoke'}))\n"
    two.write("/opt/slow/sitecustomize.py", slow)
    start(two, phase, *HEALTHY, "--volume=/opt/slow:/opt/slow:ro", "--env=PYTHONPATH=/opt/slow")
    inside = [{"podman": "train"}, {"podman": phase}, {"podman": "train"}]
    hosts = [{"name": host.name, "inside": its} for host, its in zip(boxes.hosts, inside, strict=True)]
    boxes.controller.write("/root/stopping.yaml", boxes.hosts_file(hosts=hosts[:tried]))
    with start_in(boxes.controller, "check", "stopping.yaml", "-o", "json") as running:
        if phase == "facts":
            two.wait_until(lambda: any("zlib.decompress" in line for _, line in two.processes()), "the probe")
        else:
            one.wait_until(lambda: len(all_reduce_processes(one)) > 1, "the ranks of another host")
        two.run(["podman", "stop", "-t", "0", phase])
        report = json.loads(running.communicate()[0])
    (found,) = report["diagnoses"]
    assert found["hosts"] == ["node2"]
    assert f'the Podman container \\"{phase}\\" is not running (running containers: train)' in json.dumps(found)
    if phase == "facts":
        assert found["name"] == "container-unreachable"
        (command,) = found["fix"]["commands"]
        assert (command["host"], command["command"]) == ("node2", "podman start facts")
        assert command["place"] == 'outside the Podman container "facts"'
    end(two, phase)
    gone(boxes)
