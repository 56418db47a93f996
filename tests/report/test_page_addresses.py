"""Where the package names its site, every form of a report has the address of a diagnosis' page, and else none has."""

from __future__ import annotations

import json

import pytest

from nccl_doctor.cli import site
from tests.report.reports import log, one_fault, render

SITE = "https://doctor.example/docs"
PAGE = f"{SITE}/NCD301/"
FORMS = ("human", "json", "junit", "html", "github")


@pytest.mark.parametrize(
    ("urls", "address"),
    [
        (["Homepage, https://a.example", f"Documentation, {SITE}"], f"{SITE}/"),
        ([f"Documentation, {SITE}/"], f"{SITE}/"),
        (["Documentation, http://a.example"], None),
        (["Homepage, https://a.example", "Documentation"], None),
        ([], None),
    ],
)
def test_the_site_is_the_package_s_documentation(urls: list[str], address: str | None) -> None:
    assert site.site_of(urls) == address


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "own_site", lambda: f"{SITE}/")


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_address(form: str) -> None:
    shown = render(site.with_pages(one_fault()), form, pages={"NCD301": "A page."})
    assert PAGE in shown
    assert PAGE not in render(one_fault(), form, pages={"NCD301": "A page."})


@pytest.mark.usefixtures("published")
def test_each_diagnosis_has_its_own() -> None:
    found = json.loads(render(site.with_pages(log()), "json"))["diagnoses"]
    assert [one["page"] for one in found] == [f"{SITE}/{one['code']}/" for one in found]
    assert all("page" not in one for one in json.loads(render(log(), "json"))["diagnoses"])


@pytest.mark.usefixtures("published")
def test_the_screen_names_it_behind_the_page() -> None:
    assert f"More: nccl-doctor explain NCD301 ({PAGE})\n" in render(site.with_pages(one_fault()), "human")
