"""The blocks of README and of the topics are run as they are printed; here is what finds and compares them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nccl_doctor.judge.pages import TOPICS, find_pages
from nccl_doctor.model.documents import Topic, TopicList
from nccl_doctor.report.render import render
from tests.readme import picture
from tests.readme.alike import bare
from tests.readme.blocks import README, all_blocks, blocks, rewritten
from tests.readme.run import groups
from tests.readme.situations import SITUATIONS

PAGE = """\
<!-- file: hosts.yaml -->
```yaml
hosts: [a]
```

<!-- run: healthy -->
```text
node1$ nccl-doctor codes
NCD101
NCD102
```

<!-- run: healthy; exit 1 -->
```sh
false
```

```sh
true
```
"""


def test_comments_say_what_is_done_with_a_block() -> None:
    file, shown, typed, unsaid = blocks(PAGE)
    assert (file.wish, file.detail, file.text) == ("file", "hosts.yaml", "hosts: [a]\n")
    assert (shown.wish, shown.detail, shown.host, shown.status) == ("run", "healthy", "node1", None)
    assert (shown.typed, shown.printed) == ("nccl-doctor codes", "NCD101\nNCD102\n")
    assert (typed.typed, typed.printed, typed.status) == ("false\n", None, 1)
    assert unsaid.wish is None
    assert groups([file, shown, typed, unsaid]) == [[shown, typed]]
    assert rewritten(PAGE, {shown.line: "NCD103\n"}) == PAGE.replace("NCD101\nNCD102\n", "NCD103\n")


def test_every_block_of_the_page_is_run_but_the_one_that_runs_this() -> None:
    page = all_blocks()
    assert [block.place for block in page if block.wish is None] == []
    assert [block.typed for block in page if block.wish == "not run"] == ["scripts/setup && scripts/test\n"]
    assert {block.detail for block in page if block.wish == "run"} == set(SITUATIONS)


def test_readme_is_short_and_its_links_lead_somewhere() -> None:
    text = README.read_text()
    assert text.count("\n") <= 250
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", text)
    assert [link for link in links if not (README.parent / link).exists()] == []
    (topics,) = find_pages("")
    assert isinstance(topics, TopicList)
    assert {Path(link).stem for link in links if "/topics/" in link} == {topic.name for topic in topics.topics}


@pytest.mark.parametrize("name", sorted(file.name.removesuffix(".md") for file in TOPICS.iterdir()))
def test_a_topic_is_printed_without_its_comments(name: str) -> None:
    (topic,) = find_pages(name)
    assert isinstance(topic, Topic)
    assert topic.title
    assert not re.search(r"<!--|```|^#", topic.text, re.MULTILINE)
    printed = render("explain", "human", topic)
    assert max(len(line) for line in printed.splitlines() if not line.startswith("    ")) <= 80


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 of 12 pairs in 0.5 s", "12 of 12 pairs in 900 ms"),
        ("node1 -> 10.77.0.3:32768,4711", "node2 -> 10.77.0.1:29500,32768,4711"),
        ("up to 0.79 GB/s", "up to 74 MB/s"),
        ("8 B   1 ms\n2 KiB  2 µs\n", "8 B   1 ms\n"),  # a row more
        ("a long line of 9\n  words", "a long line\n  of 1000 words"),
        ("inside, such as e9a34a0a1ed8", "inside, such as 5ef711cc94c4"),
        ("▁▁▃█  8 B to 64 MiB", "▁█▅  8 B to 2 MiB"),
        ("train.py --…  root", "train.py -…  root"),
    ],
)
def test_what_differs_in_measures_alone_is_alike(one: str, other: str) -> None:
    assert bare(one) == bare(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ports ok 12 of 12 pairs", "ports FAIL 12 of 12 pairs"),
        ("node1 -> node2", "node1 -> ctl"),
        ("1 error", "1 warning"),
        ("a\nb\n", "a\n"),
        ("in 5 s", "in 5 MB"),
        ("Ready. 47 checks\n  passed", "Ready. 48 checks passed"),
    ],
)
def test_any_other_word_is_a_difference(one: str, other: str) -> None:
    assert bare(one) != bare(other)


def test_the_picture_of_a_terminal_shows_what_the_page_says() -> None:
    """It is made anew by scripts/picture, of the check whose screen stands further down as a block that is run."""
    (shown,) = [
        block.text
        for block in blocks(README.read_text())
        if (block.detail, block.typed) == (picture.SITUATION, picture.COMMAND)
    ]
    assert bare(picture.text(picture.PICTURE)) == bare(shown)
    assert "url(http" not in picture.PICTURE.read_text()
