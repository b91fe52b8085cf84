"""What stands in for a start without a GPU: probes of a stand-in engine with a real parser, and how they are judged."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from airbundle import engines
from airbundle.engines.recipes import recipe
from airbundle.engines.trying import KnowsTries
from airbundle.rehearse import judging, payload, tries
from airbundle.rehearse.notebook import Notebook
from airbundle.rehearse.report import Step
from airbundle.rehearse.serving import too_large_here
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.launch import LaunchPlan
from airbundle_onsite.system import Completed, Silent, SystemRunner
from airbundle_onsite.verify.bundle import trust
from parts.bundles import make_bundle
from parts.models import write_tiny_model
from parts.standin_vllm import write

WORDS = ("{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}", "--host", "{host}", "--port", "{port}")


def plan(*flags: str, name: str = "gpu1", engine: str = "vllm") -> LaunchPlan:
    argv = (*WORDS, "--served-model-name", "{served_name}", *flags)
    return LaunchPlan(name, engine, "0.24.0", "venv", argv, model="m", env={"HOME": "{state}"}, gpus="1")


class _Room:
    """Runs tries with this Python and the stand-in engine; what it was asked is kept."""

    def __init__(self, root: Path, model: Path) -> None:
        self.root, self.model = root, model
        self.prepared = ""
        self.ran: list[Sequence[str]] = []
        self.address = ("127.0.0.1", 1)
        self.code: int | None = None
        self.size = 0

    def values(self, plan: LaunchPlan) -> dict[str, str]:
        named = {"python": sys.executable, "model": str(self.model), "served_name": plan.model, "host": "h"}
        return {**named, "port": "1", "state": str(self.root), "probes": str(self.root / "probes")}

    def weights(self, plan: LaunchPlan) -> int:
        return self.size

    def prepare(self, probes: Mapping[str, str], model: str) -> None:
        payload.write_texts(self.root / "probes", probes)
        self.prepared = model

    def execute(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str], seconds: int) -> Completed:
        self.ran.append(argv)
        environment = {**os.environ, **variables, "PYTHONPATH": str(self.root / "engine")}
        return SystemRunner().run(argv, timeout=60, env=environment, cwd=self.root)

    @contextlib.contextmanager
    def serve(self, plan: LaunchPlan, argv: Sequence[str], variables: Mapping[str, str]) -> Iterator[_Room]:
        self.ran.append(argv)
        yield self

    def ended(self) -> int | None:
        return self.code

    def log(self) -> str:
        return "llama-server: libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def room(tmp_path: Path) -> _Room:
    write(tmp_path / "engine")
    return _Room(tmp_path, write_tiny_model(tmp_path / "model"))


def tried(room: _Room, *plans: LaunchPlan) -> tuple[dict[str, Step], dict[str, CheckResult], Notebook]:
    notebook = Notebook(Silent())
    tries.run_tries(plans, room, notebook)
    checks = {check.id.removeprefix("rehearsal."): check for step in notebook.steps for check in step.checks}
    return {step.id: step for step in notebook.steps}, checks, notebook


# --- what a good bundle shows ------------------------------------------------------------------------------


def test_everything_that_a_cpu_can_show_is_shown_and_the_rest_is_said(room: _Room) -> None:
    first, second = plan("--max-model-len", "128"), plan("--max-model-len", "64", name="gpu1-small")
    steps, checks, notebook = tried(room, first, second)
    assert list(steps) == ["try.imports", "try.flags.gpu1", "try.model.m", "try.flags.gpu1-small"]
    assert {step.status for step in steps.values()} == {"pass"}
    assert room.prepared == "thin"
    shown = {name for name, check in checks.items() if check.status == "pass"}
    assert shown >= {"import.vllm", "import.vllm.entrypoints.openai.api_server", "flags", "engine-args"}
    assert shown >= {
        "model-config",
        "config",
        "architecture",
        "code",
        "tokenizer",
        "chat-template",
        "weights",
        "shapes",
    }
    assert "--max-model-len" in checks["flags"].summary
    assert "its device is cuda" in checks["flags"].summary, "what was put in for the GPU is said"
    assert checks["shapes"].summary.startswith("21 of 21 tensors")
    assert checks["engine-config"].status == "skip"
    needs_gpu, kernels = notebook.not_rehearsed
    assert needs_gpu.startswith("engine-config (launch plan gpu1, gpu1-small): needs a GPU: ")
    assert "Found no NVIDIA driver on your system" in needs_gpu
    assert kernels.startswith("kernels, loading into GPU memory and generation")


# --- what fails, and is named ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "check", "said"),
    [
        (("--max-modl-len", "64"), "flags", "unrecognized arguments: --max-modl-len"),
        (("--kv-cache-dtype", "fp9"), "flags", "invalid choice: 'fp9'"),
        (("--max-model-len", "many"), "flags", "argument --max-model-len: invalid int value: 'many'"),
        (("--max-model-len", "4096"), "model-config", "max_model_len (4096) is greater than 256"),
    ],
)
def test_a_flag_that_the_engine_refuses_fails_and_is_named(
    room: _Room, flags: tuple[str, ...], check: str, said: str
) -> None:
    steps, checks, _ = tried(room, plan(), plan(*flags, name="other"))
    assert steps["try.flags.gpu1"].status == "pass"
    failed = steps["try.flags.other"]
    assert (failed.status, checks[check].status) == ("fail", "fail")
    assert said in failed.summary and said in "\n".join(failed.evidence)
    assert checks["shapes"].status == "pass", "the rest is still shown"


def change_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "check", "said"),
    [
        ({"architectures": ["NovelForCausalLM"]}, "architecture", "architecture NovelForCausalLM is not among the 1"),
        ({"architectures": None}, "architecture", "config.json names no architectures"),
        ({"hidden_size": 64}, "shapes", "lm_head.weight is [10, 32], needed [10, 64]"),
        ({"num_hidden_layers": 3}, "shapes", "9 tensor(s) that config.json asks for are in no file: model.layers.2."),
        ({"vocab_size": 5}, "tokenizer", "config.json has a vocab_size of 5"),
    ],
)
def test_a_model_that_does_not_fit_fails_and_is_named(
    room: _Room, changes: dict[str, object], check: str, said: str
) -> None:
    change_config(room.model, **changes)
    steps, checks, _ = tried(room, plan())
    assert steps["try.model.m"].status == "fail"
    assert checks[check].status == "fail"
    assert said in checks[check].summary
    assert checks[check].remedy


def test_weights_whose_header_and_length_differ_fail(room: _Room) -> None:
    path = next(room.model.glob("*.safetensors"))
    with path.open("r+b") as handle:
        handle.truncate(path.stat().st_size - 1)
    _, checks, _ = tried(room, plan())
    assert checks["weights"].status == "fail"
    assert "SafetensorError" in checks["weights"].summary
    assert "shapes" not in checks


def test_a_module_that_is_not_in_the_bundle_fails_by_its_name(room: _Room) -> None:
    write(room.root / "engine", {"vllm/entrypoints/openai/api_server.py": "import fastapi_of_another_planet\n"})
    steps, checks, _ = tried(room, plan())
    assert steps["try.imports"].status == "fail"
    assert "fastapi_of_another_planet" in checks["import.vllm.entrypoints.openai.api_server"].summary
    assert "import.vllm.v1.engine.core" not in checks


# --- what is not known here --------------------------------------------------------------------------------


def test_a_library_of_the_driver_that_is_missing_is_no_pass_and_no_failure(room: _Room) -> None:
    text = 'raise ImportError("libcuda.so.1: cannot open shared object file: No such file or directory")\n'
    write(room.root / "engine", {"vllm/model_executor/models/llama.py": text})
    steps, checks, notebook = tried(room, plan())
    assert checks["code"].status == "skip"
    assert steps["try.model.m"].summary.endswith("6 shown, 1 not rehearsed")
    assert any(
        line.startswith("code (launch plan gpu1): needs a GPU: ImportError: libcuda") for line in notebook.not_rehearsed
    )


def test_a_version_whose_functions_have_other_names_is_said(room: _Room) -> None:
    (room.root / "engine" / "vllm" / "tokenizers.py").unlink()
    steps, checks, _ = tried(room, plan())
    assert steps["try.model.m"].status == "pass"
    assert checks["tokenizer"].status == "skip"
    assert "this version has none of vllm.tokenizers:get_tokenizer" in checks["tokenizer"].summary


def test_a_chat_template_that_is_missing_is_told(room: _Room) -> None:
    path = room.root / "engine" / "vllm" / "tokenizers.py"
    path.write_text(path.read_text().replace('"{{ messages }}"', "None"))
    steps, checks, _ = tried(room, plan())
    assert (steps["try.model.m"].status, checks["chat-template"].status) == ("warn", "warn")


@pytest.mark.parametrize(
    ("code", "said", "status", "words"),
    [
        (-9, "", "skip", "killed by the system"),
        (137, "", "skip", "killed by the system"),
        (-4, "", "skip", "processor lacks instructions"),
        (124, "", "skip", "not done in time"),
        (-11, "", "fail", "exit code -11"),
        (1, "ImportError: libcuda.so.1: cannot open shared object file", "skip", "needs a GPU"),
        (1, "ImportError: libother.so.1: cannot open shared object file", "fail", "exit code 1"),
    ],
)
def test_a_probe_that_crashes_is_judged_by_how_it_ended(code: int, said: str, status: str, words: str) -> None:
    fact = {"begin": "import.vllm", "does": "import vllm"}
    done = Completed(("p",), code, f"noise\n{judging.MARK}{json.dumps(fact)}\n{said}\n", "")
    (check,) = judging.checks_of(done)
    assert (check.id, check.status) == ("rehearsal.import.vllm", status)
    assert words in check.summary


# --- click -------------------------------------------------------------------------------------------------

CLICK = """
import click

@click.group()
def main():
    pass

@main.command()
@click.argument("model")
@click.option("--host")
@click.option("--port", type=int)
@click.option("--max_batch_size", type=int)
def serve(model, host, port, max_batch_size):
    raise SystemExit("it was run, and must not be")
"""


@pytest.mark.parametrize(
    ("flags", "status", "said"),
    [
        (("--max_batch_size", "8"), "pass", "--max_batch_size"),
        (("--max_batch_sise", "8"), "fail", "No such option '--max_batch_sise'"),
        (("--max_batch_size", "eight"), "fail", "'eight' is not a valid integer"),
    ],
)
def test_a_click_command_reads_its_flags_and_is_not_run(
    room: _Room, flags: tuple[str, ...], status: str, said: str
) -> None:
    package = room.root / "engine" / "tensorrt_llm"
    (package / "commands").mkdir(parents=True)
    for name, text in (("__init__.py", ""), ("commands/__init__.py", ""), ("commands/serve.py", CLICK)):
        (package / name).write_text(text)
    words = ("trtllm-serve", "serve", "{model}", "--host", "{host}", "--port", "{port}", *flags)
    steps, checks, _ = tried(room, replace(plan(engine="tensorrt-llm"), argv=words))
    assert steps["try.flags.gpu1"].status == status
    assert said.replace("'", "") in checks["flags"].summary.replace("'", "").replace(":", "")


# --- commands and servers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "status"), [("print('usage')", "pass"), ("raise SystemExit(2)", "warn")])
def test_an_engine_without_tries_of_its_own_prints_its_help(room: _Room, program: str, status: str) -> None:
    launch = LaunchPlan(
        "gpu", "nobody knows", "1", "venv", ("{python}", "-c", program), model="m", env={"A": "{state}"}
    )
    steps, _, _ = tried(room, launch)
    assert list(steps) == ["try.help"]
    assert steps["try.help"].status == status
    assert room.ran == [(sys.executable, "-c", program, "--help")]


class _Answers(BaseHTTPRequestHandler):
    """A server that is ready at once, and says what its class says."""

    text = "Paris."

    def do_GET(self) -> None:
        self._send({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send({"choices": [{"message": {"content": self.text}}]})

    def _send(self, value: object) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Mute(_Answers):
    text = ""


def llama() -> LaunchPlan:
    argv = ("llama-server", "--model", "{model}/x.gguf", "--port", "{port}", "--ctx-size", "32768")
    return LaunchPlan("gpu1", "llama.cpp", "b1", "docker", argv, model="m", image="i", gpus="1")


@pytest.mark.parametrize(("handler", "status"), [(_Answers, "pass"), (_Mute, "fail")])
def test_llama_cpp_is_really_started_on_the_cpu(room: _Room, handler: type[_Answers], status: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        room.address = ("127.0.0.1", server.server_address[1])
        steps, _, notebook = tried(room, llama())
        server.shutdown()
    assert steps["try.start.gpu1"].status == status
    assert room.prepared == "whole"
    assert room.ran[0][-6:] == ("--ctx-size", "2048", "--parallel", "1", "--gpu-layers", "0")
    assert ("Paris." in steps["try.start.gpu1"].summary) is (status == "pass")
    assert bool(notebook.not_rehearsed) is (status == "fail")


def test_a_build_that_cannot_start_without_the_driver_is_not_rehearsed(room: _Room) -> None:
    room.code = 127
    steps, _, notebook = tried(room, llama())
    assert steps["try.start.gpu1"].status == "skip"
    assert "libcuda.so.1" in notebook.not_rehearsed[0]


def test_weights_that_do_not_fit_here_are_not_loaded(room: _Room) -> None:
    room.size = 1 << 60
    steps, _, notebook = tried(room, llama())
    assert steps["try.start.gpu1"].status == "skip"
    assert (room.ran, room.prepared) == ([], "")
    assert "to spare" in notebook.not_rehearsed[0]


def test_free_memory_is_read_from_the_kernel(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
    assert too_large_here(700_000, meminfo) == ""
    assert "1.0 MB" in too_large_here(900_000, meminfo)


# --- the data ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(engines.discover()))
def test_every_engine_knows_how_to_be_tried_for_every_launch_plan(name: str) -> None:
    engine = engines.create(name)
    if name == "auto":
        return
    assert isinstance(engine, KnowsTries)
    made = engine.rehearsal_tries(replace(plan(), engine=name))
    assert any("gpu1" in each.id for each in made)


@pytest.mark.parametrize("name", ["vllm", "sglang", "tensorrt-llm"])
@pytest.mark.parametrize("version", ["", "0.24.0", "99.0", "not a version"])
def test_there_is_a_recipe_for_every_version(name: str, version: str) -> None:
    assert recipe(name, version) is not None
    assert recipe("nobody knows", version) is None


def test_models_are_written_with_holes_in_the_place_of_tensors(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "model", hidden=256)
    files = {f"models/m/{path.name}": path.read_bytes() for path in model.iterdir()}
    bundle = make_bundle(tmp_path / "bundle", files, part_size=100_000)
    manifest = trust(bundle).manifest
    payload.extract_models(bundle, manifest, tmp_path / "thin", whole=False)
    payload.extract_models(bundle, manifest, tmp_path / "whole", whole=True)
    for path in (tmp_path / "whole" / "models" / "m").iterdir():
        thin = tmp_path / "thin" / "models" / "m" / path.name
        assert thin.stat().st_size == path.stat().st_size
        assert path.read_bytes() == files[f"models/m/{path.name}"]
        same = thin.read_bytes() == path.read_bytes()
        assert same is (path.suffix != ".safetensors")
        if path.suffix == ".safetensors":
            assert thin.stat().st_blocks * 512 < path.stat().st_size / 4
            header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
            assert thin.read_bytes()[:header] == path.read_bytes()[:header]
