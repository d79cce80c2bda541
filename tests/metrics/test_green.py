"""The judge (prompt, ids, batched greedy answers) and the score over its answers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics.green import Green, GreenReader, GreenReading, load_green
from rrg_hf.metrics.reading import ReadingCache, TextReader

from .tiny_judge import PROMPTS, write_judge

EXPECTED = json.loads((Path(__file__).parent / "data" / "green_chat.json").read_text())["rows"]
TEMPLATE = "{reference}|{candidate}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_judge(tmp_path_factory.mktemp("judge"))


@pytest.fixture(scope="module")
def reader(folder: Path) -> Iterator[GreenReader]:
    yield GreenReader(folder, template=TEMPLATE, device="cpu", max_length=160)


def fresh(folder: Path, **settings: Any) -> GreenReader:
    return GreenReader(folder, template=TEMPLATE, device="cpu", **{"max_length": 160, **settings})


def slow_answer(reader: GreenReader, prompt: str) -> list[int]:
    """One prompt alone, the whole sequence anew for every token."""
    ids = list(reader.encode([prompt])[0])
    generated: list[int] = []
    while len(ids) < reader.max_length:
        with torch.inference_mode():
            logits = reader._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
        generated.append(ids[-1])
        if ids[-1] == reader._tokenizer.eos_token_id:
            break
    return generated


def test_ids_are_those_of_the_published_pipeline(reader: GreenReader) -> None:
    assert reader.encode(PROMPTS) == [row["ids"] for row in EXPECTED]
    assert reader.lengths(list(PROMPTS)) == [len(row["ids"]) for row in EXPECTED]


def test_answers_are_those_of_the_published_pipeline(reader: GreenReader) -> None:
    readings = reader(PROMPTS)
    for reading, row in zip(readings, EXPECTED, strict=True):
        text = reader._tokenizer.decode(row["answer"], skip_special_tokens=True)
        assert reading == {"answer": text.strip(), "finished": row["answer"][-1] == 2}
    assert any(reading["finished"] for reading in readings)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_answers_do_not_depend_on_the_batch(folder: Path, batch_size: int) -> None:
    reader = fresh(folder, batch_size=batch_size, max_length=100)
    prompts = [*PROMPTS, "", "no effusion " * 3, "é" * 20, "o" * 60, "report", "x" * 300]
    readings = reader(prompts)
    for prompt, reading in zip(prompts, readings, strict=True):
        if len(reader.encode([prompt])[0]) >= 100:
            assert reading == {"answer": None, "finished": False}
            continue
        ids = slow_answer(reader, prompt)
        finished = ids[-1] == 2
        text = reader._tokenizer.decode(ids[:-1] if finished else ids, skip_special_tokens=True)
        assert reading == {"answer": text.strip(), "finished": finished}
    assert readings[-1]["answer"] is None
    assert not all(reading["finished"] for reading in readings[:-1])


def test_without_the_end_mark(folder: Path) -> None:
    reader = fresh(folder, add_eos=False)
    assert reader.encode(PROMPTS) == [row["ids"][:-1] for row in EXPECTED]
    assert "without end mark" in reader.revision


def test_end_mark_follows_the_tokenizer_class(folder: Path, tmp_path: Path) -> None:
    other = write_judge(tmp_path / "other")
    settings = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(
        json.dumps({**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    )
    assert fresh(other).encode(PROMPTS) == [row["ids"][:-1] for row in EXPECTED]


def test_the_cache_keeps_answers(folder: Path, tmp_path: Path) -> None:
    first = fresh(folder, cache=ReadingCache(tmp_path))
    expected = first(PROMPTS, persist=True)
    second = fresh(folder, cache=ReadingCache(tmp_path))
    second.read_batch = None  # type: ignore[assignment,method-assign]
    assert second(PROMPTS, persist=True) == expected
    assert first.revision != fresh(folder, max_length=100).revision


def test_dtype(folder: Path) -> None:
    assert fresh(folder).dtype == "float32"
    assert fresh(folder, dtype="bfloat16")._model.dtype is torch.bfloat16
    assert fresh(folder, dtype="bfloat16").protocol()["dtype"] == "bfloat16"


def test_half_precision_checkpoints_are_bfloat16_off_the_gpu(tmp_path: Path) -> None:
    folder = write_judge(tmp_path / "half")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "float16"}))
    assert fresh(folder).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"max_length": 0}, "max_length is 0"),
        ({"words": True}, "words is True"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"template": "{reference} only"}, "{candidate} 0 times"),
        ({"template_file": "x.tar.gz"}, "Both template and template_file"),
    ],
)
def test_settings_that_cannot_work(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("{", r"\{")):
        fresh(folder, **settings) if "template" not in settings else GreenReader(folder, **settings)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No GREEN judge can be loaded"):
        fresh(tmp_path)


def test_protocol(reader: GreenReader) -> None:
    protocol = reader.protocol()
    assert protocol["prompt"] == "own template" and protocol["dtype"] == "float32"
    assert str(Path(reader.model_name).parent) not in json.dumps(protocol)


# --- the score, over answers that are written here ---

GOOD = (
    "[Clinically Significant Errors]:\n(a) False: {errors}. x\n\n"
    "[Clinically Insignificant Errors]:\nNo\n\n[Matched Findings]:\n{matched}. y"
)


class Scripted(TextReader[GreenReading]):
    """Answers as told, by prompt."""

    name, revision = "green", "scripted"
    reads_reports = False

    def __init__(self, answers: dict[str, str | None]) -> None:
        super().__init__()
        self.answers = answers

    def prompt(self, reference: str, candidate: str) -> str:
        return f"{reference}|{candidate}"

    def read_batch(self, texts: list[str]) -> list[GreenReading]:
        return [{"answer": self.answers[text], "finished": self.answers[text] is not None} for text in texts]


ANSWERS = {
    "r0|p0": GOOD.format(errors=1, matched=3),
    "r1|p1": GOOD.format(errors=0, matched=2),
    "r2|p2": "Sorry.",
    "r3|p3": None,
    "r4|p4": GOOD.format(errors=2, matched=0),
}
PREDICTIONS, REFERENCES = [f"p{index}" for index in range(5)], [f"r{index}" for index in range(5)]


def test_unreadable_answers_are_counted_and_left_out() -> None:
    result = Green(Scripted(ANSWERS)).compute(PREDICTIONS, REFERENCES, per_sample=True)
    assert result["green"] == pytest.approx((0.75 + 1 + 0) / 3)
    assert result["green_unparsable"] == 2 and result["green_no_room"] == 1
    assert result["per_sample"]["green"] == [0.75, 1.0, None, None, 0.0]
    assert result["per_sample"]["green_matched_findings"] == [3, 2, None, None, 0]
    assert result["per_sample"]["green_significant_errors"][0] == {"a": 1, "b": 0, "c": 0, "d": 0, "e": 0, "f": 0}
    assert result["per_sample"]["green_significant_errors"][2] is None
    assert result["per_sample"]["green_insignificant_errors"][0]["a"] == 0
    assert "green_answer" not in result["per_sample"]
    assert result["protocol"]["parse"] == "strict" and "left out" in result["protocol"]["unparsable"]


def test_published_reading_scores_what_it_cannot_read_as_zero() -> None:
    result = Green(Scripted(ANSWERS), parse="published").compute(PREDICTIONS, REFERENCES, per_sample=True)
    assert result["green"] == pytest.approx((0.75 + 1 + 0 + 0 + 0) / 5)
    assert result["green_unparsable"] == 0 and result["green_no_room"] == 1
    assert result["per_sample"]["green"] == [0.75, 1.0, 0.0, 0.0, 0.0]


def test_answers_on_request() -> None:
    output = Green(Scripted(ANSWERS), answers=True).score(PREDICTIONS, REFERENCES)
    assert output.columns["green_answer"] == [ANSWERS[f"r{index}|p{index}"] for index in range(5)]


def test_no_readable_answer_at_all() -> None:
    result = Green(Scripted(ANSWERS)).compute(["p2"], ["r2"])
    assert math.isnan(result["green"]) and "None of" in result["protocol"]["absent"]["green"]


def test_equal_pairs_are_judged_once() -> None:
    asked: list[str] = []

    class Counting(Scripted):
        def read_batch(self, texts: list[str]) -> list[GreenReading]:
            asked.extend(texts)
            return super().read_batch(texts)

    Green(Counting(ANSWERS)).score(["p0", "p0", "p1"], ["r0", "r0", "r1"])
    assert sorted(asked) == ["r0|p0", "r1|p1"]


def test_refusals(reader: GreenReader) -> None:
    with pytest.raises(DataError, match="2 predictions but 1"):
        Green(Scripted(ANSWERS)).score(["a", "b"], ["a"])
    with pytest.raises(ConfigError, match="parse rules"):
        Green(reader, parse="lenient")
    with pytest.raises(ConfigError, match="no backend"):
        load_green(backend="rules")


def test_end_to_end_with_a_tiny_judge(folder: Path) -> None:
    green = load_green(model=folder, template=TEMPLATE, device="cpu", max_length=120, answers=True)
    assert green.primary_key == "green" and green.higher_is_better and green.readers() == [green.reader]
    result = green.compute(["no effusion", ""], ["a report", "é"], per_sample=True)
    assert result["green_unparsable"] == 2  # a random model keeps to no format
    assert result["per_sample"]["green"] == [None, None]
    assert all(isinstance(text, str) for text in result["per_sample"]["green_answer"])


def test_incomplete_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = write_judge(tmp_path / "incomplete")
    weights = load_file(folder / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 of the judge's tensors, for example lm_head\.weight"):
        fresh(folder)
