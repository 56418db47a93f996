"""Creates text that is safe to show in terminals and to paste into sh, bash, and zsh.

A :class:`Line` is created only in this module, from a constant template and values for the placeholders. :func:`line`
quotes every word, whereas :func:`script` accepts only numbers and other lines as values.

Host names, log lines, process titles, and comments of firewall rules are untrusted text. An escape sequence in
untrusted text could repaint the screen, a carriage return could overwrite a line, and a bidirectional override could
disguise a command (CVE-2021-42574).
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Hole: TypeAlias = "int | str | IPv4Address | IPv6Address | IPv4Network | IPv6Network"
"""Value for a placeholder of :func:`line`.

Text must be printable, and text at the beginning of a word must not begin with "-".
"""

_PLAIN = re.compile(r"[\w.,:@%/+-]+", re.ASCII)
_NAME = re.compile(r"[\w.-]+", re.ASCII)
_OPERATORS = frozenset({"|", "||", ">>", "2>/dev/null"})
_HOLE = re.compile(r"\{\w+\}")
_SPREAD = re.compile(r"\{\*(\w+)\}")
_HOSTS = re.compile(r"[\w.:,\[\]-]+", re.ASCII)


@dataclass(frozen=True)
class Line:
    """Shell text made from a template.

    The inserted values can't change the meaning of the template.
    """

    text: str

    def __str__(self) -> str:
        return self.text


def word(text: str) -> str:
    """Return the text as one shell word, quoted if necessary; in ``NAME=value``, only the value is quoted.

    Unlike :func:`shlex.quote`, this function quotes a word that begins with "=", which zsh would expand to a command's
    path.
    """
    name, sign, value = text.partition("=")
    if sign and _NAME.fullmatch(name):
        return f"{name}={_quoted(value) if value else ''}"
    return _quoted(text)


def _quoted(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def line(template: str, **holes: Hole | Sequence[Hole] | Line | None) -> Line | None:
    """Return a command line from a template in which each placeholder is a word or part of a word.

    The template consists of words separated by spaces, with ``{name}`` for a placeholder and ``{*name}`` for any number
    of words. Shell operators that are separate words keep their meaning. If a placeholder is a whole word and its value
    is a :class:`Line`, the value is inserted without quotes. The result is None if a value would be read as an option
    or contains unprintable characters, such as a line break or an escape sequence.
    """
    words: list[str] = []
    for part in shlex.split(template):
        hole = holes.get(part[1:-1], "") if _HOLE.fullmatch(part) else ""
        if hole is None:
            return None
        if part in _OPERATORS or isinstance(hole, Line):
            words += [part] if part in _OPERATORS else filter(None, [str(hole)])
            continue
        spread = _SPREAD.fullmatch(part)
        values = holes[spread[1]] if spread else (part.format(**holes),)
        assert isinstance(values, (list, tuple)), "a spread takes a sequence"
        filled = list(map(str, values))
        is_hole = part.startswith("{") and not part.startswith("{{")
        if any(not text.isprintable() or (is_hole and text.startswith("-")) for text in filled):
            return None
        words += map(word, filled)
    return Line(" ".join(words))


def script(template: str, **parts: int | Line | Sequence[Line]) -> Line:
    """Return shell text from a template with placeholders for numbers and lines; sequences are joined with spaces."""
    texts = {
        name: " ".join(map(str, part)) if isinstance(part, Sequence) else str(part) for name, part in parts.items()
    }
    return Line(template.format(**texts))


def argument(text: str) -> Line:
    return Line(word(text))


_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*(?::?-[\w.,:@%/+-]*)?\})", re.ASCII)


_ASSIGNED = re.compile(r"[A-Za-z_]\w*=", re.ASCII)


class Literal(str):
    """A word from a user's command line in which "$" has no special meaning, because the user quoted the word."""

    __slots__ = ()


def literal(text: str) -> str:
    """Return the word as a :class:`Literal` if it contains "$", so that no shell expands variables in it."""
    return Literal(text) if "$" in text else text


def assignment(name: str, value: str) -> str:
    """Return the word ``NAME=value``, in which variables are expanded unless the value is a :class:`Literal`."""
    return type(value)(f"{name}={value}")


def with_variables(text: str) -> Line:
    """Return the user's own text as one shell word in which the shell expands variables but runs no commands."""
    if isinstance(text, Literal):
        return argument(text)
    rest = _VARIABLE.sub("", text)
    if rest == text or "$" in rest or "`" in rest:
        return argument(text)
    assigned = _ASSIGNED.match(text)
    if assigned is None and _PLAIN.fullmatch(rest.replace("=", "") or "x"):
        return Line(text)
    front = assigned[0] if assigned else ""
    value = text[len(front) :]
    pieces = zip(_VARIABLE.split(value), [*_VARIABLE.findall(value), ""], strict=True)
    quoted = ((_quoted(plain) if plain else "") + (f'"{name}"' if name else "") for plain, name in pieces)
    return Line(front + "".join(quoted))


def split(text: str) -> list[str]:
    """Return the words of a line that a user typed; raise ValueError if a quote is unmatched."""
    return [*map(unmarked, shlex.split(marked(text)))]


_KEPT = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)


def marked(text: str) -> str:
    """Replace each "$" that is escaped or in single quotes with a null character, for :func:`unmarked`."""

    def kept(match: re.Match[str]) -> str:
        quoted = match[0].replace("\\$", "\0")
        return quoted.replace("$", "\0") if quoted.startswith("'") else quoted

    return _KEPT.sub(kept, text.replace("\0", ""))


def unmarked(word: str) -> str:
    """Restore each "$" in a word of :func:`marked` text; a word with a restored "$" becomes a :class:`Literal`."""
    return Literal(word.replace("\0", "$")) if "\0" in word else word


def nested(command: Line | str) -> Line:
    return Line(_quoted(str(command)))


def host_names(pattern: str) -> Line:
    """Return a folded list of hosts for use without quotes; raise ValueError if the list would need quotes."""
    if not _HOSTS.fullmatch(pattern):
        raise ValueError(f"{pattern!r} is not a list of host names")
    return Line(pattern)


def program(path: str) -> Line:
    """Return an interpreter's path, quoted except for a leading ``~/``, which the shell expands."""
    return Line("~/" + _quoted(path[2:]) if path.startswith("~/") and len(path) > 2 else _quoted(path))


def assignments(variables: Mapping[str, str], exported: Collection[str] = ()) -> list[Line]:
    """Return ``NAME=value`` words to put before a command; ``exported`` variables take their values from the shell."""
    texts = {name: _quoted(value) if value else "" for name, value in variables.items()}
    return [Line(f'{name}="${name}"' if name in exported else f"{name}={text}") for name, text in texts.items()]


def words(texts: Sequence[str], replaced: Mapping[str, Line]) -> list[Line]:
    """Return the user's arguments as shell words, with each ``{name}`` replaced by ``replaced[name]``."""
    made = []
    for text in texts:
        pieces = [piece for piece in re.split(r"(\{\w+\})", text) if piece]
        values = {
            f"{{{name}}}": it.text if _PLAIN.fullmatch(it.text) else f'"{it.text}"' for name, it in replaced.items()
        }
        whole = values.keys().isdisjoint(pieces)
        made.append(Line(word(text) if whole else "".join(values.get(piece) or word(piece) for piece in pieces)))
    return made


CONTROL_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]")
"""Pattern for a control sequence with parameter bytes, intermediate bytes, and a final byte (ECMA-48, section 5.4)."""


_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Pattern for invisible characters (Default_Ignorable_Code_Point in DerivedCoreProperties.txt of Unicode 16)."""


def clean(text: str) -> str:
    """Return the text on one line, without control characters or invisible characters.

    Each line break or tab becomes a space, and each lone surrogate becomes U+FFFD. Control sequences, other control
    characters (Unicode category Cc), format characters (Cf), and other invisible characters, such as variation
    selectors, are removed.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, _IGNORABLE.sub("", CONTROL_SEQUENCE.sub("", text))))


def _shown(character: str) -> str:
    category = unicodedata.category(character)
    if character.isspace():
        return character if category == "Zs" else " "
    return "\N{REPLACEMENT CHARACTER}" if category == "Cs" else "" if category in ("Cc", "Cf") else character


def pasteable(command: str) -> bool:
    """Return whether a command is a single line without control characters or invisible characters."""
    return bool(command.strip()) and clean(command) == command
