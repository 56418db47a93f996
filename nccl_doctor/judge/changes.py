"""Commands that ``nccl-doctor fix`` may run, and how each is undone.

A command is parsed from its words, as :func:`nccl_doctor.text.shell.line` quoted them. Commands that are not in this
table are never run: they only show something, need judgement, or must be typed by a person.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nccl_doctor.text.shell import Line, argument, line, nested, script

SHM = "/dev/shm"  # noqa: S108 - the tmpfs itself
_QUICK_S, _SLOW_S = 60.0, 600.0  # building kernel modules is slow, and so is a process that gets time to exit


@dataclass(frozen=True)
class Change:
    """A change to a machine.

    Attributes:
        root: it needs root, even if its diagnosis does not say so.
        survives_reboot: None if that depends on the machine.
        undo: the command that undoes it, or None; ``{before}`` is a word that ``reads`` printed.
        in_place: succeeds while the change is still in place; guards ``undo``.
        reads: prints the values before the change, one per line.
        already: text in the command's output that shows that a part was there before; such lines are passed to
            ``undo``.
        ends_process: a process is ended.
        deadline_s: time limit of the command in seconds.
        last: it applies other changes, and is run after them, also when they are undone.
    """

    root: bool = True
    survives_reboot: bool | None = False
    undo: Callable[[Sequence[str]], Line | None] | None = None
    in_place: Line | None = None
    reads: Line | None = None
    already: str | None = None
    ends_process: bool = False
    deadline_s: float = _QUICK_S
    last: bool = False


def change_of(command: str) -> Change | None:
    """Return the change that a command makes; None if ``fix`` may not run it."""
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        return None
    for matches, read in _TABLE:
        found = read(words) if words[: len(matches)] == matches else None
        if found is not None:
            return found
    return None


def _both(tests: Sequence[Line]) -> Line:
    """Return a line that succeeds if all of these do."""
    joined = tests[0]
    for test in tests[1:]:
        joined = script("{joined} && {test}", joined=joined, test=test)
    return joined


def _always(line_: Line | None) -> Callable[[Sequence[str]], Line | None]:
    return lambda _before: line_


_SYSCTL = re.compile(r"[\w./-]+")


def _sysctl(words: tuple[str, ...]) -> Change | None:
    pairs = [word.partition("=")[::2] for word in words[2:]]
    if not pairs or not all(_SYSCTL.fullmatch(name) and value for name, value in pairs):
        return None
    tests = [
        script('[ "$(echo $(sysctl -n {name}))" = {value} ]', name=argument(name), value=argument(value))
        for name, value in pairs
    ]

    def undo(before: Sequence[str]) -> Line | None:
        if len(before) != len(pairs):
            return None
        values = [" ".join(value.split()) for value in before]
        settings = [f"{name}={value}" for (name, _), value in zip(pairs, values, strict=True)]
        return line("sysctl -w {*settings}", settings=settings[::-1])

    return Change(undo=undo, in_place=_both(tests), reads=line("sysctl -n {*names}", names=[name for name, _ in pairs]))


def _firewalld(words: tuple[str, ...]) -> Change | None:
    if words[1:] == ("--reload",):
        return Change(undo=_always(line("firewall-cmd --reload")), survives_reboot=None, last=True)
    adding = [place for place, word in enumerate(words) if word.startswith("--add-")]
    if not adding:
        return None

    def undo(before: Sequence[str]) -> Line | None:
        # an entry that existed before, according to firewalld, stays; its message quotes the value
        kept = [
            word.replace("--add-", "--remove-", 1)
            for place, word in enumerate(words[1:], 1)
            if place not in adding or not any(word.partition("=")[2] in said for said in before if "=" in word)
        ]
        return _quoted("firewall-cmd", kept) if any(word.startswith("--remove-") for word in kept) else None

    single = [word.replace("--add-", "--query-", 1) for word in words[1:]]
    queries = [
        _quoted("firewall-cmd", [word for place, word in enumerate(single, 1) if place == one or place not in adding])
        for one in adding
    ]
    return Change(
        undo=undo,
        in_place=script("{all} >/dev/null", all=_both(queries)),
        already="ALREADY_ENABLED",
        survives_reboot="--permanent" in words,
    )


def _quoted(program: str, words: Sequence[str]) -> Line:
    """Return our own words, options included, each quoted."""
    return script("{words}", words=[argument(program), *map(argument, words)])


def _ufw(words: tuple[str, ...]) -> Change | None:
    rule = words[2:] if words[1:2] == ("prepend",) else words[1:]
    if rule[:1] != ("allow",):
        return None
    return Change(
        undo=lambda before: None if before else _quoted("ufw", ["delete", *rule]),
        already="Skipping adding existing rule",
        survives_reboot=True,
    )


def _nft(words: tuple[str, ...]) -> Change | None:
    # nft list chain F T C | grep -qF MARK || nft insert rule F T C …
    if (
        words[1:3] != ("list", "chain")
        or words[6:9] != ("|", "grep", "-qF")
        or words[10:14] != ("||", "nft", "insert", "rule")
    ):
        return None
    place, mark = words[3:6], words[9]
    if not re.fullmatch(r"nccl-doctor [0-9a-f]{8}", mark):
        return None
    listed = _quoted("nft", ["-a", "list", "chain", *place])
    handle = nested(f"s/.*{mark}.* # handle \\([0-9]*\\)$/\\1/p")
    undo = script(
        '{delete} handle "$({listed} | sed -n {handle})"',
        delete=_quoted("nft", ["delete", "rule", *place]),
        listed=listed,
        handle=handle,
    )
    return Change(
        undo=_always(undo),
        in_place=line("nft list chain {*place} | grep -qF {mark}", place=place, mark=mark),
        survives_reboot=False,
    )


def _iptables(words: tuple[str, ...]) -> Change | None:
    # iptables -w [-t T] -C CHAIN MATCH… 2>/dev/null || iptables -w [-t T] -I CHAIN MATCH…
    if "||" not in words:
        return None
    at = words.index("||")
    look, insert = [word for word in words[1:at] if word != "2>/dev/null"], words[at + 2 :]
    if "-I" not in insert or "-C" not in look or words[at + 1] != words[0]:
        return None
    deletion = ["-D" if word == "-I" else word for word in insert]
    return Change(
        undo=_always(_quoted(words[0], deletion)), in_place=script("{look} 2>/dev/null", look=_quoted(words[0], look))
    )


def _ip_rule(words: tuple[str, ...]) -> Change | None:
    # ip rule add to NETWORK lookup main priority 1
    if len(words) != 9 or (words[3], words[5], words[7]) != ("to", "lookup", "priority"):
        return None
    shown = f"to {words[4]} lookup {words[6]}"
    return Change(
        undo=_always(_quoted("ip", ["rule", "del", *words[3:]])),
        in_place=line("ip rule show | grep -qF {shown}", shown=shown),
    )


def _ip_route(words: tuple[str, ...]) -> Change | None:
    at = words.index("route")
    if words[at + 1 : at + 2] != ("del",) or len(words) < at + 3:
        return None
    adding = [*words[1 : at + 1], "add", *words[at + 2 :]]
    return Change(undo=_always(_quoted("ip", adding)), in_place=None)


def _hosts_file(words: tuple[str, ...]) -> Change | None:
    # printf '%s %s\n' ADDRESS NAME … >> /etc/hosts
    if words[-2:] != (">>", "/etc/hosts") or len(words) < 6 or len(words) % 2:
        return None
    entries = words[2:-2]
    lines = [f"{address} {name}" for address, name in zip(entries[::2], entries[1::2], strict=True)]
    known = [word for one in lines for word in ("-e", one)]
    undo = script(
        'rest=$({without} /etc/hosts) && printf "%s\\n" "$rest" > /etc/hosts', without=_quoted("grep", ["-vxF", *known])
    )
    present = [script("{grep} /etc/hosts", grep=_quoted("grep", ["-qxF", "-e", one])) for one in lines]
    return Change(undo=_always(undo), in_place=_both(present), survives_reboot=True)


def _interface_up(words: tuple[str, ...]) -> Change | None:
    return Change() if len(words) == 5 and words[4] == "up" else None


def _own(words: tuple[str, ...]) -> Change | None:
    """Return the change of ``nccl-doctor fix-port … --kill --yes``, which ends only the user's own stale job."""
    if "--kill" not in words or "--force" in words or "--pid" not in words:
        return None
    return Change(root=False, ends_process=True, survives_reboot=None, deadline_s=_SLOW_S)


def _kubectl_apply(words: tuple[str, ...]) -> Change | None:
    applied = words[1:2] == ("%s",) and words[3:] == ("|", "kubectl", "apply", "-f", "-")
    return Change(root=False, survives_reboot=True) if applied else None


def _exactly(**change: object) -> Callable[[tuple[str, ...]], Change]:
    made = Change(**change)  # type: ignore[arg-type]  # the fields of a Change
    return lambda _words: made


def _remount(words: tuple[str, ...]) -> Change | None:
    """Return the change to a larger /dev/shm, on the host or in a container with its own."""
    at = words.index("mount") if "mount" in words else len(words)
    good = words[at : at + 2] == ("mount", "-o") and words[at + 3 :] == (SHM,)
    return Change(root=words[0] == "mount") if good and words[at + 2].startswith("remount,size=") else None


_TABLE: tuple[tuple[tuple[str, ...], Callable[[tuple[str, ...]], Change | None]], ...] = (
    (("sysctl", "-w"), _sysctl),
    (("firewall-cmd",), _firewalld),
    (("ufw",), _ufw),
    (("nft",), _nft),
    *(((f"{name}{end}",), _iptables) for name in ("iptables", "ip6tables") for end in ("", "-nft", "-legacy")),
    (("ip", "rule", "add"), _ip_rule),
    (("ip", "route"), _ip_route),
    (("ip", "-6", "route"), _ip_route),
    (("ip", "link", "set"), _interface_up),
    (("printf", "%s %s\\n"), _hosts_file),
    (("printf", "%s"), _kubectl_apply),
    (("kubectl", "patch", "service"), _exactly(root=False, survives_reboot=True)),
    (("mount", "-o"), _remount),
    *(((runtime, "exec", "-u", "0", "--privileged"), _remount) for runtime in ("docker", "podman", "nerdctl")),
    *(
        ((runtime, verb), _exactly(root=False))
        for runtime in ("docker", "podman", "nerdctl")
        for verb in ("start", "unpause")
    ),
    (("mount", "-t", "tmpfs"), _exactly()),
    (("mkdir", "-p", SHM), _exactly()),
    (("chmod", "1777", SHM), _exactly()),
    (("chmod", "600"), _exactly(root=False, survives_reboot=True)),
    (("modprobe",), _exactly()),
    (("nvidia-modprobe",), _exactly()),
    (("dkms", "autoinstall"), _exactly(survives_reboot=True, deadline_s=_SLOW_S)),
    (("systemctl", "enable", "--now"), _exactly(survives_reboot=True)),
    (("nccl-doctor", "fix-port"), _own),
)
"""Beginnings of commands, and the functions that parse the rest."""
