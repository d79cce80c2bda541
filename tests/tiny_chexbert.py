"""A tiny random CheXbert checkpoint in the layout of the published chexbert.pth, and a WordPiece tokenizer."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, BertTokenizer

HIDDEN, LAYERS, HEADS, POSITIONS = 128, 2, 2, 512
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXT = (
    "the heart is normal no pleural effusion lungs are clear mild edema left right small opacity pneumonia with "
    "and there a in of lobe lower upper pneumothorax fracture device line tube stable new large cardiomegaly"
)


def make_tokenizer(path: Path) -> Path:
    """A folder like bert-base-uncased's, with a small vocabulary that can spell any ASCII word."""
    letters = [*string.ascii_lowercase, *string.digits, *".,:;()-/'"]
    vocabulary = [*_SPECIAL, *_TEXT.split(), *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = list(dict.fromkeys(vocabulary))
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]
    special: Any = dict(zip(names, _SPECIAL, strict=True))
    BertTokenizer(tokenizer_object=tokenizer, **special).save_pretrained(path)
    return path


def make_checkpoint(path: Path, vocab_size: int, seed: int = 0, **changes: Any) -> Path:
    """Save {"epoch", "model_state_dict", "optimizer_state_dict"} with the published key names.

    `changes` are keys of the state dict to set; None removes one.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
        initializer_range=0.3,  # so that reports get different labels
    )
    state = {f"module.bert.{name}": value for name, value in BertModel(config).state_dict().items()}
    for index in range(14):
        classes = 2 if index == 13 else 4
        state[f"module.linear_heads.{index}.weight"] = torch.randn(classes, HIDDEN, generator=generator)
        state[f"module.linear_heads.{index}.bias"] = torch.randn(classes, generator=generator)
    for name, value in changes.items():
        if value is None:
            del state[name]
        else:
            state[name] = value
    optimizer = {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 2e-5, "params": [0]}]}
    torch.save({"epoch": 7, "model_state_dict": state, "optimizer_state_dict": optimizer}, path)
    return path
