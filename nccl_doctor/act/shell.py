"""Provides a shell on a host, which runs one command at a time and limits the time of each command.

If the connection ends, the shell ends the running command, runs the commands registered with
:meth:`RemoteShell.revert_unless_kept`, and exits. A change that blocks access to the host is reverted even if
nccl-doctor is killed, this machine is suspended, or the network fails.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nccl_doctor.model.operation import QUICK_S
from nccl_doctor.probe.tools import SYSTEM
from nccl_doctor.text.shell import Line, argument, clean, script
from nccl_doctor.transport.base import Allowance, Channel

ANSWER_S = 20.0
MOST_OUTPUT = 1 << 20  # bytes of one command's output
LONGEST = 300  # characters of a line of output that are kept
_LINES = 40
_KILL_S = 5  # between timeout's TERM and KILL
ENDED_BY_TIMEOUT = (124, 128 + 9)  # timeout(1), "Exit status"

_SHELL = """\
LC_ALL=C; PATH={path}; export LC_ALL PATH
one() {{ tr -d ' \\t' 2>/dev/null < "$1" | grep . || echo -; }}
keys=$(cat /etc/ssh/ssh_host_*_key.pub 2>/dev/null | cksum | tr ' ' :)
echo; echo {nonce} ready "$(id -u)" "$(one /proc/sys/kernel/random/boot_id)" "$(one /etc/machine-id)" "$keys"
exec 4<&0 </dev/null
back=
command -v timeout >/dev/null && bounded=yes || bounded=
run() {{
if [ "$bounded" ]; then exec timeout -k {kill} "$1" /bin/sh -c "$2"; else exec /bin/sh -c "$2"; fi
}}
while read -r mark number seconds command <&4; do
[ "$mark" = {nonce} ] || continue
case $number in
revert) back="$command; $back"; trap : HUP PIPE TERM; continue ;;
keep) back=; trap - HUP PIPE TERM; continue ;;
esac
run "$seconds" "$command" 4<&- 2>&1 &
command=$!
(while read -r word <&4; do [ "$word" = ended ] && exit; done; kill "$command") &
guard=$!
wait "$command"; status=$?
echo; echo {nonce} end "$number" "$status"
wait "$guard"
done
[ ! "$back" ] || (run {quick} "$back") >/dev/null 2>&1
"""
"""A program for /bin/sh that prints the machine's identity and runs the commands in lines that begin with the nonce.

Lines without the nonce, such as a password that sudo did not request, are skipped.
"""


def shell_program(nonce: str, *, root: bool) -> Line:
    system = argument(":".join(SYSTEM))
    # root runs no program that another user may have put into a directory of the login's PATH
    path = system if root else script("$PATH:{system}", system=system)
    return script(_SHELL, path=path, nonce=argument(nonce), kill=_KILL_S, quick=int(QUICK_S))


@dataclass(frozen=True)
class CommandResult:
    """The exit status of a command, and the lines (or only the last lines) of the command's output."""

    status: int
    lines: tuple[str, ...]


class RemoteShell:
    """A shell that is ready on a host; ``hidden`` masks secrets in the output of the shell."""

    def __init__(self, channel: Channel, nonce: str, hidden: Callable[[str], str] = lambda text: text) -> None:
        self._channel, self._nonce, self._hidden, self._number = channel, nonce, hidden, 0

    def revert_unless_kept(self, undo: str) -> None:
        """Have the shell run ``undo`` if the connection ends before :meth:`keep` is called.

        The latest ``undo`` runs first.
        """
        self._channel.send(f"{self._nonce} revert 0 {undo}\n".encode(), time.monotonic() + ANSWER_S)

    def keep(self) -> None:
        self._channel.send(f"{self._nonce} keep\n".encode(), time.monotonic() + ANSWER_S)

    def hides(self, lines: Iterable[str]) -> bool:
        """Return whether any of the lines contains a secret that must not be shown."""
        return any(self._hidden(line) != line for line in lines)

    def run(self, command: str, seconds: float, *, whole: bool = False) -> CommandResult:
        """Run a command; raise TimeoutError, OSError, EOFError, or FloodError if the end of the command is not seen.

        If ``whole`` is true, all output lines are returned in full, because the caller evaluates them. If ``whole`` is
        false, only the last lines are returned for display, shortened and with secrets hidden.
        """
        self._number += 1
        until = time.monotonic() + seconds + _KILL_S + ANSWER_S
        self._channel.send(f"{self._nonce} {self._number} {int(seconds)} {command}\n".encode(), until)
        allowance = Allowance(MOST_OUTPUT)
        kept: deque[str] = deque(maxlen=None if whole else _LINES)
        while (line := self._channel.read_line(until)) is not None:
            allowance.spend(line)
            text = line.decode(errors="replace")
            words = text.split()
            if words[:3] == [self._nonce, "end", str(self._number)] and len(words) == 4 and words[3].isdecimal():
                self._channel.send(b"ended\n", until)
                return CommandResult(int(words[3]), tuple(kept))
            if whole:
                kept.append(clean(text).strip())
            else:
                kept.append(self._hidden(clean(text)[:LONGEST].strip()))
            if not kept[-1]:
                kept.pop()
        raise EOFError("the shell there ended")
