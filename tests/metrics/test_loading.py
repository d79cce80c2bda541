"""What readers with a network share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from rrg_hf.errors import ConfigError
from rrg_hf.metrics.loading import (
    check_dtype,
    check_no_network,
    choose_device,
    file_sha256,
    hub_commit,
    quiet_transformers,
    weights_revision,
)


def test_dtype_and_device() -> None:
    assert check_dtype("bfloat16") is torch.bfloat16
    with pytest.raises(ConfigError, match="dtype is 'half'"):
        check_dtype("half")
    assert choose_device().type in ("cuda", "mps", "cpu") and choose_device("cpu") == torch.device("cpu")
    for wrong in ("gpu", "cuda:x", ""):
        with pytest.raises(ConfigError, match=f"device is '{wrong}'. Use 'cpu'"):
            choose_device(wrong)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for backend in (torch.cuda, torch.backends.mps):
        monkeypatch.setattr(backend, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device is '{device}', but torch finds no such device"):
        choose_device(device)
    assert choose_device().type == "cpu"


def test_no_network_beside_rules() -> None:
    check_no_network(model=None, revision=None)
    with pytest.raises(ConfigError, match="'revision': 'main'"):
        check_no_network(model=None, revision="main")


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert file_sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_revision_follows_the_content_of_a_folder_not_its_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
        (tmp_path / name / "notes.txt").write_text(name)
    first, second = (weights_revision(tmp_path / name) for name in ("a", "b"))
    assert first == second and first.startswith("sha256:")
    (tmp_path / "b" / "tokenizer.json").write_text("{}")
    assert weights_revision(tmp_path / "b") != first


def test_revision_of_a_hub_model_is_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs of transformers 5.24 do not say it; the folder of the cache does."""
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--org--model", "0123456789" * 4
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert hub_commit("org/model") == hub_commit("org/model", "main") == hub_commit("org/model", commit) == commit
    assert weights_revision("org/model") == weights_revision("org/model", "main") == commit
    assert hub_commit("org/other") is None
    assert weights_revision("org/other", "v1") == "v1" and weights_revision("org/other") == "unknown"


def test_verbosity_comes_back_after_an_error() -> None:
    before = transformers_logging.get_verbosity()
    with pytest.raises(RuntimeError), quiet_transformers():
        assert transformers_logging.get_verbosity() == transformers_logging.ERROR
        raise RuntimeError
    assert transformers_logging.get_verbosity() == before
