"""Stands in the place of a host's interpreter: runs the real probe, and changes what it answers. A program.

``lying_probe.py SEED MADE_UP PYTHON -I -c LOADER``: the seed decides which answers are changed and how; with "s" in
front they are the all-reduce's, with "p" those that ``fix-port`` asks for, with "h" those of ``hang``; with "H" none is.
With "a" the host accuses the first host that it dials: every dial to it failed, as it says.
MADE_UP is a file of what the host answers to ``hang`` in place of the real probe, "-" for none. It passes requests on as
they are, and ends with its stdin, as the probe does.
"""

from __future__ import annotations

import copy
import json
import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

REQUESTS = ("hello", "facts", "clock", "listen", "dial", "path_mtu", "unlisten", "firewall", "ways", "psutil")
WEIGHTS = (4, 30, 4, 14, 14, 6, 4, 2, 2, 1)
PORT = ("port", "free", "signal", "listen", "dial", "unlisten")
ALL_REDUCE = ("event", "smoke", "trial", "prepare_trials", "free_port")
HANG = ("ranks", "look", "ras", "dump", "starters", "py_spy")
OFTEN = (10, 10, 5, 1, 3, 1)
WAYS = ("values", "sizes", "words", "damage", "flood", "aside", "silence", "id", "nesting", "death")
PATIENT = (40, 40, 20, 10, 6, 4, 2, 6, 6, 6)
"""How often each way is taken; silence costs a time-out."""

VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 80, 65536, 10**30, -(10**30), 1e308, float("nan"), float("inf"), "", " ", "x" * 100_000, [], {},
    [[]], [None], {"$unknown": "no"}, {"$unknown": 1}, {"$skipped": "no"}, "; touch /tmp/pwned ;", "$(touch /tmp/pwned)",
    "\ud800", "\x1b[2J", "a\nb", "\0", "²", "2.²", "169.254.169.254", "::1", "fe80::1%$(id)", "0.0.0.0/0", "10.0.0.1/33",
    "0-30000000", "../../etc", "connected", "refused", "done", "stalled", "node1", "%s%n", "'\"`\\",
)  # fmt: skip

PIECES = ("x", "\n", "é", "x\n", " ", "\x1b[2J", "'; $(touch /tmp/pwned) `", "😀", "\0", "1,", '"', "\\")
LENGTHS = (257, 4070, 4096, 4097, 5000, 100_000, 3_000_000)
COUNTS = (65, 400, 5000, 60_000, 160_000)
NUMBERS: tuple[Any, ...] = (
    -1,
    2**31,
    2**53 + 1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    1e300,
    -1e300,
    5e-324,
    float("nan"),
)


def main() -> None:
    """Until the controller leaves, or the lie is that it dies."""
    seed, made_up, python, *arguments = sys.argv[1:]
    bundle = int(re.search(r"os\.read\(0,(\d+)-", arguments[-1])[1])  # type: ignore[index]  # the loader says so
    real = subprocess.Popen([python, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert real.stdin is not None
    assert real.stdout is not None
    sys.stdout.buffer.write(real.stdout.readline())  # that it reads
    sys.stdout.buffer.flush()
    real.stdin.write(sys.stdin.buffer.read(bundle))
    header = sys.stdin.buffer.readline()
    real.stdin.write(header)
    real.stdin.flush()
    liar = Liar(json.loads(header)["nonce"].encode(), random.Random(seed), seed[0])
    if made_up != "-":
        liar.made_up = json.loads(Path(made_up).read_text(encoding="utf-8"))
    threading.Thread(target=pass_on, args=(real.stdin, liar), daemon=True).start()
    for line in real.stdout:
        liar.answer(line)
    os._exit(real.wait())


def pass_on(into: BinaryIO, liar: Liar) -> None:
    """Requests as they come; the probe ends at their end, and with it this program."""
    for line in sys.stdin.buffer:
        if line.strip():  # else it is the pulse
            request = json.loads(line)
            liar.asked[request["id"]] = request.get("what", request["do"])
            liar.targets[request["id"]] = request.get("targets", [])
        try:
            into.write(line)
            into.flush()
        except BrokenPipeError:
            break
    into.close()


class Liar:
    """Which answers are changed, and how.

    Attributes:
        asked: what each request was, by its number.
        targets: whom each request has it dial, by its number.
        made_up: what is answered to some requests in place of the probe's own words.
    """

    def __init__(self, nonce: bytes, draw: random.Random, about: str) -> None:
        self.asked: dict[int, str] = {}
        self.targets: dict[int, list[Any]] = {}
        self._accused: str | None = None
        self.made_up: dict[str, Any] = {}
        self._nonce, self._draw = nonce, draw
        some = draw.choices(REQUESTS, WEIGHTS, k=draw.choice((1, 1, 2)))
        self._about = set(draw.choices(ALL_REDUCE, (6, 4, 1, 1, 1), k=2) if about == "s" else some)
        if about == "p":
            self._about = {draw.choice(PORT)}
        if about in "hH":
            self._about = set(draw.choices(HANG, OFTEN, k=draw.choice((1, 2)))) if about == "h" else set()
        (self._way,) = draw.choices(WAYS, PATIENT)
        if about == "a":
            self._about, self._way = {"dial"}, "accuse"

    def answer(self, line: bytes) -> None:
        """Says a line of the real probe, or something else."""
        _before, framed, text = line.partition(self._nonce)
        message = json.loads(text) if framed else {}
        kind = (
            "hello"
            if "hello" in message
            else "event"
            if "event" in message
            else self.asked.get(message.get("id", 0), "")
        )
        if kind in self.made_up:
            message = {"id": message["id"], "ok": copy.deepcopy(self.made_up[kind])}
            line = b"\n" + self._nonce + b" " + json.dumps(message).encode() + b"\n"
        if kind not in self._about:
            say(line)
        elif self._way == "values":
            self._frame(self._changed(message))
        else:
            getattr(self, f"_{self._way}")(message)

    def _accuse(self, message: Any) -> None:
        """Say of all dials to one host, the first that was dialled and is not this one, that they timed out."""
        told, targets = message["ok"], self.targets[message["id"]]
        self._accused = self._accused or targets[0][0]
        places = [place for place, target in enumerate(targets) if target[0] == self._accused]
        rows = [[place, port, "timed-out", None, 3.0] for place in places for port in targets[place][1]]
        failed = [row for row in told["failed"] if row[0] not in places] + rows
        asked = sum(len(target[1]) for target in targets)
        trips = [trip for trip in told["trips"] if trip[0] not in places]
        self._frame({**message, "ok": {**told, "connected": asked - len(failed), "failed": failed, "trips": trips}})

    def _frame(self, message: Any) -> None:
        say(b"\n" + self._nonce + b" " + json.dumps(message).encode() + b"\n")

    def _changed(self, message: Any) -> Any:
        part = "hello" if "hello" in message else "event" if "event" in message else "ok"
        if part in message and self._draw.random() < 0.9:
            return {**message, part: bent(message[part], self._draw)}
        return bent(message, self._draw)

    def _sizes(self, message: Any) -> None:
        part = "hello" if "hello" in message else "event" if "event" in message else "ok"
        self._frame({**message, part: swollen(message[part], self._draw)} if part in message else message)

    def _words(self, message: Any) -> None:
        """Says that it failed, at length."""
        words = [too_much("", self._draw) for _ in range(2)]
        said = {"error": words[0], **({"traceback": words[1]} if self._draw.random() < 0.7 else {})}
        if "hello" in message:
            said = {"refused": words[0]}
        elif "event" in message:
            said = {"event": {**message["event"], "error": words[0]}}
        self._frame({**{key: value for key, value in message.items() if key == "id"}, **said})

    def _aside(self, message: Any) -> None:
        """Says on stderr what nobody reads; it may end with that."""
        for _ in range(self._draw.choice((1, 100, 1000))):
            say((self._draw.choice(PIECES) * 65536).encode()[:65536], 2)
        if self._draw.random() < 0.3:
            self._death(message)
        self._frame(message)

    def _damage(self, message: Any) -> None:
        data = bytearray(json.dumps(message).encode())
        turn = self._draw.random()
        if turn < 0.4:
            data[self._draw.randrange(len(data))] = self._draw.randrange(256)
        elif turn < 0.7:
            del data[self._draw.randrange(len(data)) :]
        else:
            data += data
        say(b"\n" + self._nonce + b" " + bytes(data).replace(b"\n", b" ") + b"\n")

    def _flood(self, message: Any) -> None:
        size = self._draw.choice((1, 9, 40)) << 20
        frame = b"\n" + self._nonce + b" "
        event = {"id": message.get("id", 0), "event": {"local_rank": 0, "stage": "torch", "since": 1.0}}
        piece = self._draw.choice(
            (
                b"x" * 65536,
                b"x" * 65535 + b"\n",
                b"[]," * 20000,
                b"\n" * 65536,
                frame + json.dumps(event).encode() + b"\n",
            )
        )
        say(frame + b'{"id": 1, "ok": [' if self._draw.random() < 0.5 else b"")
        for _ in range(size // len(piece)):
            say(piece)
        self._frame(message)

    def _silence(self, _message: Any) -> None:
        """Says nothing, now and later."""
        self._about = {*REQUESTS, *ALL_REDUCE, *PORT, *HANG, ""}

    def _id(self, message: Any) -> None:
        for number in self._draw.choices((0, -1, 10**9, "1", None, [1], True, message.get("id", 0), 1, 2), k=3):
            self._frame({**message, "id": number})

    def _nesting(self, message: Any) -> None:
        depth = self._draw.choice((150, 1000, 100_000))
        self._frame(message | {"ok": "@"})
        opening, closing = self._draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
        data = json.dumps(message | {"ok": "@"}).encode().replace(b'"@"', opening * depth + b"1" + closing * depth)
        say(b"\n" + self._nonce + b" " + data + b"\n")

    def _death(self, _message: Any) -> None:
        os._exit(self._draw.choice((0, 1, 127, 139)))


def bent(value: Any, draw: random.Random) -> Any:
    """The value with some of its parts replaced, left out, doubled or added."""
    holder = [value]
    for _ in range(draw.choice((1, 1, 2, 5, 20))):
        places = [*_places(holder)]
        inside, key = draw.choice(places)
        turn = draw.random()
        if turn < 0.7 or inside is holder:
            inside[key] = copy.deepcopy(draw.choice(VALUES))
        elif turn < 0.8:
            del inside[key]
        elif turn < 0.9 and isinstance(inside, list):
            inside.extend(inside * draw.choice((1, 10)))
        elif isinstance(inside, dict):
            inside[draw.choice(("more", "", "\ud800", "169.254.169.254"))] = copy.deepcopy(draw.choice(VALUES))
    return holder[0]


def swollen(value: Any, draw: random.Random) -> Any:
    """The value with a few of its parts too long, too many, too deep or of another type."""
    holder = [value]
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        inside, key = draw.choice([*_places(holder)])
        inside[key] = too_much(inside[key], draw)
    return holder[0]


def too_much(value: Any, draw: random.Random) -> Any:
    """Far more of what the value is, or in its place."""
    sort = draw.choice((type(value), str, list, dict, int))
    if draw.random() < 0.1:
        return deep(draw.choice((20, 100, 150)), value)
    if sort is str:
        length = draw.choice(LENGTHS)
        return ((value if isinstance(value, str) else "") + draw.choice(PIECES) * length)[:length]
    count = draw.choice(COUNTS)
    if sort is list:
        return (value if isinstance(value, list) and value else [copy.deepcopy(draw.choice(VALUES))]) * count
    if sort is dict:
        inner = next(iter(value.values()), "") if isinstance(value, dict) else value
        return {f"k{number}": inner for number in range(count)} | (value if isinstance(value, dict) else {})
    return draw.choice(NUMBERS)


def deep(depth: int, value: Any) -> Any:
    """The value below so many lists."""
    for _ in range(depth):
        value = [value]
    return value


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with every key in it."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found


def say(data: bytes, number: int = 1) -> None:
    """Writes all of it."""
    try:
        while data:
            data = data[os.write(number, data) :]
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
