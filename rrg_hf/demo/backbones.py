"""The demo's three backbones, saved as folders in the layouts of the real ones.

A DINOv2-shaped vision tower (the small encoder shipped with the package, or a fresh one), a BERT-shaped text encoder
and a GPT-2-shaped decoder, both random, with tokenizers learnt from the training reports.
`PalmForReportGeneration.from_backbones` then reads them exactly as it reads rad-dino, CXR-BERT and distilgpt2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import BertTokenizer, GPT2Tokenizer

# The phantom-pretrained encoder. `pretrain_encoder.py` is the recipe that made it.
ENCODER_DIR = Path(__file__).parent / "phantom_encoder"


def train_decoder_tokenizer(texts: Sequence[str], vocab_size: int = 1000) -> GPT2Tokenizer:
    """Byte-level BPE in GPT-2's layout. `<pad>` is a token of its own, so that the end of text can be learnt."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import GPT2Tokenizer

    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(
        texts,
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=["<|endoftext|>", "<pad>"],
        show_progress=False,
    )
    model = json.loads(trainer.to_str())["model"]
    merges: Any = [tuple(pair) for pair in model["merges"]]  # its annotation says list[str], its code wants pairs
    return GPT2Tokenizer(vocab=model["vocab"], merges=merges, pad_token="<pad>")


def train_text_tokenizer(texts: Sequence[str], vocab_size: int = 1000) -> BertTokenizer:
    """Lower-cased WordPiece in BERT's layout."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizer

    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=vocab_size, min_frequency=2, show_progress=False)
    return BertTokenizer(vocab=json.loads(trainer.to_str())["model"]["vocab"])


def write_text_backbone(folder: Path, texts: Sequence[str], *, hidden_size: int, num_layers: int, seed: int) -> Path:
    """A random BERT-shaped text encoder and its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = train_text_tokenizer(texts)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_decoder_backbone(
    folder: Path, texts: Sequence[str], *, hidden_size: int, num_layers: int, seed: int
) -> Path:
    """A random GPT-2-shaped decoder and its tokenizer."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = train_decoder_tokenizer(texts)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=256,
        n_embd=hidden_size,
        n_inner=2 * hidden_size,
        n_layer=num_layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
