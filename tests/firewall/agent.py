"""Runs inside a box (see netbox.py): runs programs, listens and dials there; a line of JSON in, a line out.

Started as a file of its own in another network namespace.
"""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import subprocess
import sys
import threading
import time
from typing import Any

HANGS_S = 300.0
"""Ends what hangs; nothing is judged by it."""
OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "no-route",
    errno.ENETUNREACH: "unreachable",
    errno.ECONNRESET: "reset",
}


class Agent:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def run(self, argv: list[str], given: str | None = None) -> dict[str, Any]:
        done = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=HANGS_S, check=False)
        return {"rc": done.returncode, "out": done.stdout, "err": done.stderr}

    def facts(self, root: str, managers: bool) -> dict[str, object]:
        if root not in sys.path:
            sys.path.insert(0, root)
        from nccl_doctor.probe.facts import firewall

        # firewall-cmd and ufw take 0.2 s to say that they don't run
        left_out = () if managers else ("firewall-cmd", "ufw")
        firewall.find = lambda program: None if program in left_out else shutil.which(program)
        return firewall.read_firewall(time.monotonic() + HANGS_S)

    def start(self, argv: list[str]) -> int:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(argv, stdin=nowhere, stdout=nowhere, stderr=nowhere).pid

    def listen(self, ports: list[int]) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(ports), self.loop).result(HANGS_S)

    async def _listen(self, ports: list[int]) -> None:
        for port in ports:
            for address in ("0.0.0.0", "::"):
                self.servers.append(await asyncio.start_server(self._answer, address, port, backlog=1000))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(1))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    def dial(self, flows: list[tuple[str, str, int]], timeout_s: float) -> list[str]:
        return asyncio.run_coroutine_threadsafe(self._dial_all(flows, timeout_s), self.loop).result(timeout_s + HANGS_S)

    async def _dial_all(self, flows: list[tuple[str, str, int]], timeout_s: float) -> list[str]:
        return list(await asyncio.gather(*(self._dial(*flow, timeout_s) for flow in flows)))

    async def _dial(self, source: str, target: str, port: int, timeout_s: float) -> str:
        try:
            return await asyncio.wait_for(self._exchange(source, target, port), timeout_s)
        except asyncio.TimeoutError:
            return "timed-out"
        except asyncio.IncompleteReadError:
            return "reset"
        except OSError as error:
            return OUTCOMES.get(error.errno or 0, "failed")

    async def _exchange(self, source: str, target: str, port: int) -> str:
        reader, writer = await asyncio.open_connection(target, port, local_addr=(source, 0))
        try:
            writer.write(b"x")
            await reader.readexactly(1)
            return "connected"
        finally:
            writer.transport.abort()


def main() -> None:
    agent = Agent()
    for line in sys.stdin:
        method, arguments = json.loads(line)
        sys.stdout.write(json.dumps(getattr(agent, method)(*arguments)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
