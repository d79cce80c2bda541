"""ReportGenerationPipeline: every kind of input, batches, generation arguments, errors, and loading checkpoints."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import rrg_hf.pipeline
from rrg_hf.data.images import read_image
from rrg_hf.errors import CheckpointError, ConfigError, DataError, ImageReadError
from rrg_hf.pipeline import ReportGenerationPipeline, load_report_model, weights_sha256
from tests.report_model import make_report_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline") / "tiny"
    make_report_model(path, seed=3)
    return path


@pytest.fixture(scope="module")
def write(checkpoint: Path) -> ReportGenerationPipeline:
    return transformers.pipeline("report-generation", model=str(checkpoint), device="cpu", max_new_tokens=12)


def picture(seed: int, size: int = 70) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size), dtype=np.uint8)


def by_hand(write: ReportGenerationPipeline, image: np.ndarray, indication: str | None, **kwargs: Any) -> list[str]:
    """The report without the pipeline: processor, generate, decode."""
    inputs = write.processor(images=[Image.fromarray(image)], indication=[indication], return_tensors="pt")
    ids = write.model.generate(**inputs, max_new_tokens=12, **kwargs)
    return [" ".join(text.split()) for text in write.processor.batch_decode(ids, skip_special_tokens=True)]


def test_the_models_reports_depend_on_image_and_indication(write: ReportGenerationPipeline) -> None:
    """Guards the other tests: equal reports mean something only if reports can differ."""
    texts = [write(picture(seed), indication=text)[0]["report"] for seed in range(3) for text in (None, "Cough.")]
    assert len(set(texts)) == 6 and all(texts)


def test_task_is_registered_and_gives_what_generate_gives(write: ReportGenerationPipeline) -> None:
    assert isinstance(write, ReportGenerationPipeline)
    image = picture(0)
    assert write(image) == [{"report": by_hand(write, image, None)[0]}]
    assert write(image, indication="Cough and fever.", num_beams=2) == [
        {"report": by_hand(write, image, "Cough and fever.", num_beams=2)[0]}
    ]


def test_public_name_and_direct_use(checkpoint: Path, write: ReportGenerationPipeline) -> None:
    assert rrg_hf.ReportGenerationPipeline is ReportGenerationPipeline
    direct = ReportGenerationPipeline(write.model, write.processor, device="cpu", max_new_tokens=12)
    assert direct(picture(0)) == write(picture(0))


def test_every_kind_of_input_is_read_alike(write: ReportGenerationPipeline, tmp_path: Path) -> None:
    array = picture(1)
    path = tmp_path / "a.png"
    Image.fromarray(array).save(path)
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG")
    row = {"study_id": "s", "images": [picture(9), path], "views": ["lateral", "frontal"], "indication": None}
    inputs = [path, str(path), buffer.getvalue(), Image.fromarray(array), array, {"image": path}, row]
    expected = write(array)
    assert [write(item) for item in inputs] == [expected] * len(inputs)
    assert write({"image": {"bytes": buffer.getvalue(), "path": None}}) == expected


def test_batches_equal_single_calls_with_and_without_indication(write: ReportGenerationPipeline) -> None:
    indications = ["Cough and fever.", None, "Shortness of breath after surgery.", float("nan"), "N/A"]
    inputs = [{"image": picture(seed), "indication": text} for seed, text in enumerate(indications)]
    single = [write(item) for item in inputs]
    assert [entry[0]["report"] for entry in single[3:]] == [by_hand(write, picture(seed), None)[0] for seed in (3, 4)]
    for batch_size in (1, 2, 5):
        assert write(inputs, batch_size=batch_size) == single
    assert write(tuple(inputs), batch_size=3) == single
    assert list(write((item for item in inputs), batch_size=2)) == single


def test_own_indication_wins_over_the_calls(write: ReportGenerationPipeline) -> None:
    own = {"image": picture(2), "indication": "Cough and fever."}
    assert write(own, indication="Shortness of breath after surgery.") == write(own)
    assert write({"image": picture(2)}, indication="Cough and fever.") == write(own)


def test_a_data_set_streams(write: ReportGenerationPipeline) -> None:
    from datasets import Dataset, Features, List, Value
    from datasets import Image as ImageFeature

    features = Features({"study_id": Value("string"), "images": List(ImageFeature()), "indication": Value("string")})
    rows = {
        "study_id": ["a", "b", "c"],
        "images": [[Image.fromarray(picture(seed))] for seed in range(3)],
        "indication": [None, "Cough and fever.", None],
    }
    outputs = list(write(Dataset.from_dict(rows, features=features), batch_size=2))
    assert outputs == [write(picture(0)), write(picture(1), indication="Cough and fever."), write(picture(2))]


def test_several_sequences_per_image(write: ReportGenerationPipeline) -> None:
    image = picture(4)
    outputs = write([image, picture(5)], batch_size=2, num_beams=3, num_return_sequences=3)
    assert [len(output) for output in outputs] == [3, 3]
    assert [entry["report"] for entry in outputs[0]] == by_hand(
        write, image, None, num_beams=3, num_return_sequences=3
    )


def test_prepared_inputs_are_written_as_one_batch(write: ReportGenerationPipeline) -> None:
    prepared = [write.preprocess(picture(seed)) for seed in range(3)]
    assert write.write(prepared) == [write(picture(seed))[0]["report"] for seed in range(3)]


def test_nothing_in_nothing_out(write: ReportGenerationPipeline) -> None:
    assert write([]) == []


@pytest.mark.parametrize(
    ("bad", "error", "match"),
    [
        ("no/such/file.png", ImageReadError, "no such file"),
        ("https://example.org/a.png", DataError, "Download the image"),
        ({"indication": "Cough."}, DataError, "needs 'image'"),
        ({"image": picture(0), "indication": 3}, DataError, "must be text"),
        ({"study_id": "s", "images": []}, DataError, "has no image"),
        (np.full((64, 64), np.nan), ImageReadError, "NaN"),
        (picture(0, size=5), ImageReadError, "at least 8 x 8"),
        (b"", ImageReadError, "empty"),
    ],
)
def test_bad_input_is_one_clear_error(
    write: ReportGenerationPipeline, bad: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        write(bad)


def test_unknown_arguments_are_named(write: ReportGenerationPipeline) -> None:
    with pytest.raises(ConfigError, match=r"'num_beam'.*Did you mean 'num_beams'"):
        write(picture(0), num_beam=2)
    with pytest.raises(ConfigError, match=r"max_new_tokens is 500.*at most 95"):
        write(picture(0), max_new_tokens=500)
    with pytest.raises(ConfigError, match="max_new_tokens is 500"):
        ReportGenerationPipeline(write.model, write.processor, device="cpu", max_new_tokens=500)
    with pytest.raises(ConfigError, match="needs the model's processor"):
        ReportGenerationPipeline(write.model)


def test_default_length_fits_the_decoder(write: ReportGenerationPipeline) -> None:
    plain = ReportGenerationPipeline(write.model, write.processor, device="cpu")
    assert plain.default_max_new_tokens == 95
    ids = plain.forward(plain.preprocess(picture(0)))["sequences"]
    assert ids.shape == (1, 1, 96)


def test_loads_a_folder_and_its_training_record(checkpoint: Path, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("backbones"))
    assert load_report_model(folder).sources == ()
    record = {
        "datasets": {"train": {"sources": ["phantom"]}},
        "previous_stage": {"datasets": {"train": {"sources": ["phantom"]}}, "previous_stage": None},
    }
    (folder / "rrg_training.json").write_text(json.dumps(record))
    loaded = load_report_model(folder)
    assert (loaded.name, loaded.sources, loaded.phantom_only) == ("demo", ("phantom",), True)
    assert loaded.revision == weights_sha256(folder) and loaded.revision.startswith("sha256:")
    record["previous_stage"]["datasets"]["train"]["sources"] = ["iu_xray"]  # type: ignore[index]
    (folder / "rrg_training.json").write_text(json.dumps(record))
    loaded = load_report_model(folder)
    assert (loaded.sources, loaded.phantom_only) == (("iu_xray", "phantom"), False)
    (folder / "rrg_training.json").write_text("{")
    assert load_report_model(folder).sources == ()


def test_revision_follows_the_weights(checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "demo"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("backbones"))
    before = weights_sha256(folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.prototypes"] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert weights_sha256(folder) != before == weights_sha256(checkpoint)


def test_other_checkpoints_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="checkpoint of 'dinov2'"):
        load_report_model(checkpoint / "backbones" / "vision")
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        load_report_model(tmp_path)
    with pytest.raises(CheckpointError, match="is a file"):
        load_report_model(checkpoint / "config.json")
    with pytest.raises(CheckpointError, match="No report generation model could be loaded from 'no/such'"):
        load_report_model("no/such")
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint, damaged, ignore=shutil.ignore_patterns("backbones"))
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="damaged"):
        load_report_model(damaged)
    with pytest.raises(CheckpointError, match="empty"):
        load_report_model("")


def test_checkpoints_that_lack_a_part_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    """transformers would put random weights and an empty tokenizer in their place."""
    from safetensors.torch import load_file, save_file

    for name in ("weights", "tokenizer"):
        shutil.copytree(checkpoint, tmp_path / name, ignore=shutil.ignore_patterns("backbones"))
    file = tmp_path / "weights" / "model.safetensors"
    weights = load_file(file)
    kept = {key: value for key, value in weights.items() if ".decoder.h.0.mlp." not in key}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=rf"incomplete: {len(weights) - len(kept)} are missing.*decoder\.h\.0\.mlp"
    ):
        load_report_model(tmp_path / "weights")
    (tmp_path / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer of .* is not its model's"):
        load_report_model(tmp_path / "tokenizer")


def test_a_length_without_room_is_refused_before_weights_are_read(checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "model", ignore=shutil.ignore_patterns("backbones", "*.safetensors"))
    with pytest.raises(ConfigError, match="max_new_tokens is 5000, but the decoder of this model has room for"):
        load_report_model(tmp_path / "model", max_new_tokens=5000)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "null"),
        ("config.json", '{"model_type": "palm"'),
        ("config.json", '{"model_type": "palm", "fusion_dropout": 9}'),
        ("config.json", '{"model_type": "palm", "decoder_config": {"n_layer": "x"}}'),
        ("config.json", '{"model_type": "palm", "dtype": "blah"}'),
        ("generation_config.json", "[]"),
        ("processor_config.json", "[]"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer.json", "{"),
    ],
)
def test_damaged_files_are_one_clear_error(checkpoint: Path, tmp_path: Path, file: str, content: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("backbones"))
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match="damaged") as caught:
        load_report_model(folder)
    assert "\n" not in str(caught.value)


def test_pipeline_reads_files_as_read_image_does(write: ReportGenerationPipeline, tmp_path: Path) -> None:
    """A 16-bit file is scaled, not clipped."""
    deep = (picture(6).astype(np.uint16)) * 257
    path = tmp_path / "deep.png"
    Image.fromarray(deep).save(path)
    assert np.array_equal(np.asarray(read_image(path)), picture(6))
    expected = write.processor(images=[Image.fromarray(picture(6))], return_tensors="pt")["pixel_values"]
    assert torch.equal(write.preprocess(path)["pixel_values"], expected)


def test_indications_are_read_as_in_training(write: ReportGenerationPipeline) -> None:
    """The collators clean them, so placeholders and line breaks never reach a model."""
    image, raw = picture(2), "___ year old with  cough.\n1. Fever"
    clean = write({"image": image, "indication": "year old with cough. Fever"})
    assert write({"image": image, "indication": raw}) == clean != write(image)
    assert write(image, indication=raw) == clean
    assert write({"image": image, "indication": raw}, cleaning="none") != clean
    assert write({"image": image, "indication": raw}, use_indication=False) == write(image)
    assert write.model_indication("___", indication="Cough.") == "Cough."
    assert write.model_indication(None) is None and write.model_indication("XXXX") is None
    fixed = ReportGenerationPipeline(
        write.model, write.processor, device="cpu", max_new_tokens=12, indication=raw, cleaning="r2gen_mimic"
    )
    assert fixed.model_indication(None) == " year old with cough . fever ."  # as R2Gen leaves it
    assert fixed.model_indication("Pain.", cleaning=None) == "pain ."
    with pytest.raises(ConfigError, match=r"cleaning is 'r2gen'; use one of"):
        write(image, cleaning="r2gen")


def test_an_indication_of_placeholders_is_none(write: ReportGenerationPipeline) -> None:
    assert write(picture(0), indication="___ XXXX") == write(picture(0))


@pytest.mark.parametrize("chosen", ["x", {"cleaning": "gone", "use_indication": 0}, {}, None])
def test_a_training_record_that_says_nothing_usable_changes_nothing(
    checkpoint: Path, tmp_path: Path, chosen: Any
) -> None:
    folder = tmp_path / "demo"
    shutil.copytree(checkpoint, folder, ignore=shutil.ignore_patterns("backbones"))
    (folder / "rrg_training.json").write_text(json.dumps({"hyperparameters": chosen}))
    assert load_report_model(folder).text_settings == {}
