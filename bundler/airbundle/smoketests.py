"""Smoke tests: the questions of a spec as requests whose answers prove that the model answers."""

from __future__ import annotations

from airbundle.contract.lock import BundleLock
from airbundle.contract.spec import SmokeTable
from airbundle_onsite.contract.launch import SmokeTest

_PATH = "/v1/chat/completions"
_SEED = 1
_FALLBACK = SmokeTable(question="Say in one sentence what a library is.", expect=("book|read|code|collection",))
"""Asked when the spec has no question of its own: any language model has an answer, and no garbage has this one."""


def smoke_tests(lock: BundleLock) -> tuple[SmokeTest, ...]:
    """The spec's ``[[smoke]]`` tables in their order, or one general question when it has none."""
    tables = lock.spec.smoke or (_FALLBACK,)
    return tuple(_test(table, number) for number, table in enumerate(tables, 1))


def _test(table: SmokeTable, number: int) -> SmokeTest:
    """Greedy and seeded, so that the same engine on the same hardware gives the same answer."""
    body = {
        "model": "{served_name}",
        "messages": [{"role": "user", "content": table.question}],
        "max_tokens": table.max_tokens,
        "temperature": 0,
        "seed": _SEED,
        "stream": False,
    }
    return SmokeTest(
        id=table.id or f"smoke-{number}",
        path=_PATH,
        body=body,
        expect=table.expect,
        reject=table.reject,
        concurrency=table.concurrency,
    )
