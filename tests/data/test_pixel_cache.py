"""Processed images in memory: the same batches, from one pass over the files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from rrg_hf.data.collators import DataCollatorForPalm
from rrg_hf.data.phantom import phantom_dataset
from rrg_hf.data.pixel_cache import cache_pixel_values, undecoded
from rrg_hf.errors import ConfigError
from rrg_hf.modeling.palm import PalmProcessor
from tests.tiny_palm import make_tiny_palm


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> PalmProcessor:
    return make_tiny_palm(tmp_path_factory.mktemp("palm"))[1]


@pytest.fixture(scope="module")
def studies() -> Dataset:
    return phantom_dataset(5, size=64)


@pytest.mark.parametrize("mean", [[0.5, 0.5, 0.5], [0.4, 0.5, 0.6]])
def test_batches_are_the_same_to_a_fraction_of_a_grey_level(
    mean: list[float], processor: PalmProcessor, studies: Dataset
) -> None:
    before = processor.image_processor.image_mean
    processor.image_processor.image_mean = mean
    try:
        cached = cache_pixel_values(studies, processor, batch_size=2)
        collator = DataCollatorForPalm(processor)
        direct, stored = collator(list(undecoded(studies))), collator(list(cached))
    finally:
        processor.image_processor.image_mean = before
    assert cached.pixels.dtype == np.float16
    assert cached.pixels.shape == (5, 1 if len(set(mean)) == 1 else 3, 56, 56)
    grey_level = 1 / 255 / processor.image_processor.image_std[0]
    assert (direct["pixel_values"] - stored["pixel_values"]).abs().max() < grey_level / 8
    assert direct["pixel_values"].dtype == stored["pixel_values"].dtype == torch.float32
    assert all(torch.equal(direct[name], stored[name]) for name in direct if name != "pixel_values")


def test_it_behaves_as_a_data_set(processor: PalmProcessor, studies: Dataset) -> None:
    cached = cache_pixel_values(studies, processor)
    assert len(cached) == 5 and cached.column("study_id") == list(studies["study_id"])
    assert {"findings", "indication", "pixel_values"} <= set(cached.column_names)
    assert "images" not in cached.column_names and "masks" not in cached.column_names
    part = cached.select([4, 1])
    assert [row["study_id"] for row in part] == [studies[4]["study_id"], studies[1]["study_id"]]
    assert np.array_equal(part[0]["pixel_values"], cached[4]["pixel_values"])
    assert part.pixels is cached.pixels and part.fingerprint == studies._fingerprint


def test_a_cache_too_large_is_refused_at_once(processor: PalmProcessor, studies: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"5 images in .* GiB, more than .* raise dataloader_num_workers"):
        cache_pixel_values(studies, processor, max_bytes=5 * 56 * 56 * 2 - 1)
    assert len(cache_pixel_values(studies, processor, max_bytes=5 * 56 * 56 * 2)) == 5


def test_undecoded_leaves_the_data_set_alone(studies: Dataset) -> None:
    plain = undecoded(studies)
    assert set(plain[0]["images"][0]) == {"bytes", "path"}
    assert studies[0]["images"][0].size == (64, 64) and "masks" in studies.column_names
    assert set(next(iter(undecoded(studies.to_iterable_dataset())))["images"][0]) == {"bytes", "path"}
