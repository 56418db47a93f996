"""Reports in a real Chromium: nothing acts that shouldn't, everything is found by its name, and keys reach it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from nccl_doctor.model.report import Report
from nccl_doctor.text.shell import clean, pasteable
from tests.patience import crowd
from tests.report.html.conftest import Open, Opened
from tests.report.html.pictures import SCHEMES
from tests.report.html.situations import REPORTS

pytestmark = pytest.mark.browser

Read = Callable[[str], Opened]
EVERY = [*REPORTS, "hang"]
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
CONTRAST = "color-contrast"
LARGEST = 1.5e6
"""Bytes of a report of 256 hosts."""
STILL = 0.01
"""A cumulative layout shift that nobody sees, up to 0.1 passes for good; a busy machine paints before it has parsed all."""


def words(text: str) -> str:
    """As a browser computes names."""
    return " ".join(clean(text).split())


def seen_by_name(page: Page, role: Any, name: str) -> int:
    return page.get_by_role(role, name=name, exact=True).count()


def copied(page: Page, button: str) -> Any:
    """What the clipboard holds after a button of this name was pressed."""
    page.get_by_role("button", name=button, exact=True).first.click()
    page.locator("#copied", has_text="Copied: ").wait_for(state="attached")
    return page.evaluate("navigator.clipboard.readText()")


@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_said_asked_for_or_run(read_page: Read, name: str) -> None:
    opened = read_page(name)
    opened.page.mouse.move(300, 500)
    assert opened.noises == []
    assert opened.page.evaluate("[typeof pwned, document.scripts.length, document.images.length]") == [
        "undefined",
        1,
        0,
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_every_diagnosis_and_command_is_found_by_name_and_copied_to_the_letter(read_page: Read, name: str) -> None:
    report: Report = REPORTS[name]()
    page = read_page(name).page
    for found in report.diagnoses:
        assert seen_by_name(page, "article", words(found.message)) == 1
        lines = [one.command for one in found.fix.commands]
        if all(map(pasteable, lines)):
            for line in dict.fromkeys(lines):
                assert copied(page, f"Copy: {line}") == line
            if len(lines) > 1 and len({one.host for one in found.fix.commands}) == 1:
                assert copied(page, f"Copy all {len(lines)}") == "\n".join(lines)


@pytest.mark.parametrize("name", ["healthy", "firewall", "dead-port", "sampled"])
def test_every_pair_is_found_by_name(read_page: Read, name: str) -> None:
    report: Report = REPORTS[name]()
    assert report.mesh
    page = read_page(name).page
    labels = page.evaluate("[...document.querySelectorAll('[role=gridcell], tr[aria-label]')].map(e => e.ariaLabel)")
    failed = {(dial.src, dial.dst) for dial in report.mesh.failed}
    for src, dst in failed:
        assert labels.count(f"{src} to {dst}") == 1
    assert seen_by_name(page, "row", "{} to {}".format(*min(failed))) == 1 if failed else True
    names = [host.name for host in report.hosts]
    if len(names) <= 64:
        for src in names:
            for dst in names:
                mine = [one for one in labels if one.startswith((f"{src} to {dst}:", f"{src} to {dst},"))]
                assert len(mine) == (src != dst)
                assert ("all ports reachable" in mine[0]) == ((src, dst) not in failed) if mine else True
    else:
        assert page.get_by_role("gridcell").count() == (-(-len(names) // -(-len(names) // 64))) ** 2


@pytest.mark.parametrize("name", EVERY)
def test_axe_finds_nothing_against_wcag(read_page: Read, name: str) -> None:
    page = read_page(name).page
    closed = page.evaluate_handle("[...document.querySelectorAll('details:not([open])')]")
    closed.evaluate("all => all.forEach(one => { one.open = true })")
    assert violations(page, {"runOnly": WCAG, "rules": {CONTRAST: {"enabled": False}}}) == []
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert contrasts(page) == []
    page.emulate_media(color_scheme="light")
    closed.evaluate("all => all.forEach(one => { one.open = false })")


def contrasts(page: Page) -> list[tuple[str, list[str]]]:
    """Texts that are hard to read. Of the rows of a table that look the same, in all but words, one is looked at."""
    page.evaluate(r"""() => document.querySelectorAll("tbody").forEach(table => {
        const looks = new Set()
        for (const row of table.rows) {
            const look = row.outerHTML.replace(/>[^<]*/g, ">").replace(/ (?!class=)[\w-]+="[^"]*"/g, "")
            row.toggleAttribute("data-like-another", looks.has(look))
            looks.add(look)
        }
    })""")
    return violations(page, {"runOnly": [CONTRAST]}, {"exclude": [["[data-like-another]"]]})


def violations(
    page: Page, options: dict[str, Any], context: dict[str, Any] | None = None
) -> list[tuple[str, list[str]]]:
    found = Axe().run(page, context, {**options, "resultTypes": ["violations"]}).response["violations"]
    return [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found]


def test_keys_alone_reach_everything(open_page: Open) -> None:
    page = open_page("firewall").page
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
    wanted = page.evaluate("""() => [...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')]
        .map((one, place) => { one.dataset.stop = place; return place })""")
    reached: list[int] = []
    for _ in wanted:
        page.keyboard.press("Tab")
        reached.append(page.evaluate("Number(document.activeElement.dataset.stop ?? -1)"))
    assert reached == wanted
    page.locator("[role=gridcell]").first.focus()
    page.keyboard.press("ArrowDown")
    label = page.evaluate("document.activeElement.ariaLabel")
    assert label.startswith("node2 to node1, ports 29500,")
    assert page.locator("#mesh .readout").inner_text() == label
    page.keyboard.press("Control+End")
    assert page.evaluate("document.activeElement.ariaLabel") == "node3 itself"
    page.locator("button[data-copy]").first.focus()
    page.keyboard.press("Enter")
    page.locator("#copied", has_text="Copied: firewall-cmd").wait_for(state="attached")
    assert page.evaluate("navigator.clipboard.readText()").startswith("firewall-cmd ")
    page.get_by_role("link", name="NCD301 firewall-blocks-port").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "page-NCD301"


def test_the_table_of_hosts_sorts_and_filters(open_page: Open) -> None:
    page = open_page("sampled").page
    hosts = "[...document.querySelectorAll('#host-table tbody tr:not([hidden]) th')].map(e => e.textContent)"
    assert page.evaluate(hosts)[:2] == ["gpu131", "gpu001"]
    by_rank = page.locator("#host-table th").first
    by_rank.get_by_role("button").click()
    assert page.evaluate(hosts)[:3] == ["gpu001", "gpu002", "gpu003"]
    assert by_rank.get_attribute("aria-sort") == "ascending"
    by_rank.get_by_role("button").click()
    assert page.evaluate(hosts)[:2] == ["gpu256", "gpu255"]
    page.get_by_label("Show only hosts with").fill("10.1.0.13")
    assert sorted(page.evaluate(hosts)) == ["gpu013", *(f"gpu{place}" for place in range(130, 140))]
    assert page.locator("#host-count").inner_text() == "11 of 256"
    page.get_by_label("only hosts that differ from most (1)").check()
    assert page.evaluate(hosts) == ["gpu131"]


def test_256_hosts_are_small_quick_and_do_not_move(open_page: Open, folder: Path) -> None:
    assert (folder / "sampled.html").stat().st_size < LARGEST
    opened = open_page("sampled")
    first, shift, moved = opened.page.evaluate("""() => new Promise(done => {
        let shift = 0, moved = [];
        new PerformanceObserver(list => list.getEntries().forEach(one => {
            shift += one.value;
            moved.push(...one.sources.map(it => [it.node?.outerHTML?.slice(0, 200), it.previousRect, it.currentRect]));
        })).observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done([performance.getEntriesByName("first-contentful-paint")[0].startTime, shift, moved]), 300);
    })""")
    assert shift < STILL, moved
    assert first < 1000 * crowd()


@pytest.mark.parametrize("name", EVERY)
def test_on_paper_nothing_is_cut_off_at_the_right_and_titles_stay(read_page: Read, name: str) -> None:
    page = read_page(name).page
    screen = page.viewport_size
    assert screen
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 794, "height": 1123})  # A4 at 96 dots an inch
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    for title in page.locator("#host-table thead th").all():
        assert title.inner_text().strip()
        assert title.locator("button").is_visible()
    page.emulate_media(media="screen")
    page.set_viewport_size(screen)


def test_all_is_readable_without_a_script(without_a_script: Open) -> None:
    page = without_a_script("dead-port").page
    assert page.get_by_role("heading", level=1).inner_text() == "1 error on gpu037"
    assert page.get_by_role("row", name="gpu037 to gpu100").is_visible()
    assert page.get_by_role("grid", name="Connectivity between hosts").is_visible()
    assert not page.get_by_label("Show only hosts with").is_visible()
