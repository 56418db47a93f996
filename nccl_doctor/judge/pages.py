"""Finds pages for ``explain`` by topic, or by the code, number, name, or error message of a diagnosis."""

from __future__ import annotations

import difflib
import errno
import os
import re
from importlib.resources import files

from nccl_doctor.errors import UsageError
from nccl_doctor.logs.diagnose import LogSource, diagnose
from nccl_doctor.logs.signs import rules
from nccl_doctor.model.documents import Page, Topic, TopicEntry, TopicList
from nccl_doctor.model.register import Check, all_checks, find
from nccl_doctor.text.hostlist import quoted

TOPICS = files("nccl_doctor.judge") / "topics"
_CODE = re.compile(r"(?:NCD)?\d{3}", re.IGNORECASE)
_COMMENT = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## ", re.MULTILINE)


def topic_names() -> list[str]:
    return sorted(each.name.removesuffix(".md") for each in TOPICS.iterdir() if each.name.endswith(".md"))


def find_pages(words: str) -> tuple[Page | Topic | TopicList, ...]:
    """Return the pages that match the user's words; raise UsageError if no page matches."""
    asked = words.strip()
    codes = asked.replace(",", " ").split()
    topics = topic_names()
    if not asked:
        return (TopicList(topics=tuple(TopicEntry(name=name, title=_read(name)[0]) for name in topics)),)
    if asked in topics:
        title, text = _read(asked)
        return (Topic(name=asked, title=title, text=text),)
    several = len(codes) > 1 and all(map(_CODE.fullmatch, codes))
    checks = [_find_diagnosis(code, topics) for code in (codes if several else [asked])]
    return tuple(Page(**check.heading, text=check.page) for check in checks)


def _read(topic: str) -> tuple[str, str]:
    """Return a topic's title and text, with code blocks indented by four spaces."""
    title, _, text = _COMMENT.sub("", (TOPICS / f"{topic}.md").read_text(encoding="utf-8")).partition("\n")
    text = _FENCE.sub(lambda block: re.sub(r"^(?=.)", "    ", block[1], flags=re.MULTILINE), text)
    return title.removeprefix("# "), _HEADING.sub("", text).strip("\n")


def _find_diagnosis(asked: str, topics: list[str]) -> Check:
    code = f"NCD{asked}" if asked.isdigit() else asked
    named = [check for check in find(code) if code.lower() != check.category]
    begun = tuple(check for check in all_checks() if check.name.startswith(f"{code.lower()}-"))  # "firewall"
    matches = named or begun or find(_by_error(asked) or _by_line(asked) or _by_words(asked) or "")
    if matches:
        return matches[0]
    known = [*topics, *(text for check in all_checks() for text in (check.code, check.name))]
    near = difflib.get_close_matches(asked, known, 1)
    lists = '; "nccl-doctor codes" lists the diagnoses, "nccl-doctor explain" the topics'
    hint = f"; did you mean {quoted(near[0])}?" if near else lists
    raise UsageError(f"no diagnosis or topic is called {quoted(asked)}{hint}")


def _by_error(text: str) -> str | None:
    """Return the name of the diagnosis for an error, given as an errno name or as the C library's message."""
    for check in all_checks():
        for name in check.errors:
            if text.upper() == name or text.lower() == os.strerror(getattr(errno, name)).lower():
                return check.name
    return None


def _by_line(text: str) -> str | None:
    causes = diagnose([LogSource("words", [text.encode(errors="replace") + b"\n"])]).causes
    return causes[0].name if causes else None


def _by_words(text: str) -> str | None:
    """Return the name of the only diagnosis whose sample line contains the words of ``text``, or else None."""
    words = " ".join(text.lower().split())
    names = {rule.name for rule in rules() if words in rule.sample.lower()} if " " in words else set()
    return names.pop() if len(names) == 1 else None
