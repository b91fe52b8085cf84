"""`airbundle estimate`: what a model needs on a profile, and what would make it fit."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import click

from airbundle import profiles
from airbundle.commands.app import App, with_app
from airbundle.estimate import Wish, estimate, read_model
from airbundle.estimateview import estimate_text, estimate_value
from airbundle.memory.adapters import Adapters
from airbundle.memory.budget import engines
from airbundle.memory.kv import KvDtype
from airbundle_onsite.errors import ExitCode


@click.command("estimate")
@click.argument("model")
@click.option("-p", "--profile", "profile_name", required=True, help="Hardware profile: its id, or a TOML file.")
@click.option("--engine", type=click.Choice(engines()), help="vllm; llama.cpp for GGUF.")
@click.option("--engine-version", "version", default="", help="Newest known unless given.")
@click.option("--gpus", type=click.IntRange(1), help="GPUs there are (the profile's number).")
@click.option("--tp", "tensor", type=click.IntRange(1), help="Tensor parallel size (as few as suffice).")
@click.option("--pp", "pipeline", type=click.IntRange(1), default=1, help="Pipeline stages.")
@click.option("--expert-parallel", "experts", is_flag=True, help="Whole experts on each rank.")
@click.option("--context", type=click.IntRange(1), help="Tokens of the longest request (8192 at most).")
@click.option("--concurrency", type=click.IntRange(1), help="Requests at once (8).")
@click.option("--kv-dtype", type=click.Choice(get_args(KvDtype)), default="bf16", help="Type of the KV cache.")
@click.option("--max-num-seqs", "sequences", type=click.IntRange(1), help="Sequences a step.")
@click.option("--batched-tokens", type=click.IntRange(1), help="Tokens a step.")
@click.option("--utilization", type=click.FloatRange(0.01, 1), help="Share of the GPU's memory.")
@click.option("--no-graphs", is_flag=True, help="Without CUDA graphs.")
@click.option("--drafted", type=click.IntRange(1), help="Tokens drafted by the model's own extra layers.")
@click.option("--draft", "draft_name", default="", help="A smaller model that drafts, named like MODEL.")
@click.option("--lora", nargs=2, type=click.IntRange(1), metavar="SLOTS RANK", help="LoRA slots and their rank.")
@click.option("--explain", is_flag=True, help="Show the computation.")
@with_app
def estimate_command(
    app: App,
    model: str,
    profile_name: str,
    draft_name: str,
    lora: tuple[int, int] | None,
    explain: bool,
    no_graphs: bool,
    **wish: Any,
) -> None:
    """Say whether MODEL runs on a profile's GPUs, and with how many requests of which length.

    MODEL is a config.json, a directory with one and the weights, a GGUF file, local:PATH or hf:ORG/NAME. Exit code 3
    when it cannot run as asked.
    """
    path = Path(profile_name)
    profile = profiles.read(path) if path.suffix == ".toml" else profiles.load(profile_name)
    given = {key: value for key, value in wish.items() if value is not None}
    asked = Wish(**given, graphs=not no_graphs, adapters=Adapters(slots=lora[0], rank=lora[1]) if lora else None)
    draft = read_model(draft_name, os.environ.get) if draft_name else None
    found = estimate(read_model(model, os.environ.get), profile, asked, draft)
    app.result(estimate_text(found, explain=explain), estimate_value(found))
    if found.plan.verdict == "impossible":
        raise click.exceptions.Exit(int(ExitCode.PREFLIGHT))


COMMANDS = (estimate_command,)
