"""Tiny random PALM checkpoints in the layouts the real backbones have on the Hub.

Nothing is downloaded: the tokenizers are made here, from a few report sentences.
"""

from __future__ import annotations

import json
import re
import string
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import ByteLevelBPETokenizer
from transformers import BertConfig, BertForMaskedLM, Dinov2Config, Dinov2Model, GPT2Config, GPT2LMHeadModel

from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
from rrg_hf.modeling.palm.configuration_palm import PATHOLOGY_NAMES

IMAGE_SIZE = 56
PATCH_SIZE = 14
SENTENCES = (
    "The heart size is normal. The lungs are clear.",
    "There is a small left pleural effusion with adjacent atelectasis.",
    "No pneumothorax or focal consolidation is seen.",
    "Mild cardiomegaly and pulmonary edema, worse than before.",
    "Right lower lobe opacity, possibly pneumonia.",
    "A fracture of the left sixth rib. Support devices are in place.",
    "Cough and fever. Evaluate for pneumonia.",
    "Shortness of breath after surgery.",
)


def make_tiny_vision(path: Path, image_size: int = IMAGE_SIZE, patch_size: int = PATCH_SIZE) -> Path:
    """A DINOv2 folder as `microsoft/rad-dino` has it: safetensors, bare keys, a BitImageProcessor."""
    config = Dinov2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=image_size,
        patch_size=patch_size,
        layerscale_value=0.5,
    )
    Dinov2Model(config).save_pretrained(path)
    preprocessor = {
        "crop_size": {"height": image_size, "width": image_size},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5307, 0.5307, 0.5307],
        "image_processor_type": "BitImageProcessor",
        "image_std": [0.2583, 0.2583, 0.2583],
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": image_size},
    }
    (path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return path


def _write_wordpiece_vocabulary(path: Path) -> int:
    """Characters, character suffixes and whole words. (The library's WordPiece trainer breaks ties at random.)"""
    words = sorted({word for text in (*SENTENCES, *PATHOLOGY_NAMES) for word in re.findall(r"[a-z]+", text.lower())})
    letters = [*string.ascii_lowercase, *string.digits]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.punctuation, *letters]
    tokens += [f"##{letter}" for letter in letters]
    tokens += [word for word in words if word not in tokens]
    (path / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return len(tokens)


def make_tiny_text(path: Path) -> Path:
    """A BERT folder as `microsoft/BiomedVLP-CXR-BERT-specialized` has it: its own model_type with remote code, a torch
    file with `bert.*` beside two more heads, a vocab.txt tokenizer."""
    path.mkdir(parents=True, exist_ok=True)
    vocab_size = _write_wordpiece_vocabulary(path)
    config = BertConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    weights = {key: value.clone() for key, value in BertForMaskedLM(config).state_dict().items()}
    weights["bert.embeddings.position_ids"] = torch.arange(64)[None]
    for name, shape in {"dense_to_hidden": (16, 32), "dense_to_output": (16, 16)}.items():
        weights[f"cls_projection_head.{name}.weight"] = torch.randn(shape)
        weights[f"cls_projection_head.{name}.bias"] = torch.zeros(shape[0])
    weights["cls_projection_head.LayerNorm.weight"] = torch.ones(16)
    weights["cls_projection_head.LayerNorm.bias"] = torch.zeros(16)
    torch.save(weights, path / "pytorch_model.bin")
    entries = config.to_dict() | {
        "architectures": ["CXRBertModel"],
        "auto_map": {
            "AutoConfig": "configuration_cxrbert.CXRBertConfig",
            "AutoModel": "modeling_cxrbert.CXRBertModel",
            "AutoTokenizer": ["configuration_cxrbert.CXRBertTokenizer", None],
        },
        "gradient_checkpointing": False,
        "model_type": "cxr-bert",
        "position_embedding_type": "absolute",
        "projection_size": 16,
        "torch_dtype": "float32",
    }
    entries.pop("dtype", None)
    (path / "config.json").write_text(json.dumps(entries))
    tokenizer = {
        "auto_map": {"AutoTokenizer": ["configuration_cxrbert.CXRBertTokenizer", None]},
        "cls_token": "[CLS]",
        "do_lower_case": True,
        "mask_token": "[MASK]",
        "model_max_length": 64,
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "tokenizer_class": "CXRBertTokenizer",
        "unk_token": "[UNK]",
    }
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return path


def make_tiny_decoder(path: Path, *, prefix: str = "transformer.", buffers: bool = True) -> Path:
    """A GPT-2 folder as `distilgpt2` has it: `transformer.*` keys, tied head, mask buffers, no padding token."""
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(SENTENCES, vocab_size=320, show_progress=False, special_tokens=[])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    vocab_size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.save_model(str(path))
    vocabulary = json.loads((path / "vocab.json").read_text()) | {"<|endoftext|>": end}
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    (path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 1024}))
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=96,
        bos_token_id=end,
        eos_token_id=end,
    )
    weights = GPT2LMHeadModel(config).transformer.state_dict()
    weights = {f"{prefix}{key}": value.clone() for key, value in weights.items()}
    if buffers:
        for layer in range(config.n_layer):
            causal = torch.ones(96, 96, dtype=torch.uint8).tril()[None, None]
            weights[f"{prefix}h.{layer}.attn.bias"] = causal
            weights[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        weights["lm_head.weight"] = weights[f"{prefix}wte.weight"].clone()
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    entries = config.to_dict() | {
        "_num_labels": 1,
        "architectures": ["GPT2LMHeadModel"],
        "n_ctx": 96,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    }
    entries.pop("pad_token_id")
    (path / "config.json").write_text(json.dumps(entries))
    return path


def make_tiny_backbones(path: Path | str, *, seed: int = 0) -> tuple[Path, Path, Path]:
    """Three backbone folders under `path`: vision, text, decoder. Deterministic by `seed`."""
    path = Path(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make_tiny_vision(path / "vision"), make_tiny_text(path / "text"), make_tiny_decoder(path / "decoder")


def make_tiny_palm(
    path: Path | str, *, seed: int = 0, **config_kwargs: Any
) -> tuple[PalmForReportGeneration, PalmProcessor]:
    """A random PALM of about 0.1 M weights at 56 x 56 pixels, in eval mode, and its processor.

    Both are also saved in `path`, and the backbones they were built from in `path / "backbones"`.

    Args:
        path: folder to write into.
        seed: decides the weights.
        config_kwargs: fields of `PalmConfig`.
    """
    path = Path(path)
    vision, text, decoder = make_tiny_backbones(path / "backbones", seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PalmForReportGeneration.from_backbones(vision, text, decoder, **config_kwargs)
    processor = PalmProcessor.from_backbones(
        vision, text, decoder, report_max_length=64, indication_max_length=32, text_max_length=64
    )
    model.save_pretrained(path)
    processor.save_pretrained(path)
    return model, processor
