"""Functions that read nf_tables chains over netlink and return rules in nft's JSON form (libnftables-json(5)).

``nft list chain`` reads all anonymous sets of the table, which takes 300 ms for kube-proxy's table. Reading a chain
over netlink takes 1 ms. Only the expressions in typical filter rules are supported, such as counters, verdicts, named
sets and maps, and comparisons of addresses, ports, protocols, interfaces and connection states. For any other
expression, :class:`OtherExpressionError` is raised, and the caller reads the whole table with nft.

The constants are defined in linux/netfilter/nf_tables.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from typing import Any, Dict, Iterator

from nccl_doctor.probe.netlink import attributes, dump

NETLINK_NETFILTER = 12
GET_TABLE, GET_RULE = 10 << 8 | 1, 10 << 8 | 7  # NFNL_SUBSYS_NFTABLES, NFT_MSG_GETTABLE and NFT_MSG_GETRULE
FAMILIES = {"inet": 1, "ip": 2, "arp": 3, "netdev": 5, "bridge": 7, "ip6": 10}
DORMANT = 1
MOST_CHAINS = 64
TIMEOUT_S = 2.0
_BODY = struct.Struct("!BBH")  # struct nfgenmsg
_NESTED = 0x3FFF  # without the flags of an attribute's type
_NUMBER = struct.Struct("!I")
_LONG = struct.Struct("!Q")

_META = {4: "iif", 5: "oif", 6: "iifname", 7: "oifname", 15: "nfproto", 16: "l4proto"}
_PAYLOAD = {
    # base, offset and length, for the protocols that the rest of the rule or the family decides
    (1, 9, 1): ("ip", "protocol"),
    # a prefix of whole bytes is loaded as so many bytes
    **{(1, 12, size): ("ip", "saddr") for size in range(1, 5)},
    **{(1, 16, size): ("ip", "daddr") for size in range(1, 5)},
    **{(1, 8, size): ("ip6", "saddr") for size in range(5, 17)},
    **{(1, 24, size): ("ip6", "daddr") for size in range(1, 17)},
    (2, 0, 2): ("th", "sport"),
    (2, 2, 2): ("th", "dport"),
}
_NETWORKS = {"ip": ("ip",), "ip6": ("ip6",), "inet": ("ip", "ip6")}  # protocols of the network header, by family
_CT = {0: "state"}
_STATES = {1: "invalid", 2: "established", 4: "related", 8: "new", 64: "untracked"}
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=")
_VERDICTS = {0: "drop", 1: "accept", -1: "continue", -5: "return"}
_JUMPS = {-3: "jump", -4: "goto"}
_REJECTS = {0: "icmp", 1: "tcp reset", 2: "icmpx"}
_CODES = {"icmp": {3: "port-unreachable"}, "icmpx": {1: "port-unreachable", 3: "admin-prohibited"}}
_PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "ipv6-icmp"}
_NUMBERS = {"l4proto": _PROTOCOLS, "protocol": _PROTOCOLS, "nfproto": {2: "ipv4", 10: "ipv6"}}

NftExpression = Dict[str, Any]


class OtherExpressionError(ValueError):
    """Error for a rule with an expression that this module does not support."""


class Chains:
    """The chains of one nf_tables table, which are read through a netlink socket."""

    def __init__(self, family: str, table: str) -> None:
        self.family, self.table = family, table
        self._kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._kernel.settimeout(TIMEOUT_S)

    def close(self) -> None:
        self._kernel.close()

    def is_dormant(self) -> bool:
        for body in list(dump(self._kernel, GET_TABLE, self._head())):  # all of it: the rest would come first later
            fields = attributes(body[_BODY.size :])
            if _text(fields[1]) == self.table:
                return bool(_NUMBER.unpack(fields[2])[0] & DORMANT)
        raise OtherExpressionError("the table is gone")

    def rules(self, chain: str) -> list[dict[str, Any]]:
        """Return the rules of a chain in the form of ``nft -j list chain``."""
        # a kernel that does not filter by chain sends the rules of all, so each is looked at
        asked = self._head() + _string(1, self.table) + _string(2, chain)
        rules = []
        for body in list(dump(self._kernel, GET_RULE, asked)):
            rule = attributes(body[_BODY.size :])
            if (_text(rule[1]), _text(rule[2])) == (self.table, chain):
                where = {"family": self.family, "table": self.table, "chain": chain}
                parts = list(_Rule(self.family).read(rule.get(4, b"")))
                rules.append({**where, "handle": _LONG.unpack(rule[3])[0], "expr": parts})
        return rules

    def _head(self) -> bytes:
        return _BODY.pack(FAMILIES[self.family], 0, 0)


def targets(listed: list[Any]) -> Iterator[str]:
    """Yield the names of the chains that are jump targets of the given expressions or map elements."""
    for item in listed:
        part = item[-1] if isinstance(item, list) else item  # an element is a key and a verdict
        for kind in ("jump", "goto"):
            if isinstance(part, dict) and kind in part:
                yield part[kind]["target"]


def sets(rules: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the kind ("set" or "map") and name of each named set or map in the given rules."""
    for part in (part for rule in rules for part in rule["expr"]):
        if "vmap" in part:
            yield "map", part["vmap"]["data"][1:]
        elif isinstance(part.get("match", {}).get("right"), str) and part["match"]["right"].startswith("@"):
            yield "set", part["match"]["right"][1:]


class _Rule:
    """A parser that reads the expressions of a rule and keeps track of the register contents."""

    def __init__(self, family: str) -> None:
        self._family = family
        # by number of 32 bits: what was loaded, and how many bytes it has; and masks that were laid over it
        self._loaded: dict[int, tuple[Any, int]] = {}
        self._masks: dict[int, bytes] = {}

    def read(self, listed: bytes) -> Iterator[NftExpression]:
        for element in _each(listed):
            expression = _nested(element)
            name, data = _text(expression[1]), _nested(expression.get(2, b""))
            if name in ("payload", "meta", "ct", "bitwise"):
                self._load(name, data)
            elif name == "reject":
                yield _reject(data, self._family)
            elif name in _PARTS:
                yield _PARTS[name](data)
            elif name == "cmp":
                at = _register(data[1])
                mask = self._masks.pop(at, None)
                yield _comparison(self._loaded[at][0], _NUMBER.unpack(data[2])[0], _value(data[3]), mask)
            elif name == "lookup":
                yield _look_up(self._loaded, data)
            else:
                raise OtherExpressionError(name)

    def _load(self, name: str, data: dict[int, bytes]) -> None:
        if 1 not in data:
            raise OtherExpressionError("a statement that changes the packet")
        to = _register(data[1])
        if name == "bitwise":
            if data.get(2) != data[1] or any(_value(data[5])):
                raise OtherExpressionError(name)
            self._masks[to] = _value(data[4])
            return
        self._masks.pop(to, None)
        if name == "payload":
            base, offset, length = (_NUMBER.unpack(data[key])[0] for key in (2, 3, 4))
            protocol, field = _known(_PAYLOAD, (base, offset, length))
            if base == 1 and protocol not in _NETWORKS.get(self._family, ()):
                raise OtherExpressionError("a field of another protocol")
            self._loaded[to] = {"payload": {"protocol": protocol, "field": field}}, length
        elif name == "meta":
            key = _known(_META, _NUMBER.unpack(data[2])[0])
            self._loaded[to] = {"meta": {"key": key}}, 16 if key.endswith("name") else 4
        else:
            self._loaded[to] = {"ct": {"key": _known(_CT, _NUMBER.unpack(data[2])[0])}}, 4


def _comparison(left: Any, operator: int, value: bytes, mask: bytes | None) -> NftExpression:  # noqa: ANN401 - JSON
    if left == {"ct": {"key": "state"}}:
        bits = struct.unpack("=I", mask or b"")[0]
        if _OPERATORS[operator] != "!=" or any(value) or not bits or bits & ~sum(_STATES):
            raise OtherExpressionError("a state that is compared in another way")
        words = [word for bit, word in _STATES.items() if bits & bit]
        return {"match": {"op": "in", "left": left, "right": words if len(words) > 1 else words[0]}}
    return {"match": {"op": _OPERATORS[operator], "left": left, "right": _shown(left, value, mask)}}


def _shown(left: Any, value: bytes, mask: bytes | None) -> Any:  # noqa: ANN401 - JSON
    field = left["payload"]["field"] if "payload" in left else left["meta"]["key"]
    if field in ("saddr", "daddr"):
        return _network(value, mask, 4 if left["payload"]["protocol"] == "ip" else 16)
    if mask is not None:
        raise OtherExpressionError("a mask")
    if field in ("iifname", "oifname"):
        text = value.rstrip(b"\0").decode()
        return text if value.endswith(b"\0") else text + "*"
    number = int.from_bytes(value, sys.byteorder if field in ("iif", "oif") else "big")
    if field in ("iif", "oif"):
        return socket.if_indextoname(number)
    return _NUMBERS.get(field, {}).get(number, number)


def _network(value: bytes, mask: bytes | None, size: int) -> Any:  # noqa: ANN401 - JSON
    """Convert a value to an address of ``size`` bytes.

    If ``value`` has fewer than ``size`` bytes, or if ``mask`` covers only a part of the address, the result is a
    prefix.
    """
    address = str(ipaddress.ip_address(value.ljust(size, b"\0")))
    mask = (mask or b"\xff" * len(value)).ljust(size, b"\0")
    length = sum(bin(byte).count("1") for byte in mask)
    if int.from_bytes(mask, "big") != (1 << 8 * size) - (1 << 8 * size - length):
        raise OtherExpressionError("a mask that is no prefix")
    return address if length == 8 * size else {"prefix": {"addr": address, "len": length}}


def _look_up(registers: dict[int, tuple[Any, int]], data: dict[int, bytes]) -> NftExpression:
    name, at = _text(data[1]), _register(data[2])
    if name.startswith("__"):
        raise OtherExpressionError("a set without a name")
    parts = []
    while at in registers:
        part, size = registers[at]
        parts.append(part)
        at += -(-size // 4)
    key = parts[0] if len(parts) == 1 else {"concat": parts}
    if 3 in data:
        if _register(data[3]) != _VERDICT:
            raise OtherExpressionError("a map of values")
        return {"vmap": {"key": key, "data": f"@{name}"}}
    inverse = bool(_NUMBER.unpack(data.get(5, b"\0" * 4))[0] & 1)
    return {"match": {"op": "!=" if inverse else "==", "left": key, "right": f"@{name}"}}


def _immediate(data: dict[int, bytes]) -> NftExpression:
    if _register(data[1]) != _VERDICT:
        raise OtherExpressionError("a value")
    return _verdict(_nested(_nested(data[2])[2]))


def _counter(data: dict[int, bytes]) -> NftExpression:
    count, size = (_LONG.unpack(data[key])[0] for key in (2, 1))
    return {"counter": {"packets": count, "bytes": size}}


def _verdict(data: dict[int, bytes]) -> NftExpression:
    code = struct.unpack("!i", data[1])[0]
    if code in _JUMPS:
        return {_JUMPS[code]: {"target": _text(data[2])}}
    return {_known(_VERDICTS, code): None}


def _reject(data: dict[int, bytes], family: str) -> NftExpression:
    kind = _known(_REJECTS, _NUMBER.unpack(data[1])[0])
    if kind == "tcp reset":
        return {"reject": {"type": kind}}
    if kind == "icmp" and family != "ip":
        raise OtherExpressionError("a reject of another protocol")
    return {"reject": {"type": kind, "expr": _known(_CODES[kind], data[2][0])}}


_PARTS = {"immediate": _immediate, "counter": _counter}
_VERDICT = -8  # NFT_REG_VERDICT, as :func:`_register` counts


def _register(data: bytes) -> int:
    """Return the index of a register in 32-bit units.

    Registers 1 to 4 have 128 bits, and registers from 8 on have 32 bits.
    """
    number: int = _NUMBER.unpack(data)[0]
    return _VERDICT if number == 0 else 4 * (number - 1) if number <= 4 else number - 8


def _known(table: dict[Any, Any], key: object) -> Any:  # noqa: ANN401 - of the table's kind
    if key not in table:
        raise OtherExpressionError(f"{key}")
    return table[key]


def _value(data: bytes) -> bytes:
    return _nested(data)[1]


def _nested(data: bytes) -> dict[int, bytes]:
    return {kind & _NESTED: value for kind, value in attributes(data).items()}


def _each(data: bytes) -> Iterator[bytes]:
    """Yield the values of a list of netlink attributes."""
    while len(data) >= 4:
        length = struct.unpack_from("=H", data)[0]
        if length < 4:
            return
        yield data[4:length]
        data = data[length + 3 & ~3 :]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


def _string(kind: int, text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)
