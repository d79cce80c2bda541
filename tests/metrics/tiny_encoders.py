"""Tiny random encoders in the published file layouts, with weights and vocabularies that no library version changes.

`python tests/metrics/tiny_encoders.py FOLDER` writes all of them, so that another environment can score with them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

WORDS = [
    *("the", "lungs", "are", "clear", ".", "no", "effusion", "or", "pneumothorax", "heart", "size", "normal", "mild"),
    *("cardiomegaly", "with", "edema", "acute", "process", "cm", "nodule", "right", "upper", "left", "lower", "lobe"),
    *("2", "5", ",", "severe"),
]
PIECES = ["##s", "##al", "##a", "##e", "##c", "##l", "a", "c", "l", "e", "p"]
_COMMON = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "type_vocab_size": 2}


def tiny_encoder(folder: Path, kind: str, *, layers: int = 3, model_max_length: int | None = 40) -> Path:
    """Write one encoder: "roberta", "bert", "distilbert", "gpt2" or "modernbert".

    Args:
        folder: parent of the new folder, which is named after `kind`.
        kind: the architecture.
        layers: its depth.
        model_max_length: what the tokeniser says; None: nothing, as in many published folders.
    """
    from transformers import AutoConfig, AutoModel

    folder = folder / kind
    folder.mkdir(parents=True)
    settings = {} if model_max_length is None else {"model_max_length": model_max_length}
    if kind in ("roberta", "gpt2"):
        size = _write_byte_level(folder, settings, special=kind == "roberta")
    else:
        size = _write_wordpiece(folder, settings, tokenizer_json=kind == "modernbert")
    config = {"model_type": kind, "vocab_size": size, "pad_token_id": 1 if kind == "roberta" else 0, **_COMMON}
    if kind == "distilbert":
        config |= {"dim": 16, "hidden_dim": 24, "n_layers": layers, "n_heads": 2, "max_position_embeddings": 40}
    elif kind == "gpt2":
        config |= {"n_embd": 16, "n_layer": layers, "n_head": 2, "n_positions": 40, "pad_token_id": None}
        config |= {"bos_token_id": 0, "eos_token_id": 0}
    else:
        positions = 42 if kind == "roberta" else 40
        config |= {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None}
        config |= {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": layers, "num_attention_heads": 2}
        config |= {"max_position_embeddings": positions}
    config_type = config.pop("model_type")
    model = AutoModel.from_config(AutoConfig.for_model(config_type, **config))
    _fill(model)
    model.save_pretrained(folder)
    return folder


def _fill(model) -> None:
    """Normal weights from numpy's generator: torch's initialisation differs between versions."""
    import torch

    generator = np.random.Generator(np.random.PCG64(7))
    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point():
            continue
        values = generator.standard_normal(tuple(tensor.shape)).astype(np.float32)
        if tensor.ndim == 1:
            values = 0.1 * values + float(name.endswith("weight"))
        elif "embeddings" not in name:
            values *= 0.12  # so that layers keep tokens apart
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))


def _write_wordpiece(folder: Path, settings: dict, *, tokenizer_json: bool) -> int:
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *PIECES]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, **settings}))
    if tokenizer_json:  # ModernBERT has no slow tokeniser
        from transformers import BertTokenizerFast

        BertTokenizerFast(str(folder / "vocab.txt"), **settings).save_pretrained(folder)
    return len(vocabulary)


def _write_byte_level(folder: Path, settings: dict, *, special: bool) -> int:
    # the printable stand-ins of the 256 bytes, as GPT-2 orders them
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = [chr(byte) for byte in kept] + [chr(256 + index) for index in range(256 - len(kept))]
    merges, tokens = [], []
    # Ġ is the space; its merges come first, so that a word after a space is one token and has other pieces without it
    for text in [*("Ġ" + word for word in WORDS), *WORDS]:
        left = text[0]
        for symbol in text[1:]:
            if (left, symbol) not in merges:
                merges.append((left, symbol))
                tokens.append(left + symbol)
            left += symbol
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if special else ["<|endoftext|>"]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*names, *symbols, *tokens]))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return len(vocabulary)


if __name__ == "__main__":
    for name in ("roberta", "bert", "distilbert", "gpt2", "modernbert"):
        tiny_encoder(Path(sys.argv[1]), name)
