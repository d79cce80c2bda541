"""BERTScore against the bert_score package's own output, a slow reference, and the traps of transformers 5."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rrg_hf.errors import CheckpointError, ConfigError, DataError
from rrg_hf.metrics import bertscore
from rrg_hf.metrics.bertscore import PUBLISHED_BASELINES, BertScore, BertScoreReader

from .tiny_encoders import tiny_encoder

EXPECTED = json.loads((Path(__file__).parent / "data" / "bertscore_expected.json").read_text())
LONG = "mild cardiomegaly with edema . " * 320  # 10,000 characters
MIXED = ["", " ", "clear", LONG, "The lungs are clear.", "é ☃ 心", "\u200b", "no effusion or pneumothorax", "\x0c"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("encoders")
    return {kind: tiny_encoder(root, kind) for kind in ("roberta", "bert", "distilbert", "gpt2", "modernbert")}


def reader(folder: Path, layer: int = 2, **settings: Any) -> BertScoreReader:
    return BertScoreReader(str(folder), layer=layer, device="cpu", **settings)


@pytest.mark.parametrize("case", list(EXPECTED["scores"]))
@pytest.mark.parametrize("batch_size", [1, 64])
def test_equals_the_published_package(folders: dict[str, Path], case: str, batch_size: int) -> None:
    kind, layer, mode = case.split("/")
    scorer = BertScore(
        reader(folders[kind], int(layer), batch_size=batch_size, collapse_spaces=False),
        baseline=tuple(EXPECTED["baseline"]) if mode == "rescaled" else None,
        idf=mode == "idf",
    )
    scores = scorer.per_study(EXPECTED["predictions"], EXPECTED["references"])
    assert np.allclose(scores, EXPECTED["scores"][case], rtol=0, atol=1e-5)


def test_equals_greedy_matching_over_the_whole_network(folders: dict[str, Path]) -> None:
    """Every layer runs here and layer 2 is picked afterwards; matching is two loops."""
    from transformers import AutoModel

    two = reader(folders["bert"])
    network = AutoModel.from_pretrained(folders["bert"]).eval()
    report, reference = "the lungs are clear .", "no edema , heart normal"
    sides = []
    for text in (report, reference):
        ids = torch.tensor(two.token_ids([text]))
        with torch.no_grad():
            hidden = network(ids, output_hidden_states=True).hidden_states[2][0].double()
        sides.append([vector / vector.norm() for vector in hidden])
    cosines = [[float(a @ b) for b in sides[1]] for a in sides[0]]
    best = [max(row) for row in cosines[1:-1]]  # [CLS] and [SEP] may be matched but do not count
    precision = sum(best) / len(best)
    best = [max(row[column] for row in cosines) for column in range(1, len(sides[1]) - 1)]
    recall = sum(best) / len(best)
    scores = BertScore(two, baseline=None).per_study([report], [reference])[0]
    assert np.allclose(scores, [precision, recall, 2 * precision * recall / (precision + recall)], atol=1e-6)
    assert two._model.config.num_hidden_layers == 2 and len(two._model.encoder.layer) == 2


@pytest.mark.parametrize("kind", ["roberta", "bert", "gpt2", "modernbert"])
def test_batch_size_and_neighbours_do_not_matter(folders: dict[str, Path], kind: str) -> None:
    predictions, references = MIXED, MIXED[::-1]
    one = BertScore(reader(folders[kind], batch_size=1), baseline=None).per_study(predictions, references)
    many = BertScore(reader(folders[kind], batch_size=64), baseline=None).per_study(predictions, references)
    assert np.isfinite(many).all()
    assert np.allclose(one, many, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["roberta", "gpt2"])
def test_first_word_has_its_space(folders: dict[str, Path], kind: str) -> None:
    """transformers 5 ignores add_prefix_space at the call; "lungs" must not be cut otherwise at a text's start."""
    two = reader(folders[kind])
    inside = two.token_ids(["edema lungs"])[0]
    alone = two.token_ids(["lungs"])[0]
    content = [token for token in alone if token not in two._specials]
    assert len(content) == 1 and content[0] in inside


def test_tokeniser_without_prefix_space_is_refused(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    original = AutoTokenizer.from_pretrained

    def deaf(name: str, *, add_prefix_space: bool = False, **settings: Any) -> Any:
        return original(name, **settings)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", deaf)
    with pytest.raises(ConfigError, match="add_prefix_space"):
        reader(folders["roberta"])


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_tokeniser_without_a_maximum_length(tmp_path: Path, kind: str) -> None:
    """huggingface/evaluate#739: a tokeniser that names no limit says 10^30, which overflows."""
    two = reader(tiny_encoder(tmp_path, kind, model_max_length=None))
    assert two._tokenizer.model_max_length > 10**9
    assert len(two.token_ids([LONG])[0]) == 40
    scores = BertScore(two, baseline=None).per_study([LONG], [LONG])
    assert np.allclose(scores, 1.0, atol=1e-5)


def test_empty_texts_score_zero_before_rescaling(folders: dict[str, Path]) -> None:
    predictions, references = ["", "clear", " \n", "clear"], ["clear", "", "", "clear"]
    raw = BertScore(reader(folders["bert"]), baseline=None)
    assert raw.per_study(predictions, references)[:3].tolist() == [[0.0] * 3] * 3
    assert raw.score(predictions, references).counts == {"bertscore_empty_predictions": 2}
    baseline = PUBLISHED_BASELINES["distilroberta-base", 5]
    rescaled = BertScore(reader(folders["bert"]), baseline=baseline).per_study(predictions, references)
    assert rescaled[0, 2] == pytest.approx(-5.5501568)  # what bert_score prints for an empty report
    assert rescaled[3, 2] == pytest.approx(1.0, abs=1e-5)


def test_idf_needs_two_references(folders: dict[str, Path]) -> None:
    """With one reference every weight is log(1) = 0; packages then give -5.55, or RadCliQ 9.37 for equal texts."""
    scorer = BertScore(reader(folders["roberta"]), baseline=None, idf=True)
    with pytest.raises(DataError, match=r"one distinct reference.*idf=False"):
        scorer.per_study(["clear"], ["clear"])
    with pytest.raises(DataError, match="one distinct reference"):
        scorer.per_study(["clear", "edema"], ["lungs  clear", " lungs clear"])
    assert np.allclose(scorer.per_study(["clear", "edema"], ["clear", "edema"]), 1.0, atol=1e-5)


def test_words_of_every_reference_weigh_nothing(folders: dict[str, Path]) -> None:
    scorer = BertScore(reader(folders["bert"]), baseline=None, idf=True)
    scores = scorer.per_study(["clear", "lungs"], ["clear edema", "clear heart"])
    assert scores[0].tolist() == [0.0, 0.0, 0.0]  # nothing left to weigh, no NaN
    assert 0 < scores[1, 2] < 1


def test_each_distinct_text_is_encoded_once(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bertscore, "_PAIRS_PER_CHUNK", 2)
    two = reader(folders["bert"], memory=100)
    read: list[str] = []
    original = two.read_batch
    monkeypatch.setattr(two, "read_batch", lambda texts: read.extend(texts) or original(texts))
    predictions = ["clear", "edema", "clear", "clear", "edema"]
    references = ["clear", "lungs", "heart", "clear", "lungs"]
    scores = BertScore(two, baseline=None).per_study(predictions, references)
    assert sorted(read) == ["clear", "edema", "heart", "lungs"]
    assert scores[0, 2] == pytest.approx(1.0, abs=1e-5)
    assert scores[1].tolist() == scores[4].tolist() != scores[2].tolist()


def test_a_reading_owns_its_memory(folders: dict[str, Path]) -> None:
    long, short = reader(folders["bert"]).read_batch([LONG, "clear"])
    assert long.vectors.base is None and short.vectors.base is None
    assert short.vectors.shape == (3, 16) and short.vectors.dtype == np.float32
    assert short.content.tolist() == [False, True, False]


def test_runs_of_spaces(folders: dict[str, Path]) -> None:
    """RadCliQ collapses them; to byte-level BPE they are tokens."""
    pair = ["lungs   clear"], ["lungs clear"]
    assert BertScore(reader(folders["roberta"]), baseline=None).per_study(*pair)[0, 2] == pytest.approx(1, abs=1e-5)
    assert BertScore(reader(folders["roberta"], collapse_spaces=False), baseline=None).per_study(*pair)[0, 2] < 0.999


def test_scores_and_protocol(folders: dict[str, Path]) -> None:
    scorer = BertScore(reader(folders["roberta"]), baseline=(0.1, 0.2, 0.3))
    result = scorer.compute(["clear", "edema"], ["clear", "lungs"], per_sample=True)
    per_study = scorer.per_study(["clear", "edema"], ["clear", "lungs"])
    assert [result[f"bertscore_{name}"] for name in bertscore.SCORES] == pytest.approx(per_study.mean(axis=0))
    assert result["per_sample"]["bertscore_f1"] == pytest.approx(per_study[:, 2])
    assert result["protocol"]["baseline"] == [0.1, 0.2, 0.3] and result["protocol"]["idf"] is False
    assert scorer.readers() == [scorer.reader] and scorer.higher_is_better and scorer.primary_key in result


def test_revision_follows_the_weights_not_the_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    first, again = reader(folders["bert"]), reader(tiny_encoder(tmp_path, "bert"))
    assert first.revision == again.revision != reader(folders["bert"], 3).revision
    path = tmp_path / "bert" / "model.safetensors"
    weights = load_file(path)
    weights["embeddings.word_embeddings.weight"] += 1
    save_file(weights, path, metadata={"format": "pt"})
    assert reader(tmp_path / "bert").revision != first.revision


def test_baselines() -> None:
    """The numbers that came with bert_score; the F of each is also in the RadCliQ and RadEval sources."""
    assert PUBLISHED_BASELINES["distilroberta-base", 5][2] == 0.8473319
    assert PUBLISHED_BASELINES["distilbert-base-uncased", 5][2] == 0.66620487
    with pytest.raises(ConfigError, match=r"'roberta-large' layer 5.*distilroberta-base layer 5"):
        BertScore(baseline="roberta-large")
    with pytest.raises(ConfigError, match=r"\(P, R, F\)"):
        BertScore(baseline=(0.5, 0.5))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="below 1"):
        BertScore(baseline=(0.5, 0.5, 1.0))


def test_published_baseline_is_the_models_own(folders: dict[str, Path], tmp_path: Path) -> None:
    """A baseline of another model would shift every score without a word."""
    with pytest.raises(ConfigError, match="'roberta' layer 2"):
        BertScore(reader(folders["roberta"]))
    named = shutil.copytree(folders["roberta"], tmp_path / "distilbert-base-uncased")
    with pytest.raises(ConfigError, match="'distilbert-base-uncased' layer 2"):
        BertScore(reader(named))


def test_baseline_of_another_layer_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="layer 2"):
        BertScore(reader(folders["roberta"]), baseline="distilroberta-base")


@pytest.mark.parametrize(("layer", "message"), [(0, "layers 1 to 3"), (4, "layers 1 to 3"), (True, "layer is True")])
def test_layers_that_are_not_there(folders: dict[str, Path], layer: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reader(folders["bert"], layer)


def test_settings_that_cannot_work(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        reader(folders["bert"], dtype="int3")
    with pytest.raises(ConfigError, match=r"hf download no-such/model"):
        BertScoreReader("no-such/model")
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(ConfigError, match="t5, which has no single stack"):
        BertScoreReader(str(tmp_path))


def test_incomplete_weights_are_an_error(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path, "bert")
    weights = load_file(folder / "model.safetensors")
    del weights["encoder.layer.1.output.dense.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="lack 1 tensors"):
        reader(folder)
    assert reader(folder, layer=1).layer == 1  # what is not run may be missing
