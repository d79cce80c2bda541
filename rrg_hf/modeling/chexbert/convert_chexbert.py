"""From the published CheXbert checkpoint to a folder that `CheXbertForReportLabeling.from_pretrained` loads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto.tokenization_auto import AutoTokenizer
from transformers.utils import logging

from .configuration_chexbert import OBSERVATION_NAMES, CheXbertConfig
from .modeling_chexbert import CheXbertForReportLabeling

logger = logging.get_logger(__name__)

_PREFIX = "module."  # the checkpoint was saved from DataParallel
_POSITION_IDS = "bert.embeddings.position_ids"  # a buffer that older transformers saved
_HEAD_SIZE = 64  # of BERT in all published sizes
_ABOUT = "conversion.json"
_MAX_REUSE = 2  # times its size that a file's weights may add up to; tied weights are stored once


def convert_chexbert(
    checkpoint: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    num_attention_heads: int | None = None,
    tokenizer_revision: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Convert `chexbert.pth`. All shapes are read from its weights; the optimiser's state is left out.

    Args:
        checkpoint: the .pth file, {"epoch", "model_state_dict", "optimizer_state_dict"}.
        tokenizer: folder or Hub id of its tokenizer (bert-base-uncased).
        output_dir: new folder for config.json, model.safetensors and the tokenizer. One that this function already
            made from the same file with the same settings is kept as it is.
        num_attention_heads: of the encoder; hidden size / 64 by default.
        tokenizer_revision: commit of `tokenizer` on the Hub.
        overwrite: replace `output_dir`.

    Returns:
        `output_dir`.

    Raises:
        ValueError: a file that is damaged or no CheXbert checkpoint; a weight that is missing, unexpected, of
            the wrong shape or not finite; a tokenizer of another size; an `output_dir` that holds something.
    """
    source, target = Path(checkpoint), Path(output_dir)
    if not source.is_file():
        raise ValueError(f"{source} is no file. Give the published chexbert.pth.")
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        if _made_before(target, source, tokenizer, tokenizer_revision, num_attention_heads):
            return target
        raise ValueError(f"{target} is not empty. Choose another folder, or pass overwrite=True.")
    state, left_out = _read(source)
    config = _config(state, num_attention_heads)
    words = AutoTokenizer.from_pretrained(os.fspath(tokenizer), revision=tokenizer_revision)
    if len(words) > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {len(words)} entries, but the checkpoint {config.vocab_size} embeddings. Give "
            "bert-base-uncased's."
        )
    model = _model(config, state)
    about = {
        "checkpoint": source.name,
        "sha256": _sha256(source),
        **_settings(tokenizer, tokenizer_revision, num_attention_heads),
        "left_out": left_out,
    }
    _write(model, words, target, about)
    return target


def _read(source: Path) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Weights by name without the prefix, and the names of what was left out."""
    try:
        # only the zip layout can be mapped; checkpoints of torch before 1.6 are one pickle
        mapped = zipfile.is_zipfile(source)
        if mapped:
            _check_stored(source)
        content = torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # damaged bytes can stop the reader anywhere
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise ValueError(
            f"{source.name} cannot be read as a checkpoint of weights ({reason}). Was the download cut short? "
            "Fetch it again."
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("model_state_dict"), dict):
        found: Any = type(content).__name__
        if isinstance(content, dict):
            found = sorted(name for name in content if isinstance(name, str))[:5]
        raise ValueError(f"{source.name} holds {found}, not CheXbert's `model_state_dict`.")
    state: dict[str, torch.Tensor] = {}
    left_out = sorted(str(name) for name in content if name != "model_state_dict")
    for name, value in content["model_state_dict"].items():
        name = str(name).removeprefix(_PREFIX)
        if name == _POSITION_IDS:
            left_out.append(name)
        elif isinstance(value, torch.Tensor):
            state[name] = value
        else:
            raise ValueError(f"{source.name} holds {name}, a {type(value).__name__} where a tensor should be.")
    declared, there = sum(value.numel() * value.element_size() for value in state.values()), source.stat().st_size
    if declared > _MAX_REUSE * there:  # views of one number can pose as billions
        raise ValueError(f"{source.name} has {there} bytes but declares weights of {declared}; this is no checkpoint.")
    return state, left_out


def _check_stored(source: Path) -> None:
    """torch compresses nothing, so whatever would grow on reading was not written by it."""
    with zipfile.ZipFile(source) as content:
        members = content.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("it is compressed, which no checkpoint is")
    if sum(member.file_size for member in members) > source.stat().st_size:
        raise ValueError("its parts overlap")


def _config(state: dict[str, torch.Tensor], num_attention_heads: int | None) -> CheXbertConfig:
    try:
        vocab_size, hidden_size = state["bert.embeddings.word_embeddings.weight"].shape
        shapes: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": hidden_size,
            "max_position_embeddings": state["bert.embeddings.position_embeddings.weight"].shape[0],
            "type_vocab_size": state["bert.embeddings.token_type_embeddings.weight"].shape[0],
            "intermediate_size": state["bert.encoder.layer.0.intermediate.dense.weight"].shape[0],
            "num_hidden_layers": 1
            + max(int(found[1]) for name in state if (found := re.match(r"bert\.encoder\.layer\.(\d+)\.", name))),
        }
        heads = [state[f"linear_heads.{index}.weight"].shape[0] for index in range(len(OBSERVATION_NAMES))]
    except (KeyError, ValueError) as error:
        raise ValueError(f"The checkpoint is not CheXbert's: it lacks {error}.") from error
    return CheXbertConfig(
        **shapes,
        num_attention_heads=num_attention_heads or max(1, hidden_size // _HEAD_SIZE),
        head_classes=heads,
        # of the published model
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
    )


def _model(config: CheXbertConfig, state: dict[str, torch.Tensor]) -> CheXbertForReportLabeling:
    model = CheXbertForReportLabeling(config)
    wanted = {name: value for name, value in model.state_dict().items() if name != _POSITION_IDS}
    missing, unexpected = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    if missing or unexpected:
        raise ValueError(f"The checkpoint does not fit CheXbert: missing {missing}, unexpected {unexpected}.")
    wrong = [
        f"{name} is {tuple(state[name].shape)}, not {tuple(value.shape)}"
        for name, value in wanted.items()
        if state[name].shape != value.shape
    ]
    if wrong:
        raise ValueError(f"The checkpoint's weights do not fit each other: {'; '.join(wrong)}.")
    broken = [name for name, value in state.items() if not (value.is_floating_point() and value.isfinite().all())]
    if broken:
        raise ValueError(f"The checkpoint holds values that are no finite numbers, in {broken}.")
    model.load_state_dict({name: value.float() for name, value in state.items()}, strict=False)
    return model.eval()


def _settings(tokenizer: Any, tokenizer_revision: str | None, num_attention_heads: int | None) -> dict[str, Any]:
    """What else decides the result. Of a tokenizer folder only the name: records hold no paths of a machine."""
    name = os.fspath(tokenizer)
    return {
        "tokenizer": Path(name).name if Path(name).is_dir() else name,
        "tokenizer_revision": tokenizer_revision,
        "num_attention_heads": num_attention_heads,
    }


def _made_before(target: Path, source: Path, *settings: Any) -> bool:
    """Whether the folder is this conversion's own result; it is moved into place last, so it is then whole."""
    try:
        about = json.loads((target / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    same = {name: about.get(name) for name in _settings(*settings)} == _settings(*settings)
    return same and about.get("sha256") == _sha256(source) and (target / "model.safetensors").is_file()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write(model: CheXbertForReportLabeling, tokenizer: Any, target: Path, about: dict[str, Any]) -> None:
    """Write the folder under another name and rename it, so that a half-written one is never found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / _ABOUT).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        if target.exists():
            target.replace(old)
        new.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    logger.info(f"CheXbert written to {target}; left out: {about['left_out']}.")


__all__ = ["convert_chexbert"]
