"""Quantisation as real configurations spell it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from airbundle.gguf import parse_header
from airbundle.quantization import KNOWN, method, of_config, of_gguf
from parts.gguf import Value, gguf

CONFIGS: dict[str, dict[str, Any]] = {
    "": {"torch_dtype": "bfloat16"},
    "awq int4 g128": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq int4 g128": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "gptq int8": {"quant_method": "gptq_marlin", "bits": 8, "group_size": -1},
    "auto-round int2 g64": {"quant_method": "intel/auto-round", "bits": 2, "group_size": 64},
    "fp8 e4m3 dynamic blocks 128x128": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "compressed-tensors w4a16 g128": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}, "input_activations": None}
        },
    },
    "compressed-tensors w8a8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {
            "group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "type": "int"}}
        },
    },
    "compressed-tensors fp8": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
    },
    "compressed-tensors nvfp4": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}},
    },
    "modelopt nvfp4 kv-fp8": {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
    "bitsandbytes nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "bitsandbytes int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "petals": {"quant_method": "petals"},
}


@pytest.mark.parametrize("wanted", CONFIGS)
def test_config(wanted: str) -> None:
    table = CONFIGS[wanted]
    config = {"quantization_config": table} if wanted else table
    assert of_config(config, {}) == wanted
    assert method(wanted) in (*KNOWN, "", "petals")


def test_inside_a_multimodal_configuration_and_under_its_old_name() -> None:
    table = CONFIGS["awq int4 g128"]
    assert of_config({"text_config": {"quantization_config": table}}, {}) == "awq int4 g128"
    assert of_config({"compression_config": {"config_groups": {}}}, {}) == "compressed-tensors"


def test_files_of_their_own() -> None:
    optimized = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    assert of_config({}, {"hf_quant_config.json": optimized}) == "modelopt fp8"
    assert of_config({}, {"quantize_config.json": {"bits": 4, "group_size": 32}}) == "gptq int4 g32"
    assert of_config({}, {"quant_config.json": {"w_bit": 4, "q_group_size": 128}}) == "awq int4 g128"
    both = {"quantization_config": CONFIGS["mxfp4"]}
    assert of_config(both, {"hf_quant_config.json": optimized}) == "mxfp4", "config.json goes first"


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ({"general.file_type": 15}, "gguf Q4_K_M"),
        ({"general.file_type": 38}, "gguf MXFP4_MOE"),
        ({}, "gguf F32"),
        ({"general.file_type": 999}, "gguf F32"),
    ],
)
def test_gguf(metadata: dict[str, Value], wanted: str) -> None:
    data = gguf({"general.architecture": "llama", **metadata}, {"a.weight": [4, 4]})
    assert of_gguf(parse_header(io.BytesIO(data))) == wanted


def test_gguf_without_tensors() -> None:
    assert of_gguf(parse_header(io.BytesIO(gguf({"general.architecture": "llama"})))) == "gguf"
