"""What secrets look like in a text. Each pattern is bounded, so that a text costs in proportion to its length.

The shapes are those that the makers of tokens document, which scanners such as gitleaks and detect-secrets look for;
these two read repositories, find none of what stands behind a name in a log, and would bring an HTTP client along.
"""

from __future__ import annotations

import re

LEFT_OUT = "(left out)"

_TOKENS = re.compile(
    r"""(?<![A-Za-z0-9])(?:
      (?:hf|gh[opsur]|glpat|gldt|glrt|xox[abeoprs]|xapp|sk|pk|rk|npm|nvapi|hvs|hvb|r8|lin_api|shpat|dop_v1|tskey|pypi)
        [_-][A-Za-z0-9_-]{12,500}
    | github_pat_\w{20,200}
    | (?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}(?![0-9A-Z])
    | LTAI[A-Za-z0-9]{12,30}
    | AIza[\w-]{30,60}
    | ya29\.[\w-]{20,500}
    | SG\.[\w-]{16,64}\.[\w-]{16,128}
    | AGE-SECRET-KEY-1[0-9A-Z]{20,80}
    | hooks\.slack\.com/services/[\w/-]{20,100}
    )""",
    re.VERBOSE,
)
"""Hugging Face, GitHub, GitLab, Slack, OpenAI and others' "sk-", Stripe, npm, NVIDIA, Vault, Replicate, Linear,
Shopify, DigitalOcean, Tailscale, PyPI, AWS, Alibaba, Google, SendGrid, age."""
_WEB_TOKEN = re.compile(r"(?<![\w-])eyJ[\w-]{8,4000}\.[\w-]{8,4000}(?:\.[\w-]{0,4000})?")
"""RFC 7519: three parts, of which the first begins with {" in Base64."""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*", re.DOTALL)
_IN_URL = re.compile(r"(?<=://)[^/\s@]{1,500}@")
_WORD = r"""(?:"(?:[^"\\\n]|\\.){0,2000}"|'[^'\n]{0,2000}'|[^\s'",;&]{1,4000})"""
"""A value as shells, YAML and JSON write one: to the closing quote, or to the next blank."""
_NAME = (
    r"(?:secret|passw(?:or)?d|passwd|passphrase|token|credentials?|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|account[_-]?key|shared[_-]?access[_-]?(?:key|signature)|x-amz-signature|x-amz-security-token|x-amz-credential"
    r"|x-goog-signature)"
)
_NAMED = re.compile(rf"({_NAME}[\w-]{{0,64}}['\"]?(?:\s{{0,4}}[=:]\s{{0,4}}))(?!\(left out\)){_WORD}", re.IGNORECASE)
"""``WANDB_API_KEY=…``, ``"token": "…"``, ``AccountKey=…``; what stands before the name is not looked at."""
_OPTION = re.compile(rf"(--?{_NAME}[\w-]{{0,64}}\s{{1,4}})(?!-){_WORD}", re.IGNORECASE)
"""``--password hunter2``."""
_QUERY = re.compile(r"((?<=[?&;])(?:sig|signature|key|code)=)[^\s&'\",;]{8,4000}", re.IGNORECASE)
"""Signed addresses: Azure's ``sig=``."""
_HEADER = re.compile(
    r"(\b(?:Bearer|Basic|Token)\s{1,4})(?=[\w~+/.=-]{0,200}[0-9=_.~+/-])[\w~+/.=-]{8,4000}", re.IGNORECASE
)
"""RFC 6750 and 7617. A word of letters alone is one: "token bucket", "basic authentication"."""
_AUTHORIZATION = re.compile(
    rf"(\bAuthorization['\"]?\s{{0,4}}[=:]\s{{0,4}}['\"]?(?:\w{{1,20}}\s{{1,4}})?)(?!\(left){_WORD}", re.IGNORECASE
)
_LOGIN = re.compile(
    r"(\b(?:wandb|comet|neptune|docker|huggingface-cli|hf)\s{1,4}(?:auth\s{1,4})?login\s{1,4}"
    r"(?:--?[\w-]{1,40}[ =]{1,4})?)"
    r"(?!\(left)[^\s-]\S{7,400}"
)
_CLIENT = re.compile(rf"(\b(?:mysql\w{{0,20}}|mariadb[\w-]{{0,20}}|sshpass)\b[^\n|;]{{0,200}}?\s-p)(?=\S){_WORD}")
"""Programs whose ``-p`` is a password with no blank before it."""

_BEHIND_A_NAME = (_NAMED, _OPTION, _QUERY, _AUTHORIZATION, _HEADER, _LOGIN, _CLIENT)


def without_secrets(text: str) -> str:
    """The text with :data:`LEFT_OUT` in place of whatever looks like a secret."""
    found = _IN_URL.sub(f"{LEFT_OUT}@", text)
    for shape in (_PRIVATE_KEY, _WEB_TOKEN, _TOKENS):
        found = shape.sub(LEFT_OUT, found)
    for shape in _BEHIND_A_NAME:
        found = shape.sub(rf"\g<1>{LEFT_OUT}", found)
    return found
