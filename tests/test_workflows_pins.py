"""GitHub's workflows: actions of others are commits, and each job has the rights that it needs alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

FILES = sorted((Path(__file__).parents[1] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_actions_are_commits(path: Path) -> None:
    used = re.findall(r"uses: (\S+)", path.read_text(encoding="utf-8"))
    assert used
    assert [one for one in used if not one.startswith("./") and not re.search(r"@[0-9a-f]{40}$", one)] == []


def test_the_token_that_publishes_is_for_that_job_alone() -> None:
    (path,) = (path for path in FILES if path.name == "release.yml")
    workflow: dict[str, Any] = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    rights = {name: job.get("permissions", {}) for name, job in workflow["jobs"].items()}
    assert workflow["permissions"] == {"contents": "read"}
    assert rights["publish"] == {"id-token": "write"}
    assert [name for name, own in rights.items() if own.get("contents") == "write"] == ["draft"]
    assert workflow["jobs"]["draft"]["needs"] == ["publish", "attest"]
