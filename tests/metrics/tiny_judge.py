"""A tiny random Llama with its tokenizer in the layout of the published GREEN judges.

`python tests/metrics/tiny_judge.py FOLDER` writes it, so that another environment can run it. The expected ids in
`data/green_chat.json` were made so, with transformers 4.48.3: AutoTokenizer with `add_eos_token=True`, the chat
template of green-score 0.0.12, greedy decoding one prompt at a time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

PROMPTS = ("Objective: report\n    no  effusion", "opacité </s> x", "a", "the left lung is clear . 1. 2.")
_CHARS = "▁abcdefghijklmnopqrstuvwxyzO<|>:.12[]()"
_MERGES = "e r|u s|us er|a s|s i|as si|▁ e|e f|ef f|eff u|effu si|o n|effusi on|l e|l u|n o|▁ no|r e|re p|rep or|o r"


def write_judge(folder: Path, *, max_positions: int = 4096) -> Path:
    """Write config, weights from a seed and tokenizer files."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_CHARS]
    merges = [pair.split() for pair in _MERGES.split("|")]
    merges = [pair for pair in merges if "".join(pair) not in tokens]
    tokens += [token for token in dict.fromkeys("".join(pair) for pair in merges) if token not in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [pair for pair in merges if all(part in vocabulary for part in pair)]
    special = [
        {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for index, token in enumerate(tokens[:3])
    ]  # fmt: skip
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [start, {"Sequence": {"id": "A", "type_id": 0}}, start, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": [" ".join(pair) for pair in merges],
        },
    }
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": None,
        "legacy": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1000000000000000019884624838656,
        "sp_model_kwargs": {},
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": max_positions,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
    }
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", settings), ("config", config)):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    save_file(_weights(config), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights(config: dict) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]

    def matrix(rows: int, columns: int, scale: float = 0.35) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * scale).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(vocabulary, hidden, 1.0),
        "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": matrix(vocabulary, hidden, 0.6),
    }
    weights["lm_head.weight"][2] *= 2.5  # the end token, so that some answers end by themselves
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{prefix}.self_attn.{name}.weight"] = matrix(hidden, hidden)
        weights[f"{prefix}.mlp.gate_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}.mlp.up_proj.weight"] = matrix(inner, hidden)
        weights[f"{prefix}.mlp.down_proj.weight"] = matrix(hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}.{name}.weight"] = np.ones(hidden, np.float32)
    return weights


if __name__ == "__main__":
    write_judge(Path(sys.argv[1]))
