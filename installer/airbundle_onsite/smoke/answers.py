"""What an engine's answer says, and whether it looks like language. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from airbundle_onsite.contract.record import record

_LONGEST_PERIOD = 12  # characters
_LONGEST_PHRASE = 3  # words


@record
class Generated:
    """Generated text, and the number of tokens if the engine told it."""

    text: str
    tokens: Optional[int]


def generated(body: Any) -> Optional[Generated]:
    """From the JSON of a completion or chat completion; None when it is neither."""
    if not isinstance(body, dict) or not isinstance(body.get("choices"), list) or not body["choices"]:
        return None
    choices = [choice for choice in body["choices"] if isinstance(choice, dict)]
    usage = body.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return Generated("".join(map(choice_text, choices)), tokens if isinstance(tokens, int) else None)


def choice_text(choice: dict[str, Any]) -> str:
    """The text of one choice, of a whole answer or of a piece of a streamed one."""
    message = choice.get("message", choice.get("delta"))
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    # A model that reasons may have spent all its tokens before it came to the answer.
    return str(message.get("content") or message.get("reasoning_content") or message.get("reasoning") or "")


def longest_repeat(text: str) -> int:
    """How many times in a row one short piece of text is repeated: 64 for ``"!" * 64``, 3 for ``"ha ha ha"``.

    Looks at pieces of up to 12 characters and of up to 3 words. Runs of white space do not count.
    """
    compact = "".join(text.split())
    by_character = max((_repeats(compact, period) for period in range(1, _LONGEST_PERIOD + 1)), default=0)
    words = text.lower().split()
    by_word = max((_repeats(words, period) for period in range(1, _LONGEST_PHRASE + 1)), default=0)
    return max(by_character, by_word)


def _repeats(items: Sequence[str], period: int) -> int:
    """How often in a row some `period` items come again, the first time included."""
    if len(items) < period:
        return 0
    longest = run = 0
    for index in range(period, len(items)):
        run = run + 1 if items[index] == items[index - period] else 0
        longest = max(longest, run)
    return longest // period + 1
