"""The demo's backbones: layouts of the real ones, tokenizers that lose nothing, the same from the same seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.demo.backbones import (
    train_decoder_tokenizer,
    train_text_tokenizer,
    write_decoder_backbone,
    write_text_backbone,
)


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return list(phantom_dataset(60, seed=4, size=64, masks=())["findings"])


def test_the_decoders_tokenizer_writes_back_every_text(texts: list[str]) -> None:
    tokenizer = train_decoder_tokenizer(texts)
    for text in [*texts, "A word it has never seen: Pneumonoultramicroscopic 2.5 cm, μm!"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text


def test_the_end_of_a_report_is_no_padding(texts: list[str]) -> None:
    """With one token for both, the loss would mask the end and the decoder would never learn to stop."""
    tokenizer = train_decoder_tokenizer(texts)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert {tokenizer.pad_token, tokenizer.eos_token} == {"<pad>", "<|endoftext|>"}
    batch = tokenizer(["No effusion.", "No effusion. No pneumothorax."], padding=True)["input_ids"]
    assert batch[0][-1] == tokenizer.pad_token_id


def test_the_vocabulary_is_learnt_from_the_texts_and_bounded(texts: list[str]) -> None:
    small, large = train_decoder_tokenizer(texts, vocab_size=300), train_decoder_tokenizer(texts, vocab_size=600)
    assert len(small) == 300 < len(large) <= 600
    text = "There is no pleural effusion or pneumothorax."
    assert len(large(text)["input_ids"]) < len(small(text)["input_ids"])
    words = train_text_tokenizer(texts)
    assert words.tokenize("No PNEUMOTHORAX") == words.tokenize("no pneumothorax")
    assert words.unk_token not in words.tokenize(texts[0])


def test_folders_load_with_the_auto_classes(texts: list[str], tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_layers": 2, "seed": 3}
    text = write_text_backbone(tmp_path / "text", texts, **sizes)
    decoder = write_decoder_backbone(tmp_path / "decoder", texts, **sizes)
    for folder, kind, model_class in ((text, "bert", AutoModel), (decoder, "gpt2", AutoModelForCausalLM)):
        config = AutoConfig.from_pretrained(folder)
        assert (config.model_type, config.hidden_size, config.num_hidden_layers) == (kind, 32, 2)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = model_class.from_pretrained(folder)
        assert len(tokenizer) == config.vocab_size == model.get_input_embeddings().num_embeddings
        assert config.pad_token_id == tokenizer.pad_token_id
        ids = tokenizer("No effusion.", return_tensors="pt")["input_ids"]
        assert torch.isfinite(model(input_ids=ids)[0]).all()


def test_the_seed_decides_the_weights(texts: list[str], tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> torch.Tensor:
        folder = write_decoder_backbone(tmp_path / name, texts[:20], hidden_size=16, num_layers=1, seed=seed)
        return AutoModelForCausalLM.from_pretrained(folder).transformer.wte.weight

    one, again, other = weights("one", 1), weights("again", 1), weights("other", 2)
    assert torch.equal(one, again) and not torch.equal(one, other)
