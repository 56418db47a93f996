"""`scripts/lab`: the lab by hand."""

import argparse
import signal
import sys
import time

from nccl_doctor.model.ports import GRACE_S
from tests.lab import state
from tests.lab.cluster import Lab
from tests.lab.errors import LabError
from tests.lab.faults import all_faults, fault
from tests.lab.plan import CONTROLLER
from tests.lab.requirements import require_lab


def main(words: list[str] | None = None) -> int:
    """Run one command, that of the command line by default; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/lab", description="A cluster in a box, to try nccl-doctor on.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="build a lab; it stands until 'down'")
    up.add_argument("--hosts", type=int, default=3, metavar="N", help="how many hosts (default 3)")
    up.add_argument("--fault", action="append", default=[], metavar="NAME", help="break a host; may be repeated")
    up.add_argument(
        "--on",
        action="append",
        default=[],
        metavar="HOST",
        help="the host to break (default node1); one for all, or each",
    )
    commands.add_parser("down", help="take the lab down")
    shell = commands.add_parser("shell", help="a shell, or one command, on a host")
    shell.add_argument("host", help="node1, node2, ... or ctl, the controller")
    shell.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND", help="default: bash")
    commands.add_parser("faults", help="list the faults")
    arguments = parser.parse_args(words)
    try:
        if arguments.command == "faults":
            return _faults()
        require_lab()
        if arguments.command == "up":
            return _up(arguments.hosts, arguments.fault, arguments.on or ["node1"])
        if arguments.command == "down":
            return _down()
        return _shell(arguments.host, arguments.words or ["bash"])
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


def _up(hosts: int, faults: list[str], names: list[str]) -> int:
    if state.load() is not None:
        raise LabError("A lab stands already; 'scripts/lab down' takes it down.")
    if len(names) not in (1, len(faults)):
        raise LabError(f"--on names {len(names)} hosts for {len(faults)} faults; name one host, or one for each fault.")
    breaks = [fault(wanted) for wanted in faults]
    begin = time.monotonic()
    lab = Lab.up(hosts, detached=True)
    try:
        lab.controller.write("/root/hosts.yaml", lab.hosts_file())
        for break_host, name in zip(breaks, names * len(breaks) if len(names) == 1 else names, strict=True):
            break_host(lab, lab.host(name))
        state.save(lab)
        if any(wanted.startswith("stale") for wanted in faults):
            time.sleep(GRACE_S)  # what is younger may just be starting, and nobody calls it left behind
    except BaseException:
        lab.down()
        raise
    print(f"{hosts} hosts and ctl, the controller, stand after {time.monotonic() - begin:.1f} s.", *faults)
    print("Hosts file:   /root/hosts.yaml on ctl")
    print("Try the tool: scripts/lab shell ctl nccl-doctor check hosts.yaml")
    print("Look around:  scripts/lab shell node1")
    print("Take it down: scripts/lab down")
    return 0


def _down() -> int:
    state.load_or_fail().down()
    state.STATE.unlink()
    return 0


def _shell(name: str, words: list[str]) -> int:
    try:
        process = state.load_or_fail().host(name).popen(words, stdin=sys.stdin)
    except OSError as error:  # as a shell: 127 is "not found", 126 "can't be started"
        hint = f"; it is on {CONTROLLER}, the controller" if words[0] == "nccl-doctor" else ""
        print(f"{name}: {words[0]}: {error.strerror}{hint}.", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which the terminal tells as well
    status = process.wait()
    return status if status >= 0 else 128 - status


def _faults() -> int:
    for name, effect in all_faults().items():
        print(f"{name:24} {effect}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
