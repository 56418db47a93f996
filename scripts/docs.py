"""Builds the site into build/site: ``scripts/docs``; ``scripts/docs serve`` shows it on this machine.

Sources are what the tool itself shows: README, topics, the page of each diagnosis with the messages that lead to it,
the help of each command, the table of other tools, SECURITY and CHANGELOG. Each diagnosis has two addresses that stay,
by name and by code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from nccl_doctor.cli.main import COMMANDS, app
from nccl_doctor.judge.pages import TOPICS, topic_names
from nccl_doctor.logs.signs import rules
from nccl_doctor.model.register import Check, all_checks
from nccl_doctor.report.schema import DOCUMENTS, schema_of
from nccl_doctor.text.hostlist import grouped

ROOT = Path(__file__).parents[1]
SOURCES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
URL = "https://nccl-doctor.github.io/nccl-doctor/"
MOST_MESSAGES = 12
_HEADS = re.compile(r"^(What it means|How we know|Fix|References|See)(?=[:,])", re.MULTILINE)
_LINKS = (
    (re.compile(r"nccl_doctor/judge/topics/(\w[\w-]*)\.md"), r"topics/\1.md"),
    (re.compile(r"\.github/SECURITY\.md"), "security.md"),
    (re.compile(r"\.github/OTHER_TOOLS\.md"), "other-tools.md"),
    (re.compile(r"CHANGELOG\.md"), "changelog.md"),
    (re.compile(r"\.github/(report\.png|terminal\.svg)"), r"assets/\1"),
    (
        re.compile(r"\.github/CONTRIBUTING\.md"),
        "https://github.com/nccl-doctor/nccl-doctor/blob/main/.github/CONTRIBUTING.md",
    ),
)


def linked(text: str) -> str:
    """Return the text of a page with its links as the site has them."""
    for pattern, target in _LINKS:
        text = pattern.sub(target, text)
    return text


def diagnosis(check: Check, messages: list[str]) -> str:
    """Return the page of a diagnosis, with the lines of logs that it is for."""
    heading = check.heading
    body = _HEADS.sub(r"**\1**", check.page.strip())
    body = re.sub(r"`((?:NCD\d{3}|[a-z]+(?:-[a-z]+)+))`", r"`\1`", body)
    lines = [f"# {heading['name']}", "", f"`{heading['code']}` · severity {heading['severity'].value}", "", body]
    if messages:
        lines += ["", "## Messages that lead here", "", "```text", *messages[:MOST_MESSAGES], "```"]
    lines += [
        "",
        "Find it before the next run: `nccl-doctor check hosts.yaml`; in a log: `nccl-doctor logs train.log`.",
    ]
    return "\n".join(lines) + "\n"


def moved(check: Check) -> str:
    """Return the page at a diagnosis's code, which leads to the one at its name."""
    name = check.name
    head = f'<meta http-equiv="refresh" content="0; url=../{name}/">'
    return f"---\nsearch:\n  exclude: true\n---\n# {check.code}\n\n{head}\n\nThis is [{name}]({name}.md).\n"


def reference() -> Iterator[str]:
    """Yield the lines of the command reference, each command's own help."""
    yield from ("# Commands", "")
    for name in COMMANDS:
        shown = CliRunner().invoke(app(name), [name, "--help"], env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"}).output
        assert get_command(app(name)) is not None
        yield from (f"## nccl-doctor {name}", "", "```text", shown.strip(), "```", "")


ERRORS = """# Paste an error

Paste a line of your log, or an error that you got; the page of its diagnosis comes first. Nothing is sent anywhere.

<textarea id="error" rows="5" style="width: 100%; font-family: monospace" aria-label="Error"></textarea>
<ol id="found" aria-live="polite"></ol>

For whole logs, with causes told from consequences: `nccl-doctor logs train.log`.
"""
SCRIPT = """
function begin() {
  const box = document.getElementById("error"), list = document.getElementById("found");
  if (!box) return;
  const look = () => {
    const text = box.value, found = new Map();
    for (const rule of RULES) {
      for (const line of text.split(/\\n/)) {
        if (rule.pattern.test(line) && !(rule.unless && rule.unless.test(line))) {
          found.set(rule.name, Math.max(found.get(rule.name) || 0, rule.grade));
        }
      }
    }
    list.replaceChildren(...[...found].sort((a, b) => b[1] - a[1]).map(([name]) => {
      const item = document.createElement("li"), link = document.createElement("a");
      link.href = "../" + name + "/";
      link.textContent = name;
      item.append(link);
      return item;
    }));
  };
  box.addEventListener("input", look);
  box.value = new URLSearchParams(location.search).get("error") || "";
  look();
}
document.readyState === "loading" ? document.addEventListener("DOMContentLoaded", begin) : begin();
"""


def matcher() -> str:
    """Return the script of the page for pasted errors: the wordings that ``logs`` knows, as JavaScript has them."""
    made = []
    for rule in rules():
        if rule.name and rule.grade.value > 1:
            unless = f", unless: {_javascript(rule.unless)}" if rule.unless else ""
            known = f"name: {json.dumps(rule.name)}, grade: {rule.grade.value}"
            made.append(f"{{{known}, pattern: {_javascript(rule.pattern)}{unless}}}")
    return f"const RULES = [\n{(',' + chr(10)).join(made)}\n];\n{SCRIPT}"


def _javascript(pattern: str) -> str:
    """Return the pattern as JavaScript has it; browsers before 2025 know the sign for small letters only of a whole."""
    whole = json.dumps(pattern.replace("(?P<", "(?<").replace("(?i:", "(?:"))
    return f'new RegExp({whole}, "i")' if "(?i:" in pattern else f"new RegExp({whole})"


def write_sources() -> None:
    """Write the site's pages."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    (SOURCES / "topics").mkdir(parents=True)
    (SOURCES / "assets").mkdir()
    for name in ("report.png", "terminal.svg"):
        shutil.copy(ROOT / ".github" / name, SOURCES / "assets" / name)
    pages = {
        "index": ROOT / "README.md",
        "other-tools": ROOT / ".github" / "OTHER_TOOLS.md",
        "security": ROOT / ".github" / "SECURITY.md",
        "changelog": ROOT / "CHANGELOG.md",
    }
    for name, path in pages.items():
        (SOURCES / f"{name}.md").write_text(linked(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name in topic_names():
        text = (TOPICS / f"{name}.md").read_text(encoding="utf-8")
        (SOURCES / "topics" / f"{name}.md").write_text(text, encoding="utf-8")
    messages = grouped((rule.name, rule.sample) for rule in rules() if rule.name)
    for check in all_checks():
        samples = list(dict.fromkeys(messages.get(check.name, ())))
        (SOURCES / f"{check.name}.md").write_text(diagnosis(check, samples), encoding="utf-8")
        (SOURCES / f"{check.code}.md").write_text(moved(check), encoding="utf-8")
    (SOURCES / "errors.md").write_text(ERRORS, encoding="utf-8")
    (SOURCES / "assets" / "errors.js").write_text(matcher(), encoding="utf-8")
    (SOURCES / "commands.md").write_text("\n".join(reference()), encoding="utf-8")
    schemas = SOURCES / "schemas"
    schemas.mkdir()
    for command in DOCUMENTS:
        made = schema_of(command)
        (schemas / f"{command}-{made['$id'].rpartition(':')[2]}.json").write_text(
            json.dumps(made, indent=2), encoding="utf-8"
        )


def configuration() -> str:
    """Return mkdocs' configuration: what links lead nowhere ends the build."""
    by_category = grouped((check.category, check) for check in all_checks())
    diagnoses = "".join(
        f"    - {category}:\n" + "".join(f"      - {check.name}: {check.name}.md\n" for check in checks)
        for category, checks in by_category.items()
    )
    topics = "".join(f"    - topics/{name}.md\n" for name in topic_names())
    codes = "".join(f"  {check.code}.md\n" for check in all_checks())
    return (
        f"site_name: nccl-doctor\nsite_url: {URL}\nrepo_url: https://github.com/nccl-doctor/nccl-doctor\n"
        "site_description: Cluster preflight and NCCL diagnostics for PyTorch jobs\n"
        f"docs_dir: {SOURCES}\nsite_dir: {SITE}\nuse_directory_urls: true\nstrict: true\n"
        "theme:\n  name: material\n  font: false\n  features: [navigation.indexes, search.suggest, content.code.copy]\n"
        "plugins: [search]\n"
        "markdown_extensions: [tables, attr_list]\n"
        "validation:\n  links:\n    not_found: warn\n    anchors: warn\n    unrecognized_links: warn\n"
        f"not_in_nav: |\n{codes}"
        "extra_javascript: [assets/errors.js]\n"
        "nav:\n  - index.md\n  - errors.md\n  - commands.md\n  - other-tools.md\n"
        f"  - Topics:\n{topics}  - Diagnoses:\n{diagnoses}  - security.md\n  - changelog.md\n"
    )


def main() -> int:
    """Build the site; return mkdocs' exit status."""
    write_sources()
    config = ROOT / "build" / "mkdocs.yml"
    config.write_text(configuration(), encoding="utf-8")
    command = "serve" if "serve" in sys.argv[1:] else "build"
    clean = ["--clean"] if command == "build" else []
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    argv = [sys.executable, "-m", "mkdocs", "--quiet", command, *clean, "-f", str(config)]
    return subprocess.run(argv, env=quiet, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
