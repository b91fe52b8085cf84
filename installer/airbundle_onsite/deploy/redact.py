"""Takes secrets out of text that leaves the machine or stays in a log."""

from __future__ import annotations

import re

_HIDDEN = "[redacted]"
_SECRET = r"(?:token|secret|passw(?:or)?d|api[_-]?key|access[_-]?key|private[_-]?key|credential)"
_RULES = (
    # 'name': ['value', 'value'], "--name", "value": lists as Python and JSON write them into logs and command lines
    (
        re.compile(r"(?i)(\b[\w.-]*" + _SECRET + r"s?[\"']?\s*[=:]\s*)[\[(]\s*[\"'][^\])]*[\])]"),
        r"\1[" + _HIDDEN + "]",
    ),
    # but neither a count of tokens nor the next key of a JSON object is a value
    (
        re.compile(r"(?i)([\"']--[\w-]*" + _SECRET + r"[\w-]*[\"'],\s*[\"'])(?!\d+[\"']|[^\"']+[\"']\s*:)[^\"']+"),
        r"\1" + _HIDDEN,
    ),
    # NAME=value, "name": "value", --name value, where the name says that it is a secret; counts of tokens are none
    (
        re.compile(
            r"(?i)((?:\b[\w.-]*" + _SECRET + r"s?[\"']?\s*[=:]|--[\w-]*" + _SECRET + r"[\w-]*\s)\s*[\"']?)"
            r"(?!\d+\b)(?:bearer\s+|basic\s+)?([^\s\"',;}]{4,})"
        ),
        r"\1" + _HIDDEN,
    ),
    (re.compile(r"(?i)\b(authorization[\"']?\s*[:=]\s*[\"']?)(?:\w+\s+)?[^\s\"',;}]+"), r"\1" + _HIDDEN),
    (re.compile(r"(?i)\b(bearer\s+)[a-z0-9._~+/=-]{8,}"), r"\1" + _HIDDEN),
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]+@"), r"\1" + _HIDDEN + "@"),
    (re.compile(r"\b(?:hf|sk|ghp|glpat|ms)[_-][A-Za-z0-9_-]{16,}"), _HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), _HIDDEN),
)


def redact(text: str) -> str:
    """`text` with whatever looks like a credential replaced by ``[redacted]``."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
