"""Stands in for vLLM: its module and function names, a real parser, and a few lines of its checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_ARG_UTILS = """
import json, pathlib

class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, args):
        made = cls()
        made.args = args
        return made

    def create_model_config(self):
        config = json.loads((pathlib.Path(self.args.model) / "config.json").read_text())
        longest = config["max_position_embeddings"]
        if self.args.max_model_len > longest:
            raise ValueError(f"max_model_len ({self.args.max_model_len}) is greater than {longest}")

    def create_engine_config(self):
        raise RuntimeError("Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU")
"""

_CLI_ARGS = """
from vllm.platforms import current_platform

def make_arg_parser(parser):
    if not current_platform.device_type:
        raise RuntimeError("Failed to infer device type")
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--max-model-len", type=int, default=128)
    parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8"], default="auto")
    return parser

def validate_parsed_serve_args(args):
    pass
"""

_CONFIG = """
import json, pathlib, types

def get_config(directory, trust_remote_code):
    found = json.loads((pathlib.Path(directory) / "config.json").read_text())
    return types.SimpleNamespace(**found)
"""

_REGISTRY = """
import importlib

class _Lazy:
    def load_model_cls(self):
        return importlib.import_module("vllm.model_executor.models.llama").LlamaForCausalLM

class ModelRegistry:
    models = {"LlamaForCausalLM": _Lazy()}

    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()
"""

_TOKENIZERS = """
import json, pathlib

class _Tokenizer:
    chat_template = "{{ messages }}"

    def __init__(self, vocabulary):
        self._vocabulary = vocabulary

    def encode(self, text):
        return [self._vocabulary.get(word, 0) for word in text.lower().split()]

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        return "".join("<s>" + each["content"] for each in messages)

def get_tokenizer(directory, trust_remote_code):
    return _Tokenizer(json.loads((pathlib.Path(directory) / "tokenizer.json").read_text())["model"]["vocab"])
"""

_TRANSFORMERS = """
import types

class LlamaForCausalLM:
    _tied_weights_keys = ()

    @classmethod
    def _from_config(cls, config):
        made = cls()
        made.config = config
        return made

    def state_dict(self):
        size, inner, words = self.config.hidden_size, self.config.intermediate_size, self.config.vocab_size
        shapes = {"model.norm.weight": (size,)}
        shapes["model.embed_tokens.weight"] = shapes["lm_head.weight"] = (words, size)
        for number in range(self.config.num_hidden_layers):
            layer = f"model.layers.{number}."
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                shapes[f"{layer}self_attn.{name}.weight"] = (size, size)
            shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (inner, size)
            shapes[f"{layer}mlp.down_proj.weight"] = (size, inner)
            shapes[f"{layer}input_layernorm.weight"] = shapes[f"{layer}post_attention_layernorm.weight"] = (size,)
        return {name: types.SimpleNamespace(shape=shape) for name, shape in shapes.items()}
"""

_TORCH = """
import contextlib

def device(name):
    return contextlib.nullcontext()
"""


def sources(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every file by its path.

    Args:
        changes: other content for some of them, or further ones; an empty one is left out.
    """
    made = {
        "vllm/__init__.py": '__version__ = "0.24.0"\n',
        "vllm/platforms.py": 'import types\ncurrent_platform = types.SimpleNamespace(device_type="")\n',
        "vllm/utils/argparse_utils.py": "from argparse import ArgumentParser as FlexibleArgumentParser  # noqa: F401\n",
        "vllm/entrypoints/cli/main.py": "",
        "vllm/entrypoints/cli/serve.py": "",
        "vllm/entrypoints/openai/api_server.py": 'print("a line of its own")\n',
        "vllm/entrypoints/openai/cli_args.py": _CLI_ARGS,
        "vllm/engine/arg_utils.py": _ARG_UTILS,
        "vllm/v1/engine/async_llm.py": "",
        "vllm/v1/engine/core.py": "",
        "vllm/model_executor/models/registry.py": _REGISTRY,
        "vllm/model_executor/models/llama.py": "class LlamaForCausalLM: pass\n",
        "vllm/transformers_utils/config.py": _CONFIG,
        "vllm/tokenizers.py": _TOKENIZERS,
        "transformers/__init__.py": _TRANSFORMERS,
        "torch/__init__.py": _TORCH,
    }
    packages = {f"{parent}/__init__.py" for path in made for parent in list(Path(path).parents)[:-1]}
    made = {**dict.fromkeys(packages, "# a package\n"), **made, **(changes or {})}
    return {path: text or "# nothing\n" for path, text in made.items()}


def write(directory: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """Write the files; one that is changed to None is not written."""
    kept = {path: text for path, text in {**sources(), **(changes or {})}.items() if text is not None}
    for path, text in kept.items():
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return directory
