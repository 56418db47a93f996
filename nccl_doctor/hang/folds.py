"""Many ranks in few words: those that stand in one place are one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nccl_doctor.hang.observed_rank import ObservedRank
from nccl_doctor.logs.words import ranks_of
from nccl_doctor.text.hostlist import grouped

MOST_LINES = 8
"""Of evidence of one kind."""

KERNEL_WORDS = {
    "futex": "waits for another thread",
    "hrtimer_nanosleep": "sleeps",
    "pipe": "waits at a pipe",
    "wait_for_partner": "opens a FIFO",
    "nfs": "waits for NFS",
    "ep_poll": "waits for a connection",
    "poll": "waits for a connection or a pipe",
    "inet_csk_accept": "waits for a connection",
    "do_wait": "waits for a child process",
    "wait_for_vfork": "waits for a child process to start",
}
"""Beginnings of kernel functions to what a process does in them."""


def doing(one: ObservedRank) -> str:
    """What a rank does, in words that can stand behind its name."""
    if one.gone:
        return one.gone
    if one.place is not None:
        kernel = f", in the kernel ({one.in_kernel})" if one.in_kernel else ""
        return f"{one.place}{kernel}"
    if not one.states:
        return "was not looked at"
    state = one.states[-1]
    known = next((words for mark, words in KERNEL_WORDS.items() if mark in (state.wchan or "")), None)
    if known:
        return f"{known} (kernel: {state.wchan})"
    return f"in state {state.state}" + (f" (kernel: {state.wchan})" if state.wchan else "")


def folded(ranks: Iterable[ObservedRank]) -> dict[str, tuple[int, ...]]:
    """What is done to the ranks that do it, the most first."""
    found = grouped((doing(one), one.rank) for one in ranks)
    return {words: tuple(numbers) for words, numbers in sorted(found.items(), key=lambda item: -len(item[1]))}


def rank_words(ranks: Iterable[ObservedRank], most: int = 6) -> str:
    """``ranks 0-2,4-7 in all_reduce at train.py:26; rank 3 at train.py:17 in step``."""
    found = folded(ranks)
    parts = [f"{ranks_of(numbers)} {words}" for words, numbers in list(found.items())[:most]]
    return "; ".join(parts) + (f"; and {len(found) - most} more places" if len(found) > most else "")


def places(ranks: Iterable[ObservedRank]) -> Iterator[str]:
    """The same a line each, for evidence."""
    for words, numbers in list(folded(ranks).items())[:MOST_LINES]:
        yield f"{ranks_of(numbers)} {words}"


def named(ranks: Iterable[ObservedRank]) -> str:
    """``rank 3 (node2, pid 4711)``; of many, the numbers alone."""
    some = list(ranks)
    if len(some) <= 4:
        return ", ".join(f"rank {one.rank} ({one.host}, pid {one.job_rank.pid})" for one in some)
    return ranks_of([one.rank for one in some])
