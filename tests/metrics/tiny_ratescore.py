"""Tiny random RaTE-NER and BioLORD in the published file layouts, and made-up reports that exercise them.

`python tests/metrics/tiny_ratescore.py FOLDER` writes one folder per seed and the reports as JSON, so that another
environment can score them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

SEEDS = (0, 1, 3)
KINDS = ("ABNORMALITY", "NON-ABNORMALITY", "ANATOMY", "DISEASE", "NON-DISEASE")
TAGS = [f"{mark}-{kind}" for kind in KINDS for mark in "BI"] + ["O"]
WORDS = [
    "the",
    "lungs",
    "are",
    "clear",
    "no",
    "effusion",
    "or",
    "pneumothorax",
    "heart",
    "size",
    "is",
    "normal",
    "mild",
    "cardiomegaly",
    "with",
    "edema",
    "left",
    "right",
    "upper",
    "lower",
    "lobe",
    "opacity",
    "small",
    "pleural",
    "nodule",
    "there",
    "of",
    "and",
    "in",
    "unchanged",
    "stable",
    "tube",
    "tip",
    "above",
    "carina",
    "acute",
    "cardiopulmonary",
    "process",
    "consolidation",
    "atelectasis",
    "bibasilar",
    "cm",
    "2",
    "5",
    "1",
    "3",
    ".",
    ",",
    "(",
    ")",
    ":",
    "-",
    "severe",
    "large",
    "interval",
    "No",
    "The",
    "Heart",
    "Left",
    "Right",
    "There",
    "Mild",
]
ENDINGS = ("s", "al", "ing", "ity", "ed", "itis", "oma", "pneumo", "thor", "med", "ax", "card")

# (generated report, reference), made up; each has at least one sentence
PAIRS = [
    ("The lungs are clear.", "No pleural effusion. The heart size is normal."),
    ("Mild cardiomegaly with edema. Small left pleural effusion.", "Mild cardiomegaly. Small left effusion."),
    ("No acute cardiopulmonary process", "No acute cardiopulmonary process."),
    ("Effusion", "Pneumothorax."),
    ("Heart size is normal.No effusion\n\nStable.", "1. Heart size normal.\n2. No effusion.\n3. Lungs clear."),
    ("There is a 2.5 cm nodule in the right upper lobe.", "Nodule of 1.3 cm in the right lower lobe (unchanged)."),
    ("Tube tip is 3 cm above the carina, unchanged.", "Endotracheal tube tip above the carina. No pneumothorax."),
    ("Patchy opacity… in the left lower lobe™.", "Opacity in the ﬁeld of the left lower lobe ½."),
    ("Zero\u200bwidth opacity, naïve café; μ-opacity.", "Ｆｕｌｌ width opacity"),
    ("LEFT LUNG: CLEAR. RIGHT LUNG: SMALL EFFUSION.", "Left lung clear. Right lung: small effusion."),
    ("Bibasilar atelectasis (mild). No consolidation (acute)", "Bibasilar atelectasis. Consolidation?"),
    ("Is there edema? Yes! Severe edema...", "Severe interval edema with large effusions!"),
    ("the lungs " * 40 + "are clear", "No effusion. " * 30),
    ("opacity, " * 400, "Large opacity and small opacity. Small opacity and large opacity."),
    ("  \n Lungs are clear.  \n\n\n  Heart is normal.\t Mild edema.   ", "Lungs clear\nHeart normal\nMild edema"),
    ("a. b. No effusion.", "ok. No. Effusion or edema."),
    ("No effusion. Effusion. no effusion.", "Effusion. No Effusion. effusion"),
    ("There is mild cardiomegaly; lungs are clear - no edema.", "There is no cardiomegaly and the lungs are clear."),
    ("胸部X线 lungs clear. Größe normal.", "Lungs clear, Größe normal"),
    (
        "Impression: 1. Stable. 2. Left effusion, 5 cm. 3. Edema",
        "Dr. Smith reviewed. Left effusion approx. 5 cm vs. 3",
    ),
    ("Right upper lobe nodule and left lower lobe nodule.", "Left lower lobe nodules and right upper lobe nodule."),
    ("Pneumothorax, large. Unchanged tube.", "Large left pneumothorax. Tube unchanged. Small right pneumothorax."),
]


def write_tiny_ratescore(folder: Path, seed: int = 0) -> Path:
    """A folder with "ner" and "encoder" in it.

    Args:
        folder: created.
        seed: of the weights.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

    folder.mkdir(parents=True)
    pieces = _write_deberta_tokenizer(folder / "ner")
    config = AutoConfig.for_model(
        "deberta-v2",
        vocab_size=pieces,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=16,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        layer_norm_eps=1e-7,
        pad_token_id=0,
        id2label=dict(enumerate(TAGS)),
        label2id={tag: index for index, tag in enumerate(TAGS)},
    )
    generator = np.random.Generator(np.random.PCG64(seed))
    tagger = AutoModelForTokenClassification.from_config(config)
    _fill(tagger, generator, 0.12)
    with torch.no_grad():
        tagger.classifier.weight *= 8.0
        tagger.classifier.bias[TAGS.index("O")] += 0.5  # else hardly any token lies outside an entity
    tagger.save_pretrained(folder / "ner")

    words = _write_mpnet_tokenizer(folder / "encoder")
    config = AutoConfig.for_model(
        "mpnet",
        vocab_size=words,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=32,
        max_position_embeddings=48,
        layer_norm_eps=1e-5,
        relative_attention_num_buckets=32,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    encoder = AutoModel.from_config(config)
    _fill(encoder, generator, 0.3)
    encoder.save_pretrained(folder / "encoder")
    return folder


def _fill(model, generator, scale: float) -> None:
    """Normal weights from numpy, because torch's initialisation differs between versions; `scale` of the matrices."""
    import torch

    for name, tensor in sorted(model.state_dict().items()):
        if not tensor.is_floating_point():
            continue
        values = generator.standard_normal(tuple(tensor.shape)).astype(np.float32)
        if tensor.ndim == 1:
            values = 0.1 * values + float(name.endswith("LayerNorm.weight"))
        elif "embeddings" not in name:
            values *= scale  # small enough that tokens stay apart
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(values))


def _write_deberta_tokenizer(folder: Path) -> int:
    """Unigram with SentencePiece's marks; like the published one, it normalises the text (NFKC)."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    vocabulary = [(token, 0.0) for token in special]
    vocabulary += [(f"▁{word}", -3.0 - 0.01 * index) for index, word in enumerate(WORDS)]
    vocabulary += [(ending, -5.0 - 0.01 * index) for index, ending in enumerate(ENDINGS)]
    symbols = [chr(code) for code in range(33, 127)]
    vocabulary += [(symbol, -9.0 - 0.01 * index) for index, symbol in enumerate(["▁", *symbols])]
    vocabulary = list(dict(reversed(vocabulary)).items())[::-1]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in [*special, "[MASK]"]])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"bos": "[CLS]", "eos": "[SEP]", "cls": "[CLS]", "sep": "[SEP]", "unk": "[UNK]", "pad": "[PAD]"}
    settings = {"do_lower_case": False, "split_by_punct": False, "vocab_type": "spm", "model_max_length": 512}
    _save_tokenizer(folder, tokenizer, {**names, "mask": "[MASK]"}, "DebertaV2Tokenizer", settings)
    return tokenizer.get_vocab_size()


def _write_mpnet_tokenizer(folder: Path) -> int:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    symbols = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    words = [word.lower() for word in WORDS]
    tokens = dict.fromkeys([*special, *words, *symbols, *(f"##{end}" for end in [*ENDINGS, *symbols])])
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0",
        pair="<s>:0 $A:0 </s>:0 </s>:0 $B:0 </s>:0",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "[UNK]", "pad": "<pad>"}
    settings = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "model_max_length": 40}
    _save_tokenizer(folder, tokenizer, {**names, "mask": "<mask>"}, "MPNetTokenizer", settings)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    return len(vocabulary)


def _save_tokenizer(folder: Path, tokenizer, names: dict[str, str], kind: str, settings: dict) -> None:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    tokens = {f"{name}_token": token for name, token in names.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **settings, **tokens}))
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))


if __name__ == "__main__":
    for number in SEEDS:
        write_tiny_ratescore(Path(sys.argv[1]) / f"seed{number}", number)
    (Path(sys.argv[1]) / "pairs.json").write_text(json.dumps(PAIRS))
