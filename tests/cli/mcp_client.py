"""Calls tools of ``nccl-doctor mcp`` with the SDK's own client: ``python -m tests.cli.mcp_client '[["logs", {…}]]' [HOSTS]``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

TOOL = Path(sys.executable).with_name("nccl-doctor")


async def called(calls: list[tuple[str, dict[str, Any]]], *hosts: str) -> list[dict[str, Any]]:
    """The answers to calls of tools, in their order; first the tools themselves."""
    async with Client(
        StdioServerParameters(command=str(TOOL), args=["mcp", *hosts], cwd=os.environ.get("MCP_CWD"))
    ) as client:
        listed = await client.list_tools()
        answers: list[dict[str, Any]] = [
            {"tools": {tool.name: tool.model_dump(mode="json", by_alias=True)["annotations"] for tool in listed.tools}}
        ]
        for name, arguments in calls:
            answer = await client.call_tool(name, arguments)
            answers.append(answer.model_dump(mode="json", by_alias=True))
        return answers


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(called(json.loads(sys.argv[1]), *sys.argv[2:]))))
