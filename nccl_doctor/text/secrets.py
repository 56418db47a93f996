"""Finds secrets in text by their format and hides secrets in reports and other documents.

Repetitions in the patterns are bounded, so the search time is proportional to the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

from nccl_doctor.text.shell import CONTROL_SEQUENCE

LEFT_OUT = "(left out)"
SHORTEST = 16  # characters of the shortest token: host names and addresses, most of a report's texts, are shorter
CUT = "…"  # end of a text that was clipped: a secret before it may be incomplete


_TOKENS = {  # beginnings of tokens, and what follows each
    "hf_": r"[A-Za-z0-9]{16,500}",  # Hugging Face
    "api_org_": r"[A-Za-z0-9]{16,500}",
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"[A-Za-z0-9]{16,500}"),  # GitHub
    "github_pat_": r"\w{20,200}",
    "gl": r"(?:pat|ptt|dt|rt|rtr|cbt|soat|imt|ft|agent|oas)-[\w.-]{12,500}",  # GitLab
    "xox": r"[abceoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,500}",  # Slack
    "xapp-": r"[A-Za-z0-9-]{10,500}",
    "hooks.slack.com/": r"(?:services|workflows|triggers)/[\w/-]{20,200}",
    "discord.com/api/webhooks/": r"\d{8,30}/[\w-]{20,200}",
    "discordapp.com/api/webhooks/": r"\d{8,30}/[\w-]{20,200}",
    "webhook.office.com/": r"[\w/@-]{20,400}",
    "sk-": r"(?:(?:proj|svcacct|admin|ant|or|lf|None)-[\w-]{12,500}|[A-Za-z0-9]{16,500})",  # OpenAI, Anthropic, others
    "sk_": r"(?:(?:live|test|prod)_)?[A-Za-z0-9]{16,500}",  # Stripe
    "rk_": r"(?:live|test|prod)_[A-Za-z0-9]{10,500}",
    "pk_": r"(?:live|test|prod)_[A-Za-z0-9]{10,500}",
    "whsec_": r"[A-Za-z0-9+/=]{16,500}",
    "npm_": r"[A-Za-z0-9]{30,100}",
    "pypi-AgE": r"[\w-]{12,1000}",
    "rubygems_": r"[a-f0-9]{40,60}",
    **dict.fromkeys(
        ("AKIA", "ASIA", "ABIA", "ACCA"), r"[0-9A-Z]{16}(?![0-9A-Z])(?:[\s:,;|'\"]{1,4}[\w+/]{40}(?![\w+/]))?"
    ),
    "LTAI": r"[A-Za-z0-9]{12,30}",  # Alibaba
    "AKID": r"[A-Za-z0-9]{32}",  # Tencent
    "AIza": r"[\w-]{30,60}",  # Google
    "ya29.": r"[\w-]{20,500}",
    "GOCSPX-": r"[\w-]{20,60}",
    "SG.": r"[\w-]{16,64}\.[\w-]{16,128}",  # SendGrid
    "SK": r"[0-9a-f]{32}(?![0-9A-Za-z])",  # Twilio
    "eyJ": r"[\w-]{8,4000}\.[\w-]{8,4000}(?:\.[\w-]{0,4000}){0,3}",  # RFC 7519: each begins with {" in Base64
    "eyJhcGlfYWRkcmVzcyI6": r"[\w+/-]{8,4000}={0,2}",  # Neptune: {"api_address":
    "nvapi-": r"[\w-]{12,500}",
    "wandb_v1_": r"\w{12,500}",
    "dapi": r"[a-f0-9]{32}(?:-\d)?",  # Databricks
    **dict.fromkeys(("hvs.", "hvb.", "hvr."), r"[\w-]{12,500}"),  # Vault
    "s.": r"(?=[A-Za-z]{0,23}\d)(?=[a-z0-9]{0,23}[A-Z])[A-Za-z0-9]{24}(?![\w.(])",
    "AGE-SECRET-KEY-1": r"[0-9A-Z]{20,80}",
    "r8_": r"[A-Za-z0-9]{16,100}",  # Replicate
    "gsk_": r"[A-Za-z0-9]{16,100}",  # Groq
    "xai-": r"[A-Za-z0-9]{20,200}",
    "pplx-": r"[A-Za-z0-9]{20,200}",
    "lsv2_": r"(?:pt|sk)_\w{16,100}",  # LangSmith
    "lin_api_": r"[A-Za-z0-9]{12,100}",
    "dckr_pat_": r"[\w-]{12,100}",
    "glsa_": r"\w{16,100}",  # Grafana
    "glc_": r"[\w+/=]{16,1000}",
    "sntrys_": r"[\w+/=-]{16,1000}",
    "tskey-": r"[\w-]{12,200}",
    "shpat_": r"[a-fA-F0-9]{16,100}",
    **dict.fromkeys(("dop_v1_", "doo_v1_", "dor_v1_"), r"[a-f0-9]{16,100}"),
    "pul-": r"[a-f0-9]{40}",
    "PMAK-": r"[a-f0-9-]{20,100}",
    "NRAK-": r"[A-Z0-9]{20,60}",
    "ATATT3x": r"[\w=-]{20,500}",
    "key-": r"[0-9a-f]{32}(?![0-9a-z])",  # Mailgun
}

_QUOTED = r"""(?:"(?:[^"\\\n]|\\.){0,2000}"|'[^'\n]{0,2000}')"""
_WORD = (
    r"""(?:\\"[^\n]{0,2000}?\\"|(?:[^\s'",;&]|"""
    + _QUOTED
    + r"""|(?<=[^\s'",;&])['"](?=[^\s'",;&)}\]])|[,;&](?![\s'"\])}]|$|[\w.$-]{1,64}[=:])){1,4000})"""
)
"""Pattern for a value in shell code, YAML, JSON, or nested JSON, up to a closing quote, a space, or the next name."""
_VARIABLE = r"[A-Z0-9_]{0,60}(?:TOKEN|KEY|SECRET|PASS|PWD|CRED|AUTH|JWT|PAT)[A-Z0-9_]{0,60}"
_OF_SHELL = rf"(?-i:[\"']?\$\{{?{_VARIABLE}\}}?[\"']?)(?![^\s,;&)}}\]])"
"""Pattern for a reference to a shell variable, as in ``HF_TOKEN="$HF_TOKEN"``, which does not reveal the value."""
_GIVEN = rf"(?!\(left out\))(?!(?:none|null|nil|true|false)\b|\"\"|''|[{{\[(](?:\s|$)|{_OF_SHELL})"
_NO_COUNT = r"(?![\"']?[-+]?\d[\d.,_]{0,15}[kmb%]?[\"']?(?![\w.]))"
_KEYS = r"(?:api|access|private|account|auth|service|signing|encryption|license|subscription|storage)[_-]?key"
_STRONG = (
    rf"(?:secret|passw(?:or)?d|passwd|passphrase|passcode|credentials?|{_KEYS}|shared[_-]?access[_-]?(?:key|signature)"
    r"|x-amz-signature|x-amz-credential|x-goog-signature|(?<=[a-z][_-])pwd)[\w-]{0,64}"
)
_WEAK = (
    r"(?<!bos[_-])(?<!eos[_-])(?<!pad[_-])(?<!unk[_-])(?<!sep[_-])(?<!cls[_-])(?<!mask[_-])(?<!image[_-])"
    r"tokens?(?!iz|s?_?(?:ids?|type|len|count|limit|budget|per)\b)[\w-]{0,64}"
)
"""Pattern for names that contain "token", except harmless names such as ``tokenizer`` and ``token_ids``."""
_STOP = r"\\{0,3}['\"]?"


def _named(name: str, guard: str = "") -> str:
    """Return a pattern that matches ``WANDB_API_KEY=…`` and ``"token": "…"``, but not ``/etc/passwd: no such file``."""
    stop = rf"{_STOP}\s{{0,4}}"
    return rf"((?:{name}{stop}:?=(?:[=>]|(?![=>]))|(?<!/){name}{stop}:(?![:/]))\s{{0,4}}){_GIVEN}{guard}{_WORD}"


def _option(name: str, guard: str = "") -> str:
    """Return a pattern for options with a secret value, such as ``--db-password hunter2``.

    The pattern also matches an option in a Python list, as in ``'--db-password', 'hunter2'``.
    """
    start = r"(?<![\w%-])--?(?!show-secrets\b)(?:[A-Za-z0-9]{1,40}[_-]){0,6}?"
    return rf"({start}{name}(?:['\"],\s{{0,4}}|\s{{1,4}})){_GIVEN}(?!['\"]?-){guard}{_WORD}"


_ENDS = r"(?:key|auth|jwt|pat|creds?)"
"""Pattern for name endings that can denote a secret (``--wandb-key``) but can also be harmless (``--sort-key``)."""
_LONG = r"(?=['\"]?[^\s'\"/~.$,;&][^\s'\"]{15,4000})(?!['\"]?[A-Za-z_.,:-]{1,4000}(?![^\s'\",;&]))"
"""Pattern for a value of 16 characters or more that is neither a path nor a plain word."""
_PAIR = r"(?=['\"]?[^\s:@/'\"]{1,100}:[^\s:/'\"])"
"""Pattern for a value of the form ``user:password``."""


class _Shape(NamedTuple):
    """A pattern for a secret, and lowercase words, at least one of which occurs in every match.

    A text that contains none of ``words`` is not searched. The pattern's first group is preserved when the secret is
    hidden.
    """

    words: tuple[str, ...]
    pattern: str


_IN_URL = _Shape(
    ("://",),
    r"(?<=://)()(?:[^/\s\"'<>`]{1,500}(?=@)|[^/\s:@\"'<>`]{0,100}:(?!\d{1,5}(?:/|$))(?:[^\s@\"'<>`]|[\"'](?![\s,:;)}\]])){1,200}(?=@)"
    rf"|[^/\s:@]{{0,100}}:(?!\d{{0,5}}{CUT})[^/\s@{CUT}]{{0,500}}{CUT})",
)
_PRIVATE_KEY = _Shape(
    ("private key",),
    r"(?s)()-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
)
_STRONG_WORDS = ("secret", "passw", "passphrase", "passcode", "credential", "key", "signature", "pwd")
_BEHIND_A_NAME = (
    _Shape(_STRONG_WORDS, _named(_STRONG)),
    _Shape(("token",), _named(_WEAK, _NO_COUNT)),
    _Shape(_STRONG_WORDS, _option(_STRONG)),
    _Shape(("token",), _option(_WEAK, _NO_COUNT)),
    _Shape((*_STRONG_WORDS, "token"), rf"(<(?:{_STRONG}|{_WEAK})>)(?!\(left)[^<\n]{{1,4000}}"),
    _Shape(("pass=",), rf"((?<![a-z])pass=){_GIVEN}{_NO_COUNT}{_WORD}"),
    _Shape(
        ("sshpass=", "jwt=", "_pat="),
        rf"((?<![a-z0-9])(?:sshpass|jwt|(?-i:[A-Z][A-Z0-9_]{{0,60}}_(?:PAT|JWT)))=){_GIVEN}{_WORD}",
    ),
    # the shell's own PWD is a path
    _Shape(("pwd=",), rf"((?<![a-z])pwd=)(?!['\"]?[/~]){_GIVEN}{_NO_COUNT}{_WORD}"),
    _Shape(
        ("-pass", "-pwd"),
        rf"((?<![\w%-])--(?:pass|pwd)(?:['\"],\s{{0,4}}|[=\s]\s{{0,4}}))(?!['\"]?[-/~]){_GIVEN}{_NO_COUNT}{_WORD}",
    ),
    _Shape(
        ("key", "auth", "jwt", "pat", "cred"),
        _named(rf"(?<![\w-])-{{0,2}}[A-Za-z0-9](?:[\w-]{{0,60}}[_-])?{_ENDS}", _LONG),
    ),
    _Shape(("key", "auth", "jwt", "pat", "cred"), _option(_ENDS, _LONG)),
    _Shape(
        ("-auth",),
        rf"((?<![\w%-])--(?:[a-z]{{1,40}}[_-])?auth(?:['\"],\s{{0,4}}|[=\s]\s{{0,4}})){_GIVEN}{_PAIR}{_WORD}",
    ),
    # a proxy's address without a scheme
    _Shape(
        ("proxy",),
        rf"(proxy{_STOP}(?:['\"],\s{{0,4}}|\s{{0,4}}[=:\s]\s{{0,4}})['\"]?)(?!\(left)[^\s:@/'\"]{{1,100}}:[^\s@/'\"]{{1,200}}(?=@)",
    ),
    _Shape(("_key=",), rf"((?-i:\b[A-Z][A-Z0-9_]{{0,60}}_KEY=)){_GIVEN}{_WORD}"),
    _Shape(("_auth",), rf"((?<![a-z])_auth{_STOP}\s{{0,4}}[=:]\s{{0,4}}){_GIVEN}{_WORD}"),
    # signed addresses: Azure's sig=
    _Shape(("sig", "key=", "code="), r"((?<=[?&;])(?:sig|signature|key|code)=)[^\s&'\",;]{8,4000}"),
    _Shape(
        ("authorization",),
        rf"(\bAuthorization{_STOP}\s{{0,4}}[=:]\s{{0,4}}['\"]?(?!\w{{1,20}}\s{{1,4}}\(left)(?:\w{{1,20}}\s{{1,4}})?)(?!\(left){_WORD}",
    ),
    # RFC 6750 and 7617; a word of letters only is no token: "token bucket", "basic authentication"
    _Shape(
        ("bearer", "basic", "token"),
        r"(\b(?:Bearer|Basic|Token)\s{1,4})(?=[\w~+/.=-]{0,200}[0-9=_.~+/-])[\w~+/.=-]{8,4000}",
    ),
    _Shape(("cookie",), r"(\b(?:Set-)?Cookie['\"]?:)(?!\s{0,4}\(left)[^\n]{1,4000}"),
    _Shape(
        ("login",),
        r"(\b(?:wandb|comet|neptune|huggingface-cli|hf|vault|gh|glab)\s{1,4}(?:auth\s{1,4})?login\s{1,4}"
        r"(?:--?[\w-]{1,40}[ =]{1,4})?)(?!\(left)[^\s-]\S{7,400}",
    ),
    # as netrc(5) has it
    _Shape(("login",), r"(\blogin\s{1,4}\S{1,100}\s{1,4}password\s{1,4})(?!\(left)\S{1,400}"),
    # programs whose -p is a password: without a blank before it, or with any, where they log in
    _Shape(
        ("mysql", "mariadb"),
        rf"(\b(?:mysql\w{{0,20}}|mariadb[\w-]{{0,20}})\b[^\n|;]{{0,200}}?\s-p)(?=\S){_GIVEN}{_WORD}",
    ),
    _Shape(
        ("sshpass", "mongo", "login"),
        r"(\b(?:sshpass|mongo\w{0,20}|(?:docker|podman|nerdctl|helm|oras|skopeo|registry|az)\s{1,4}login)\b"
        rf"[^\n|;]{{0,200}}?\s['\"]?-p(?:['\"],)?[ =]{{0,4}}){_GIVEN}{_WORD}",
    ),
    _Shape(("redis-cli",), rf"(\bredis-cli\b[^\n|;]{{0,200}}?\s-a\s{{1,4}}){_GIVEN}{_WORD}"),
    _Shape(
        ("curl", "wget"),
        r"(\b(?:curl|wget)\b[^\n|;]{0,400}?\s(?:-u|--user|-U|--proxy-user)[ =]{0,4}['\"]?[^\s:'\"]{1,100}:)(?!\(left)"
        r"[^\s'\"]{1,400}",
    ),
    _Shape(("pass:",), r"(\s-pass(?:in|out)?\s{1,4}pass:)(?!\(left)\S{1,400}"),
)


@cache
def _shape(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


@cache
def _token(start: str) -> re.Pattern[str]:
    """Return the pattern for tokens that begin with ``start``.

    If ``start`` has more than two characters, the pattern also matches truncated tokens.
    """
    left = rf"|[\w.+/=-]{{1,4000}}{CUT}" if len(start) > 2 else ""
    return re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))(){re.escape(start)}(?:{_TOKENS[start]}{left})")


def _patterns(text: str) -> Iterator[re.Pattern[str]]:
    """Yield the patterns for secrets that might occur in the text."""
    small = text.lower()
    yield from (_shape(rule.pattern) for rule in (_IN_URL, _PRIVATE_KEY) if any(word in small for word in rule.words))
    if len(text) >= SHORTEST or CUT in text:
        yield from (_token(start) for start in _TOKENS if start in text)
    yield from (_shape(rule.pattern) for rule in _BEHIND_A_NAME if any(word in small for word in rule.words))


def without_secrets(text: str) -> str:
    """Replace each secret in a string with :data:`LEFT_OUT`, even if the secret contains colour codes."""
    plain = text
    if not text.isprintable():  # as a terminal would show it: without characters that our screens remove
        plain = "".join(letter for letter in CONTROL_SEQUENCE.sub("", text) if letter.isprintable() or letter.isspace())
    result = plain
    for pattern in _patterns(plain):
        result = pattern.sub(rf"\g<1>{LEFT_OUT}", result)
    return text if result == plain else result


def names_secret(name: str) -> bool:
    """Return whether the name of a variable or field denotes a secret, such as ``HF_TOKEN`` or ``db_password``."""
    return without_secrets(f"{name}=x1") != f"{name}=x1"


def part(text: str, start: int, end: int) -> str:
    """Return ``text[start:end]``, shortened if the part would begin or end within a secret."""
    first, last = start, end
    if start > 0 or end < len(text):
        for secret in (match for pattern in _patterns(text) for match in pattern.finditer(text)):
            if secret.start() < start < secret.end():
                first = max(first, secret.end())
            if secret.start() < end < secret.end():
                last = min(last, secret.start())
    return text[first : max(first, last)]


def is_key_line(text: str, *, within: bool = False) -> bool:
    """Return whether ``text`` is a line from the body of a private key, possibly with prefixes added by a launcher.

    ``within`` means that a key began on an earlier line, so short lines are accepted.
    """
    *before, last = text.split() or [""]
    if len(before) > 4 or not all(word[-1] in ":>|]" or word.isdigit() for word in before):
        return False
    if not re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", last):
        return False
    mixed = bool(re.search("[a-z]", last) and re.search("[A-Z]", last) and re.search("[0-9]", last))
    return within or (60 <= len(last) <= 80 and mixed)


Hidden = TypeVar("Hidden")

_BEGIN, _END = "PRIVATE KEY-----", "-----END "


def hide_secrets(document: Hidden) -> Hidden:
    """Return the document with each secret replaced by :data:`LEFT_OUT`, or the same object if it has no secrets."""
    hidden: Hidden = _Walk().value(document)
    return hidden


class _Walk:
    """A traversal of a document that examines each distinct string only once."""

    def __init__(self) -> None:
        self._text, self._is_secret = cache(without_secrets), cache(names_secret)

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any part of a document
        """Return the value without secrets, using the value's own ``without_secrets`` method if available.

        If the value contains no secrets, the same object is returned.
        """
        kind = type(value)
        if kind is str:
            return self._text(value)
        if hasattr(kind, "without_secrets"):
            return value.without_secrets(self.value)
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, (list, tuple)):
            items = list(self._items(value))
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return value._make(items) if hasattr(value, "_make") else kind(items)
        return self._fields(value)

    def _fields(self, value: Any) -> Any:  # noqa: ANN401 - as above
        """Return a model or dataclass with the secrets in its fields hidden, and any other value unchanged."""
        kind = type(value)
        names = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", {})
        old = {name: getattr(value, name) for name in names}
        new = {name: self.value(item) for name, item in old.items()}
        changed = {name: item for name, item in new.items() if item is not old[name]}
        if not changed:
            return value
        return value.model_copy(update=changed) if hasattr(value, "model_copy") else replace(value, **changed)

    def _mapping(self, tree: dict[Any, Any]) -> dict[Any, Any]:
        """Hide secrets in a mapping, including the whole value of any key that names a secret.

        Keys that are not identifiers are never treated as names of secrets, since host names and paths can contain any
        word.
        """
        result = {}
        for name, value in tree.items():
            secret = type(name) is str and name.isidentifier() and self._is_secret(name)
            result[self.value(name)] = _left_out(value) if secret else self.value(value)
        pairs = zip(result.items(), tree.items(), strict=False)
        same = len(result) == len(tree) and all(a is c and b is d for (a, b), (c, d) in pairs)
        return tree if same else result

    def _items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield each item without secrets; log lines that belong to a private key are hidden."""
        within = False
        for item in items:
            text = item if type(item) is str else getattr(item, "text", None)
            if type(text) is str and is_key_line(text, within=within):
                yield LEFT_OUT if item is text else item.model_copy(update={"text": LEFT_OUT})
                continue
            if type(text) is str and _BEGIN in text:
                within = _END not in text
            yield self.value(item)


def _left_out(value: object) -> object:
    """Return the value with all strings hidden and with its structure and numbers unchanged."""
    if isinstance(value, dict):
        return {name: _left_out(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_left_out(item) for item in value]
    return LEFT_OUT if isinstance(value, str) and value else value
