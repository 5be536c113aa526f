"""Models by name: through a stand-in for huggingface_hub, a cache on disk, and a folder. Nothing goes to a network."""

from __future__ import annotations

import errno
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import planner.llm.hf_config as hf_config
from planner.core import InputError, UnknownNameError
from planner.llm import LlmSpec, load, load_llm
from planner.llm.load import load_from_hub
from tests.configs import llama

LLAMA = llama(num_hidden_layers=2, torch_dtype="bfloat16")
FP8 = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
"""What NVIDIA ModelOpt writes beside a checkpoint in FP8."""


class EntryNotFoundError(Exception):
    """As huggingface_hub.errors: the file is not in the repository."""


class RemoteEntryNotFoundError(OSError, EntryNotFoundError):
    """As huggingface_hub.errors: the Hub says so."""


class LocalEntryNotFoundError(FileNotFoundError, EntryNotFoundError):
    """As huggingface_hub.errors: the file is not in the cache, and the Hub cannot be asked."""


class RepositoryNotFoundError(OSError):
    """As huggingface_hub.errors."""


class GatedRepoError(RepositoryNotFoundError):
    """As huggingface_hub.errors."""


class StandIn(ModuleType):
    """huggingface_hub with the files of a dict; records what it was asked. It answers, if only with an error."""

    def __init__(self, folder: Path, files: Mapping[str, object], error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        self.folder, self.files, self.error = folder, files, error
        self.asked: list[tuple[str, str, str | None, bool]] = []

    def hf_hub_url(self, repo_id: str, filename: str, *, revision: str | None) -> str:
        return f"https://huggingface.co/{repo_id}/resolve/{revision or 'main'}/{filename}"

    def get_hf_file_metadata(self, url: str, *, timeout: float) -> None:
        pass

    def try_to_load_from_cache(
        self, repo_id: str, filename: str, *, cache_dir: Path | None, revision: str | None
    ) -> str | None:
        self.asked.append((repo_id, filename, revision, True))
        path = self.folder / filename
        return str(path) if path.is_file() else None

    def hf_hub_download(self, repo_id: str, filename: str, *, revision: str | None, cache_dir: Path | None) -> str:
        self.asked.append((repo_id, filename, revision, False))
        if self.error is not None:
            raise self.error
        if filename not in self.files:
            raise RemoteEntryNotFoundError(filename)
        path = self.folder / filename
        path.write_text(json.dumps(self.files[filename]), encoding="utf-8")
        return str(path)


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub is not installed."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def _installed(monkeypatch: pytest.MonkeyPatch, stand_in: StandIn) -> StandIn:
    monkeypatch.setitem(sys.modules, "huggingface_hub", stand_in)
    return stand_in


def test_only_the_two_configs_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in = _installed(monkeypatch, StandIn(tmp_path, {"config.json": LLAMA}))
    found = load_llm("hf:acme/Tiny-Llama@v1.0")
    assert (found.id, found.name, found.num_layers) == ("tiny-llama", "Tiny-Llama", 2)
    assert found.source == "https://huggingface.co/acme/Tiny-Llama/tree/v1.0"
    assert stand_in.asked == [
        ("acme/Tiny-Llama", "config.json", "v1.0", False),
        ("acme/Tiny-Llama", "hf_quant_config.json", "v1.0", False),
    ]


def test_the_formats_beside_the_config_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _installed(monkeypatch, StandIn(tmp_path, {"config.json": LLAMA, "hf_quant_config.json": FP8}))
    fp8 = load_from_hub("acme/tiny-llama-fp8").native_precision
    (tmp_path / "hf_quant_config.json").unlink()
    _installed(monkeypatch, StandIn(tmp_path, {"config.json": LLAMA}))
    assert (str(fp8.weights), str(load_from_hub("acme/tiny-llama").native_precision.weights)) == ("fp8", "bf16")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            GatedRepoError(),
            "may be read only by those who were let in. Fix: accept its terms on huggingface.co and log in",
        ),
        (RepositoryNotFoundError(), "is not on the Hugging Face Hub, or not for you. Fix: check the name"),
        (LocalEntryNotFoundError(), "is not in the cache, and the Hub cannot be reached. Fix: connect once"),
        (TimeoutError(), r"cannot be fetched \(TimeoutError\)"),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            "cannot be kept in the cache .*: Permission denied. Fix: point",
        ),
    ],
)
def test_every_failure_says_what_to_do(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _installed(monkeypatch, StandIn(tmp_path, {}, error))
    with pytest.raises(InputError, match=said):
        load_from_hub("hf:acme/x@v2")


@pytest.mark.parametrize("is_silent", [True, False], ids=["packets are dropped", "there is no route"])
def test_without_a_network_it_says_so_at_once(is_silent: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library would try again and again; what it keeps in its cache is looked for all the same."""
    stand_in = _installed(monkeypatch, StandIn(tmp_path, {}))
    end = threading.Event()

    def unreachable(url: str, *, timeout: float) -> None:
        if is_silent:
            end.wait(60.0)
        raise ConnectionError(url)

    monkeypatch.setattr(stand_in, "get_hf_file_metadata", unreachable)
    monkeypatch.setattr(load, "ANSWER_S", 0.2)
    start = time.monotonic()
    try:
        with pytest.raises(InputError, match=r"not in the cache, and the Hub cannot be reached\. Fix: connect once"):
            load_from_hub("hf:acme/tiny-llama")
        (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
        assert load_from_hub("hf:acme/tiny-llama").num_layers == 2
        assert time.monotonic() - start < 10.0
    finally:
        end.set()
    assert {local_only for *_, local_only in stand_in.asked} == {True}


@pytest.mark.usefixtures("absent")
def test_without_the_package_the_cache_is_read(tmp_path: Path) -> None:
    """The layout of huggingface_hub's cache: refs name the commit, snapshots hold its files as links to blobs."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    model = tmp_path / "models--acme--tiny-llama"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text(commit, encoding="utf-8")
    (model / "blobs").mkdir()
    (model / "blobs" / "abc").write_text(json.dumps(LLAMA), encoding="utf-8")
    (model / "snapshots" / commit).mkdir(parents=True)
    (model / "snapshots" / commit / "config.json").symlink_to("../../blobs/abc")
    for name in ("acme/tiny-llama", f"hf:acme/tiny-llama@{commit}"):
        assert load_from_hub(name, cache_dir=tmp_path).id == "tiny-llama"
    with pytest.raises(InputError, match=r"huggingface_hub is not installed.*Fix: pip install huggingface_hub"):
        load_from_hub("acme/other", cache_dir=tmp_path)
    (model / "refs" / "main").write_text("../../../etc", encoding="utf-8")
    with pytest.raises(InputError, match="it is not cached"):
        load_from_hub("acme/tiny-llama", cache_dir=tmp_path)


def _cached(root: Path) -> Path:
    """The folder of a model in a cache as huggingface_hub lays it out."""
    model = root / "models--acme--tiny-llama"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0123", encoding="utf-8")
    (model / "snapshots" / "0123").mkdir(parents=True)
    (model / "snapshots" / "0123" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return model


def _truncated(model: Path) -> None:
    config = model / "snapshots" / "0123" / "config.json"
    config.write_bytes(config.read_bytes()[:50])


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a truncated config": _truncated,
    "an empty config": lambda model: (model / "snapshots" / "0123" / "config.json").write_bytes(b""),
    "a config of noise": lambda model: (model / "snapshots" / "0123" / "config.json").write_bytes(bytes(range(256))),
    "a config that is a folder": lambda model: (
        (model / "snapshots" / "0123" / "config.json").unlink(),
        (model / "snapshots" / "0123" / "config.json").mkdir(),
    ),
    "a link to nowhere": lambda model: (
        (model / "snapshots" / "0123" / "config.json").unlink(),
        (model / "snapshots" / "0123" / "config.json").symlink_to("../../blobs/gone"),
    ),
    "a name of noise": lambda model: (model / "refs" / "main").write_bytes(bytes(range(256))),
    "an empty name": lambda model: (model / "refs" / "main").write_bytes(b""),
    "no snapshot yet": lambda model: shutil.rmtree(model / "snapshots"),
    "a file for a cache": lambda model: (shutil.rmtree(model.parent), model.parent.write_bytes(b"")),
}


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_refused_with_what_to_do(damage: str, tmp_path: Path) -> None:
    model = _cached(tmp_path / "hub")
    assert load_from_hub("acme/tiny-llama", cache_dir=tmp_path / "hub").num_layers == 2
    DAMAGE[damage](model)
    with pytest.raises(InputError, match=r"Fix: "):
        load_from_hub("acme/tiny-llama", cache_dir=tmp_path / "hub")


@pytest.mark.parametrize(
    "name", ["", "hf:", "../../etc/passwd", "a/b/c", "hf:acme/x@../y", "acme/x y", "a" * 300, "a\0b"]
)
def test_names_that_are_none_never_reach_the_hub(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_in = _installed(monkeypatch, StandIn(tmp_path, {"config.json": LLAMA}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is neither a name on the Hugging Face Hub nor a folder"):
        load_from_hub(name)
    assert stand_in.asked == []


# ------------------------------------------------------------------------------------------ names and sources


def test_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"llm = 'llama-3\.3': unknown name.*llama-3\.3-70b-instruct"):
        load_llm("llama-3.3")


def test_names_and_sources_come_from_argument_config_or_place(tmp_path: Path) -> None:
    given = LlmSpec.from_config(llama(_name="org/Mine-HF", _source="somewhere"))
    assert (given.id, given.name, given.source) == ("mine", "org/Mine-HF", "somewhere")
    argued = LlmSpec.from_config(llama(_name="org/Mine", _source="somewhere"), id="a", name="B", source="there")
    assert (argued.id, argued.name, argued.source) == ("a", "B", "there")
    bare = LlmSpec.from_config(llama())
    assert (bare.id, bare.name, bare.source) == ("llama", "llama", "given")
    folder = tmp_path / "My Llama-3.1-8B"
    folder.mkdir()
    file = folder / "config.json"
    file.write_text(json.dumps(llama()), encoding="utf-8")
    for path in (folder, file, str(folder), str(file)):
        llm = load_llm(path)
        assert (llm.id, llm.name, llm.source) == ("my-llama-3.1-8b", "My Llama-3.1-8B", str(path))
    other = tmp_path / "other.json"
    other.write_text(json.dumps(llama()), encoding="utf-8")
    assert load_llm(other).id == "other"


# ------------------------------------------------------------------------------------------ files


def test_large_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as handle:
        handle.truncate(hf_config.MAX_FILE_BYTES + 1)

    def refuse(_: Path) -> bytes:
        raise AssertionError("the file was read")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match="has 10000001 bytes, more than 10000000"):
        load_llm(file)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not JSON at line 1"),
        (b"{\n'model_type': 1}", "is not JSON at line 2"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[1, 2]", "is a JSON list, not an object"),
        (b'{"a":' * 100_000, "is nested too deeply"),
    ],
)
def test_files_that_are_no_config(content: bytes, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        load_llm(file)


def test_byte_order_marks_are_accepted(tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "config.json").write_text(json.dumps(llama()), encoding=encoding)
        assert load_llm(tmp_path).hidden_size == 64


def test_hub_name_suggests_the_preset() -> None:
    with pytest.raises(
        InputError, match=r"no such file or folder.*the preset llama-3\.1-8b, or hf:meta-llama/Llama-3\.1-8B-Vision"
    ):
        load_llm("meta-llama/Llama-3.1-8B-Vision")


def test_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file, or no config\.json in it"):
        load_llm(tmp_path)
