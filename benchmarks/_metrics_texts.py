"""Texts and tokenizers of benchmarks/metrics.py: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizer

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_NAMES = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]


def corpus() -> list[str]:
    """Report texts that tokenizers learn their pieces from: the phantom's grammar."""
    from rrg_hf.data.phantom import phantom_dataset

    rows = phantom_dataset(400, size=64, masks=())
    return [f"{row['findings'] or ''} {row['impression'] or ''}" for row in rows.remove_columns("images")]


def bert_tokenizer(folder: Path, extra: list[str] | None = None) -> Any:
    """A WordPiece tokenizer saved into the folder as bert-base-uncased's is."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=8000, special_tokens=_SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([*corpus(), *(extra or [])], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special: Any = dict(zip(_NAMES, _SPECIAL, strict=True))
    fast = BertTokenizer(tokenizer_object=tokenizer, **special)
    fast.save_pretrained(folder)
    return fast
