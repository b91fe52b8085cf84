"""Locks the model of a spec and what stands beside it, and looks into them while that is cheap to correct."""

from __future__ import annotations

import dataclasses

from airbundle import customcode, sources
from airbundle.contract.lock import LockedFile, LockedModel
from airbundle.contract.spec import BundleSpec, ExtraTable, ModelTable
from airbundle.engines.lazy import LazyNeed
from airbundle.modelcard import Card, at_hand, read_card
from airbundle.modelchecks import Use, model_checks, report
from airbundle.sources import hub, inline
from airbundle.sources.base import SourceContext
from airbundle_onsite.contract.artifacts import ModelRole
from airbundle_onsite.contract.record import record
from airbundle_onsite.errors import FetchError
from airbundle_onsite.units import human_bytes


@record
class Wanted:
    """A model to lock: where it is, and what it is for."""

    table: ModelTable
    role: ModelRole
    use: Use


def wanted_models(spec: BundleSpec, use: Use) -> tuple[Wanted, ...]:
    """The model first, then what stands beside it in the spec's order."""
    beside = [
        Wanted(
            _as_model(extra, spec.model.trust_remote_code),
            extra.role,
            dataclasses.replace(use, flags=frozenset(), chosen=bool(extra.allow)),
        )
        for extra in spec.model.extra
    ]
    return (Wanted(spec.model, "model", use), *beside)


def _as_model(extra: ExtraTable, trust: bool | None) -> ModelTable:
    return ModelTable(
        source=extra.source,
        served_name=extra.served_name,
        revision=extra.revision,
        file=extra.file,
        allow=extra.allow,
        ignore=extra.ignore,
        license=extra.license,
        trust_remote_code=trust,
    )


def lock_model(wanted: Wanted, context: SourceContext) -> LockedModel:
    """Pin one model, say what is left out of it, and check what its small files say.

    Raises:
        FetchError: it cannot be found, is not whole, or could not be served.
        UsageError: the source is written wrongly.
    """
    table = wanted.table
    made = sources.create(table.source.partition(":")[0], context).lock_model(table)
    made = dataclasses.replace(made, role=wanted.role)
    for why, count in made.skipped.items():
        context.talk.say(f"{table.source}: {human_bytes(count)} left out: {why}")
    card = card_of(made, context)
    if card.code and wanted.use.trust:
        made = _with_code(made, card, context)
        card = card_of(made, context)
    if card.names:
        report(table.source, model_checks(card, made, wanted.use), context.talk)
    return with_card(made, card)


def card_of(model: LockedModel, context: SourceContext) -> Card:
    """A model's card from what the cache holds. Without names when too little is at hand to judge by."""
    files = at_hand(model, context.cache)
    if model.entry and model.entry not in files:
        return Card(())
    return read_card([file.path for file in model.files], files, model.entry)


def with_card(model: LockedModel, card: Card) -> LockedModel:
    """A model with what its card says; what the card cannot say stays as it was."""
    if not card.names:
        return model
    return dataclasses.replace(
        model,
        quantization=card.quantization,
        chat_template=bool(card.chat_template),
        facts={**model.facts, **card.facts},
    )


def lock_vocabulary(need: LazyNeed, context: SourceContext) -> LockedModel:
    """Pin the files that an engine would fetch by itself, as a vocabulary of that need's name.

    Raises:
        FetchError: they cannot be had, with what to do instead.
    """
    source = sources.create("url", context)
    try:
        made = [
            source.lock_model(ModelTable(f"url:{file.url}#sha256={file.sha256}", need.id, allow=("*",)))
            for file in need.files
        ]
    except FetchError as error:
        raise FetchError(f"{need.what}: {error.summary}", details=error.details, remedy=need.remedy) from error
    return LockedModel(
        served_name=need.id,
        source=made[0].source.rpartition("/")[0],
        revision=hub.listing_digest([file for each in made for file in each.files]),
        format="other",
        files=tuple(file for each in made for file in each.files),
        role="vocabulary",
    )


# --- Python code of a model --------------------------------------------------------------------------------------


def _with_code(model: LockedModel, card: Card, context: SourceContext) -> LockedModel:
    """A model whose code is all there: pinned, beside the weights, whichever repository it comes from.

    A class in another repository (``ORG/NAME--module.Class``) would be fetched when the model is loaded. Its module is
    packed with what it imports, and the reference is made to point beside the model; the lock shows the changed file.
    """
    files = {file.path: file for file in model.files}
    origin = {name: name for name in card.sources}
    sources_here = dict(card.sources)
    scheme = "modelscope" if model.source.startswith("modelscope:") else "hf"
    own = model.source.partition(":")[2]
    foreign = sorted({each.repository for each in card.code} - {"", own})
    for repository in foreign:
        modules = {each.module for each in card.code if each.repository == repository}
        if model.source.startswith("local:") and modules <= set(card.sources):
            continue  # somebody put that code here already, and here it is pinned
        lent = _code_of(f"{scheme}:{repository}", modules, context)
        for name, (file, data) in lent.files.items():
            if name in files and files[name].sha256 != file.sha256:
                raise FetchError(
                    f"{model.source}: its own {name} is another than that of {scheme}:{repository}, which it names",
                    remedy="name a revision whose configuration names its own code",
                )
            files.setdefault(name, file)
            sources_here[name] = data
            origin[name] = f"{name} from {scheme}:{repository}@{lent.revision[:12]}"
    for name in {each.file for each in card.code if each.repository}:
        files[name] = _localized(files[name], set(foreign) | {own}, model, context)
    _, problems = customcode.closure({each.module for each in card.code}, sources_here)
    if problems:
        raise FetchError(
            f"{model.source}: its Python code is not whole", details=problems, remedy="name another revision"
        )
    return dataclasses.replace(
        model, files=tuple(files[path] for path in sorted(files)), custom_code=tuple(sorted(origin.values()))
    )


@record
class _Lent:
    """Python files of another repository: by name, locked and as bytes; and the commit they are of."""

    revision: str
    files: dict[str, tuple[LockedFile, bytes]]


def _code_of(source: str, modules: set[str], context: SourceContext) -> _Lent:
    """The named modules of a repository, with those that they import."""
    table = ModelTable(source, "code", allow=("*.py",), trust_remote_code=True)
    made = sources.create(source.partition(":")[0], context).lock_model(table)
    paths = at_hand(made, context.cache)
    contents = {name: path.read_bytes() for name, path in paths.items()}
    needed, problems = customcode.closure(modules, contents)
    if problems:
        raise FetchError(f"{source}: the code named in it is not whole", details=problems)
    return _Lent(made.revision, {file.path: (file, contents[file.path]) for file in made.files if file.path in needed})


def _localized(file: LockedFile, repositories: set[str], model: LockedModel, context: SourceContext) -> LockedFile:
    data = context.cache.path(file.sha256).read_bytes()
    text = customcode.localized(data, repositories).decode("utf-8")
    if "--" in "".join(each.text for each in customcode.references({file.path: customcode.parsed(text)})):
        raise FetchError(f"{model.source}: {file.path} names code in a way that cannot be made to point beside it")
    return inline.keep(
        context.cache, file.path, text, f"{model.source}@{model.revision} {file.path}, SHA-256 {file.sha256}"
    )
