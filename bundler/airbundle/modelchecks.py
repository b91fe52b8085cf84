"""What a model must bring to be served, held against what its card says. Pure: a card in, check results out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from airbundle import quantization
from airbundle.contract.lock import LockedModel
from airbundle.contract.spec import BundleSpec
from airbundle.modelcard import Card
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Talk

_OWN_TEMPLATE = frozenset({"llama.cpp", "ollama"})
"""Engines that fall back to a form of conversation of their own where the model brings none."""
_ENCODED_BY_ENGINE = frozenset({"deepseek_v32"})
"""Values of model_type whose conversations the engines encode without a template."""
_TEMPLATE_FLAGS = frozenset({"chat-template", "chat-template-file", "chat_template", "tokenizer-mode"})
_TOKENIZER_FLAGS = frozenset({"tokenizer", "tokenizer-path", "skip-tokenizer-init", "tokenizer-mode"})


_PLAIN = frozenset({"F64", "F32", "F16", "BF16"})
_CHANGES_STORAGE = frozenset({"awq", "gptq", "mxfp4", "fbgemm_fp8"})
"""Methods whose tensors are never plain; others may quantise while loading."""


@record
class Use:
    """What a model is for.

    Attributes:
        engine: name of the engine.
        flags: names of the flags that the spec sets, without dashes.
        trust: the spec's ``trust_remote_code``.
        chosen: whether the spec names its files itself, by ``allow``.
    """

    engine: str = ""
    flags: frozenset[str] = frozenset()
    trust: bool | None = None
    chosen: bool = False


def use_of(spec: BundleSpec) -> Use:
    """What the spec's model is for."""
    flags = frozenset(flag.lstrip("-") for flag in spec.engine.flags)
    return Use(spec.engine.name, flags, spec.model.trust_remote_code, bool(spec.model.allow))


def model_checks(card: Card, model: LockedModel, use: Use) -> tuple[CheckResult, ...]:
    """Everything about one model by itself.

    Args:
        card: of as many of its files as are at hand.
        model: what was locked.
        use: what it is for.
    """
    if model.role in ("vocabulary", "projector"):
        return ()
    checks = [_quantization(card, model), *_weights(card, model, use)]
    checks += _custom_code(card, model, use)
    if model.role == "model" and model.format != "other":
        checks += [_config(card, model), _tokenizer(card, model, use), _template(card, model, use)]
        checks += _generation(card, model)
    return tuple(checks)


def stored_checks(card: Card, types: Mapping[str, int]) -> tuple[CheckResult, ...]:
    """Whether the tensors are stored as the configuration says; where they are not, engines load nonsense.

    Args:
        card: of a whole model.
        types: bytes by data type of its safetensors files; empty for other formats.
    """
    total, plain = sum(types.values()), sum(size for kind, size in types.items() if kind in _PLAIN)
    most = max(types, key=lambda kind: types[kind], default="")
    found = ", ".join(f"{kind} {100 * size // total} %" for kind, size in sorted(types.items()))
    named = quantization.method(card.quantization)
    if total and not card.quantization and 2 * plain < total:
        summary = f"its weights are stored as {most} in the main, and config.json does not say how to read them"
    elif total and named in _CHANGES_STORAGE and plain == total:
        summary = f"config.json says {card.quantization}, and every tensor is plain floating point"
    else:
        return ()
    return (
        CheckResult(
            "model.stored", "warn", summary, actual=found, remedy="take config.json and weights from the same revision"
        ),
    )


def report(what: str, checks: Sequence[CheckResult], talk: Talk) -> None:
    """Say the warnings; raise FetchError with every failure."""
    for check in checks:
        if check.status == "warn":
            talk.say(f"{what}: {check.summary}" + (f" ({check.remedy})" if check.remedy else ""))
    failed = [check for check in checks if check.status == "fail"]
    if len(failed) == 1:
        raise FetchError(f"{what}: {failed[0].summary}", details=failed[0].evidence, remedy=failed[0].remedy)
    if failed:
        lines = [f"{check.summary} — {check.remedy}" for check in failed]
        raise FetchError(f"{what}: {len(failed)} things would keep it from being served", details=lines)


def _quantization(card: Card, model: LockedModel) -> CheckResult:
    identifier = "model.quantization"
    if not card.quantization:
        dtype = card.facts.get("dtype") or "floating point"
        return CheckResult(identifier, "pass", f"weights are not quantised ({dtype})")
    named = quantization.method(card.quantization)
    if named not in quantization.KNOWN:
        return CheckResult(
            identifier,
            "warn",
            f"weights are stored by a method that is not known here: {card.quantization}",
            expected=", ".join(quantization.KNOWN),
            actual=card.quantization,
            remedy="see that this version of the engine reads it",
        )
    return CheckResult(identifier, "pass", f"weights are quantised: {card.quantization}", actual=card.quantization)


def _weights(card: Card, model: LockedModel, use: Use) -> Iterator[CheckResult]:
    if model.format == "other" and not use.chosen:
        yield CheckResult(
            "model.weights",
            "fail",
            "it holds no weights",
            expected="safetensors, GGUF or PyTorch files",
            evidence=tuple(f"left out: {why}" for why in model.skipped),
            remedy="see whether its download was finished; files of another kind are to be named in [model] allow",
        )
    if card.unlisted:
        yield CheckResult(
            "model.unlisted",
            "warn",
            f"{len(card.unlisted)} files of weights stand beside an index that does not list them: "
            f"{', '.join(card.unlisted[:3])}{' …' if len(card.unlisted) > 3 else ''}",
            evidence=card.unlisted,
            remedy="engines pass over them: name them in ignore, unless the engine is told to read them",
        )
    if model.format == "pytorch":
        yield CheckResult(
            "model.pickle",
            "warn",
            "weights are PyTorch pickles, which can run code when they are loaded",
            remedy="prefer the same model as safetensors",
        )


def _custom_code(card: Card, model: LockedModel, use: Use) -> Iterator[CheckResult]:
    identifier = "model.custom-code"
    if not card.code:
        return
    named = tuple(f"{each.file}: {each.text}" for each in card.code)
    if use.trust is None:
        yield CheckResult(
            identifier,
            "fail",
            f"it brings Python code of its own ({_listed({each.module for each in card.code})})",
            evidence=named,
            remedy="set model.trust_remote_code: true packs that code, pinned, and lets the engine run it; false "
            "leaves it out, for engines that know this kind of model by themselves",
        )
    elif not use.trust:
        yield CheckResult(
            identifier,
            "warn",
            f"its Python code is left out ({_listed({each.module for each in card.code})})",
            evidence=named,
            remedy="the engine must know this kind of model by itself; a rehearsal shows it",
        )
    else:
        yield CheckResult(identifier, "pass", f"its Python code is packed: {', '.join(model.custom_code)}")


def _config(card: Card, model: LockedModel) -> CheckResult:
    if card.config:
        return CheckResult("model.config", "pass", "its configuration is there")
    return CheckResult(
        "model.config",
        "fail",
        "it has no config.json",
        remedy="put the config.json of the model it was made from beside the weights",
    )


def _tokenizer(card: Card, model: LockedModel, use: Use) -> CheckResult:
    identifier = "model.tokenizer"
    if card.tokenizer:
        return CheckResult(identifier, "pass", f"its tokenizer is there: {card.tokenizer}", actual=card.tokenizer)
    if use.flags & _TOKENIZER_FLAGS:
        return CheckResult(identifier, "pass", "its tokenizer is named by engine.flags")
    return CheckResult(
        identifier,
        "fail",
        "it has no tokenizer",
        expected="tokenizer.json, tokenizer.model, tekken.json, vocab.json or the like",
        remedy="put the tokenizer's files of the model it was made from beside the weights"
        if model.format != "gguf"
        else "convert it again, with its tokenizer",
    )


def _template(card: Card, model: LockedModel, use: Use) -> CheckResult:
    identifier = "model.chat-template"
    if card.chat_template:
        return CheckResult(identifier, "pass", f"its chat template is there: {card.chat_template}")
    if use.flags & _TEMPLATE_FLAGS:
        return CheckResult(identifier, "pass", "its form of conversation is named by engine.flags")
    if card.facts.get("model_type") in _ENCODED_BY_ENGINE:
        return CheckResult(identifier, "pass", "the engine has its form of conversation built in")
    lenient = use.engine in _OWN_TEMPLATE
    return CheckResult(
        identifier,
        "warn" if lenient else "fail",
        "it has no chat template"
        + ("" if lenient else f", so {use.engine or 'the engine'} answers chat requests with an error"),
        expected="chat_template in tokenizer_config.json, chat_template.jinja, or tokenizer.chat_template in a GGUF",
        remedy="a base model is not made for chat: take its instruct form"
        + ("" if lenient else "; or put a chat_template.jinja beside the weights and name them as local:"),
    )


def _generation(card: Card, model: LockedModel) -> Iterator[CheckResult]:
    if not card.generation_config:
        yield CheckResult(
            "model.generation-config",
            "warn",
            "it has no generation_config.json: the engine's own sampling and stop tokens apply",
            remedy="take the one of the model it was made from",
        )


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))
