"""Serves one GGUF model with the llama.cpp that is inside the xllamacpp wheel: llama-server's own HTTP API.

    python serve_llama_cpp.py --model FILE --host ADDRESS --port PORT --alias NAME [llama-server options]

It takes the llama-server options listed in OPTIONS. Exit status: 0 after SIGTERM or SIGINT, 1 when the model cannot
be loaded or the address is taken, 2 when the command line is wrong.
"""

import argparse
import os
import pathlib
import signal
import socket
import sys


def number(*path):
    """An option whose integer goes to the attributes named, each dotted from the parameters."""

    def apply(params, value):
        for name in path:
            *parents, last = name.split(".")
            owner = params
            for parent in parents:
                owner = getattr(owner, parent)
            setattr(owner, last, int(value))

    return apply


def switch(name, value):
    """An option without a value that sets one attribute."""

    def apply(params, _):
        setattr(params, name, value)

    return apply


def flash_attention(params, value):
    import xllamacpp

    params.flash_attn_type = getattr(
        xllamacpp.llama_flash_attn_type,
        {"on": "LLAMA_FLASH_ATTN_TYPE_ENABLED", "off": "LLAMA_FLASH_ATTN_TYPE_DISABLED"}.get(
            value, "LLAMA_FLASH_ATTN_TYPE_AUTO"
        ),
    )


def cache_type(name):
    """A data type of the key-value cache, by llama.cpp's own name such as q8_0."""

    def apply(params, value):
        import xllamacpp

        setattr(params, name, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{value.upper()}"))

    return apply


def numa(params, value):
    """How threads and memory are spread over NUMA nodes."""
    import xllamacpp

    params.numa = getattr(xllamacpp.ggml_numa_strategy, f"GGML_NUMA_STRATEGY_{value.upper()}")


def adapters(params, value):
    """LoRA adapters at their full strength, their paths joined by commas."""
    import xllamacpp

    found = []
    for path in value.split(","):
        found.append(xllamacpp.CommonAdapterLoraInfo())
        found[-1].path, found[-1].scale = path, 1.0
    params.lora_adapters = found


def draft(params, value):
    """A smaller model that guesses ahead."""
    import xllamacpp

    params.speculative.draft.mparams.path = value
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]


def projector(params, value):
    params.mmproj.path = value


VALUES = {
    "--ctx-size": number("n_ctx"),
    "--parallel": number("n_parallel"),
    "--threads": number("cpuparams.n_threads", "cpuparams_batch.n_threads"),
    "--threads-batch": number("cpuparams_batch.n_threads"),
    "--threads-http": number("n_threads_http"),
    "--batch-size": number("n_batch"),
    "--ubatch-size": number("n_ubatch"),
    "--predict": number("n_predict"),
    "--cache-ram": number("cache_ram_mib"),
    "--ctx-checkpoints": number("n_ctx_checkpoints"),
    "--gpu-layers": number("n_gpu_layers"),
    "--main-gpu": number("main_gpu"),
    "--timeout": number("timeout_read", "timeout_write"),
    "--verbosity": number("verbosity"),
    "--flash-attn": flash_attention,
    "--cache-type-k": cache_type("cache_type_k"),
    "--cache-type-v": cache_type("cache_type_v"),
    "--numa": numa,
    "--lora": adapters,
    "--model-draft": draft,
    "--mmproj": projector,
}
SWITCHES = {
    "--metrics": switch("endpoint_metrics", True),
    "--slots": switch("endpoint_slots", True),
    "--no-slots": switch("endpoint_slots", False),
    "--no-webui": switch("ui", False),
    "--offline": switch("offline", True),
    "--kv-unified": switch("kv_unified", True),
    "--context-shift": switch("ctx_shift", True),
    "--no-warmup": switch("warmup", False),
    "--check-tensors": switch("check_tensors", True),
}
OPTIONS = (*VALUES, *SWITCHES)


def command_line(words):
    parser = argparse.ArgumentParser(description="Serve a GGUF model.", allow_abbrev=False)
    for name in ("--model", "--host", "--port", "--alias"):
        parser.add_argument(name, required=True, type=int if name == "--port" else str)
    for name in VALUES:
        parser.add_argument(name)
    for name in SWITCHES:
        parser.add_argument(name, action="store_const", const="")
    return parser.parse_args(words)


def refusal(options):
    """Why it cannot work, where that can be known without loading anything; an empty string when it can."""
    model = pathlib.Path(options.model)
    if not model.is_file():
        return f"model {model}: no such file"
    try:
        with model.open("rb") as handle:
            magic = handle.read(4)
    except OSError as error:
        return f"model {model}: {error.strerror}"
    if magic != b"GGUF":
        return f"model {model}: not a GGUF file (it begins with {magic!r})"
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((options.host, options.port))
        except OSError as error:
            return f"address {options.host} port {options.port}: {error.strerror}"
    return ""


def parameters(options):
    """The engine's parameters. Raises AttributeError for an option this build of the engine has not got."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.model_alias = {options.alias}
    for name, apply in (*VALUES.items(), *SWITCHES.items()):
        value = getattr(options, name[2:].replace("-", "_"))
        if value is not None:
            apply(params, value)
    return params


def say(line):
    sys.stderr.write(f"serve_llama_cpp: {line}\n")
    sys.stderr.flush()


def main(words):
    options = command_line(words)
    reason = refusal(options)
    if reason:
        say(reason)
        return 1
    try:
        import xllamacpp
    except ImportError as error:
        say(f"xllamacpp cannot be loaded: {error}")
        return 1
    # Blocked from here on in every thread the engine starts; `sigwait` below takes them, also one that came early.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    say(f"loading {options.model} with xllamacpp {xllamacpp.__version__}")
    try:
        server = xllamacpp.Server(parameters(options))
    except (AttributeError, ValueError) as error:
        say(f"this build of xllamacpp does not take the options: {error}")
        return 1
    except RuntimeError as error:
        say(f"the engine could not load {options.model} (its own lines above say why): {error}")
        return 1
    say(f"listening on {server.listening_address}")
    caught = signal.sigwait(signals)
    say(f"{signal.Signals(caught).name}: stopping")
    # Not by the server's own end, which waits for ever when it comes right after the start; nothing here needs saving.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
