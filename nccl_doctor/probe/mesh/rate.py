"""Throughput test over one or more TCP streams to another host, whose mesh listener discards the data.

Each stream first checks the listener's nonce, so that no bulk data is sent to another program. The throughput is
calculated from the number of bytes that the receiving kernel acknowledges after TCP slow start (tcp_info in
linux/tcp.h). Each stream has a time limit and a byte limit. When the connection to the controller ends, the streams end
immediately, because unsent data is discarded when a socket is closed or its process is killed.

The sender counts as limiting the rate if the sending thread runs or waits for a CPU most of the time. The receiver
counts as limiting the rate if the sender often waits because of the receive window. A sender or receiver also counts as
limiting the rate if interrupts saturate one of its CPUs, or if its hypervisor withholds CPU time (steal). Packets
dropped by the sender's own queues (tc-tbf(8), tc-codel(8)) are retransmitted but not counted as lost in the network.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket
import struct
import threading
import time
from typing import Any, NamedTuple

from nccl_doctor.probe import netlink
from nccl_doctor.probe.facts import network
from nccl_doctor.probe.mesh.dials import end_with_reset, endpoints, tcp_info
from nccl_doctor.probe.tools import read

CHUNK = bytes(256 * 1024)  # written to the kernel at once; small enough for a CPU's cache
CONNECT_S = 2.0  # time for each stream's handshake and nonce
LEAST_SLOW_START_S, MOST_SLOW_START_S = 0.15, 1.0
ROUND_TRIPS = 12  # of slow start: 10 segments, doubled in each, are 60 MB
WAKE_S = 0.05
MORE_STREAMS = 4
BUSY = 0.8  # share of the time that one stream's thread needs a CPU, above which more streams are tried


class RateMark(NamedTuple):
    """Values of kernel counters at one time, for all streams, the streams' threads, and this machine's CPUs."""

    at: float
    acked: int
    retransmits: int
    segments: int
    rwnd_us: int
    wanted_ns: tuple[int, ...]  # by thread, the time that it ran or waited for a CPU
    cpus: tuple[tuple[int, int, int], ...]  # by CPU, ticks of interrupts, stolen, and all


class RateStream:
    """A connection to another host's listener, and the thread that sends data over the connection."""

    def __init__(self, request: dict[str, Any]) -> None:
        ((family, place),) = endpoints(request["address"], request["port"])
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.tid, self._stop = 0, threading.Event()
        self._left = int(request["most_bytes"])
        try:
            end_with_reset(self.sock)
            self.sock.settimeout(CONNECT_S)
            if request["source"]:
                self.sock.bind((request["source"], 0))
            self.sock.connect(place)
            self._hear(request["nonce"].encode(), time.monotonic() + CONNECT_S)
            self.sock.setblocking(False)
        except BaseException:
            self.sock.close()
            raise
        self._thread = threading.Thread(target=self._fill, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.sock.close()

    def _hear(self, nonce: bytes, deadline: float) -> None:
        heard = b""
        while len(heard) < len(nonce) and time.monotonic() < deadline:
            more = self.sock.recv(len(nonce) - len(heard))
            if not more:
                break
            heard += more
        if heard != nonce:
            raise ConnectionError(errno.EPROTO, "somebody else answers there")

    def _fill(self) -> None:
        self.tid = threading.get_native_id()
        waiting = select.poll()
        waiting.register(self.sock, select.POLLOUT)
        while self._left > 0 and not self._stop.is_set():
            try:
                self._left -= self.sock.send(CHUNK)
            except BlockingIOError:
                waiting.poll(WAKE_S * 1000)
            except OSError:  # the peer closed: the counters show how far it came
                return


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Send data to ``address`` and ``port`` for ``window_s`` seconds.

    Return the fields of ``snapshot.Rate``, or the error.

    If the thread of a single stream saturates a CPU, the test is repeated with more streams, and the higher rate is
    returned.
    """
    try:
        result = _send(request, request["streams"])
        if request["streams"] < MORE_STREAMS and result["sender_busy"] >= BUSY:
            more = _send(request, MORE_STREAMS)
            result = more if more["gbps"] >= result["gbps"] else result
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, str(error))}
    return result


def _send(request: dict[str, Any], count: int) -> dict[str, Any]:
    streams: list[RateStream] = []
    try:
        for _ in range(count):
            streams.append(RateStream(request))  # noqa: PERF401 - those that were opened are closed in any case
        round_trip = max(tcp_info(stream.sock)["rtt"] for stream in streams) / 1e6
        dropped = _dropped()  # packets lost in slow start are retransmitted later
        for stream in streams:
            stream.start()
        time.sleep(min(max(LEAST_SLOW_START_S, ROUND_TRIPS * round_trip), MOST_SLOW_START_S))
        first = _mark(streams)
        time.sleep(request["window_s"])
        last = _mark(streams)
        dropped = _dropped() - dropped
        round_trip_us = max(tcp_info(stream.sock)["rtt"] for stream in streams)
    finally:
        for stream in streams:
            stream.end()
    took = last.at - first.at
    wanted = [(after - before) / 1e9 / took for before, after in zip(first.wanted_ns, last.wanted_ns)]
    interrupts, stolen = _shares(first.cpus, last.cpus)
    return {
        "gbps": (last.acked - first.acked) * 8 / took / 1e9,
        "seconds": took,
        "streams": count,
        "rtt_us": round_trip_us,
        "retransmits": last.retransmits - first.retransmits,
        "segments": last.segments - first.segments,
        "dropped": max(dropped, 0),
        "sender_busy": min(max(wanted), 1.0),
        "reader_late": min((last.rwnd_us - first.rwnd_us) / 1e6 / took / count, 1.0),
        "interrupts": interrupts,
        "stolen": stolen,
    }


def _mark(streams: list[RateStream]) -> RateMark:
    infos = [tcp_info(stream.sock) for stream in streams]
    return RateMark(
        at=time.monotonic(),
        acked=sum(info["bytes_acked"] for info in infos),
        retransmits=sum(info["total_retrans"] for info in infos),
        segments=sum(info["segments"] for info in infos),
        rwnd_us=sum(info["rwnd_limited"] for info in infos),
        wanted_ns=tuple(_wanted_ns(stream.tid) for stream in streams),
        cpus=tuple(_cpus(read("/proc/stat") or "")),
    )


RTM_GETQDISC, ROOT = 38, 0xFFFFFFFF
TCA_STATS2, TCA_STATS_QUEUE = 7, 3
_QUEUE = struct.Struct("=BxxxiIII")  # struct tcmsg of linux/rtnetlink.h
_DROPS_AT = 8  # in struct gnet_stats_queue of linux/gen_stats.h


def _dropped() -> int:
    """Return how many packets this machine's network interfaces have dropped from their queues, or 0 if unknown."""
    try:
        (queues,) = netlink.read_tables([(RTM_GETQDISC, _QUEUE.pack(0, 0, 0, 0, 0))], time.monotonic() + 1)
    except OSError:
        return 0
    return sum(_drops(body) for body in queues)


def _drops(body: bytes) -> int:
    data = netlink.attributes(netlink.attributes(body[_QUEUE.size :]).get(TCA_STATS2, b"")).get(TCA_STATS_QUEUE, b"")
    _, _, _, parent, _ = _QUEUE.unpack_from(body)
    count: int = struct.unpack_from("=I", data, _DROPS_AT)[0] if parent == ROOT and len(data) >= _DROPS_AT + 4 else 0
    return count


def _wanted_ns(tid: int) -> int:
    """Return how long a thread has run or waited for a CPU, in nanoseconds.

    If the kernel has no schedstat, return the process's CPU time.
    """
    with contextlib.suppress(OSError, ValueError), open(f"/proc/self/task/{tid}/schedstat") as file:
        ran, waited, _ = file.read().split()
        return int(ran) + int(waited)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def _cpus(stat: str) -> list[tuple[int, int, int]]:
    """Return three numbers for each CPU in /proc/stat.

    The numbers are the ticks in hard and soft interrupts, the stolen ticks, and the total number of ticks.
    """
    cpus = []
    for line in stat.splitlines():
        name, *ticks = line.split() or [""]
        if name.startswith("cpu") and name != "cpu" and len(ticks) >= 8:
            counts = [int(tick) for tick in ticks[:8]]
            cpus.append((counts[5] + counts[6], counts[7], sum(counts)))
    return cpus


def _shares(first: tuple[tuple[int, int, int], ...], last: tuple[tuple[int, int, int], ...]) -> tuple[float, float]:
    """Return the share of CPU time that interrupts used and the share that the hypervisor withheld.

    Each share is the maximum over all CPUs.
    """
    interrupts, stolen = [0.0], [0.0]
    for before, after in zip(first, last):
        ticks = after[2] - before[2]
        if ticks > 0:
            interrupts.append((after[0] - before[0]) / ticks)
            stolen.append((after[1] - before[1]) / ticks)
    return min(max(interrupts), 1.0), min(max(stolen), 1.0)


ETHTOOL_GTSO, ETHTOOL_GGSO, ETHTOOL_GGRO = 0x1E, 0x23, 0x2B
OFFLOADS = {"tso": ETHTOOL_GTSO, "gso": ETHTOOL_GGSO, "gro": ETHTOOL_GGRO}
DUPLEX = {0: "half", 1: "full"}


def read_links(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a ``snapshot.RateLink`` for each requested network interface, with data from the interface's driver."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return [_link(asking, name) for name in request["interfaces"]]


def _link(asking: socket.socket, name: str) -> dict[str, Any]:
    offloads = {}
    for word, command in OFFLOADS.items():
        with contextlib.suppress(OSError):  # its driver does not report it
            offloads[word] = bool(struct.unpack_from("=I", network.ask_driver(asking, name, command, 8), 4)[0])
    duplex = None
    with contextlib.suppress(OSError):
        settings = network.ask_driver(asking, name, network.ETHTOOL_GSET, network.SETTINGS_SIZE)
        duplex = DUPLEX.get(settings[14])
    return {"interface": name, "speed_mbps": network.speed(asking, name), "duplex": duplex, "offloads": offloads}
