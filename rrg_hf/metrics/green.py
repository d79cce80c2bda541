"""GREEN (Ostmeier et al. 2024): a fine-tuned language model lists errors and matches; their ratio is the score.

The judge gets both reports in the prompt it was trained on (`green_prompt`), answers by greedy decoding, and its
answer is read by `green_parse`. An answer that cannot be read has no score: it is counted and left out of the mean.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypedDict

import numpy as np

from ..errors import ConfigError
from .artifacts import require_prepared
from .green_parse import LETTERS, PARSE_RULES, GreenAnswer, parse_green
from .green_prompt import VERSION, WORDS, check_template, green_template, render_prompt
from .loading import check_dtype, choose_device, quiet_transformers, weights_revision
from .reading import ReadingCache, TextReader
from .scorer import ReportScorer, ScorerOutput, check_pairs
from .statistics import optional_mean_statistics

MAX_LENGTH = 2048  # tokens of prompt and answer together, as published
_USER, _ASSISTANT = "<|user|>", "<|assistant|>"
# Their tokenizers obey the published `add_eos_token=True`, so the judge reads an end mark behind its prompt.
_OBEY_ADD_EOS = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")


class GreenReading(TypedDict):
    """A judge's answer; None where the prompt leaves no room for one. `finished`: it stopped by itself."""

    answer: str | None
    finished: bool


class GreenReader(TextReader[GreenReading]):
    """The judge: reads prompts (not reports) and answers them by batched greedy decoding.

    Args:
        model: folder or Hub id of a causal language model fine-tuned as a GREEN judge, by default the prepared one
            (`rrg metrics prepare green`).
        template: prompt with `{reference}` and `{candidate}` once each; by default the published one.
        template_file: release archive of `green-score` to read the published template from, see `green_template`.
        revision: of the Hub repository.
        device: default a GPU if there is one, else the CPU.
        dtype: "float16" (as published), "bfloat16" or "float32". By default float16 on a CUDA GPU; elsewhere the
            checkpoint's own, with float16 read as bfloat16.
        batch_size: prompts per batch. Answers do not depend on it in float32; in half precision a near tie between two
            tokens may fall differently.
        max_length: tokens of prompt and answer together. Prompts that fill it are not answered.
        words: each report is cut to this many words.
        add_eos: whether an end mark stands behind the prompt; by default as the published tokenizer setting has it:
            yes for Llama, Mistral and Gemma tokenizers.
        cache: keeps answers, which quote report text.

    Raises:
        ConfigError: settings that cannot work, no template to be had, or a model that cannot be loaded.
    """

    name = "green"
    reads_reports: ClassVar[bool] = False

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        template: str | None = None,
        template_file: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = 8,
        max_length: int = MAX_LENGTH,
        words: int = WORDS,
        add_eos: bool | None = None,
        max_tokens: int = 16_384,
        cache: ReadingCache | None = None,
    ) -> None:
        super().__init__(batch_size=batch_size, max_tokens=max_tokens, cache=cache)
        for setting, value in (("max_length", max_length), ("words", words)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{setting} is {value!r}. Use a whole number of at least 1.")
        if dtype is not None:
            check_dtype(dtype)
        if template is not None and template_file is not None:
            raise ConfigError("Both template and template_file are given. Give one.")
        self.max_length, self.words = max_length, words
        self.published_template = template is None
        self.template = green_template(from_file=template_file) if template is None else check_template(template)
        self.device = choose_device(device)
        self.model_name = require_prepared("green", model)
        self._load(revision, dtype)
        self.add_eos = self._obeys_add_eos if add_eos is None else add_eos
        weights = weights_revision(self.model_name, revision)
        digest = hashlib.sha256(self.template.encode("utf-8", errors="surrogatepass")).hexdigest()
        self.revision = (
            f"{weights}, {self.dtype}, {max_length} tokens, {words} words, template {digest[:12]}, "
            f"{'with' if self.add_eos else 'without'} end mark"
        )

    def _load(self, revision: str | None, dtype: str | None) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
        from transformers.models.auto.tokenization_auto import get_tokenizer_config

        try:
            config = AutoConfig.from_pretrained(self.model_name, revision=revision)
            settings = get_tokenizer_config(self.model_name, revision=revision)
            try:
                # transformers 5 rebuilds Llama tokenizers: no start mark, other pieces behind special tokens. The
                # tokenizer file itself gives the ids that the judge was trained on.
                self._tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(
                    self.model_name, revision=revision or "main"
                )
            except (OSError, ValueError):
                self._tokenizer = AutoTokenizer.from_pretrained(self.model_name, revision=revision)
            if dtype is None:
                own = str(getattr(config, "dtype", None) or "float32").rpartition(".")[2]
                half = "float16" if self.device.type == "cuda" else "bfloat16"
                dtype = half if half == "float16" or own in ("float16", "bfloat16") else "float32"
            with quiet_transformers():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    self.model_name, revision=revision, dtype=check_dtype(dtype), output_loading_info=True
                )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"No GREEN judge can be loaded from {self.model_name} ({type(error).__name__}: {error}). Give the "
                "folder or Hub id of a causal language model with its tokenizer as model=."
            ) from error
        missing = loaded[1]["missing_keys"]
        if missing:
            raise ConfigError(
                f"The weights in {self.model_name} lack {len(missing)} of the judge's tensors, for example "
                f"{min(missing)}. They would be random; fetch the model again."
            )
        self.dtype = dtype
        self._model: Any = loaded[0].to(self.device).eval()
        if self._tokenizer.eos_token_id is None:
            raise ConfigError(f"The tokenizer of {self.model_name} has no end token, so its answers never end.")
        self._obeys_add_eos = str(settings.get("tokenizer_class", "")).removesuffix("Fast") in _OBEY_ADD_EOS
        self._start = self._tokenizer("").input_ids[:1]
        if not self._start or self._start[0] != self._tokenizer.bos_token_id:
            self._start = []

    def prompt(self, reference: str, candidate: str) -> str:
        """What this reader is to be given for one pair."""
        return render_prompt(self.template, reference, candidate, words=self.words)

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt as a chat: the user's turn, an empty answer, and the mark of a second one.

        The empty answer and its second marker are how the judges are called upstream.
        """
        end = self._tokenizer.eos_token
        texts = [f"{_USER}\n{prompt}{end}\n{_ASSISTANT}\n{end}\n{_ASSISTANT}\n" for prompt in prompts]
        ids = self._tokenizer(texts, add_special_tokens=False).input_ids
        tail = [self._tokenizer.eos_token_id] if self.add_eos else []
        return [[*self._start, *row, *tail] for row in ids]

    def lengths(self, texts: list[str]) -> list[int]:
        """Tokens of each prompt, for batches of like length."""
        return [len(row) for row in self.encode(texts)]

    def read_batch(self, texts: list[str]) -> list[GreenReading]:
        """Answers to a few prompts."""
        rows = self.encode(texts)
        room = [self.max_length - len(row) for row in rows]
        readings: list[GreenReading] = [{"answer": None, "finished": False} for _ in rows]
        answered = [index for index, left in enumerate(room) if left > 0]
        if answered:
            answers = self._generate([rows[index] for index in answered], [room[index] for index in answered])
            for index, reading in zip(answered, answers, strict=True):
                readings[index] = reading
        return readings

    def _generate(self, rows: list[list[int]], room: list[int]) -> list[GreenReading]:
        import torch
        from transformers import StoppingCriteria, StoppingCriteriaList

        longest = max(len(row) for row in rows)
        limit = torch.tensor(room, device=self.device)
        end = self._tokenizer.eos_token_id

        class OwnRoom(StoppingCriteria):
            """Each row ends at its own limit, so that its neighbours do not matter."""

            def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> torch.BoolTensor:
                return input_ids.shape[1] - longest >= limit  # type: ignore[return-value]

        padded = torch.tensor([[end] * (longest - len(row)) + row for row in rows], device=self.device)
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=self.device)
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=padded,
                attention_mask=mask,
                max_new_tokens=max(room),
                do_sample=False,
                num_beams=1,
                temperature=None,
                top_p=None,
                top_k=None,
                eos_token_id=end,
                pad_token_id=end,
                stopping_criteria=StoppingCriteriaList([OwnRoom()]),
            )
        readings: list[GreenReading] = []
        for generated, left in zip(output[:, longest:].tolist(), room, strict=True):
            own = generated[:left]
            finished = end in own
            own = own[: own.index(end)] if finished else own
            text = self._tokenizer.decode(own, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            readings.append({"answer": text.rpartition(_ASSISTANT)[2].strip(), "finished": finished})
        return readings

    def protocol(self) -> dict[str, Any]:
        """What decides an answer."""
        return {
            "judge": self.model_name if not Path(self.model_name).is_dir() else Path(self.model_name).name,
            "revision": self.revision,
            "dtype": self.dtype,
            "decoding": f"greedy, prompt and answer at most {self.max_length} tokens",
            "prompt": f"green-score {VERSION}" if self.published_template else "own template",
            "words": self.words,
        }


class Green(ReportScorer):
    """GREEN of generated reports.

    Scores: `green`, the mean of matched / (matched + clinically significant errors) over the pairs whose answer can be
    read. Counts: `green_unparsable`, pairs without a score, and `green_no_room`, those of them whose prompt was too
    long to be answered. Columns: `green_matched_findings`, and `green_significant_errors` and
    `green_insignificant_errors` as {"a": .., ..., "f": ..} (see `green_parse.ERROR_CATEGORIES`).

    Args:
        reader: the judge.
        parse: "strict" or "published", see `parse_green`; with "published" every pair has a score.
        answers: also give the judge's text of each pair as the column `green_answer`. It quotes the reports.

    Raises:
        ConfigError: unknown parse rules.
    """

    name = "green"
    primary_key = "green"

    def __init__(self, reader: TextReader[GreenReading], *, parse: str = "strict", answers: bool = False) -> None:
        if parse not in PARSE_RULES:
            raise ConfigError(f"GREEN parse rules {parse!r} are unknown. Use one of {list(PARSE_RULES)}.")
        self.reader = reader
        self.parse = parse
        self.answers = answers

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        check_pairs(predictions, references)
        words = getattr(self.reader, "prompt", None)
        if words is None:
            raise ConfigError("GREEN needs a reader that builds its prompt, such as GreenReader.")
        prompts = [words(reference, prediction) for reference, prediction in zip(references, predictions, strict=True)]
        readings = self.reader(prompts, persist=True)
        parsed: list[GreenAnswer | None] = [
            parse_green(reading["answer"] or "", rules=self.parse, finished=reading["finished"])
            for reading in readings
        ]
        unread = sum(answer is None for answer in parsed)
        columns: dict[str, list[Any]] = {
            "green_matched_findings": [None if answer is None else answer.matched for answer in parsed],
            "green_significant_errors": [None if a is None else _named(a.significant) for a in parsed],
            "green_insignificant_errors": [None if a is None else _named(a.insignificant) for a in parsed],
        }
        if self.answers:
            columns["green_answer"] = [reading["answer"] for reading in readings]
        scores = np.array([np.nan if answer is None else answer.score for answer in parsed])
        return ScorerOutput(
            groups=[optional_mean_statistics({"green": scores})],
            absent={"green": "None of the judge's answers can be read."} if unread == len(parsed) else {},
            counts={
                "green_unparsable": unread,
                "green_no_room": sum(reading["answer"] is None for reading in readings),
            },
            columns=columns,
        )

    def protocol(self) -> dict[str, Any]:
        described = getattr(self.reader, "protocol", None)
        return {
            "metric": "green",
            **(described() if described else {"judge": self.reader.name, "revision": self.reader.revision}),
            "parse": self.parse,
            "unparsable": "no score, left out of the mean" if self.parse == "strict" else "0, as green-score does",
        }

    def readers(self) -> list[TextReader[Any]]:
        return [self.reader]


def load_green(
    *,
    model: str | os.PathLike[str] | None = None,
    parse: str = "strict",
    answers: bool = False,
    cache_dir: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Green:
    """GREEN with its judge.

    Args:
        model: see `GreenReader`.
        parse: see `Green`.
        answers: see `Green`.
        cache_dir: folder that keeps answers, None for none.
        settings: further settings of `GreenReader`.

    Raises:
        ConfigError: see both.
    """
    backend = settings.pop("backend", None)
    if backend not in (None, "green"):
        raise ConfigError(f"GREEN has no backend {backend!r}. It has 'green' only.")
    if parse not in PARSE_RULES:
        raise ConfigError(f"GREEN parse rules {parse!r} are unknown. Use one of {list(PARSE_RULES)}.")
    cache = None if cache_dir is None else ReadingCache(cache_dir)
    return Green(GreenReader(model, cache=cache, **settings), parse=parse, answers=answers)


def _named(counts: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(LETTERS, counts, strict=True))
