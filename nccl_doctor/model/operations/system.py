"""Operations on the kernel's settings, routes and interfaces, and on files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from nccl_doctor.model.operation import SLOW_S, UNKNOWN, Operation, StateLines, all_of, in_turn
from nccl_doctor.text.shell import Line, line, nested, script

SHM = "/dev/shm"  # noqa: S108 - the tmpfs itself
GIB = 1 << 20  # in KiB
_BARE = re.compile(r"[\w./-]+", re.ASCII)


@dataclass(frozen=True)
class SysctlSet(Operation):
    """An operation that changes kernel settings. ``settings`` contains the name and the new value of each setting.

    ``earlier`` contains the values that the first ``len(earlier)`` settings had when the host was checked. The values
    in ``settings`` were derived from the values in ``earlier``.
    """

    settings: tuple[tuple[str, str], ...]
    earlier: tuple[str, ...] = ()
    cuts_connection: ClassVar[bool] = True

    @property
    def line(self) -> Line | None:
        return line("sysctl -w {*settings}", settings=[f"{name}={value}" for name, value in self.settings])

    @property
    def look(self) -> Line | None:
        """The command that prints, for each setting, a line that consists of "=" and the value.

        The "=" is needed because a value might be empty.
        """
        if not all(_BARE.fullmatch(name) for name, _ in self.settings):
            return None
        names = [line("{name}", name=name) for name, _ in self.settings]
        return in_turn(
            [
                name
                and script('value=$(sysctl -n {name}) || exit {unknown}; echo "="$value', name=name, unknown=UNKNOWN)
                for name in names
            ]
        )

    @property
    def expected(self) -> StateLines:
        """The lines that ``look`` prints after the change, with single spaces between the words of a value."""
        return _printed(value for _, value in self.settings)

    def is_outdated(self, before: StateLines) -> bool:
        """Return whether a setting has changed since the host was checked."""
        return before[: len(self.earlier)] != _printed(self.earlier)

    def undo(self, before: StateLines) -> Line | None:
        """Return the lines that restore the earlier values in reverse order, or None if an earlier value is unknown."""
        if len(before) != len(self.settings) or any(value[:1] != "=" for value in before):
            return None
        pairs = zip((name for name, _ in self.settings), before, strict=True)
        return all_of([_restored(name, value[1:]) for name, value in pairs][::-1])


def _printed(values: Iterable[str]) -> StateLines:
    return tuple("=" + " ".join(value.split()) for value in values)


def _restored(name: str, value: str) -> Line | None:
    if value:
        return line("sysctl -w {setting}", setting=f"{name}={value}")
    # not every sysctl(8) sets an empty value
    path = name if "/" in name else name.replace(".", "/")
    return line("echo | tee {path}", path=f"/proc/sys/{path}")


@dataclass(frozen=True)
class HostsEntry(Operation):
    """An operation that adds addresses and names to /etc/hosts.

    If the file had no final newline, the undo removes the newline that the operation added. On some machines,
    cloud-init or a container engine writes the file anew at each start.
    """

    entries: tuple[tuple[str, str], ...]
    survives_reboot: ClassVar[bool | None] = None

    @property
    def lines(self) -> list[str]:
        return [f"{address} {name}" for address, name in self.entries]

    @property
    def line(self) -> Line | None:
        """The command that appends the missing entries, after a newline if the file has no final newline."""
        end = script("tail -c1 /etc/hosts | grep -q . && echo >> /etc/hosts")
        once = [line("grep -qxF {one} /etc/hosts || echo {one} >> /etc/hosts", one=entry) for entry in self.lines]
        return in_turn([end, *once])

    @property
    def look(self) -> Line | None:
        """The command that prints whether the final newline is missing, and how often the file contains each entry."""
        counts = [line("grep -cxF -e {entry} /etc/hosts", entry=entry) for entry in self.lines]
        readable = script("[ -r /etc/hosts ] || exit {unknown}", unknown=UNKNOWN)
        end = script("tail -c1 /etc/hosts | grep -q . && echo open || echo closed")
        return in_turn([readable, end, *counts, script(":")])

    def holds(self, state: StateLines) -> bool:
        return len(state) == 1 + len(self.entries) and "0" not in state[1:]

    def undo(self, before: StateLines) -> Line | None:
        """Return the command that deletes one line for each new entry.

        The file's mode, owner and other lines are preserved.
        """
        new = [entry for entry, count in zip(self.lines, before[1:], strict=False) if count == "0"]
        if len(before) != 1 + len(self.entries) or not new:
            return None
        deletions = [nested(f"0,/^{re.escape(entry)}$/{{//d;}}") for entry in new]
        edits = [script("-e {edit}", edit=edit) for edit in deletions]
        # a bind mount, as in containers, can't be replaced as a whole; what a link leads to is edited, not the link
        deleting = script(
            'file=$(readlink -f /etc/hosts) && {{ sed -i {edits} "$file" 2>/dev/null || '
            '{{ text=$(sed {edits} "$file"; echo .) && printf %s "${{text%.}}" > "$file"; }}; }}',
            edits=edits,
        )
        if before[0] == "closed":
            return deleting
        last = line("{last}", last=new[-1])
        assert last is not None
        return script(
            'end=$(tail -n1 /etc/hosts); {deleting} && if [ "$end" = {last} ]; then truncate -s -1 /etc/hosts; fi',
            deleting=deleting,
            last=last,
        )


@dataclass(frozen=True)
class IpRule(Operation):
    """An operation that adds a policy rule for a network.

    With this rule, the kernel searches the main routing table first for routes to the network.
    """

    network: str
    cuts_connection: ClassVar[bool] = True

    @property
    def line(self) -> Line | None:
        """``ip rule add to NETWORK lookup main priority 1``."""
        return self._change("add")

    @property
    def look(self) -> Line | None:
        """The command that prints the rules that make the kernel look up the network in the main table."""
        family = script("-6" if ":" in self.network else "-4")
        search = line("grep -wF {rule}", rule=f"to {self.network.removesuffix('/32')} lookup main")
        return search and script(
            "rules=$(ip {family} rule show) || exit {unknown}; printf '%s\\n' \"$rules\" | {found}; :",
            family=family,
            unknown=UNKNOWN,
            found=search,
        )

    def holds(self, state: StateLines) -> bool:
        return any(f"to {self.network.removesuffix('/32')} lookup main" in rule for rule in state)

    def undo(self, before: StateLines) -> Line | None:
        return None if self.holds(before) else self._change("del")

    def _change(self, verb: str) -> Line | None:
        v6 = script("-6") if ":" in self.network else script("")
        change = "ip {v6} rule {verb} to {network} lookup main priority 1"
        return line(change, v6=v6, verb=verb, network=self.network)


@dataclass(frozen=True)
class IpRouteDelete(Operation):
    """An operation that deletes a route that discards packets.

    ``kind_of_route`` is "unreachable", "prohibit" or "blackhole".
    """

    kind_of_route: str
    destination: str
    table: str = "main"
    cuts_connection: ClassVar[bool] = True

    @property
    def line(self) -> Line | None:
        """``ip route del KIND DESTINATION [table TABLE]``."""
        return self._change("del")

    @property
    def look(self) -> Line | None:
        family = script("-6" if ":" in self.destination else "-4")
        shown = line(
            "ip {family} route show table {table} exact {destination} type {kind}",
            family=family,
            table=self.table,
            destination=self.destination,
            kind=self.kind_of_route,
        )
        return shown and script("{shown} || exit {unknown}", shown=shown, unknown=UNKNOWN)

    def holds(self, state: StateLines) -> bool:
        return not state

    def undo(self, before: StateLines) -> Line | None:
        """Return the commands that add the deleted routes again, each with its previous protocol and metric.

        The result is None if a route has other attributes, which the commands would not restore.
        """
        kept = [_kept(route) for route in before]
        return all_of([None if more is None else self._change("add", more) for more in kept])

    def _change(self, verb: str, more: tuple[str, ...] = ()) -> Line | None:
        table = () if self.table == "main" else ("table", self.table)
        v6 = script("-6") if ":" in self.destination else script("")
        holes = {"kind": self.kind_of_route, "destination": self.destination, "table": table, "more": more}
        return line("ip {v6} route {verb} {kind} {destination} {*table} {*more}", v6=v6, verb=verb, **holes)


_ROUTE = re.compile(
    r"\S+ \S+(?: dev lo)?(?P<kept>(?: proto [a-z0-9_]+)?(?: metric \d+)?)(?: error -?\d+)?(?: pref medium)?\s*",
    re.ASCII,
)


def _kept(route: str) -> tuple[str, ...] | None:
    """Return the protocol and metric of a route as arguments of ``ip route add``, or None for an unfamiliar route.

    ``route`` is a line that ``ip route show`` printed. The device, error and preference are the kernel's defaults.
    """
    shown = _ROUTE.fullmatch(route)
    return tuple(shown["kept"].split()) if shown else None


@dataclass(frozen=True)
class LinkUp(Operation):
    """An operation that brings an interface up."""

    name: str
    cuts_connection: ClassVar[bool] = True

    @property
    def line(self) -> Line | None:
        return line("ip link set {name} up", name=self.name)

    @property
    def look(self) -> Line | None:
        read = line("cat {file}", file=f"/sys/class/net/{self.name}/flags")
        return read and script("{read} || exit {unknown}", read=read, unknown=UNKNOWN)

    def holds(self, state: StateLines) -> bool:
        """Return whether the interface is up, as shown by the lowest bit of its flags (IFF_UP in linux/if.h)."""
        return _flags(state) & 1 == 1

    def undo(self, before: StateLines) -> Line | None:
        was_down = _flags(before) >= 0 and not self.holds(before)
        return line("ip link set {name} down", name=self.name) if was_down else None


def _flags(state: StateLines) -> int:
    """Return an interface's flags, or -2 (all bits but IFF_UP) if they could not be read."""
    known = len(state) == 1 and re.fullmatch("0x[0-9a-f]{1,8}", state[0])
    return int(state[0], 16) if known else -2


@dataclass(frozen=True)
class LinkMtu(Operation):
    """An operation that sets the MTU of an interface, in bytes.

    ``earlier`` is the MTU that the interface had when the host was checked.
    """

    name: str
    mtu: int
    earlier: int | None = None
    cuts_connection: ClassVar[bool] = True

    @property
    def line(self) -> Line | None:
        return line("ip link set dev {name} mtu {mtu}", name=self.name, mtu=self.mtu)

    @property
    def look(self) -> Line | None:
        read = line("cat {file}", file=f"/sys/class/net/{self.name}/mtu")
        return read and script("{read} || exit {unknown}", read=read, unknown=UNKNOWN)

    @property
    def expected(self) -> StateLines:
        return (str(self.mtu),)

    def is_outdated(self, before: StateLines) -> bool:
        """Return whether the MTU has changed since the host was checked."""
        return self.earlier is not None and before != (str(self.earlier),)

    def undo(self, before: StateLines) -> Line | None:
        known = len(before) == 1 and re.fullmatch("[0-9]{1,9}", before[0])
        return line("ip link set dev {name} mtu {mtu}", name=self.name, mtu=before[0]) if known else None


@dataclass(frozen=True)
class Remount(Operation):
    """An operation that enlarges /dev/shm on the host or, if ``runtime`` is set, in a container."""

    gib: int
    runtime: str = ""
    container: str = ""

    @property
    def _inside(self) -> Line | None:
        if not self.runtime:
            return script("")
        return line("{runtime} exec -u 0 --privileged {name}", runtime=self.runtime, name=self.container)

    @property
    def line(self) -> Line | None:
        """``mount -o remount,size=8g /dev/shm``."""
        return self._sized(f"{self.gib}g")

    @property
    def look(self) -> Line | None:
        """The command that prints the size of /dev/shm in KiB."""
        inside = self._inside
        return inside and script(
            "size=$({inside} df -P -k /dev/shm) || exit {unknown}; "
            'printf \'%s\\n\' "$size" | tail -n1 | {{ read -r _ size _; echo "$size"; }}',
            inside=inside,
            unknown=UNKNOWN,
        )

    def holds(self, state: StateLines) -> bool:
        return (size := _size(state)) is not None and size >= self.gib * GIB

    def undo(self, before: StateLines) -> Line | None:
        """Return the command that restores the previous size of /dev/shm, or None if this size is unknown."""
        size = _size(before)
        return None if size is None else self._sized(f"{size}k")

    def _sized(self, size: str) -> Line | None:
        inside = self._inside
        return inside and line("{inside} mount -o remount,size={size} /dev/shm", inside=inside, size=size)


def _size(state: StateLines) -> int | None:
    known = len(state) == 1 and re.fullmatch("[0-9]{1,15}", state[0])
    return int(state[0]) if known else None


class InContainer(Remount):
    """An operation that enlarges /dev/shm in a Podman container.

    Any user who may run commands in the container may perform this operation, unless AppArmor forbids it. In the
    containers of Docker and nerdctl, the default seccomp profile forbids it.
    """

    root: ClassVar[bool] = False


@dataclass(frozen=True)
class ShmFolder(Operation):
    """An operation that creates the directory /dev/shm."""

    @property
    def line(self) -> Line | None:
        return line("mkdir -p /dev/shm")

    @property
    def look(self) -> Line | None:
        return script("[ -d /dev/shm ] && echo there || echo missing")

    @property
    def expected(self) -> StateLines:
        return ("there",)

    def undo(self, before: StateLines) -> Line | None:
        """Return the command that removes /dev/shm if the directory is empty."""
        return line("rmdir /dev/shm") if before == ("missing",) else None


@dataclass(frozen=True)
class ShmMount(Operation):
    """An operation that mounts a tmpfs on /dev/shm."""

    @property
    def line(self) -> Line | None:
        return line("mount -t tmpfs -o mode=1777 tmpfs /dev/shm")

    @property
    def look(self) -> Line | None:
        return script("[ -r /proc/mounts ] || exit {unknown}; grep -c ' /dev/shm ' /proc/mounts; :", unknown=UNKNOWN)

    def holds(self, state: StateLines) -> bool:
        return len(state) == 1 and state[0].isdecimal() and state[0] != "0"

    def undo(self, before: StateLines) -> Line | None:
        return line("umount /dev/shm") if before == ("0",) else None


@dataclass(frozen=True)
class FileMode(Operation):
    """An operation that sets the mode of files that each boot creates anew, such as /dev/shm.

    ``mode`` is an octal number.
    """

    mode: str
    files: tuple[str, ...]

    @property
    def line(self) -> Line | None:
        return line("chmod {mode} {*files}", mode=self.mode, files=self.files)

    @property
    def look(self) -> Line | None:
        read = line("stat -L -c %a {*files}", files=self.files)
        return read and script("{read} || exit {unknown}", read=read, unknown=UNKNOWN)

    @property
    def expected(self) -> StateLines:
        return tuple(self.mode for _ in self.files)

    def undo(self, before: StateLines) -> Line | None:
        if len(before) != len(self.files) or not all(re.fullmatch("[0-7]{1,4}", mode) for mode in before):
            return None
        pairs = zip(before, self.files, strict=True)
        return all_of([line("chmod {mode} {file}", mode=mode, file=file) for mode, file in pairs if mode != self.mode])


class OwnFileMode(FileMode):
    """An operation that sets the mode of the user's own files."""

    root: ClassVar[bool] = False
    survives_reboot: ClassVar[bool | None] = True


@dataclass(frozen=True)
class ModuleLoad(Operation):
    """An operation that loads a kernel module.

    The operation has no undo, because other programs might use the module after it is loaded.
    """

    name: str

    @property
    def line(self) -> Line | None:
        return line("modprobe {name}", name=self.name)


@dataclass(frozen=True)
class NvidiaDevices(Operation):
    """An operation that creates /dev/nvidiactl, whose minor number is 255, and the device files of NVIDIA's GPUs."""

    gpus: int

    @property
    def line(self) -> Line | None:
        minors = [script("-c {minor}", minor=minor) for minor in (255, *range(self.gpus))]
        return script("nvidia-modprobe {minors}", minors=minors)


@dataclass(frozen=True)
class NvidiaUnifiedMemory(Operation):
    """An operation that loads the kernel module for unified memory and creates its device files.

    With -u, nvidia-modprobe creates no device files of GPUs.
    """

    @property
    def line(self) -> Line | None:
        return line("nvidia-modprobe -u -c 0")


@dataclass(frozen=True)
class ModulesBuild(Operation):
    """An operation that builds kernel modules for the running kernel with DKMS."""

    survives_reboot: ClassVar[bool | None] = True
    deadline_s: ClassVar[float] = SLOW_S

    @property
    def line(self) -> Line | None:
        return line("dkms autoinstall")
