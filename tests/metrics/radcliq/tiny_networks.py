"""Tiny random CheXbert and RadGraph v1 networks, in the folders that `rrg metrics prepare` makes."""

from __future__ import annotations

from pathlib import Path

from ..tiny_encoders import PIECES, WORDS

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LETTERS = [prefix + letter for letter in "abcdefghijklmnopqrstuvwxyz" for prefix in ("", "##")]
VOCABULARY = list(dict.fromkeys([*_SPECIAL, *WORDS, *PIECES, *_LETTERS]))
_ENCODER = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.5,
}


def _save(model, folder: Path) -> Path:
    from transformers import BertTokenizer

    model.eval().save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    BertTokenizer(str(folder / "vocab.txt"), do_lower_case=True).save_pretrained(folder)
    return folder


def tiny_chexbert(folder: Path) -> Path:
    import torch

    from rrg_hf.modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling

    torch.manual_seed(0)
    return _save(CheXbertForReportLabeling(CheXbertConfig(**_ENCODER)), folder)


def tiny_radgraph(folder: Path) -> Path:
    import torch

    from rrg_hf.modeling.radgraph import RadGraphConfig, RadGraphModel

    torch.manual_seed(1)
    sizes = {f"{head}_hidden_sizes": [12, 12] for head in ("ner", "mention", "relation")}
    config = RadGraphConfig(
        encoder_config={"model_type": "bert", **_ENCODER}, max_length=64, initializer_range=0.5, **sizes
    )
    return _save(RadGraphModel(config), folder)
