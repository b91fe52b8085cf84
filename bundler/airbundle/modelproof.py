"""Proves the models of a lock from their bytes: whole, fit to be served, fitting each other, nothing left to fetch."""

from __future__ import annotations

import dataclasses
import zipfile
from collections.abc import Sequence

from airbundle import engines
from airbundle.beside import Given, adapter_facts, beside_checks
from airbundle.cache import Cache
from airbundle.contract.lock import BundleLock, LockedModel
from airbundle.engines.lazy import LazyNeed, lazy_check, needs_in, wheel_versions
from airbundle.lockmodels import lock_vocabulary, with_card
from airbundle.modelcard import Card, at_hand, package_names, read_card
from airbundle.modelchecks import model_checks, report, stored_checks, use_of
from airbundle.sources.base import SourceContext
from airbundle.weights import prove, stored_types
from airbundle_onsite.contract.checks import CheckResult
from airbundle_onsite.errors import FetchError
from airbundle_onsite.system import Talk


def prove_models(lock: BundleLock, cache: Cache, talk: Talk) -> BundleLock:
    """Prove all models of a lock whose files are all in the cache.

    Args:
        lock: what to prove.
        cache: where the files are.
        talk: told the warnings.

    Returns:
        The lock, with what the files say of each model where locking could not tell.

    Raises:
        FetchError: naming the model and the file at fault.
    """
    models = []
    for model in lock.models:
        files = at_hand(model, cache)
        try:
            prove(files)
        except FetchError as error:
            raise FetchError(f"{model.source}: {error.summary}", details=error.details, remedy=error.remedy) from error
        card = read_card([file.path for file in model.files], files, model.entry)
        checks = [*model_checks(card, model, use_of(lock.spec)), *stored_checks(card, stored_types(files))]
        report(model.source, [*checks, *_package_checks(lock, cache, card)], talk)
        models.append(with_card(model, card))
    check_beside(models, cache, talk)
    proven = dataclasses.replace(lock, models=tuple(models))
    report("the bundle", lazy_checks(proven), talk)
    return proven


def complete(lock: BundleLock, context: SourceContext) -> BundleLock:
    """A fresh lock with what its engine would fetch by itself, its models held against each other.

    Raises:
        FetchError: something does not fit, or cannot be had.
    """
    models = [with_adapter_facts(model, context.cache) for model in lock.models]
    check_beside(models, context.cache, context.talk)
    made = dataclasses.replace(lock, models=tuple(models))
    lacking = {check.id for check in lazy_checks(made) if check.status == "fail"}
    fetched = [lock_vocabulary(need, context) for need in needs_of(made) if need.files and f"lazy.{need.id}" in lacking]
    made = dataclasses.replace(made, models=(*models, *fetched))
    report("the bundle", lazy_checks(made), context.talk)
    return made


def check_beside(models: Sequence[LockedModel], cache: Cache, talk: Talk) -> None:
    """Hold every further model against the first, as far as their files are at hand. Raises FetchError."""
    first = Given(models[0], at_hand(models[0], cache))
    for model in models[1:]:
        report(model.source, beside_checks(first, Given(model, at_hand(model, cache))), talk)


def with_adapter_facts(model: LockedModel, cache: Cache) -> LockedModel:
    """An adapter with what its configuration says; any other model as it is."""
    if model.role != "adapter":
        return model
    return dataclasses.replace(model, facts={**model.facts, **adapter_facts(at_hand(model, cache))})


def needs_of(lock: BundleLock) -> tuple[LazyNeed, ...]:
    """What the lock's engine would want from outside with the lock's model."""
    engine = lock.spec.engine.name
    return needs_in(engine, engines.create(engine).version(lock), lock)


def lazy_checks(lock: BundleLock) -> tuple[CheckResult, ...]:
    """Whether the bundle has what `needs_of` names."""
    hashes = {file.sha256 for model in lock.models for file in model.files if model.role == "vocabulary"}
    return tuple(lazy_check(need, wheel_versions(lock), hashes, _tools(lock)) for need in needs_of(lock))


def _tools(lock: BundleLock) -> frozenset[str] | None:
    """Programs known to be where the engine runs: an image made here says so; elsewhere nobody knows."""
    made = lock.spec.image.build if lock.spec.image else None
    if made is None:
        return None
    return frozenset(made.packages) | (frozenset({"gcc"}) if made.compiler else frozenset())


def _package_checks(lock: BundleLock, cache: Cache, card: Card) -> list[CheckResult]:
    """Whether the packages that the model's code imports are among the wheels; an engine's image is not looked into."""
    if not card.sources or lock.spec.runtime.kind != "venv":
        return []
    provided = set().union(*(_top_names(cache, wheel.file.sha256) for wheel in lock.wheels)) if lock.wheels else set()
    lacking = [name for name in package_names(card) if name not in provided]
    if not lacking:
        return []
    return [
        CheckResult(
            "model.imports",
            "fail",
            f"its Python code imports {', '.join(lacking)}, which no wheel of the bundle provides",
            remedy="add the packages to wheels.requirements",
        )
    ]


def _top_names(cache: Cache, sha256: str) -> set[str]:
    """Names that a wheel lets Python import."""
    try:
        with zipfile.ZipFile(cache.path(sha256)) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return set()  # reported where wheels are packed
    return {name.partition("/")[0].removesuffix(".py").partition(".")[0] for name in names if ".dist-info/" not in name}
