"""Reads pickles of plain values with limited memory, without importing or running any code.

The supported opcodes are those of protocols 2 to 5 (see the ``pickletools`` module) for dictionaries, lists, tuples,
strings, and numbers. Torch writes each stack frame once and refers to the frame in later calls, so a list or dictionary
can be referenced repeatedly. Each reference counts towards the limits like a copy, and a referenced list or dictionary
can no longer be changed.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from nccl_doctor.text.bounds import CrowdedError

MOST_MEMORY = 200 << 20
"""Memory limit, in bytes, for the values of a pickle.

A dump of 20,000 calls (ten times torch's default) with 20 stack frames each takes 170 MiB.
"""

MOST_VALUES = 6_000_000
"""Maximum number of values, including repeated references; a dump of 20,000 calls contains fewer values."""

DEEPEST = 8
"""Maximum nesting depth of lists and dictionaries; a flight-recorder dump has five levels."""

_LONGEST_NUMBER = 16
"""Maximum size of an integer in bytes; torch writes integers of eight bytes."""
_COST = 80
"""Assumed memory use, in bytes, of an opcode, a container item, or a memo entry."""


class NotPlainError(ValueError):
    """Error raised for a pickle that is damaged or contains anything but plain data, such as numbers and lists."""


class _Container:
    """A list, dictionary, or tuple with its ``size`` (the number of values) and its nesting ``depth``."""

    __slots__ = ("closed", "depth", "size", "value")

    def __init__(self, value: list[object] | dict[object, object] | tuple[object, ...]) -> None:
        self.value = value
        self.size, self.depth, self.closed = 0, 1, False


class _Machine:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        self._room, self._values = MOST_MEMORY, MOST_VALUES

    def run(self) -> object:
        data, memo, push, operations = self._data, self._memo, self._stack.append, _OPERATIONS
        while True:
            code = data[self._at]
            self._at += 1
            self._room -= _COST
            if self._room < 0:
                raise CrowdedError(f"it takes more than {MOST_MEMORY >> 20} MiB of memory")
            if code == _BINGET and type(text := memo[data[self._at]]) is str:  # every second opcode in torch's pickles
                self._at += 1
                push(text)
            elif code == _STOP:
                top = self.pop()
                return top.value if isinstance(top, _Container) else top
            elif code in operations:
                operations[code](self)
            else:
                raise NotPlainError(f"the opcode {code:#04x}")

    def skip(self, count: int) -> None:
        self._at += count

    def push(self, value: object) -> None:
        self._stack.append(value)

    def number(self, form: struct.Struct) -> None:
        self._stack.append(form.unpack(self._take(form.size))[0])

    def long(self) -> None:
        length = self._take(1)[0]
        if length > _LONGEST_NUMBER:
            raise NotPlainError(f"a number of {length} bytes")
        self._stack.append(int.from_bytes(self._take(length), "little", signed=True))

    def text(self, form: struct.Struct) -> None:
        raw = self._take(form.unpack(self._take(form.size))[0])
        self._room -= len(raw) if raw.isascii() else 4 * len(raw)
        if self._room >= 0:  # otherwise :meth:`run` raises
            self._stack.append(raw.decode("utf-8", "replace"))

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def open(self, kind: Callable[[], list[object] | dict[object, object] | tuple[object, ...]]) -> None:
        self._room -= _COST
        self._stack.append(_Container(kind()))

    def put(self, form: struct.Struct | None) -> None:
        self._room -= _COST
        self._memo[len(self._memo) if form is None else form.unpack(self._take(form.size))[0]] = self._stack[-1]

    def get(self, form: struct.Struct) -> None:
        value = self._memo[form.unpack(self._take(form.size))[0]]
        if isinstance(value, _Container):
            value.closed = True
            self._count(value.size)
        self._stack.append(value)

    def _take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) < count:
            raise NotPlainError("it ends too early")
        self._at += count
        return part

    def pop(self) -> object:
        if self._marks and len(self._stack) <= self._marks[-1]:
            raise NotPlainError("nothing on the stack above the mark")
        return self._stack.pop()

    def marked(self) -> list[object]:
        first = self._marks.pop()
        items = self._stack[first:]
        del self._stack[first:]
        return items

    def _within(self, kind: type) -> _Container:
        top = self._stack[-1]
        if not isinstance(top, _Container) or type(top.value) is not kind:
            raise NotPlainError("something is added to what is not a list or map")
        if top.closed:
            raise NotPlainError("a list or map changes after it was fetched")
        return top

    def extend(self, items: list[object]) -> None:
        owner = self._within(list)
        assert isinstance(owner.value, list)
        owner.value += self._held(owner, items)

    def update(self, items: list[object]) -> None:
        owner = self._within(dict)
        assert isinstance(owner.value, dict)
        keys, values = items[::2], self._held(owner, items[1::2])
        if len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
            raise NotPlainError("a key that is not a text")  # numbers can be chosen so that all have the same hash
        self._room -= _COST * len(keys)
        owner.value.update(zip(keys, values, strict=True))

    def tuple_of(self, items: list[object]) -> None:
        owner = _Container(())
        owner.value = tuple(self._held(owner, items))
        self._stack.append(owner)

    def _held(self, owner: _Container, items: list[object]) -> list[object]:
        """Return the plain values of ``items`` and update the size and depth of ``owner``."""
        owner.size += len(items)
        self._count(len(items))
        bare: list[object] = []
        for item in items:
            if type(item) is _Container:
                owner.size += item.size
                if item.depth >= owner.depth:
                    owner.depth = item.depth + 1
                bare.append(item.value)
            else:
                bare.append(item)
        if owner.depth > DEEPEST:
            raise CrowdedError(f"its lists and maps are more than {DEEPEST} deep")
        return bare

    def _count(self, values: int) -> None:
        self._values -= values
        if self._values < 0:
            raise CrowdedError(f"it holds more than {MOST_VALUES:,} values")


_BYTE, _SHORT, _INT, _UNSIGNED = (struct.Struct(form) for form in ("<B", "<H", "<i", "<I"))
_FLOAT = struct.Struct(">d")
_STOP, _BINGET = ord("."), ord("h")
_OPERATIONS: dict[int, Callable[[_Machine], None]] = {
    0x80: lambda machine: machine.skip(1),  # PROTO
    0x95: lambda machine: machine.skip(8),  # FRAME
    ord("("): _Machine.mark,
    ord("N"): lambda machine: machine.push(None),
    0x88: lambda machine: machine.push(True),
    0x89: lambda machine: machine.push(False),
    ord("J"): lambda machine: machine.number(_INT),
    ord("K"): lambda machine: machine.number(_BYTE),
    ord("M"): lambda machine: machine.number(_SHORT),
    0x8A: _Machine.long,
    ord("G"): lambda machine: machine.number(_FLOAT),
    ord("X"): lambda machine: machine.text(_UNSIGNED),
    0x8C: lambda machine: machine.text(_BYTE),
    ord("}"): lambda machine: machine.open(dict),
    ord("]"): lambda machine: machine.open(list),
    ord("s"): lambda machine: machine.update([machine.pop(), machine.pop()][::-1]),
    ord("u"): lambda machine: machine.update(machine.marked()),
    ord("a"): lambda machine: machine.extend([machine.pop()]),
    ord("e"): lambda machine: machine.extend(machine.marked()),
    ord(")"): lambda machine: machine.open(tuple),
    0x85: lambda machine: machine.tuple_of([machine.pop() for _ in range(1)][::-1]),
    0x86: lambda machine: machine.tuple_of([machine.pop() for _ in range(2)][::-1]),
    0x87: lambda machine: machine.tuple_of([machine.pop() for _ in range(3)][::-1]),
    ord("t"): lambda machine: machine.tuple_of(machine.marked()),
    ord("q"): lambda machine: machine.put(_BYTE),
    ord("r"): lambda machine: machine.put(_UNSIGNED),
    0x94: lambda machine: machine.put(None),
    _BINGET: lambda machine: machine.get(_BYTE),
    ord("j"): lambda machine: machine.get(_UNSIGNED),
}


def read(data: bytes) -> object:
    """Return the value in the pickle.

    A damaged pickle or an unsupported value raises NotPlainError, and a pickle that exceeds the limits raises
    CrowdedError.
    """
    try:
        return _Machine(data).run()
    except (IndexError, KeyError, TypeError) as error:
        raise NotPlainError("it is damaged") from error
