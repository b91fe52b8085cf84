"""Asks a bundled engine what can be known of a start without its GPU. Run by the bundle's own Python in a rehearsal.

    airbundle_probe.py RECIPE LEVEL [WORDS...]

RECIPE is a JSON file with the names of the engine's own functions; what its keys mean stands beside the data that it is
made of. LEVEL is `imports`, `flags` (WORDS: the engine's command line) or `model` (WORDS: the model's directory, and
the options that say how it is read). Every fact is a line of JSON after a mark, which is written when it is known, so
that what crashed later leaves what came before. Standard library only, Python 3.9 and newer; the rest is the engine's.
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import sys
import traceback

MARK = "@airbundle-rehearsal "
_OUT = os.dup(1)  # the engine's libraries may close or redirect what they like
_LINES = 12  # of a traceback
_NAMES = 5  # tensors named at most


class Refused(Exception):
    """What was asked about is wrong, by the engine's own word."""


class Unknown(Exception):
    """It cannot be known here."""


class Remark(Exception):
    """It works, but not as one would expect."""


def tell(**fact):
    os.write(_OUT, ("\n" + MARK + json.dumps(fact) + "\n").encode())


@contextlib.contextmanager
def check(name, does, refusals=()):
    """One fact. Yields a list: its first item becomes the summary.

    An exception fails it; where `refusals` are named, only those classes do, and others leave it unknown.
    """
    tell(begin=name, does=does)
    said = []
    try:
        yield said
    except Unknown as error:
        tell(id=name, outcome="unknown", error=str(error))
    except Remark as error:
        tell(id=name, outcome="remark", summary=str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001  told, whatever it is
        kinds = {kind.__name__ for kind in type(error).__mro__}
        refused = isinstance(error, Refused) or not refusals or bool(kinds & set(refusals))
        trace = traceback.format_exc().splitlines()[-_LINES:]
        words = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
        tell(id=name, outcome="raised", error=words, refused=refused, trace=trace)
    else:
        tell(id=name, outcome="pass", summary=said[0] if said else does)


def named(name):
    """The object behind ``module:attribute.attribute``."""
    module, _, path = name.partition(":")
    found = importlib.import_module(module)
    for attribute in path.split(".") if path else ():
        found = getattr(found, attribute)
    return found


def first(names):
    """The object behind the first of several names that this version has."""
    for name in names:
        module = name.partition(":")[0]
        try:
            return named(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
                raise
        except AttributeError:
            continue
    raise Unknown(f"this version has none of {', '.join(names) or 'what would tell'}")


def place_device(recipe):
    """Names the device that the engine did not find, where the recipe says how; returns what was done, in words."""
    done = []
    for each in recipe["device"]:
        target = named(each["object"])
        if not getattr(target, each["attribute"], None):
            setattr(target, each["attribute"], each["value"])
            done.append(each["value"])
    return f" (told that its device is {done[0]}, since it found none)" if done else ""


# --- imports ----------------------------------------------------------------------------------------------


def imports(recipe, _words):
    for module in recipe["modules"]:
        with check(f"import.{module}", f"import {module}") as said:
            found = importlib.import_module(module)
            version = getattr(found, "__version__", "")
            said.append(f"{module} {version}".strip() + " imports")
            continue
        return  # what imports it would fail by the same cause


# --- flags ------------------------------------------------------------------------------------------------


def flags(recipe, words):
    parser = recipe["parser"]
    words = list(words)
    if parser["after"] in words:
        words = words[words.index(parser["after"]) + 1 :]
    shown = " ".join(word for word in words if word.startswith("-"))
    parsed = []
    with check("flags", "the engine's parser reads the flags") as said:
        device = place_device(recipe)
        parsed.append({"argparse": by_argparse, "click": by_click}[parser["kind"]](parser, words))
        said.append(f"the engine's own parser takes {shown}{device}")
    if parsed:
        settle(parser, parsed[0])


def by_argparse(recipe, words):
    parser = first(recipe["make"])()
    for name in recipe["add"]:
        parser = named(name)(parser) or parser

    def refuse(message):
        raise Refused(message)

    parser.error = refuse
    namespace = parser.parse_args(words)
    for old, new in recipe["rename"].items():
        setattr(namespace, new, getattr(namespace, old))
    return namespace


def by_click(recipe, words):
    """Contexts are made down to the last command, which reads and converts its words; nothing is invoked."""
    click = importlib.import_module("click")
    command, context = first(recipe["make"]), None
    try:
        while True:
            context = command.make_context(command.name, list(words), parent=context)
            if not isinstance(command, click.Group):
                return context.params
            # The command's name, kept apart by versions before 9.
            kept = getattr(context, "_protected_args", None) or getattr(context, "protected_args", None) or ()
            _, command, words = command.resolve_command(context, [*kept, *context.args])
    except click.ClickException as error:
        raise Refused(error.format_message()) from error


def settle(recipe, parsed):
    """The engine's own checks of the values, each on what the one before gave."""
    value = parsed
    for each in recipe["settle"]:
        with check(each["id"], each["does"], each["refusals"]) as said:
            made = first(each["call"])(value) if each["call"] else getattr(value, each["method"])()
            value = made if each["keep"] else value
            said.append(each["does"])
            continue
        return  # what follows needs it


# --- the model --------------------------------------------------------------------------------------------


def model(recipe, words):
    options = argparse.ArgumentParser()
    options.add_argument("directory")
    options.add_argument("--trust-remote-code", action="store_true")
    given = options.parse_args(words)
    keys = recipe["model"]
    place_device(recipe)
    config = read_config(keys, given)
    if config is not None:
        know_architecture(keys, config)
    read_tokenizer(keys, given, config)
    open_weights(keys, given, config)


def read_config(keys, given):
    found = []
    with check("config", "the engine's loader reads config.json") as said:
        load = first(keys["config"])
        found.append(load(given.directory, trust_remote_code=given.trust_remote_code))
        kind = getattr(found[0], "model_type", "") or "no model_type"
        said.append(f"the engine's own loader reads config.json: {kind}, {', '.join(architectures(found[0]))}")
    return found[0] if found else None


def architectures(config):
    return list(getattr(config, "architectures", None) or ())


def know_architecture(keys, config):
    known = []
    with check("architecture", "the engine knows the architecture") as said:
        supported = first(keys["architectures"])
        supported = list(supported() if callable(supported) else supported)
        known += [name for name in architectures(config) if name in supported]
        wanted = ", ".join(architectures(config)) or "none (config.json names no architectures)"
        if not known and keys["fallback"] in supported and has_transformers(config):
            raise Remark(f"{wanted} is none of the engine's {len(supported)}: it will run by transformers' own code")
        if not known:
            raise Refused(f"architecture {wanted} is not among the {len(supported)} that this version knows")
        said.append(f"{known[0]} is among the {len(supported)} architectures of this version")
    if known and keys["code"]:
        with check("code", "the architecture's own module imports", ("ModuleNotFoundError",)) as said:
            entry = first(keys["code"])[known[0]]
            loaded = getattr(entry, keys["load"])() if keys["load"] else entry
            said.append(f"the code of {known[0]} imports: {getattr(loaded, '__module__', loaded)}")


def has_transformers(config):
    module = importlib.import_module("transformers")
    return any(hasattr(module, name) for name in architectures(config))


def read_tokenizer(keys, given, config):
    made = []
    with check("tokenizer", "the tokenizer loads") as said:
        load = first(keys["tokenizer"])
        made.append(load(given.directory, trust_remote_code=given.trust_remote_code))
        numbers = made[0].encode("The capital of France is Paris. 你好")
        size = getattr(getattr(config, "get_text_config", lambda: config)(), "vocab_size", 0) or 0
        if not numbers:
            raise Refused("the tokenizer makes nothing of a sentence")
        if size and max(numbers) >= size:
            raise Refused(f"the tokenizer gives token {max(numbers)}, and config.json has a vocab_size of {size}")
        said.append(f"the tokenizer loads, and makes {len(numbers)} tokens of a sentence")
    if made:
        with check("chat-template", "the chat template renders a message") as said:
            if not getattr(made[0], "chat_template", None):
                raise Remark("the tokenizer has no chat template: requests for a chat will be refused")
            message = [{"role": "user", "content": "What is the capital of France?"}]
            text = made[0].apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            if message[0]["content"] not in text:
                raise Refused(f"the chat template loses the message: {text[:200]!r}")
            said.append(f"the chat template renders a message into {len(text)} characters")


# --- weights ----------------------------------------------------------------------------------------------


def open_weights(keys, given, config):
    files = sorted(pathlib.Path(given.directory).glob("*.safetensors"))
    held = {}
    with check("weights", "the safetensors library opens every file") as said:
        if not files:
            raise Unknown("the model has no safetensors files")
        library = importlib.import_module("safetensors")
        for path in files:
            with library.safe_open(str(path), framework="np") as handle:
                for name in handle.keys():  # noqa: SIM118  not a dict
                    part = handle.get_slice(name)
                    held[name] = (tuple(part.get_shape()), str(part.get_dtype()))
        said.append(f"the safetensors library opens {len(files)} file(s) with {len(held)} tensors")
    if not held or config is None:
        return
    with check("shapes", "the tensors have the shapes that config.json asks for") as said:
        said.append(compare(expected_shapes(keys, config), held))


def expected_shapes(keys, config):
    """Shape of each tensor by name, and names that may be missing, from the model's class without any numbers."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    names = [name for name in architectures(config) if hasattr(transformers, name)]
    if not names:
        raise Unknown(f"transformers has no class {', '.join(architectures(config))} to hold the tensors against")
    try:
        with torch.device("meta"):
            made = getattr(transformers, names[0])._from_config(config)
    except Exception as error:
        raise Unknown(f"transformers makes no {names[0]} of this config: {type(error).__name__}: {error}") from error
    tied = getattr(made, "_tied_weights_keys", None) or ()
    return {name: tuple(value.shape) for name, value in made.state_dict().items()}, set(tied)


_PACKED = ("U8", "I8", "I32", "I64", "U4", "F4")


def compare(expected, held):
    """A summary. Raises Refused for a wrong shape, or a tensor that is not there."""
    shapes, optional = expected
    both = [name for name in held if name in shapes]
    packed = [name for name in both if held[name][1] in _PACKED and held[name][0] != shapes[name]]
    wrong = [name for name in both if held[name][0] != shapes[name] and name not in packed]
    if wrong:
        listed = [f"{name} is {list(held[name][0])}, needed {list(shapes[name])}" for name in wrong[:_NAMES]]
        raise Refused(f"{len(wrong)} tensor(s) of another shape than config.json asks for: {'; '.join(listed)}")
    if not both:
        raise Unknown("no tensor has a name that transformers gives it, so shapes are not held against config.json")
    # Names that differ may stand for others; only when every name is known is a missing one missing.
    missing = [name for name in shapes if name not in held and name not in optional] if len(both) == len(held) else []
    if missing:
        raise Refused(
            f"{len(missing)} tensor(s) that config.json asks for are in no file: {', '.join(missing[:_NAMES])}"
        )
    rest = len(held) - len(both) + len(packed)
    left = f"; {rest} under other names or packed are not" if rest else ""
    return f"{len(both) - len(packed)} of {len(held)} tensors have the shapes that config.json asks for{left}"


def main(words):
    recipe = json.loads(pathlib.Path(words[0]).read_text(encoding="utf-8"))
    {"imports": imports, "flags": flags, "model": model}[words[1]](recipe, words[2:])
    tell(end=words[1])
    os._exit(0)  # without waiting for the threads of whatever was imported


if __name__ == "__main__":
    main(sys.argv[1:])
