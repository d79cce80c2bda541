"""RaTEScore's share of `benchmarks/metrics.py`: real geometry, random weights, tokenizers made from the texts.

The limit is what the bare RaTE-NER network of transformers (no position cache) can do on the same distinct texts in
its own best length-bucketed forward, tokenizing, splitting, decoding and the second network left out. It is taken
three ways, as whole reports, as all their sentences and as their distinct sentences; `encoder_s` is the fastest.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification

from rrg_hf.metrics.ratescore import RaTEReader, RaTEScore
from rrg_hf.metrics.ratescore_entities import TAGS, decode_spans
from rrg_hf.metrics.ratescore_sentences import sentences_of

_BATCHES = (8, 16, 32)
_ROUNDS = 3
_ONE_BY_ONE = 12  # reports; the published way takes more than a second for each


def run(texts: Sequence[str], *, sentences: str = "pyrush") -> dict[str, Any]:
    """Seconds and ratios.

    Args:
        texts: reports, scored against themselves shuffled.
        sentences: see `RaTEReader`.

    Returns:
        "encoder_s": the limit; "reader_s": the whole score of all pairs, second network included; "one_by_one_s": the
        same networks the published way, one sentence and one report at a time on both sides, extrapolated from a part
        of the pairs; "ratio_to_encoder" and "ratio_to_single": speed as a fraction of the first, multiple of the
        other; and the parts these come from.
    """
    texts = list(texts)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), texts)
        reader = RaTEReader(folder, sentences=sentences, device="cpu")
        scorer = RaTEScore(reader)
        plain = AutoModelForTokenClassification.from_pretrained(Path(folder) / "ner").eval()
        distinct = list(dict.fromkeys(texts))
        split = [sentences_of(text, sentences) for text in distinct]
        every = [sentence for report in split for sentence in report]
        fed = {"reports": distinct, "distinct_sentences": list(dict.fromkeys(every))}
        rows = {name: reader.network.token_ids(items) for name, items in fed.items()}
        shuffled = random.Random(0).sample(texts, len(texts))
        scorer.score(texts[:4], shuffled[:4])  # the first pass sets threads and memory up
        ways = {(name, size): _batches(rows[name], size) for name in fed for size in _BATCHES}
        tried = {way: _timed(lambda batches=batches: _forward(plain, batches))[0] for way, batches in ways.items()}
        best = min(tried, key=lambda way: tried[way])
        turns: dict[str, list[tuple[float, float]]] = {"encoder": [], "reader": []}
        for _ in range(_ROUNDS):  # in turns, and the fastest counts: other work on the machine only adds time
            turns["encoder"].append(_timed(lambda: _forward(plain, ways[best]))[:2])
            _forget(reader, scorer)
            *seconds, output = _timed(lambda: scorer.score(texts, shuffled))
            turns["reader"].append((seconds[0], seconds[1]))
        encoder_s, encoder_cpu = map(min, zip(*turns["encoder"], strict=True))
        reader_s, reader_cpu = map(min, zip(*turns["reader"], strict=True))
        entities = reader(distinct)
        names = [name for report in entities for name, _ in report]
        parts = _parts(reader, scorer, distinct, names)
        count = min(_ONE_BY_ONE, len(texts))
        single_s, *_ = _timed(lambda: _one_by_one(plain, reader, scorer, texts[:count], shuffled[:count], sentences))
        single_s *= len(texts) / count
    return {
        "encoder_s": encoder_s,
        "reader_s": reader_s,
        "one_by_one_s": single_s,
        "ratio_to_encoder": encoder_s / reader_s,
        "ratio_to_encoder_cpu": encoder_cpu / reader_cpu,
        "ratio_to_single": single_s / reader_s,
        "best_way": f"{best[0]} in batches of {best[1]}",
        "parts_s": parts,
        "texts": len(texts),
        "distinct_texts": len(distinct),
        "sentences": len(every),
        "distinct_sentences": len(fed["distinct_sentences"]),
        "entities": len(names),
        "distinct_names": len(set(names)),
        "ratescore": output.corpus()["ratescore"],
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Wall and processor seconds, and what the call gave."""
    wall, processor = time.perf_counter(), time.process_time()
    value = call()
    return time.perf_counter() - wall, time.process_time() - processor, value


def _forget(reader: Any, scorer: Any) -> None:
    for part in (reader, reader.network, scorer.name_similarity.encoder):
        part._memory.clear()


def _parts(reader: Any, scorer: Any, distinct: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """Where the time goes, each part run once more on its own."""
    _forget(reader, scorer)
    split_s, _, split = _timed(lambda: [sentences_of(text, reader.sentences) for text in distinct])
    ner_s, *_ = _timed(lambda: reader.network([sentence for report in split for sentence in report]))
    names_s, *_ = _timed(lambda: scorer.name_similarity.encoder(names))
    return {"split": split_s, "ner": ner_s, "names": names_s}


def _pad(rows: list[list[int]], pad: int) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def _batches(rows: list[list[int]], size: int) -> list[dict[str, torch.Tensor]]:
    """Padded and ready to go in, longest first."""
    ordered = sorted(rows, key=len, reverse=True)
    return [_pad(ordered[at : at + size], 0) for at in range(0, len(ordered), size)]


def _forward(network: Any, batches: list[dict[str, torch.Tensor]]) -> None:
    with torch.inference_mode():
        for batch in batches:
            network(**batch)


def _one_by_one(plain: Any, reader: Any, scorer: Any, first: Sequence[str], second: Sequence[str], how: str) -> None:
    """Both sides, sentence by sentence, every name of a report encoded with the report."""
    encoder = scorer.name_similarity.encoder
    for text in [*first, *second]:
        names = []
        with torch.inference_mode():
            for sentence in sentences_of(text, how):
                ids = reader.network.token_ids([sentence])[0]
                tags = plain(**_pad([ids], 0)).logits.argmax(-1)[0].tolist()
                tokens = reader.network._tokenizer.convert_ids_to_tokens(ids)
                for start, end, _ in decode_spans(tokens, [plain.config.id2label[tag] for tag in tags]):
                    names.append(reader.network._tokenizer.convert_tokens_to_string(tokens[start : end + 1]))
            if names:
                encoder._network(**_pad(encoder.token_ids(names), 1))


def _write(folder: Path, texts: Sequence[str]) -> None:
    """RaTE-NER as DeBERTa-v3-base and BioLORD as MPNet-base, with random weights and a word per piece."""
    torch.manual_seed(0)
    words = sorted({word for text in texts for word in text.replace(".", " ").replace(",", " ").split()})
    tags = sorted(TAGS)
    pieces = _deberta_tokenizer(folder / "ner", words)
    config = AutoConfig.for_model(
        "deberta-v2",
        vocab_size=max(128_100, pieces),
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=512,
        relative_attention=True,
        position_buckets=256,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        pad_token_id=0,
        id2label=dict(enumerate(tags)),
        label2id={tag: index for index, tag in enumerate(tags)},
    )
    tagger = AutoModelForTokenClassification.from_config(config)
    with torch.no_grad():
        tagger.classifier.weight.normal_(
            std=0.3
        )  # so that tags vary and entities are about as many as in real reports
        tagger.classifier.bias[tags.index("O")] += 6.0
    tagger.save_pretrained(folder / "ner")
    _mpnet_tokenizer(folder / "encoder", words)
    AutoModel.from_config(AutoConfig.for_model("mpnet")).save_pretrained(folder / "encoder")


def _deberta_tokenizer(folder: Path, words: Sequence[str]) -> int:
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    tokens = [*special, *(f"▁{word}" for word in words), "▁", *(chr(code) for code in range(33, 127))]
    tokens = list(dict.fromkeys(tokens))
    tokenizer = Tokenizer(models.Unigram([(token, -min(9.0, float(at))) for at, token in enumerate(tokens)], unk_id=3))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    _save(folder, tokenizer, names, "DebertaV2Tokenizer")
    return tokenizer.get_vocab_size()


def _mpnet_tokenizer(folder: Path, words: Sequence[str]) -> None:
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    symbols = [chr(code) for code in range(33, 127)]
    tokens = [*special, *(word.lower() for word in words), *symbols, *(f"##{symbol}" for symbol in symbols)]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "[UNK]", "pad_token": "<pad>"}
    _save(folder, tokenizer, names, "MPNetTokenizer")


def _save(folder: Path, tokenizer: Tokenizer, names: dict[str, str], kind: str) -> None:
    folder.mkdir()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in names.values()])
    first, last = names["cls_token"], names["sep_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first}:0 $A:0 {last}:0",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind, **names}))
