"""Flags against the list of each version, and the script that makes the lists."""

from __future__ import annotations

import json
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from itertools import cycle, product
from pathlib import Path
from types import ModuleType

import pytest

from airbundle import profiles
from airbundle.choose import Request, plan_engine
from airbundle.engines.facts import engine_facts
from airbundle.engines.flaglist import check_flags, flag_list, removed
from airbundle_onsite.errors import UsageError

ROOT = Path(__file__).parents[3]


def script(name: str) -> ModuleType:
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    made = module_from_spec(spec)
    loader.exec_module(made)
    return made


# --- the lists ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", removed(), ids=lambda row: row.name)
def test_what_is_gone_is_not_in_the_lists_after_it(row: object) -> None:
    listed = flag_list(row.engine, "99")  # type: ignore[attr-defined]
    assert listed is not None
    assert row.name not in listed.names  # type: ignore[attr-defined]
    assert row.instead  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("version", "flag", "there"),
    [
        ("0.10.2", "--swap-space", True),
        ("0.19.1", "--swap-space", False),
        ("0.10.2", "--max-seq-len-to-capture", True),
        ("0.10.2", "--num-scheduler-steps", False),
        ("0.24.0", "--calculate-kv-scales", True),
        ("0.33.0", "--calculate-kv-scales", False),
        ("0.10.2", "--attention-backend", False),
        ("0.33.0", "--attention-backend", True),
        ("0.10.2", "VLLM_USE_V1", True),
        ("0.33.0", "VLLM_USE_V1", False),
        ("0.33.0", "--served-model-name", True),
        ("0.33.0", "--api-key", True),
    ],
)
def test_the_lists_are_those_of_the_wheels(version: str, flag: str, there: bool) -> None:
    listed = flag_list("vllm", version)
    assert listed is not None
    assert listed.exact
    assert (flag in listed.names) is there


def test_a_version_without_a_list_takes_the_nearest_older_one() -> None:
    between, before = flag_list("vllm", "0.31.0"), flag_list("vllm", "0.9.0")
    assert between is not None
    assert before is not None
    assert (between.version, between.exact, before.version) == ("0.24.0", False, "0.10.2")
    assert flag_list("unheard-of", "1") is None


# --- the check ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"--num-scheduler-steps": "4"}, "--num-scheduler-steps, gone since 0.10.2: nothing: the scheduler runs ahead"),
        ({"--swap-space": "0"}, "--swap-space, gone since 0.19.1: --kv-offloading-size"),
        ({"VLLM_ATTENTION_BACKEND": "FLASHINFER"}, "VLLM_ATTENTION_BACKEND, gone since 0.15.1: --attention-backend"),
        ({"--max-num-seq": "4"}, "--max-num-seq (did you mean '--max-num-seqs'?) (by the flags of 0.24.0)"),
        ({"--kv-cache-dtype": "fp9"}, "--kv-cache-dtype fp9 (did you mean 'fp8'?); it takes auto,"),
        ({"--attention-backend": "FLASH_INFER"}, "--attention-backend FLASH_INFER (did you mean 'FLASHINFER'?)"),
    ],
)
def test_what_a_version_does_not_take(given: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_flags("vllm", "0.24.0", given)
    assert said in caught.value.summary
    assert "vllm 0.24.0" in caught.value.summary


def test_what_a_version_takes() -> None:
    check_flags("vllm", "0.24.0", {"--no-enable-prefix-caching": "", "--kv-cache-dtype": "fp8", "NCCL_DEBUG": "INFO"})
    check_flags("ollama", "0.33.0", {"OLLAMA_NUM_PARALLEL": "2", "HOME": "/x"})
    with pytest.raises(UsageError, match="OLLAMA_NUM_PARALEL"):
        check_flags("ollama", "0.33.0", {"OLLAMA_NUM_PARALEL": "2"})


MODELS = ("qwen2.5-7b", "qwen2.5-72b-awq", "llama-3-70b", "deepseek-v3", "gpt-oss-120b")
HARDWARE = (("t4", 1), ("v100-32", 2), ("a100-40-pcie", 4), ("l20", 2), ("rtx-4090", 2), ("h100-sxm", 8), ("b200", 2))
CASES = tuple(product(MODELS, HARDWARE))
USES = tuple(product(("interactive", "concurrent", "agents", "batch"), ("docker", "venv")))
VERSIONS = (
    *(("vllm", version) for version in engine_facts("vllm").plan_for),
    ("sglang", "0.5.23"),
    ("tensorrt-llm", "1.2.1"),
)


@pytest.mark.parametrize(("engine", "version"), VERSIONS)
def test_no_rule_sets_a_flag_that_the_version_does_not_take(engine: str, version: str) -> None:
    """`plan_engine` raises for such a flag; whether the engine fits the hardware does not matter here."""
    seen = set()
    for (model, (profile, gpus)), (workload, runtime) in zip(CASES, cycle(USES), strict=False):
        config = json.loads((ROOT / "tests" / "golden" / "configs" / f"{model}.json").read_text())
        config["auto_map"] = {"AutoModel": "m.M"}
        request = Request(4096, 8, workload, gpus=gpus, engine=engine, version=version, runtime=runtime)
        seen.update(flag.name for flag in plan_engine(request, config, profiles.load(profile)).flags)
    assert len(seen) > 10


# --- the script --------------------------------------------------------------------------------------------------


def test_flags_are_read_from_source_without_running_it() -> None:
    refresh = script("refresh-flags")
    sources = {
        "vllm/engine/arg_utils.py": 'group.add_argument("--model", "-m", **kw["model"])\nraise SystemExit\n',
        "vllm/entrypoints/cli_args.py": "class FrontendArgs:\n    host: str | None = None\n    api_key: list[str]\n",
        "vllm/config/cache.py": 'CacheDType = Literal["auto", "fp8"]\n',
        "vllm/registry.py": 'class AttentionBackendEnum(Enum):\n    FLASH_ATTN = "a"\n    def path(self): ...\n',
        "vllm/envs.py": 'variables = {"VLLM_X": lambda: 1, "HOME": 2}\n',
        "sglang/srt/arg_groups/fields/a.py": (
            "class Model:\n"
            '    model_path: A[str, Arg(help="x", aliases=["--model"])]\n'
            '    hidden: A[int, Arg(help="x", no_cli=True)] = 1\n'
            '    odd: A[int, Arg(cli_name="--even")] = 1\n'
            "    plain: int = 2\n"
        ),
    }
    flags, choices, variables = refresh.declared(sources)
    assert flags == {"--model", "--host", "--api-key", "--model-path", "--even"}
    assert choices == {"--kv-cache-dtype": ["auto", "fp8"], "--attention-backend": ["FLASH_ATTN"]}
    assert variables == {"VLLM_X"}


def test_flags_are_read_from_a_help_text() -> None:
    text = (
        "-h,    --help, --usage          print usage and exit\n"
        "-fa,   --flash-attn [on|off]    set Flash Attention use\n"
        "                                see --not-a-flag\n"
        "--fit [on|off]                  whether to adjust unset arguments, like --ctx-size\n"
    )
    assert script("refresh-flags").from_help(text) == {"-h", "--help", "--usage", "-fa", "--flash-attn", "--fit"}


def test_the_table_of_plans_is_fresh() -> None:
    made = script("make-plans-table")
    rows = made.rows()
    assert json.loads(made.GOLDEN.read_text()) == rows, "run scripts/make-plans-table"
    assert made.TABLE.read_text() == made.document(rows), "run scripts/make-plans-table"
    assert len(rows) == 35
