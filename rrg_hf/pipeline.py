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
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
    GenerationConfig,
    Pipeline,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.pt_utils import PipelineDataset, PipelineIterator

from .data.collators import study_image
from .data.images import read_image
from .errors import CheckpointError, ConfigError, DataError, ImageReadError
from .metrics.loading import hub_commit
from .modeling.lead.adapter_lead import adapter_base, is_adapter, load_adapter
from .text.cleaning import CLEANERS, is_missing

logger = logging.getLogger(__name__)

TASK = "report-generation"
# Reports of MIMIC-CXR and IU X-Ray rarely exceed this; `generate` alone would stop after 20 tokens.
DEFAULT_MAX_NEW_TOKENS = 128
# Written by the trainer beside the weights: what the model was trained on.
_TRAINING_RECORD = "rrg_training.json"
# Settings of the decoding that go into a record where they differ from what `generate` does without them.
_NEUTRAL = {"repetition_penalty": 1.0, "length_penalty": 1.0}
# A damaged file, or a value of the wrong type in one, can fail anywhere in a configuration or a tokenizer.
_UNUSABLE = (OSError, ImportError, ValueError, TypeError, AttributeError, KeyError, StrictDataclassError)
_AS_LEAD = " Or load it with its LEAD class and save that: a fresh LEAD model writes what its backbone does."


class ReportGenerationPipeline(Pipeline):
    """Writes the report of a radiograph.

    Args:
        model: a report generation model: PALM, or LEAD on any of its backbones.
        processor: its processor. What the pipeline asks of it is `prepare_sample`, `build_batch` and
            `decode_reports`.
        kwargs: those of [`Pipeline`] (`device`, `batch_size`, ...) and defaults for any argument of `generate`.
            Settings that are not given are those of the checkpoint's `generation_config`.

    Inputs of a call: a file's path (PNG, JPEG, DICOM, ...), its bytes, a PIL image, an array, a `Study` row, a mapping
    {"image": ..., "indication": ...}, or a list of those. Every image is read by `read_image`. Of a `Study` row one
    image is taken, the first frontal one if the views are known, and the indication. With expert prompting (a LEAD
    setting), the experts' observations are predicted first and written into the prompt.

    Call arguments: `indication` (for inputs that bring none of their own), `cleaning` (the key of `CLEANERS` by which
    indications are cleaned; "default" unless the model was trained with another), `use_indication` (False for a model
    trained without them), `batch_size`, and any argument of `generate` (`num_beams`, `max_new_tokens`, ...).

    Returns (on call): for one input a list of {"report": text}, one per returned sequence; for a list of inputs a list
    of such lists; for a data set or a generator an iterator over them.

    Raises:
        ImageReadError, DataError: on call, an image that cannot be read, or an input that holds none.
        ConfigError: an argument that neither the pipeline nor `generate` knows, or a model without room for the report
            (behind its prompt, where it has one).

    `transformers.pipeline` builds it from a folder or Hub id with whole weights. For a LEAD adapter take
    `load_report_model`, which finds the base.

    Example:

    ```python
    >>> import rrg_hf.pipeline
    >>> from transformers import pipeline

    >>> write = pipeline("report-generation", model="path/to/model")
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
        if not hasattr(processor, "build_batch"):
            raise ConfigError(
                "ReportGenerationPipeline needs the processor of a PALM or LEAD model, got a "
                f"{type(processor).__name__}. Give a model trained with `rrg train`; load a LEAD adapter with "
                "`load_report_model`."
            )
        kwargs.setdefault("task", TASK)
        super().__init__(model=model, processor=processor, **kwargs)
        self.longest = _longest_report(model.config)
        own = model.generation_config.max_new_tokens
        self.default_max_new_tokens = min(own or DEFAULT_MAX_NEW_TOKENS, self.longest)
        self._generation_defaults["max_new_tokens"] = self.default_max_new_tokens
        self._check_length(self._generate_kwargs)

    @property
    def decoding(self) -> dict[str, Any]:
        """The settings that reports are written with, for records: given ones over the checkpoint's.

        `num_beams`, `max_new_tokens`, `do_sample`, and the penalties that do something.
        """
        found = self.model.generation_config.to_diff_dict() | self._generate_kwargs
        settings = {
            "num_beams": found.get("num_beams") or 1,
            "max_new_tokens": found.get("max_new_tokens") or self.default_max_new_tokens,
            "do_sample": bool(found.get("do_sample")),
        }
        for name, neutral in _NEUTRAL.items():
            if found.get(name) not in (None, neutral):
                settings[name] = found[name]
        return settings

    def _check_length(self, generate_kwargs: Mapping[str, Any], prompt: int = 0) -> None:
        _check_length(generate_kwargs.get("max_new_tokens"), self.longest, prompt)

    def _sanitize_parameters(
        self,
        indication: str | None = None,
        cleaning: str | None = None,
        use_indication: bool | None = None,
        generate_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        known = {name for name in vars(GenerationConfig()) if not name.startswith("_")} | {
            "generation_config",
            "logits_processor",
            "stopping_criteria",
            "streamer",
        }
        for name in kwargs:
            if name not in known:
                own = {"indication", "cleaning", "use_indication", "batch_size"}
                close = difflib.get_close_matches(name, sorted(known | own), n=1)
                hint = f" Did you mean {close[0]!r}?" if close else ""
                raise ConfigError(f"{name!r} is an argument of neither the pipeline nor `generate`.{hint}")
        if cleaning is not None and cleaning not in CLEANERS:
            raise ConfigError(f"cleaning is {cleaning!r}; use one of {sorted(CLEANERS)}.")
        given = {"indication": indication, "cleaning": cleaning, "use_indication": use_indication}
        preprocess = {name: value for name, value in given.items() if value is not None}
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

    def preprocess(self, input_: Any, **settings: Any) -> dict[str, Any]:
        """One input as the processor's `prepare_sample` makes it; settings as in `model_indication`."""
        image, own = _image_and_indication(input_)
        try:
            return self.processor.prepare_sample(image, self.model_indication(own, **settings))
        except ValueError as error:  # the processor stands alone and knows no error class of this package
            raise ImageReadError(str(error)) from error

    def model_indication(self, own: str | None, **settings: Any) -> str | None:
        """What the model reads of an indication, which is what it read in training.

        Args:
            own: the study's own indication, None if it has none.
            settings: `indication` (for a study without its own), `cleaning`, `use_indication`; the pipeline's by
                default.
        """
        settings = {
            **self._preprocess_params,
            **{name: value for name, value in settings.items() if value is not None},
        }
        if not settings.get("use_indication", True):
            return None
        clean = CLEANERS[settings.get("cleaning", "default")]
        texts = (own, settings.get("indication"))
        return next((read for text in texts if not is_missing(text) and (read := clean(text))), None)

    def _forward(  # type: ignore[override]
        self, model_inputs: dict[str, Any], **generate_kwargs: Any
    ) -> dict[str, torch.Tensor]:
        samples = model_inputs.get("samples", [model_inputs])
        inputs = self._on_device(self.processor.build_batch(samples))
        predict = getattr(self.model, "prompt_observations", None)
        observations = predict(**inputs) if predict is not None else None
        if observations is not None:
            inputs = self._on_device(self.processor.build_batch(samples, observations))
        settings = self._prepare_generate_kwargs(generate_kwargs)
        if "input_ids" in inputs:
            self._check_length(settings, prompt=int(inputs["attention_mask"].sum(-1).max()))
        sequences = self.model.generate(**inputs, **settings)
        if not isinstance(sequences, torch.Tensor):
            sequences = sequences.sequences
        outputs = {"sequences": sequences.reshape(len(samples), -1, sequences.shape[-1])}  # (B, returned sequences, L)
        if "input_ids" in inputs:
            outputs["input_ids"] = inputs["input_ids"]
        return outputs

    def _on_device(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        moved = {name: value.to(self.device) for name, value in inputs.items()}
        return {
            name: value.to(self.model.dtype) if value.is_floating_point() else value for name, value in moved.items()
        }

    def postprocess(  # type: ignore[override]
        self, model_outputs: dict[str, torch.Tensor]
    ) -> list[dict[str, str]]:
        texts = self.processor.decode_reports(model_outputs["sequences"].flatten(0, 1), model_outputs)
        return [{"report": " ".join(text.split())} for text in texts]

    def write(self, prepared: Sequence[dict[str, Any]]) -> list[str]:
        """Reports of inputs that went through `preprocess`, generated as one batch with the pipeline's own settings.

        For callers that must know which of many inputs cannot be read.
        """
        outputs = self.forward(_collate(prepared), **self._forward_params)
        first = {**outputs, "sequences": outputs["sequences"][:, :1]}
        return [entry["report"] for entry in self.postprocess(first)]

    def write_studies(self, images: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Reports of images that stand in for those of their `Study` rows, as one batch.

        What `rrg_hf.evaluation.evidence_test` calls with occluded images.
        """
        return self.write(
            [
                self.preprocess({"image": image, "indication": row.get("indication")})
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
        """As in the base class, but with a batch's texts tokenised together in `_forward`."""
        kind = PipelineDataset if hasattr(inputs, "__len__") else PipelineIterator
        dataset = kind(inputs, self.preprocess, preprocess_params)
        workers = num_workers if kind is PipelineDataset else 0
        loader = DataLoader(dataset, num_workers=workers, batch_size=batch_size, collate_fn=_collate)
        outputs = PipelineIterator(loader, self.forward, forward_params, loader_batch_size=batch_size)
        return PipelineIterator(outputs, self.postprocess, postprocess_params)


def _longest_report(config: Any) -> int:
    """In tokens: the decoder's positions, less the one of the start token. A prompt takes up more."""
    return int(config.get_text_config(decoder=True).max_position_embeddings) - 1


def _check_length(wanted: int | None, longest: int, prompt: int = 0) -> None:
    room = longest + 1 - prompt if prompt else longest
    if wanted is not None and wanted > room:
        behind = f" behind a prompt of {prompt} tokens" if prompt else ""
        raise ConfigError(
            f"max_new_tokens is {wanted}, but the decoder of this model has room for {room}{behind}. "
            + (
                f"Use at most {room}."
                if room > 0
                else "Shorten the indication, or make the processor's images smaller."
            )
        )


def _collate(items: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"samples": list(items)}


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
        text_settings: `cleaning` and `use_indication` of its training where they are not the default, for
            `ReportGenerationPipeline`.
    """

    model: Any
    processor: Any
    name: str
    revision: str
    sources: tuple[str, ...] = field(default=())
    stage: str | None = None
    text_settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phantom_only(self) -> bool:
        """Whether the model has seen nothing but the phantom."""
        return self.sources == ("phantom",)


def load_report_model(
    name: str | os.PathLike[str], *, revision: str | None = None, max_new_tokens: int | None = None
) -> ReportModel:
    """Load a checkpoint for report generation, refusing other architectures before any weight is read.

    Args:
        name: checkpoint folder or Hub id; also that of a LEAD adapter, whose base must be where it says.
        revision: Hub branch, tag or commit.
        max_new_tokens: the longest report that will be asked for, to be refused before any weight is read.

    Raises:
        CheckpointError: nothing there, another architecture, damaged files, or an adapter without its base or peft.
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
            "with `rrg train` (PALM or LEAD)." + (_AS_LEAD if f"lead_{config.model_type}" in CONFIG_MAPPING else "")
        )
    _check_length(max_new_tokens, _longest_report(config))
    try:
        if is_adapter(text, revision=revision):
            model = _load_adapter(text, revision)
        else:
            model = _load_whole(model_class, text, revision)
        processor: Any = AutoProcessor.from_pretrained(text, revision=revision)
        ends = _end_tokens(model, config)
        end = processor.end_token_id
    except CheckpointError:
        raise
    except SafetensorError as error:
        raise CheckpointError(f"The weights of {text} are damaged: {_one_line(error)}") from error
    except (RuntimeError, *_UNUSABLE) as error:
        raise CheckpointError(f"The checkpoint {text} cannot be loaded: {_one_line(error)}") from error
    if end not in ends:  # without its files, transformers makes an empty tokenizer
        raise CheckpointError(
            f"The tokenizer of {text} is not its model's: reports end with token {', '.join(map(str, ends))}, which "
            f"the tokenizer numbers {end}. Copy all files of the checkpoint, tokenizer.json among them."
        )
    record = _training_record(text, revision)
    return ReportModel(
        model=model,
        processor=processor,
        name=folder.resolve().name if folder.is_dir() else text,
        revision=weights_sha256(folder) if folder.is_dir() else hub_commit(text, revision) or revision or "unknown",
        sources=_training_sources(record),
        stage=getattr(config, "training_stage", None),
        text_settings=_text_settings(record),
    )


def _load_whole(model_class: Any, name: str, revision: str | None) -> Any:
    model, loading = model_class.from_pretrained(name, revision=revision, output_loading_info=True)
    missing = sorted(loading["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise CheckpointError(
            f"The weights of {name} are incomplete: {len(missing)} are missing, first {missing[:3]}. Copy or save the "
            "checkpoint again."
        )
    return model.eval()


def _load_adapter(name: str, revision: str | None) -> Any:
    """The LEAD model of an adapter, with the adapter's weights in it."""
    base = adapter_base(name, revision=revision)
    if base:
        try:
            AutoConfig.from_pretrained(base)
        except _UNUSABLE as error:
            raise CheckpointError(
                f"{name} is an adapter of {base}, which cannot be found ({_one_line(error)}). Put that model there, "
                "or write where it is as base_model_name_or_path into adapter_config.json."
            ) from error
    return load_adapter(name, revision=revision)


def _end_tokens(model: Any, config: Any) -> list[int]:
    """Ids of the tokens at which generation stops."""
    ends = model.generation_config.eos_token_id
    ends = config.get_text_config(decoder=True).eos_token_id if ends is None else ends
    return list(ends) if isinstance(ends, (list, tuple)) else [ends]


def weights_sha256(folder: str | os.PathLike[str]) -> str:
    """ "sha256:" and the first 16 hex digits of the hash over a folder's weight files, in name order.

    For an adapter they are its own and its base's files, or its base's name and commit on the Hub.
    """
    digest = hashlib.sha256()
    _hash_weights(Path(folder), digest)
    if is_adapter(folder):
        base = adapter_base(folder)
        if base and Path(base).is_dir():
            _hash_weights(Path(base), digest)
        elif base:
            digest.update(f"{base}@{hub_commit(base, None)}".encode())
    return f"sha256:{digest.hexdigest()[:16]}"


def _hash_weights(folder: Path, digest: Any) -> None:
    files = sorted(folder.glob("*.safetensors"))
    for path in [path for path in files if path.name.startswith("model")] or files:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)


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


def _text_settings(record: Mapping[str, Any]) -> dict[str, Any]:
    chosen = record.get("hyperparameters")
    chosen = chosen if isinstance(chosen, Mapping) else {}
    found: dict[str, Any] = {}
    if chosen.get("cleaning") in CLEANERS:
        found["cleaning"] = chosen["cleaning"]
    if chosen.get("use_indication") is False:
        found["use_indication"] = False
    return found


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
