"""Reads a report's file as a browser's parser would, without a browser."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

from nccl_doctor.model.base import Document
from nccl_doctor.model.register import all_checks
from nccl_doctor.report.render import RenderOptions, render

PAGES = {check.code: check.page for check in all_checks()}
OPTIONS = RenderOptions(pages=PAGES, observed_at=1.7e9, made_at=1.7e9, asked_by="ann on login1")
RAW = ("script", "style")
VOID = ("meta", "input", "br", "hr", "img")


@dataclass
class Element:
    """A tag with its attributes, and the text in it and in what it holds."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Reader(HTMLParser):
    """All elements of a file, in their order."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {tag} {attrs}"
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(self.elements[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def read(text: str) -> list[Element]:
    """The elements, once it is sure that the file is well-formed."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert [element.tag for element in reader.open] == []
    return reader.elements


def html(document: Document, command: str = "check", options: RenderOptions = OPTIONS) -> str:
    """A document as one file."""
    return render(command, "html", document, options)


def assert_harmless(text: str) -> None:
    """Nothing in it acts, loads or looks different but what the program's own files say."""
    elements = read(text)
    (policy,) = (
        e.attributes["content"] for e in elements if e.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    for tag in RAW:
        (element,) = (e for e in elements if e.tag == tag)
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    for element in elements:
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base", "image", "use", "foreignobject")
        for name, value in element.attributes.items():
            assert not name.startswith("on"), element
            assert name not in ("style", "src", "srcset", "srcdoc", "action", "formaction", "xlink:href"), element
            if name == "href":
                assert re.fullmatch(r"#page-NCD\d{3}|#[a-z-]+|https://[\w./-]+", value), element
