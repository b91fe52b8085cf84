"""An engine that is quick to start and goes wrong on request: an OpenAI-style HTTP server of the standard library.

Run as ``python fake_engine.py --port 8000 [--fault …]``; words it does not know are ignored, so that it can stand
in where another engine's flags are given. It needs no package and runs on Python 3.6 and newer.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn

FAULTS = {
    "none": "all is well",
    "exit-at-start": "writes an error and ends with status 3",
    "no-listen": "runs, but never opens its port",
    "loading": "answers 503 everywhere until --load-seconds have passed",
    "hang": "health is fine, completions never end",
    "garbage": "completions are 64 exclamation marks",
    "empty": "completions are empty",
    "wrong": "completions name another capital",
    "error": "completions answer 500",
    "lost-gpu": "completions answer 500, since the GPU is gone; the log says so",
    "crash": "the process ends at the first completion",
    "phone-home": "asks for --phone-home-host while starting",
}
WRONG = "The capital of France is Rome."


def main():
    options = parse(sys.argv[1:])
    say("engine starting, fault: " + options.fault)
    if options.first_words:
        say(options.first_words)
    if options.record:
        record_start(options.record)
    if options.fault == "exit-at-start":
        say(options.last_words)
        return 3
    if options.fault == "phone-home":
        phone_home(options.phone_home_host)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.fault == "no-listen":
        threading.Event().wait()
    Handler.options = options
    Handler.ready_at = time.monotonic() + options.load_seconds
    server = Server((options.host, options.port), Handler)
    say(f"listening on http://{options.host}:{server.server_address[1]}")
    server.serve_forever()
    return 0


def parse(words):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", choices=sorted(FAULTS), default=os.environ.get("FAKE_ENGINE_FAULT", "none"))
    parser.add_argument("--fault-file", default="", help="while this file exists, its text is the fault")
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--alias", default="fake", help="name of the model in the API")
    parser.add_argument("--answer", default="The capital of France is Paris.")
    parser.add_argument("--phone-home-host", default="telemetry.example.com")
    parser.add_argument("--first-words", default="", help="a line of its log")
    parser.add_argument("--last-words", default="error: cannot load the model: tensor 'blk.0.attn_q.weight' not found")
    parser.add_argument("--record", default="", help="file that gets one JSON line per start: argv, environment, pid")
    return parser.parse_known_args(words)[0]


def say(line):
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def record_start(path):
    with open(path, "a") as handle:  # noqa: PTH123
        handle.write(json.dumps({"argv": sys.argv, "environ": dict(os.environ), "pid": os.getpid()}) + "\n")


def phone_home(host):
    try:
        socket.create_connection((host, 443), timeout=5).close()
        say("telemetry sent to " + host)
    except OSError as error:
        say(f"telemetry to {host} failed: {error}")


class Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    options = None
    ready_at = 0.0

    def do_GET(self):
        if not self.loaded():
            return
        if self.path == "/health":
            self.reply({"status": "ok"})
        elif self.path == "/v1/models":
            model = {"id": self.options.alias, "object": "model", "created": 0, "owned_by": "fake"}
            self.reply({"object": "list", "data": [model]})
        else:
            self.reply({"error": {"message": "not found", "code": 404}}, 404)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if not self.loaded():
            return
        if self.path not in ("/v1/completions", "/v1/chat/completions"):
            self.reply({"error": {"message": "not found", "code": 404}}, 404)
            return
        try:
            request = json.loads(body.decode("utf-8") or "{}")
        except ValueError:
            self.reply({"error": {"message": "invalid JSON", "code": 400}}, 400)
            return
        self.complete(request, self.path.endswith("/chat/completions"))

    def fault(self):
        try:
            with open(self.options.fault_file) as handle:  # noqa: PTH123
                return handle.read().strip()
        except OSError:
            return self.options.fault

    def loaded(self):
        if self.options.fault == "loading" and time.monotonic() < self.ready_at:
            self.reply({"error": {"message": "Loading model", "code": 503}}, 503)
            return False
        return True

    def complete(self, request, chat):
        fault = self.fault()
        if fault == "crash":
            os._exit(139)
        if fault == "hang":
            threading.Event().wait()
        if fault == "error":
            self.reply({"error": {"message": "internal error", "code": 500}}, 500)
            return
        if fault == "lost-gpu":
            say("RuntimeError: CUDA error: unknown error")
            self.reply({"error": {"message": "EngineCore encountered an issue", "code": 500}}, 500)
            return
        text = {"garbage": "!" * 64, "empty": "", "wrong": WRONG}.get(fault, self.options.answer)
        if request.get("stream"):
            self.stream(text, chat)
        else:
            self.reply(self.whole(text, chat))

    def whole(self, text, chat):
        tokens = len(text.split())
        choice = {"index": 0, "finish_reason": "stop"}
        choice.update({"message": {"role": "assistant", "content": text}} if chat else {"text": text})
        usage = {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}
        kind = "chat.completion" if chat else "text_completion"
        name = self.options.alias
        return {"id": "cmpl-0", "object": kind, "created": 0, "model": name, "choices": [choice], "usage": usage}

    def stream(self, text, chat):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        kind = "chat.completion.chunk" if chat else "text_completion"
        words = text.split(" ")
        for number, word in enumerate(words):
            piece = word + (" " if number + 1 < len(words) else "")
            choice = {"index": 0, "finish_reason": None}
            choice.update({"delta": {"content": piece}} if chat else {"text": piece})
            self.event({"id": "cmpl-0", "object": kind, "model": self.options.alias, "choices": [choice]})
        last = {"index": 0, "finish_reason": "stop"}
        last.update({"delta": {}} if chat else {"text": ""})
        self.event({"id": "cmpl-0", "object": kind, "model": self.options.alias, "choices": [last]})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode("utf-8") + b"\n\n")
        self.wfile.flush()

    def reply(self, value, status=200):
        data = json.dumps(value).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *arguments):
        say("request: " + format % arguments)


if __name__ == "__main__":
    sys.exit(main())
