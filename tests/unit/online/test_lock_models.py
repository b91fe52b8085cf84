"""Locking models and what they bring: code of their own and of others, adapters, vocabularies; everything said."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from airbundle import sources
from airbundle.contract.lock import LockedFile
from airbundle.contract.spec import ExtraTable, ModelTable
from airbundle.engines.lazy import LazyNeed, NeededFile
from airbundle.fetch import fetch_all
from airbundle.lockmodels import Wanted, lock_model, lock_vocabulary
from airbundle.modelchecks import Use
from airbundle.sources import url
from airbundle.sources.base import SourceContext
from airbundle_onsite.errors import FetchError, UsageError
from parts.hub import ModelHub
from parts.modelscope_hub import ModelScopeHub
from parts.sources import Heard, context

PYTHON = b"import torch\nfrom .configuration_x import XConfig\n"


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model that can be chatted with."""
    made = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    edit(made / "tokenizer_config.json", chat_template="{{ messages }}")
    return made


@pytest.fixture
def files_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An ordinary web server: its address and its directory."""
    place = tmp_path / "served"
    place.mkdir()
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(place))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", place
    server.shutdown()
    server.server_close()


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def lock(given: SourceContext, source: str, trust: bool | None = None, **wishes: object):  # type: ignore[no-untyped-def]
    table = ModelTable(source, "m", trust_remote_code=trust, **wishes)  # type: ignore[arg-type]
    return lock_model(Wanted(table, "model", Use("vllm", trust=trust)), given)


def at(hub: ModelHub) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url}


def test_a_whole_model_with_what_its_files_say(model_hub: ModelHub, model: Path, tmp_path: Path) -> None:
    edit(model / "config.json", quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128})
    (model / "pytorch_model.bin").write_bytes(bytes(5000))
    model_hub.add("org/x", model)
    talk = Heard()
    made = lock(context(tmp_path, at(model_hub), talk), "hf:org/x")
    assert (made.quantization, made.chat_template, made.role) == ("awq int4 g128", True, "model")
    assert made.facts["model_type"] == "llama"
    assert talk.said == ["hf:org/x: 5.0 kB left out: another copy of the weights"]
    assert not [seen for seen in model_hub.requests if seen.path.startswith("/lfs/")], "known before it is fetched"


def test_missing_templates_are_told_before_anything_large_is_fetched(
    model_hub: ModelHub, tiny_model: Path, tmp_path: Path
) -> None:
    model_hub.add("org/x", tiny_model)
    with pytest.raises(FetchError, match="hf:org/x: it has no chat template, so vllm"):
        lock(context(tmp_path, at(model_hub)), "hf:org/x")
    assert not [seen for seen in model_hub.requests if seen.path.startswith("/lfs/")]


# --- Python code -------------------------------------------------------------------------------------------------


@pytest.fixture
def coded(model: Path) -> Path:
    """A model with code of its own."""
    edit(
        model / "config.json",
        auto_map={"AutoModelForCausalLM": "modeling_x.X", "AutoConfig": "configuration_x.XConfig"},
    )
    (model / "modeling_x.py").write_bytes(PYTHON)
    (model / "configuration_x.py").write_bytes(b"import json\n")
    (model / "setup_helper.py").write_bytes(b"import sys\n")
    return model


def test_code_is_refused_packed_or_left_out_as_the_spec_says(model_hub: ModelHub, coded: Path, tmp_path: Path) -> None:
    model_hub.add("org/x", coded)
    talk = Heard()
    given = context(tmp_path, at(model_hub), talk)
    with pytest.raises(
        FetchError, match=r"brings Python code of its own \(configuration_x.py, modeling_x.py\)"
    ) as caught:
        lock(given, "hf:org/x")
    assert "config.json: modeling_x.X" in caught.value.details
    assert "trust_remote_code" in caught.value.remedy
    trusted = lock(given, "hf:org/x", True)
    assert trusted.custom_code == ("configuration_x.py", "modeling_x.py", "setup_helper.py")
    assert {"modeling_x.py", "configuration_x.py"} <= {file.path for file in trusted.files}
    without = lock(given, "hf:org/x", False)
    assert without.custom_code == () and not [file for file in without.files if file.path.endswith(".py")]
    assert without.skipped["Python code, which nothing may run"] > 0
    assert any("its Python code is left out" in line for line in talk.said)


def test_code_that_is_not_whole(model_hub: ModelHub, coded: Path, tmp_path: Path) -> None:
    (coded / "configuration_x.py").unlink()
    model_hub.add("org/x", coded)
    with pytest.raises(FetchError, match="its Python code is not whole") as caught:
        lock(context(tmp_path, at(model_hub)), "hf:org/x", True)
    assert caught.value.details == ("configuration_x.py: missing, though auto_map names it",)


@pytest.fixture
def elsewhere(model: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model whose code is in another repository, and that repository."""
    edit(model / "config.json", auto_map={"AutoModelForCausalLM": "org/code--modeling_x.X"})
    code = tmp_path / "code"
    code.mkdir()
    (code / "modeling_x.py").write_bytes(PYTHON)
    (code / "configuration_x.py").write_bytes(b"import json\n")
    (code / "unrelated.py").write_bytes(b"import sys\n")
    (code / "README.md").write_text("code")
    return model, code


def test_code_of_another_repository_is_pinned_and_packed_beside_the_model(
    model_hub: ModelHub, elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    model, code = elsewhere
    model_hub.add("org/x", model)
    commit = model_hub.add("org/code", code)
    given = context(tmp_path, at(model_hub))
    made = lock(given, "hf:org/x", True)
    assert made.custom_code == tuple(
        f"{name} from hf:org/code@{commit[:12]}" for name in ("configuration_x.py", "modeling_x.py")
    )
    files = {file.path: file for file in made.files}
    assert files["modeling_x.py"].origin["revision"] == commit
    assert "unrelated.py" not in files
    config = json.loads(given.cache.path(files["config.json"].sha256).read_bytes())
    assert config["auto_map"] == {"AutoModelForCausalLM": "modeling_x.X"}
    assert files["config.json"].origin["from"].startswith("hf:org/x@")
    (code / "modeling_x.py").write_bytes(b"raise SystemExit\n")
    model_hub.add("org/code", code)
    elsewhere_cache = context(tmp_path / "other", at(model_hub))
    small = [file for file in made.files if file.path == "config.json"]
    fetch_all(small, lambda scheme: sources.create(scheme, elsewhere_cache), elsewhere_cache.cache, Heard())
    assert elsewhere_cache.cache.has(small[0].sha256, small[0].size), "the lock carries the changed file"


def test_code_of_another_repository_that_clashes_or_is_not_there(
    model_hub: ModelHub, elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    model, code = elsewhere
    model_hub.add("org/x", model)
    with pytest.raises(FetchError, match="hf:org/code"):
        lock(context(tmp_path, at(model_hub)), "hf:org/x", True)
    (code / "configuration_x.py").unlink()
    model_hub.add("org/code", code)
    with pytest.raises(FetchError, match="hf:org/code: the code named in it is not whole"):
        lock(context(tmp_path, at(model_hub)), "hf:org/x", True)
    (code / "configuration_x.py").write_bytes(b"import json\n")
    model_hub.add("org/code", code)
    (model / "modeling_x.py").write_bytes(b"# another\n")
    model_hub.add("org/x", model)
    with pytest.raises(FetchError, match=r"its own modeling_x\.py is another than that of hf:org/code"):
        lock(context(tmp_path, at(model_hub)), "hf:org/x", True)


def test_a_model_that_names_itself_needs_no_other_repository(model_hub: ModelHub, coded: Path, tmp_path: Path) -> None:
    edit(coded / "config.json", auto_map={"AutoModelForCausalLM": "org/x--modeling_x.X"})
    model_hub.add("org/x", coded)
    given = context(tmp_path, at(model_hub))
    made = lock(given, "hf:org/x", True)
    config = next(file for file in made.files if file.path == "config.json")
    assert b"org/x--" not in given.cache.path(config.sha256).read_bytes()


def test_modelscope_looks_for_code_on_modelscope(
    modelscope: ModelScopeHub, elsewhere: tuple[Path, Path], tmp_path: Path
) -> None:
    model, code = elsewhere
    modelscope.add("org/x", model, branch="master")
    commit = modelscope.add("org/code", code, branch="master")
    made = lock(context(tmp_path, {"MODELSCOPE_ENDPOINT": modelscope.url}), "modelscope:org/x", True)
    assert made.custom_code[1] == f"modeling_x.py from modelscope:org/code@{commit[:12]}"


def test_a_directory_that_has_the_code_already_asks_nobody(elsewhere: tuple[Path, Path], tmp_path: Path) -> None:
    model, code = elsewhere
    for name in ("modeling_x.py", "configuration_x.py"):
        shutil.copy(code / name, model)
    made = lock(context(tmp_path, {"HF_ENDPOINT": "http://127.0.0.1:9"}), f"local:{model}", True)
    assert made.custom_code == ("configuration_x.py", "modeling_x.py")


def test_a_text_in_the_lock_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    given = context(tmp_path)
    source = sources.create("inline", given)
    item = LockedFile("config.json", "0" * 64, 2, {"source": "inline", "text": "{}"})
    with pytest.raises(FetchError, match="changed by hand"):
        source.fetch(item, lambda count: None)


# --- one file from a web server, and vocabularies ----------------------------------------------------------------


def test_one_file_from_a_web_server(files_server: tuple[str, Path], smollm2_gguf: Path, tmp_path: Path) -> None:
    address, place = files_server
    (place / "my model.gguf").symlink_to(smollm2_gguf)
    sha256 = hashlib.sha256(smollm2_gguf.read_bytes()).hexdigest()
    given = context(tmp_path)
    made = lock(given, f"url:{address}/my%20model.gguf#sha256={sha256}")
    assert (made.entry, made.quantization, made.chat_template) == ("my model.gguf", "gguf Q4_1", True)
    assert made.revision == f"sha256:{sha256}" and made.facts["block_count"] == "30"
    fetch_all(made.files, lambda scheme: sources.create(scheme, given), given.cache, Heard())
    assert given.cache.has(sha256, smollm2_gguf.stat().st_size)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("url:https://host/m.gguf", "says no SHA-256"),
        ("url:https://host/m.gguf#sha256=12", "says no SHA-256"),
        ("url:ftp://host/m.gguf#sha256=" + "0" * 64, "http or https"),
        ("url:https://host/#sha256=" + "0" * 64, "address of a file"),
        ("url:https://me:secret@host/m.gguf#sha256=" + "0" * 64, "holds credentials"),
    ],
)
def test_addresses_that_prove_nothing_or_too_much(source: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        url.parse(source)
    assert "secret" not in "\n".join(caught.value.lines())


def need_of(address: str, *contents: bytes) -> LazyNeed:
    files = tuple(
        NeededFile(f"{number}.tiktoken", f"{address}/{number}.tiktoken", hashlib.sha256(data).hexdigest())
        for number, data in enumerate(contents)
    )
    return LazyNeed("token-tables", ("vllm",), "token tables", "s", "u", files=files, remedy="put them there yourself")


def test_what_an_engine_would_fetch_is_pinned_and_fetched(files_server: tuple[str, Path], tmp_path: Path) -> None:
    address, place = files_server
    for number, data in enumerate((b"IQ== 0\n", b"Ig== 1\n")):
        (place / f"{number}.tiktoken").write_bytes(data)
    given = context(tmp_path)
    made = lock_vocabulary(need_of(address, b"IQ== 0\n", b"Ig== 1\n"), given)
    assert (made.served_name, made.role, [file.path for file in made.files]) == (
        "token-tables",
        "vocabulary",
        ["0.tiktoken", "1.tiktoken"],
    )
    fetch_all(made.files, lambda scheme: sources.create(scheme, given), given.cache, Heard())
    other = need_of(address, b"IQ== 0\n", b"something else")
    wrong = lock_vocabulary(other, context(tmp_path / "b"))
    with pytest.raises(FetchError, match="1 of 2 files"):
        fetch_all(
            wrong.files,
            lambda scheme: sources.create(scheme, context(tmp_path / "b")),
            context(tmp_path / "b").cache,
            Heard(),
        )


def test_where_it_cannot_be_had_the_way_around_is_told(tmp_path: Path, files_server: tuple[str, Path]) -> None:
    with pytest.raises(FetchError, match=r"token tables: 0\.tiktoken") as caught:
        lock_vocabulary(need_of(files_server[0], b"x"), context(tmp_path))
    assert caught.value.remedy == "put them there yourself"


def test_names_are_given_once() -> None:
    extra = ExtraTable("adapter", "local:a", "m")
    with pytest.raises(ValueError, match="'m' is given to two"):
        ModelTable("local:m", "m", extra=(extra,))
    assert dataclasses.replace(extra, served_name="b").role == "adapter"
