"""Processed images kept in memory, so that small data sets are decoded and resized once and not once an epoch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset, Image, IterableDataset, List
from torch.utils.data import Dataset as TorchDataset

from ..errors import ConfigError
from .collators import STUDY_COLUMNS, process_images
from .study import study_features

logger = logging.getLogger(__name__)

# Past this a run is better served by `dataloader_num_workers`.
MAX_CACHE_BYTES = 8 * 2**30


class CachedStudies(TorchDataset):
    """`Study` rows with `pixel_values` in place of `images`.

    Made by `cache_pixel_values`. Behaves as the `datasets.Dataset` it was made from as far as training needs it:
    length, integer index, iteration, `select`, `column_names`.

    Args:
        rows: the text fields of each study.
        pixels: (N, C, H, W) float16, C = 1 where the three channels are equal.
        fingerprint: of the dataset the rows come from.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], pixels: np.ndarray, fingerprint: str) -> None:
        self.rows = list(rows)
        self.pixels = pixels
        self.fingerprint = fingerprint

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        return {**row, "pixel_values": self.pixels[row["_position"]]}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[index] for index in range(len(self)))

    @property
    def column_names(self) -> list[str]:
        names = [name for name in self.rows[0] if name != "_position"] if self.rows else []
        return [*names, "pixel_values"]

    def column(self, name: str) -> list[Any]:
        """One text field of every study, in order."""
        return [row.get(name) for row in self.rows]

    def select(self, indices: Sequence[int]) -> CachedStudies:
        """The studies at these positions, sharing the pixels with this dataset."""
        return CachedStudies([self.rows[index] for index in indices], self.pixels, self.fingerprint)


def undecoded(dataset: Any, columns: Sequence[str] = STUDY_COLUMNS) -> Any:
    """The columns a collator reads, with images left as `{bytes, path}`: masks are not decoded on every access, and a
    damaged image is reported with its study id instead of failing inside the dataset.

    Args:
        dataset: a `Dataset` or `IterableDataset` of `Study` rows.
        columns: the columns to keep, where present.
    """
    # a stream may not know its columns before it is read
    if dataset.column_names is not None:
        dataset = dataset.select_columns([name for name in columns if name in dataset.column_names])
    if dataset.features is None or dataset.features.get("images") != study_features()["images"]:
        return dataset
    if isinstance(dataset, IterableDataset):
        return dataset.cast_column("images", List(Image(decode=False)))
    # `cast_column` would write the whole data set anew. The stored bytes are the same; only their reading differs.
    dataset.info.features["images"] = List(Image(decode=False))
    return dataset


def cache_pixel_values(
    dataset: Dataset, processor: Any, *, batch_size: int = 64, max_bytes: int = MAX_CACHE_BYTES
) -> CachedStudies:
    """Run the image processor over a dataset once.

    float16 keeps normalised pixels to about 0.001, a sixteenth of one step of an 8-bit image.

    Args:
        dataset: `Study` rows.
        processor: a `PalmProcessor`.
        batch_size: images processed at once.
        max_bytes: refuse to grow beyond this.

    Raises:
        ConfigError: the cache would be larger than `max_bytes`.
        DataError: a study without a readable image.
    """
    source = undecoded(dataset)
    pixels: np.ndarray | None = None
    rows: list[dict[str, Any]] = []
    for start in range(0, len(source), batch_size):
        batch = [source[index] for index in range(start, min(start + batch_size, len(source)))]
        values = process_images(processor, batch, return_tensors="np")
        if pixels is None:
            # Images are grey here, so channels differ only where the processor's mean or std does.
            channels = 1 if np.array_equal(values[:, :1].repeat(values.shape[1], axis=1), values) else values.shape[1]
            shape = (len(source), channels, *values.shape[2:])
            needed = 2 * int(np.prod(shape))
            if needed > max_bytes:
                raise ConfigError(
                    f"cache_pixel_values would hold {len(source):,} images in {needed / 2**30:.1f} GiB, more than "
                    f"{max_bytes / 2**30:.1f} GiB. Turn it off and raise dataloader_num_workers instead."
                )
            pixels = np.empty(shape, dtype=np.float16)
        pixels[start : start + len(batch)] = values[:, : pixels.shape[1]]
        for offset, row in enumerate(batch):
            rows.append(
                {name: value for name, value in row.items() if name != "images"} | {"_position": start + offset}
            )
    if pixels is None:
        pixels = np.empty((0, 1, 1, 1), dtype=np.float16)
    logger.info("Cached the pixel values of %d images in %.2f GiB.", len(rows), pixels.nbytes / 2**30)
    return CachedStudies(rows, pixels, dataset._fingerprint)
