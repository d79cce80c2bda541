"""A tiny random CheXbert checkpoint in the layout of the published chexbert.pth, and a BERT tokenizer.

Weights come from numpy's generator: torch's initialisation differs between versions, and the expected values of
tests/metrics/data/chexbert_expected.json were made in another environment.
`python tests/tiny_chexbert.py FOLDER` writes FOLDER/bert-base-uncased and FOLDER/chexbert.pth for that environment.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

HIDDEN, LAYERS, HEADS, INTERMEDIATE, POSITIONS = 128, 2, 2, 64, 512
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXT = (
    "the heart is normal no pleural effusion lungs are clear mild edema left right small opacity pneumonia with "
    "and there a in of lobe lower upper pneumothorax fracture device line tube stable new large cardiomegaly"
)
_LETTERS = [*string.ascii_lowercase, *string.digits, *".,:;()-/'"]
VOCABULARY = list(dict.fromkeys([*_SPECIAL, *_TEXT.split(), *_LETTERS, *(f"##{letter}" for letter in _LETTERS)]))


def make_tokenizer(path: Path) -> Path:
    """A folder with the files of bert-base-uncased; its small vocabulary can spell any ASCII word."""
    from transformers import BertTokenizerFast

    path.mkdir(parents=True, exist_ok=True)
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    BertTokenizerFast(str(path / "vocab.txt"), do_lower_case=True, model_max_length=512).save_pretrained(path)
    # as published: transformers 5 drops the first, and the second names no class
    (path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}', encoding="utf-8")
    config = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "vocab_size": len(VOCABULARY),
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def shapes(vocab_size: int = len(VOCABULARY)) -> dict[str, tuple[int, ...]]:
    """Published key (without "module.") to shape."""
    table: dict[str, tuple[int, ...]] = {
        "bert.embeddings.word_embeddings.weight": (vocab_size, HIDDEN),
        "bert.embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "bert.embeddings.token_type_embeddings.weight": (2, HIDDEN),
    }

    def linear(name: str, outputs: int, inputs: int) -> None:
        table[f"{name}.weight"] = (outputs, inputs)
        table[f"{name}.bias"] = (outputs,)

    def norm(name: str) -> None:
        table[f"{name}.weight"] = table[f"{name}.bias"] = (HIDDEN,)

    norm("bert.embeddings.LayerNorm")
    for layer in range(LAYERS):
        name = f"bert.encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{name}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{name}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{name}.attention.output.LayerNorm")
        linear(f"{name}.intermediate.dense", INTERMEDIATE, HIDDEN)
        linear(f"{name}.output.dense", HIDDEN, INTERMEDIATE)
        norm(f"{name}.output.LayerNorm")
    linear("bert.pooler.dense", HIDDEN, HIDDEN)
    for head in range(14):
        linear(f"linear_heads.{head}", 2 if head == 13 else 4, HIDDEN)
    return table


def make_checkpoint(path: Path, vocab_size: int = len(VOCABULARY), *, zipped: bool = True, **changes: Any) -> Path:
    """Save {"epoch", "model_state_dict", "optimizer_state_dict"} with the published key names.

    Args:
        path: of the file.
        vocab_size: rows of the word embeddings.
        zipped: False saves the layout of torch before 1.6.
        changes: keys of the state dict to set; None removes one.
    """
    generator = np.random.Generator(np.random.PCG64(11))
    state: dict[str, torch.Tensor] = {}
    for name, shape in shapes(vocab_size).items():
        values = generator.standard_normal(shape).astype(np.float32)
        if "LayerNorm" in name:
            values = 0.1 * values + float(name.endswith("weight"))
        elif "embeddings" not in name:
            values *= 0.2  # so that reports get different labels
        state[f"module.{name}"] = torch.from_numpy(values)
    for name, value in changes.items():
        if value is None:
            del state[name]
        else:
            state[name] = value
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 2e-5, "params": [0]}]}
    content = {"epoch": 7, "model_state_dict": state, "optimizer_state_dict": optimizer}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    make_tokenizer(folder / "bert-base-uncased")
    make_checkpoint(folder / "chexbert.pth")
