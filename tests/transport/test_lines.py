from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_doctor.transport.base import LineBuffer, Tail

CHUNKS = st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"\n")))


@given(CHUNKS)
def test_chunks_do_not_matter(chunks: list[bytes]) -> None:
    buffer = LineBuffer()
    lines = []
    for chunk in chunks:
        buffer.feed(chunk)
        while (line := buffer.pop()) is not None:
            lines.append(line)
    while (line := buffer.flush()) is not None:
        lines.append(line)
    whole = b"".join(chunks).split(b"\n")
    assert lines == (whole if whole[-1] else whole[:-1])


def test_lines_put_back_come_first() -> None:
    buffer = LineBuffer()
    buffer.feed(b"a\nb\nc")
    taken = [line for line in (buffer.pop(), buffer.pop()) if line is not None]
    buffer.push_back(taken)
    assert [buffer.flush(), buffer.flush(), buffer.flush(), buffer.flush()] == [b"a", b"b", b"c", None]


def test_a_line_without_end_is_refused() -> None:
    buffer = LineBuffer(most=10)
    buffer.feed(b"0123456789")
    assert buffer.pop() is None
    buffer.feed(b"x")
    with pytest.raises(ValueError, match="more than 10 bytes"):
        buffer.pop()


@given(CHUNKS)
def test_tail(chunks: list[bytes]) -> None:
    tail = Tail(size=8)
    for chunk in chunks:
        tail.feed(chunk)
    assert tail.text() == b"".join(chunks)[-8:].decode(errors="replace")
