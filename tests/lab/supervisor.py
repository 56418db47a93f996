"""The process that a lab hangs on: it is the switch, it starts every host, and the hosts end with it.

Started as `python -m tests.lab.supervisor`. It reads one JSON line, `{"hosts", "shm_size", "detached"}`, and answers
with one, `{"supervisor": pid, "hosts": [{"name", "address", "pid"}]}` or `{"error"}`. It lasts until its stdin closes
or, if detached, until SIGTERM. Should it be killed, the kernel kills the hosts (`PR_SET_PDEATHSIG`), and their
namespaces go with them.
"""

import gc
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from types import FrameType
from typing import NoReturn

from tests.lab import kernel, machine
from tests.lab.errors import LabError
from tests.lab.neighbours import room_for
from tests.lab.plan import HostPlan, make_plan
from tests.patience import LONG_S


def main() -> None:
    """Build the lab that stdin asks for, and keep it."""
    signal.signal(signal.SIGTERM, _leave)
    wish = json.loads(sys.stdin.readline())
    if wish["detached"] and os.fork():
        os._exit(0)
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    pids: list[int] = []
    with room_for(wish["hosts"]):
        try:
            plans = make_plan(wish["hosts"], shm_size=wish["shm_size"])
            _build(plans, pids)
            hosts = [
                {"name": plan.name, "address": str(plan.interface.ip), "pid": pid}
                for plan, pid in zip(plans, pids, strict=True)
            ]
            _answer({"supervisor": os.getpid(), "hosts": hosts})
            _wait(detached=wish["detached"])
        except (LabError, OSError) as error:
            _answer({"error": str(error)})
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            _end(pids)
            kernel.setns(outside, kernel.CLONE_NEWNET)


def _leave(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _answer(document: dict[str, object]) -> None:
    print(json.dumps(document), flush=True)  # noqa: T201 - stdout is the protocol


def _wait(*, detached: bool) -> None:
    if detached:
        signal.pause()
    sys.stdin.read()


def _build(plans: list[HostPlan], pids: list[int]) -> None:
    """Make the switch, start all hosts at once, and plug in those that are ready; `pids` grows with every start."""
    kernel.unshare(kernel.CLONE_NEWNET)
    switch_links = ("link set lo up", "link add br0 type bridge", f"address add {plans[0].gateway} dev br0")
    machine.ip_batch("\n".join([*switch_links, "link set br0 up\n"]))
    switch = os.open("/proc/self/ns/net", os.O_RDONLY)
    own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY)
    gc.freeze()  # a collection in a child would copy the pages that it shares with this process
    reports = [_start(plan, switch, own_pids, pids) for plan in plans]
    deadline = time.monotonic() + LONG_S
    for plan, report in zip(plans, reports, strict=True):
        _await(plan, report, deadline)
    machine.ip_batch("".join(f"link set {plan.name} master br0 up\n" for plan in plans))
    while not all(machine.runs(pid, "eth0") for pid in pids):
        if time.monotonic() > deadline:
            raise LabError(f"The hosts' links did not come up within {LONG_S:.0f} s.")
        time.sleep(0.005)


def _start(plan: HostPlan, switch: int, own_pids: int, pids: list[int]) -> int:
    """Fork a host's init; return the descriptor on which it reports."""
    report, sender = os.pipe()
    # Unsharing again would nest: each PID namespace must begin from our own.
    kernel.setns(own_pids, kernel.CLONE_NEWPID)
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _run_host(plan, switch, sender)
    pids.append(pid)
    os.close(sender)
    return report


def _run_host(plan: HostPlan, switch: int, sender: int) -> NoReturn:
    try:
        machine.become(plan, switch)
        os.write(sender, b"ready")
        machine.rest()
    except (LabError, OSError, subprocess.SubprocessError) as error:
        os.write(sender, str(error).encode())
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(1)


def _await(plan: HostPlan, report: int, deadline: float) -> None:
    ready, _, _ = select.select([report], [], [], max(0.0, deadline - time.monotonic()))
    text = os.read(report, 4096).decode() if ready else f"it took more than {LONG_S:.0f} s"
    os.close(report)
    if text != "ready":
        raise LabError(f"Lab host {plan.name} did not start: {text or 'it exited and printed nothing'}")


def _end(pids: list[int]) -> None:
    """Kill every host; a PID namespace's init is gone only after all its processes are (pid_namespaces(7))."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
