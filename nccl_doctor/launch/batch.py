"""Batch sizes that the script's own arguments name."""

from __future__ import annotations

import re

from nccl_doctor.errors import UsageError
from nccl_doctor.text.hostlist import plural

_WHOLE = re.compile(r"-{0,2}(?:(?:total|global)[-_])?(?:train[-_])?batch(?:[-_]size)?")
"""For all ranks together: --batch-size of YOLOv5, batch= of Ultralytics, --global-batch-size of Megatron."""
_EACH = re.compile(r"--(?:per[-_](?:device|gpu)|micro)[-_](?:train[-_])?batch[-_]size(?:[-_]per[-_]gpu)?")
"""For one rank: --per_device_train_batch_size of transformers, --micro-batch-size of Megatron."""
_NUMBER = re.compile(r"[1-9]\d{0,8}")


def divides(batch: int, world: int) -> None:
    """Raises UsageError, with the nearest batch sizes that do, where a batch can't be split evenly over all ranks."""
    wrong = _remainder(batch, world)
    if wrong:
        raise UsageError(f"a batch of {wrong}")


def batch_notes(script: tuple[str, ...], world: int) -> tuple[list[str], list[str]]:
    """What a script's batch sizes mean for so many ranks, and what speaks against them; each a sentence.

    Whether a script splits a batch or gives each rank one of that size, only the script knows: nothing is refused.
    """
    notes, warnings = [], []
    for option, size in _sizes(script):
        wrong = _remainder(size, world)
        if _EACH.fullmatch(option):
            notes.append(f"{option} {size} on each of {plural(world, 'rank')}: a batch of {size * world}")
        elif wrong:
            warnings.append(f"{option} {wrong} (no matter where each rank takes a batch of its own)")
        else:
            notes.append(f"{option} {size} over {plural(world, 'rank')}: {size // world} each")
    return notes, warnings


def _sizes(script: tuple[str, ...]) -> list[tuple[str, int]]:
    """``--batch 64``, ``--batch=64`` and ``batch=64``."""
    found = []
    for word, after in zip(script, (*script[1:], ""), strict=True):
        option, sign, value = word.partition("=")
        value = value if sign else after
        named = _EACH.fullmatch(option) or (_WHOLE.fullmatch(option) and (sign or option.startswith("-")))
        if named and _NUMBER.fullmatch(value):
            found.append((option, int(value)))
    return found


def _remainder(batch: int, world: int) -> str:
    if batch % world == 0 and batch > 0:
        return ""
    below = batch // world * world
    near = f"{below} and {below + world}" if below > 0 else f"{world}"
    return f"{batch} does not divide by {world} ranks; the nearest that {'do' if below > 0 else 'does'}: {near}"
