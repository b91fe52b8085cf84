"""`airbundle demo`: a real bundle, from its spec to an answer, with the network cut for the site half."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from airbundle.rehearse.wire import bring_up
from airbundle_onsite.contract import layout
from airbundle_onsite.errors import AirbundleError, ExitCode
from airbundle_onsite.system import Runner, Talk
from airbundle_onsite.verify.bundle import trust


class DemoError(AirbundleError):
    """A step of the demo failed; the step itself has already said why."""

    def __init__(self, summary: str, code: int) -> None:
        super().__init__(summary)
        self.exit_code = ExitCode(code) if code in set(ExitCode) else ExitCode.UNEXPECTED


def isolation(runner: Runner) -> list[str] | None:
    """Words that put before a command cut it off from every network, or None where the kernel does not allow it."""
    if not shutil.which("unshare"):
        return None
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        if runner.run([*words, "true"], timeout=10).code == 0:
            return words
    return None


def site_half(bundle: Path, root: Path, port: int, runner: Runner, talk: Talk) -> int:
    """Run the site's steps on a bundle in a child process without a network; returns its exit code."""
    words = isolation(runner)
    if words is None:
        talk.say("This kernel lets nobody cut the network here, so the site half runs with it.")
        words = []
    else:
        talk.say("The site half runs with the network cut (unshare --net: loopback only).")
    command = [*words, sys.executable, "-m", "airbundle.demo", str(bundle), str(root), str(port)]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


def ask(port: int, model: str, question: str) -> str:
    """The model's answer over the OpenAI-style API on loopback; proxies are ignored."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 48,
        "temperature": 0,
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=120) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text.strip()


def _step(*words: str) -> None:
    shown = " ".join(words)
    sys.stderr.write(f"\n$ {shown}\n")
    sys.stderr.flush()
    code = subprocess.run(words, check=False, stdin=subprocess.DEVNULL).returncode
    if code:
        raise DemoError(f"`{shown}` ended with exit code {code}", code)


def _site_steps(bundle: Path, root: Path, port: int) -> None:
    bring_up("lo")
    install = str(bundle / layout.INSTALLER)
    control = str(root / "bin" / "airbundlectl")
    manifest = trust(bundle).manifest
    question = str(manifest.smoke[0].body["messages"][0]["content"])
    _step("bash", install, "--verify", "--root", str(root), "--port", str(port))
    _step("bash", install, "--yes", "--root", str(root), "--port", str(port))
    try:
        sys.stderr.write(f"\nQuestion: {question}\n")
        sys.stderr.flush()
        sys.stdout.write(f"Answer:   {ask(port, manifest.models[0].served_name, question)}\n")
        sys.stdout.flush()
        _step(control, "--status")
    finally:
        _step(control, "--stop")


def main(arguments: list[str]) -> int:
    """The child process of `site_half`."""
    bundle, root, port = arguments
    try:
        _site_steps(Path(bundle), Path(root), int(port))
    except AirbundleError as error:
        sys.stderr.write("\n".join(error.lines()) + "\n")
        return int(error.exit_code)
    return 0


def free_port() -> int:
    """A TCP port free on loopback at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
    return port


def default_directory() -> Path:
    """Where the demo builds and installs: ``$AIRBUNDLE_DEMO`` or ``./demo``."""
    return Path(os.environ.get("AIRBUNDLE_DEMO", "demo")).absolute()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
