"""`ReportGenerationPipeline`: a radiograph in, a report out, as a `transformers` pipeline."""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, GenerationConfig, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.pt_utils import PipelineDataset, PipelineIterator

from .data.collators import study_image
from .data.images import read_image
from .errors import CheckpointError, ConfigError, DataError, ImageReadError
from .metrics.loading import hub_commit
from .text.cleaning import is_missing

logger = logging.getLogger(__name__)

TASK = "report-generation"
# Reports of MIMIC-CXR and IU X-Ray rarely exceed this; `generate` alone would stop after 20 tokens.
DEFAULT_MAX_NEW_TOKENS = 128
# Written by the trainer beside the weights: what the model was trained on.
_TRAINING_RECORD = "rrg_training.json"
# A damaged file, or a value of the wrong type in one, can fail anywhere in a configuration or a tokenizer.
_UNUSABLE = (OSError, ValueError, TypeError, AttributeError, KeyError, StrictDataclassError)


class ReportGenerationPipeline(Pipeline):
    """Writes the report of a radiograph.

    Args:
        model: a report generation model, e.g. a `PalmForReportGeneration`.
        processor: its processor.
        kwargs: those of [`Pipeline`] (`device`, `batch_size`, ...) and defaults for any argument of `generate`.

    Inputs of a call: a file's path (PNG, JPEG, DICOM, ...), its bytes, a PIL image, an array, a `Study` row, a mapping
    {"image": ..., "indication": ...}, or a list of those. Every image is read by `read_image`. Of a `Study` row the
    image that a one-image model looks at is taken, and its indication.

    Call arguments: `indication` (for inputs that bring none of their own), `batch_size`, and any argument of
    `generate` (`num_beams`, `max_new_tokens`, `do_sample`, ...).

    Returns (on call): for one input a list of {"report": text}, one per returned sequence; for a list of inputs a list
    of such lists; for a data set or a generator an iterator over them.

    Raises:
        ImageReadError, DataError: on call, an image that cannot be read, or an input that holds none.
        ConfigError: an argument that neither the pipeline nor `generate` knows.

    Example:

    ```python
    >>> import rrg_hf.pipeline
    >>> from transformers import pipeline

    >>> write = pipeline("report-generation", model="path/to/palm")
    >>> write("chest.dcm", indication="Cough.", num_beams=3)
    [{'report': '...'}]
    ```"""

    _load_processor = True  # type: ignore[assignment]
    _load_tokenizer = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_video_processor = False  # type: ignore[assignment]
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=DEFAULT_MAX_NEW_TOKENS)

    model: Any
    processor: Any

    def __init__(self, model: Any, processor: Any = None, **kwargs: Any) -> None:
        if processor is None:
            raise ConfigError(
                "ReportGenerationPipeline needs the model's processor as well. Pass "
                "`processor=AutoProcessor.from_pretrained(...)`, or build it with `transformers.pipeline("
                f"{TASK!r}, model=...)`."
            )
        kwargs.setdefault("task", TASK)
        super().__init__(model=model, processor=processor, **kwargs)
        self.longest = _longest_report(model.config)
        self.default_max_new_tokens = min(DEFAULT_MAX_NEW_TOKENS, self.longest)
        self._generation_defaults["max_new_tokens"] = self.default_max_new_tokens
        self._check_length(self._generate_kwargs)

    def _check_length(self, generate_kwargs: Mapping[str, Any]) -> None:
        _check_length(generate_kwargs.get("max_new_tokens"), self.longest)

    def _sanitize_parameters(
        self, indication: str | None = None, generate_kwargs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        known = {name for name in vars(GenerationConfig()) if not name.startswith("_")} | {
            "generation_config",
            "logits_processor",
            "stopping_criteria",
            "streamer",
        }
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, sorted(known | {"indication", "batch_size"}), n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"{name!r} is an argument of neither the pipeline nor `generate`.{hint}")
        preprocess = {} if indication is None else {"indication": indication}
        forward = {**(generate_kwargs or {}), **kwargs}
        if forward:
            self._check_length(forward)
        return preprocess, forward, {}

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if isinstance(inputs, tuple):
            inputs = list(inputs)
        elif _is_dataset(inputs):
            inputs = (row for row in inputs)
        if isinstance(inputs, list) and not inputs:
            return []
        return super().__call__(inputs, **kwargs)

    def preprocess(self, input_: Any, indication: str | None = None) -> dict[str, Any]:  # type: ignore[override]
        """One input as {"pixel_values": (1, 3, H, W), "indication": [text or None]}."""
        image, own = _image_and_indication(input_)
        text = indication if is_missing(own) else own
        try:
            pixel_values = self.processor(images=[image], return_tensors="pt")["pixel_values"]
        except ValueError as error:  # the processor stands alone and knows no error class of this package
            raise ImageReadError(str(error)) from error
        return {"pixel_values": pixel_values, "indication": [None if is_missing(text) else text]}

    def _forward(  # type: ignore[override]
        self, model_inputs: dict[str, Any], **generate_kwargs: Any
    ) -> dict[str, torch.Tensor]:
        indications = model_inputs.pop("indication")
        inputs = {"pixel_values": model_inputs["pixel_values"].to(self.model.dtype)}
        if any(text is not None for text in indications):
            tokens = self.processor(indication=indications, return_tensors="pt")
            inputs |= {name: value.to(self.device) for name, value in tokens.items()}
        sequences = self.model.generate(**inputs, **self._prepare_generate_kwargs(generate_kwargs))
        if not isinstance(sequences, torch.Tensor):
            sequences = sequences.sequences
        count = len(indications)
        return {"sequences": sequences.reshape(count, -1, sequences.shape[-1])}  # (B, returned sequences, L)

    def postprocess(  # type: ignore[override]
        self, model_outputs: dict[str, torch.Tensor]
    ) -> list[dict[str, str]]:
        texts = self.processor.batch_decode(model_outputs["sequences"].flatten(0, 1), skip_special_tokens=True)
        return [{"report": " ".join(text.split())} for text in texts]

    def write(self, prepared: Sequence[dict[str, Any]]) -> list[str]:
        """Reports of inputs that went through `preprocess`, generated as one batch with the pipeline's own settings.

        For callers that must know which of many inputs cannot be read.
        """
        outputs = self.forward(_collate(prepared), **self._forward_params)
        return [self.postprocess({"sequences": item[None]})[0]["report"] for item in outputs["sequences"]]

    def write_studies(self, images: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Reports of images that stand in for those of their `Study` rows, as one batch.

        What `rrg_hf.evaluation.evidence_test` calls with occluded images.
        """
        return self.write(
            [
                self.preprocess({"image": image, "indication": row.get("indication")}, **self._preprocess_params)
                for image, row in zip(images, rows, strict=True)
            ]
        )

    def get_iterator(
        self,
        inputs: Any,
        num_workers: int,
        batch_size: int,
        preprocess_params: dict[str, Any],
        forward_params: dict[str, Any],
        postprocess_params: dict[str, Any],
    ) -> Iterable[Any]:
        """As in the base class, but with a batch's indications tokenised together in `_forward`."""
        kind = PipelineDataset if hasattr(inputs, "__len__") else PipelineIterator
        dataset = kind(inputs, self.preprocess, preprocess_params)
        workers = num_workers if kind is PipelineDataset else 0
        loader = DataLoader(dataset, num_workers=workers, batch_size=batch_size, collate_fn=_collate)
        outputs = PipelineIterator(loader, self.forward, forward_params, loader_batch_size=batch_size)
        return PipelineIterator(outputs, self.postprocess, postprocess_params)


def _longest_report(config: Any) -> int:
    """In tokens: the decoder's positions, less the one of the start token."""
    return int(config.get_text_config(decoder=True).max_position_embeddings) - 1


def _check_length(wanted: int | None, longest: int) -> None:
    if wanted is not None and wanted > longest:
        raise ConfigError(
            f"max_new_tokens is {wanted}, but the decoder of this model has room for {longest}. Use at most {longest}."
        )


def _collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "pixel_values": torch.cat([item["pixel_values"] for item in items]),
        "indication": [text for item in items for text in item["indication"]],
    }


def _is_dataset(inputs: Any) -> bool:
    """A `datasets.Dataset` or `IterableDataset`, told by its features so that `datasets` need not be imported."""
    return hasattr(inputs, "features") and hasattr(inputs, "__iter__") and not isinstance(inputs, Mapping)


def _image_and_indication(item: Any) -> tuple[Any, str | None]:
    """(8-bit greyscale PIL image, indication) of any input the pipeline takes."""
    if isinstance(item, str) and item.startswith(("http://", "https://")):
        raise DataError(f"{item}: the pipeline reads files, not web addresses. Download the image first.")
    if not isinstance(item, Mapping):
        return read_image(item), None
    indication = item.get("indication")
    if indication is not None and not isinstance(indication, (str, float)):
        raise DataError(f"An indication must be text or None, got {type(indication).__name__}.")
    own = indication if isinstance(indication, str) else None
    if "images" in item:
        return study_image(item), own
    if item.get("image") is None:
        raise DataError(f"An input mapping needs 'image' (or the 'images' of a Study row); it has {sorted(item)}.")
    source = item["image"]
    if isinstance(source, Mapping):  # an undecoded `datasets.Image`
        source = source.get("bytes") or source.get("path") or b""
    return read_image(source), own


@dataclass(frozen=True)
class ReportModel:
    """A loaded report generation checkpoint and where it comes from.

    Attributes:
        model, processor: ready for `ReportGenerationPipeline`.
        name: Hub id, or the folder's own name (never its path).
        revision: Hub commit, or "sha256:" and the first 16 digits of the local weights' hash.
        sources: names of the data sets it was trained on, as its training record says; empty if there is none.
        stage: last finished training stage, None if the checkpoint does not say.
    """

    model: Any
    processor: Any
    name: str
    revision: str
    sources: tuple[str, ...] = field(default=())
    stage: str | None = None

    @property
    def phantom_only(self) -> bool:
        """Whether the model has seen nothing but the phantom."""
        return self.sources == ("phantom",)


def load_report_model(
    name: str | os.PathLike[str], *, revision: str | None = None, max_new_tokens: int | None = None
) -> ReportModel:
    """Load a checkpoint for report generation, refusing other architectures before any weight is read.

    Args:
        name: checkpoint folder or Hub id.
        revision: Hub branch, tag or commit.
        max_new_tokens: the longest report that will be asked for, to be refused before any weight is read.

    Raises:
        CheckpointError: nothing there, another architecture, or damaged files.
        ConfigError: the model has no room for `max_new_tokens`.
    """
    text = os.fspath(name)
    if not text:
        raise CheckpointError("The model's name is empty (an unset variable?). Give a checkpoint folder or a Hub id.")
    folder = Path(text)
    if folder.exists() and not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "is a file"
        raise CheckpointError(f"{text} {what}. Give a folder written by `save_pretrained`, or a Hub id.")
    try:
        config = AutoConfig.from_pretrained(text, revision=revision)
    except _UNUSABLE as error:
        raise CheckpointError(
            f"No report generation model could be loaded from {text!r} ({_one_line(error)}). Give a folder with "
            "config.json and model.safetensors, or a Hub id."
        ) from error
    model_class: Any = AutoModelForImageTextToText._model_mapping.get(type(config), None)
    if model_class is None or not model_class.__module__.startswith(f"{__package__}."):
        raise CheckpointError(
            f"{text} is a checkpoint of {config.model_type!r}, which writes no reports here. Give a model trained "
            "with `rrg train` (for instance PALM)."
        )
    _check_length(max_new_tokens, _longest_report(config))
    try:
        model, loading = model_class.from_pretrained(text, revision=revision, output_loading_info=True)
        model.eval()
        processor = AutoProcessor.from_pretrained(text, revision=revision)
    except SafetensorError as error:
        raise CheckpointError(f"The weights of {text} are damaged: {_one_line(error)}") from error
    except (RuntimeError, *_UNUSABLE) as error:
        raise CheckpointError(f"The checkpoint {text} cannot be loaded: {_one_line(error)}") from error
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise CheckpointError(
            f"The weights of {text} are incomplete: {len(missing)} are missing, first {missing[:3]}. Copy or save the "
            "checkpoint again."
        )
    ends = config.get_text_config(decoder=True).eos_token_id
    if processor.tokenizer.eos_token_id != ends:  # without its files, transformers makes an empty tokenizer
        raise CheckpointError(
            f"The tokenizer of {text} is not its model's: reports end with token {ends}, which the tokenizer numbers "
            f"{processor.tokenizer.eos_token_id}. Copy all files of the checkpoint, tokenizer.json among them."
        )
    record = _training_record(text, revision)
    return ReportModel(
        model=model,
        processor=processor,
        name=folder.resolve().name if folder.is_dir() else text,
        revision=weights_sha256(folder) if folder.is_dir() else hub_commit(text, revision) or revision or "unknown",
        sources=_training_sources(record),
        stage=getattr(config, "training_stage", None),
    )


def weights_sha256(folder: str | os.PathLike[str]) -> str:
    """ "sha256:" and the first 16 hex digits of the hash over a folder's weight files, in name order."""
    files = sorted(Path(folder).glob("*.safetensors"))
    files = [path for path in files if path.name.startswith("model")] or files
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return f"sha256:{digest.hexdigest()[:16]}"


def _training_record(name: str, revision: str | None) -> dict[str, Any]:
    from transformers.utils import cached_file

    path = cached_file(
        name,
        _TRAINING_RECORD,
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return {}
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        logger.warning("%s beside the model is not valid JSON; what it was trained on is not known.", _TRAINING_RECORD)
        return {}
    return record if isinstance(record, dict) else {}


def _training_sources(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Data set names of this stage and of the stages before it."""
    names: set[str] = set()
    stage: Any = record
    while isinstance(stage, Mapping):
        for summary in (stage.get("datasets") or {}).values():
            sources = summary.get("sources") or ()
            names |= set(sources)
        stage = stage.get("previous_stage")
    return tuple(sorted(names))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


if TASK not in PIPELINE_REGISTRY.get_supported_tasks():
    PIPELINE_REGISTRY.register_pipeline(
        TASK, pipeline_class=ReportGenerationPipeline, pt_model=AutoModelForImageTextToText, type="multimodal"
    )
