"""A server in the place of a launch plan's: started in a room, waited for, and asked for one generation."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from airbundle.rehearse.rooms import Room, Served
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.contract.record import record
from airbundle_onsite.units import human_bytes

_TICK = 1.0  # seconds between questions to a server that is loading
_MEMORY_SHARE = 0.8  # of the free memory that weights may take here


@record
class Outcome:
    """How it went.

    Attributes:
        text: what it generated; empty when it did not.
        code: exit code of a server that ended by itself; 0 for one that did not.
        late: whether it was still loading at the end of its time.
        log: what it said.
    """

    text: str = ""
    code: int = 0
    late: bool = False
    log: str = ""


def generate_once(
    room: Room, plan: LaunchPlan, argv: Sequence[str], environment: Mapping[str, str], seconds: int
) -> Outcome:
    """Start the server, wait for at most so many seconds, ask, and end it."""
    with room.serve(plan, argv, environment) as served:
        deadline = time.monotonic() + seconds
        while not _answers(served, plan.readiness.health_path or "/"):
            ended = served.ended()
            if ended is not None:
                return Outcome(code=ended or 1, log=served.log())
            if time.monotonic() > deadline:
                return Outcome(late=True, log=served.log())
            time.sleep(_TICK)
        return Outcome(_generation(served, plan), log=served.log())


def _answers(served: Served, path: str) -> bool:
    try:
        return _request(served, "GET", path, None, 5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _generation(served: Served, plan: LaunchPlan) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": plan.model, "messages": [message], "max_tokens": 16, "temperature": 0}
    try:
        status, data = _request(
            served, "POST", "/v1/chat/completions", json.dumps(body), max(300, plan.readiness.request_seconds)
        )
        answer = json.loads(data)["choices"][0]["message"] if status == 200 else {}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
    return str(answer.get("content") or answer.get("reasoning_content") or "")


def _request(served: Served, method: str, path: str, body: str | None, seconds: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*served.address, timeout=seconds)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def too_large_here(size: int, meminfo: Path = Path("/proc/meminfo")) -> str:
    """Why weights of so many bytes are not loaded on this machine; empty when they may be."""
    rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines() if ":" in line)
    free = int(rows.get("MemAvailable", "0 kB").split()[0]) * 1024
    if size <= free * _MEMORY_SHARE:
        return ""
    return f"the weights take {human_bytes(size)}, and this machine has {human_bytes(free)} of memory to spare"
