"""Keeps one engine running without a container: starts it, restarts it when it dies, rotates its log, ends it.

One file, standard library only, importing nothing of this package: a copy is put beside the state it keeps, so
that upgrading the site program never pulls the code from under a running service. Run as

    python -I supervisor.py SPEC

where SPEC is a JSON file (see `Spec`). It puts itself in the background; the command in the foreground ends as
soon as the engine was started (0) or could not be (1, the reason on standard output).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Optional

_TICK = 0.2  # seconds between looks at the engine
_QUIET = 60.0  # seconds of running after which a death counts as the first again


class Spec:
    """What to run, from the JSON file given.

    Keys: argv, env, cwd, log (file), state (file to write), restart (bool), grace (seconds between TERM and
    KILL), backoff (seconds before the first restart; doubled each time, to at most backoff_max), log_bytes and
    log_files (rotation).
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.argv = [str(word) for word in data["argv"]]
        self.env = {str(name): str(value) for name, value in data["env"].items()}
        self.cwd = str(data["cwd"])
        self.log = Path(data["log"])
        self.state = Path(data["state"])
        self.restart = bool(data["restart"])
        self.grace = float(data["grace"])
        self.backoff = float(data["backoff"])
        self.backoff_max = float(data["backoff_max"])
        self.log_bytes = int(data["log_bytes"])
        self.log_files = int(data["log_files"])


class Supervisor:
    """One engine's life."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._engine: Optional[subprocess.Popen[bytes]] = None
        self._stopping = False
        self._restarts = 0

    def run(self, started: int) -> None:
        """Run until told to stop, or until the engine dies and is not to be restarted.

        Args:
            started: a file descriptor that gets ``ok`` or the reason why the first start failed, then is closed.
        """
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            self._launch()
        except OSError as error:
            self._write("exited", 127)
            _tell(started, f"{self._spec.argv[0]}: {error.strerror or error}")
            return
        _tell(started, "ok")
        failures = 0
        while True:
            begun = time.monotonic()
            code = self._watch()
            if self._stopping:
                self._write("stopped", code)
                return
            if not self._spec.restart:
                self._write("exited", code)
                return
            failures = 1 if time.monotonic() - begun > _QUIET else failures + 1
            self._write("exited", code)
            self._note(f"the engine ended with code {code}; it is started again (restart {self._restarts + 1})")
            if not self._pause(min(self._spec.backoff * 2 ** min(failures - 1, 16), self._spec.backoff_max)):
                self._write("stopped", code)
                return
            self._restarts += 1
            self._relaunch()

    def _launch(self) -> None:
        with self._spec.log.open("ab") as log:
            self._engine = subprocess.Popen(
                self._spec.argv,
                env=self._spec.env,
                cwd=self._spec.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._write("running", None)

    def _relaunch(self) -> None:
        """Start it again; an error of the system (its files gone, no memory) counts as one more death."""
        try:
            self._launch()
        except OSError as error:
            self._engine = None
            self._note(f"the engine cannot be started: {error}")

    def _watch(self) -> Optional[int]:
        """Wait for the engine's end, ending it when told to; its exit code, negative for a signal."""
        if self._engine is None:
            return None
        while self._engine.poll() is None:
            if self._stopping:
                self._end_group()
                break
            self._rotate()
            time.sleep(_TICK)
        else:
            _signal_group(self._engine.pid, signal.SIGKILL)  # workers that outlived it hold its port and its GPU
        return self._engine.wait()

    def _end_group(self) -> None:
        assert self._engine is not None
        _signal_group(self._engine.pid, signal.SIGTERM)
        _signal_group(self._engine.pid, signal.SIGCONT)  # one that was stopped by a signal gets to see the TERM
        deadline = time.monotonic() + self._spec.grace
        while self._engine.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK / 4)
        _signal_group(self._engine.pid, signal.SIGKILL)

    def _pause(self, seconds: float) -> bool:
        """Sleep; False when told to stop meanwhile."""
        deadline = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < deadline:
            time.sleep(_TICK)
        return not self._stopping

    def _stop(self, _signal: int, _frame: Any) -> None:
        self._stopping = True

    def _rotate(self) -> None:
        """Copy and truncate: the engine appends to its open file, so it need not know."""
        log, count = self._spec.log, self._spec.log_files
        try:
            if log.stat().st_size <= self._spec.log_bytes:
                return
        except OSError:  # removed by hand: the engine writes on into what has no name any more
            return
        try:
            for number in range(count - 1, 0, -1):
                older = log.with_name(f"{log.name}.{number}")
                if older.exists():
                    older.replace(log.with_name(f"{log.name}.{number + 1}"))
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        except OSError:
            pass  # a full disk must not end the engine; cutting its log is what frees space
        with contextlib.suppress(OSError):
            os.truncate(log, 0)

    def _note(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with self._spec.log.open("a", encoding="utf-8") as log:
                log.write(f"{stamp} airbundle: {text}\n")
        except OSError:
            pass

    def _write(self, status: str, code: Optional[int]) -> None:
        engine = None if self._engine is None else identity(self._engine.pid)
        state = {
            "status": status,
            "code": code,
            "restarts": self._restarts,
            "supervisor": identity(os.getpid()),
            "engine": engine,
        }
        temporary = self._spec.state.with_name(f"{self._spec.state.name}.partial")
        try:
            temporary.write_text(json.dumps(state), encoding="utf-8")
            temporary.replace(self._spec.state)
        except OSError:
            if status == "running":
                raise  # nobody could find the engine again


def identity(pid: int) -> Optional[dict[str, Any]]:
    """What tells a process from a later one with the same number; None when there is no such process.

    Its start time, in clock ticks since boot, and the boot.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    words = stat.rpartition(")")[2].split()  # the command's name may hold anything
    if words[0] in "ZX":  # ended, only not collected yet
        return None
    return {"pid": pid, "start": int(words[19]), "boot": boot}


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _tell(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode())
    os.close(descriptor)


def _background() -> Optional[int]:
    """Leave the foreground: None in the process that stays there, the descriptor to report to in the new one."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as answer:
            text = answer.read()
        if text != "ok":
            sys.stdout.write(text or "the supervisor ended before it had started the engine")
            sys.stdout.flush()
        os._exit(0 if text == "ok" else 1)
    os.close(reader)
    os.setsid()
    os.chdir("/")  # the directory that the installation was started in may be a stick that is to be pulled out
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return writer


def main(path: str) -> None:
    """Run as the command."""
    spec = Spec(json.loads(Path(path).read_text(encoding="utf-8")))
    writer = _background()
    assert writer is not None
    Supervisor(spec).run(writer)


if __name__ == "__main__":
    os.umask(0o077)
    main(sys.argv[1])
