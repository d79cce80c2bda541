"""CheXbert's network against a slow one in float64, and its conversion from the published layout."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import rrg_hf  # noqa: F401 (registers the Auto classes)
from rrg_hf.modeling.chexbert import CheXbertConfig, CheXbertForReportLabeling, convert_chexbert
from rrg_hf.observations import OBSERVATIONS
from tests.tiny_chexbert import HEADS, LAYERS, make_checkpoint, make_tokenizer

REPORT = "The heart is normal. No pleural effusion."


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def vocab_size(tokenizer_folder: Path) -> int:
    return len(AutoTokenizer.from_pretrained(tokenizer_folder))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, vocab_size: int) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("published") / "chexbert.pth", vocab_size)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path, tokenizer_folder: Path) -> Path:
    return convert_chexbert(checkpoint, tokenizer_folder, tmp_path_factory.mktemp("out") / "chexbert")


def slow_network(state: dict[str, torch.Tensor], ids: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """Head scores and [CLS] vector of one report, from the published weights, one token and one head at a time."""
    weights = {name.removeprefix("module."): value.double().numpy() for name, value in state.items()}

    def linear(vector: np.ndarray, name: str) -> np.ndarray:
        return weights[f"{name}.weight"] @ vector + weights[f"{name}.bias"]

    def norm(vector: np.ndarray, name: str) -> np.ndarray:
        scaled = (vector - vector.mean()) / math.sqrt(vector.var() + 1e-12)
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    tables = "bert.embeddings"
    hidden = [
        norm(
            weights[f"{tables}.word_embeddings.weight"][token]
            + weights[f"{tables}.position_embeddings.weight"][position]
            + weights[f"{tables}.token_type_embeddings.weight"][0],
            f"{tables}.LayerNorm",
        )
        for position, token in enumerate(ids)
    ]
    for layer in range(LAYERS):
        name = f"bert.encoder.layer.{layer}"
        queries, keys, values = (
            [linear(vector, f"{name}.attention.self.{part}") for vector in hidden]
            for part in ("query", "key", "value")
        )
        size = len(hidden[0]) // HEADS
        attended = []
        for query in queries:
            parts = []
            for head in range(HEADS):
                cut = slice(head * size, (head + 1) * size)
                scores = np.array([query[cut] @ key[cut] / math.sqrt(size) for key in keys])
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                parts.append(sum(share * value[cut] for share, value in zip(shares, values, strict=True)))
            attended.append(np.concatenate(parts))
        hidden = [
            norm(linear(vector, f"{name}.attention.output.dense") + before, f"{name}.attention.output.LayerNorm")
            for vector, before in zip(attended, hidden, strict=True)
        ]
        inner = [linear(vector, f"{name}.intermediate.dense") for vector in hidden]
        inner = [np.array([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in vector]) for vector in inner]
        hidden = [
            norm(linear(vector, f"{name}.output.dense") + before, f"{name}.output.LayerNorm")
            for vector, before in zip(inner, hidden, strict=True)
        ]
    return [linear(hidden[0], f"linear_heads.{index}") for index in range(14)], hidden[0]


def test_network_equals_a_slow_one_on_the_published_weights(checkpoint: Path, converted: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)["model_state_dict"]
    model = CheXbertForReportLabeling.from_pretrained(converted).eval()
    tokenizer = AutoTokenizer.from_pretrained(converted)
    reports = [REPORT, "", "Edema.", "Small left opacity in the lower lobe, new; fracture of a rib."]
    batch = tokenizer(reports, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(**batch)
    for row, report in enumerate(reports):
        scores, cls = slow_network(state, tokenizer(report)["input_ids"])
        np.testing.assert_allclose(output.cls[row].numpy(), cls, atol=1e-4)
        for head, expected in enumerate(scores):
            np.testing.assert_allclose(output.logits[row, head, : len(expected)].numpy(), expected, atol=1e-3)
    assert torch.isneginf(output.logits[:, 13, 2:]).all()
    assert not torch.isneginf(output.logits[:, :13]).any()


def test_conversion_keeps_the_weights_and_drops_the_optimiser(checkpoint: Path, converted: Path) -> None:
    state = torch.load(checkpoint, weights_only=True)["model_state_dict"]
    model = CheXbertForReportLabeling.from_pretrained(converted)
    own = model.state_dict()
    assert {f"module.{name}" for name in own} == set(state)
    assert all(torch.equal(own[name.removeprefix("module.")], value) for name, value in state.items())
    assert model.config.observation_names == list(OBSERVATIONS)
    assert model.config.head_classes == [*[4] * 13, 2]
    about = json.loads((converted / "conversion.json").read_text())
    assert about["left_out"] == ["epoch", "optimizer_state_dict"]
    assert sorted(path.name for path in converted.iterdir() if path.suffix == ".pth") == []


def test_auto_classes_load_it(converted: Path, tmp_path: Path) -> None:
    assert isinstance(AutoConfig.from_pretrained(converted), CheXbertConfig)
    for auto in (AutoModel, AutoModelForSequenceClassification):
        assert isinstance(auto.from_pretrained(converted), CheXbertForReportLabeling)
    model = CheXbertForReportLabeling.from_pretrained(converted)
    model.save_pretrained(tmp_path)
    again = CheXbertForReportLabeling.from_pretrained(tmp_path)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())


def test_position_ids_of_older_copies_are_ignored(tmp_path: Path, vocab_size: int, tokenizer_folder: Path) -> None:
    extra = {"module.bert.embeddings.position_ids": torch.arange(512)[None]}
    source = make_checkpoint(tmp_path / "old.pth", vocab_size, **extra)
    about = json.loads((convert_chexbert(source, tokenizer_folder, tmp_path / "out") / "conversion.json").read_text())
    assert "bert.embeddings.position_ids" in about["left_out"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module.linear_heads.3.bias": None}, r"missing \['linear_heads.3.bias'\]"),
        ({"module.extra.weight": torch.zeros(2)}, r"unexpected \['extra.weight'\]"),
        ({"module.bert.pooler.dense.weight": torch.zeros(3, 3)}, r"pooler.dense.weight is \(3, 3\)"),
        ({"module.linear_heads.2.bias": torch.full((4,), float("nan"))}, "no finite numbers"),
        ({"module.linear_heads.5.weight": None}, "linear_heads.5.weight"),
        ({"module.bert.embeddings.word_embeddings.weight": None}, "word_embeddings"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, vocab_size: int, tokenizer_folder: Path, changes: dict, message: str
) -> None:
    source = make_checkpoint(tmp_path / "bad.pth", vocab_size, **changes)
    with pytest.raises(ValueError, match=message):
        convert_chexbert(source, tokenizer_folder, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pth"]


def test_files_that_are_no_checkpoint(tmp_path: Path, checkpoint: Path, tokenizer_folder: Path) -> None:
    cut = tmp_path / "cut.pth"
    cut.write_bytes(checkpoint.read_bytes()[:5000])
    text = tmp_path / "text.pth"
    text.write_text("<html>404</html>")
    other = tmp_path / "other.pth"
    torch.save({"weights": {}}, other)
    for source, message in ((cut, "cut short"), (text, "cut short"), (other, "model_state_dict")):
        with pytest.raises(ValueError, match=message):
            convert_chexbert(source, tokenizer_folder, tmp_path / "out")
    with pytest.raises(ValueError, match="no file"):
        convert_chexbert(tmp_path / "nothing.pth", tokenizer_folder, tmp_path / "out")


def test_files_that_grow_when_read_are_refused(tmp_path: Path, checkpoint: Path, tokenizer_folder: Path) -> None:
    """One number posing as a billion embeddings, a compressed file, parts that overlap."""
    views = make_checkpoint(
        tmp_path / "views.pth",
        **{"module.bert.embeddings.word_embeddings.weight": torch.zeros(1).expand(1 << 30, 32)},
    )
    assert views.stat().st_size < 1 << 20
    packed, overlapping = tmp_path / "packed.pth", tmp_path / "overlapping.pth"
    with zipfile.ZipFile(checkpoint) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    with zipfile.ZipFile(checkpoint) as source, zipfile.ZipFile(overlapping, "w") as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
        target.filelist += [max(target.filelist, key=lambda member: member.file_size)] * 50
        target._didModify = True
    for path, message in ((views, "declares weights of"), (packed, "compressed"), (overlapping, "overlap")):
        with pytest.raises(ValueError, match=message):
            convert_chexbert(path, tokenizer_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_second_conversion_of_the_same_file_changes_nothing(
    tmp_path: Path, checkpoint: Path, tokenizer_folder: Path
) -> None:
    target = convert_chexbert(checkpoint, tokenizer_folder, tmp_path / "out")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in target.iterdir()}
    assert convert_chexbert(checkpoint, tokenizer_folder, target) == target
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in target.iterdir()} == before
    again = convert_chexbert(checkpoint, tokenizer_folder, tmp_path / "again")
    assert {path.name: path.read_bytes() for path in again.iterdir()} == {n: c for n, (c, _) in before.items()}
    other = make_checkpoint(tmp_path / "other.pth", **{"module.linear_heads.0.bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="not empty"):
        convert_chexbert(other, tokenizer_folder, target)


def test_checkpoints_of_torch_before_1_6(tmp_path: Path, converted: Path, tokenizer_folder: Path) -> None:
    """CheXbert was trained with torch 1.4, whose files are one pickle and no zip archive."""
    old = make_checkpoint(tmp_path / "old.pth", zipped=False)
    target = convert_chexbert(old, tokenizer_folder, tmp_path / "out")
    assert (target / "model.safetensors").read_bytes() == (converted / "model.safetensors").read_bytes()
    cut = tmp_path / "cut.pth"
    for size in (0, 30, old.stat().st_size // 3, old.stat().st_size - 50):
        cut.write_bytes(old.read_bytes()[:size])
        with pytest.raises(ValueError, match="cut short"):
            convert_chexbert(cut, tokenizer_folder, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path, tokenizer_folder: Path) -> None:
    marker = tmp_path / "ran"
    writer = (
        "import os, pickle, sys, torch\n"
        "class Evil:\n"
        "    def __reduce__(self):\n"
        f"        return (os.mkdir, ({str(marker)!r},))\n"
        "torch.save({'model_state_dict': Evil()}, sys.argv[1])\n"
    )
    source = tmp_path / "evil.pth"
    subprocess.run([sys.executable, "-c", writer, str(source)], check=True)
    with pytest.raises(ValueError, match="cannot be read"):
        convert_chexbert(source, tokenizer_folder, tmp_path / "out")
    assert not marker.exists()


def test_output_folder_and_tokenizer_are_checked(
    tmp_path: Path, checkpoint: Path, converted: Path, tokenizer_folder: Path, vocab_size: int
) -> None:
    with pytest.raises(ValueError, match="not empty"):
        convert_chexbert(checkpoint, tokenizer_folder, converted, num_attention_heads=4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(ValueError, match="not empty"):
        convert_chexbert(checkpoint, tokenizer_folder, tmp_path / "mine")
    small = make_checkpoint(tmp_path / "small.pth", vocab_size - 1)
    with pytest.raises(ValueError, match="entries"):
        convert_chexbert(small, tokenizer_folder, tmp_path / "out")
    again = convert_chexbert(checkpoint, tokenizer_folder, tmp_path / "out")
    assert convert_chexbert(checkpoint, tokenizer_folder, again, overwrite=True) == again


def test_labels_train_every_head(converted: Path) -> None:
    model = CheXbertForReportLabeling.from_pretrained(converted).train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    batch = AutoTokenizer.from_pretrained(converted)([REPORT, "Edema."], padding=True, return_tensors="pt")
    labels = torch.tensor([[1] * 14, [0] * 13 + [-100]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model(**batch, labels=labels).loss
    first.backward()
    optimizer.step()
    unmoved = {name for name, value in model.named_parameters() if torch.equal(value, before[name])}
    # labels do not use the pooler; a key's bias shifts all scores of a query alike
    assert unmoved == {name for name in before if "pooler" in name} | {n for n in unmoved if "key.bias" in n}
    none = model(**batch, labels=torch.full((2, 14), -100)).loss
    assert none.item() == 0.0


def test_loads_alone_as_custom_code(converted: Path, tmp_path: Path) -> None:
    model = CheXbertForReportLabeling.from_pretrained(converted)
    CheXbertConfig.register_for_auto_class()
    CheXbertForReportLabeling.register_for_auto_class("AutoModel")
    try:
        model.save_pretrained(tmp_path / "hub")
    finally:
        CheXbertConfig._auto_class = None
        CheXbertForReportLabeling._auto_class = None
    code = (
        "import sys, torch\n"
        "sys.modules['rrg_hf'] = None\n"
        "from transformers import AutoModel\n"
        "model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
        "print(float(model(input_ids=torch.tensor([[2, 7, 9, 3]])).logits[0, :13].sum()))\n"
    )
    environment = {
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
        "PATH": "",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hub")],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=True,
    )
    with torch.no_grad():
        expected = float(model.eval()(input_ids=torch.tensor([[2, 7, 9, 3]])).logits[0, :13].sum())
    assert float(done.stdout.strip().splitlines()[-1]) == pytest.approx(expected, abs=1e-3)


def test_configuration_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="head_classes"):
        CheXbertConfig(head_classes=[4, 4])
    with pytest.raises(ValueError, match="2 or 4"):
        CheXbertConfig(head_classes=[3] * 14)
