"""Evaluation in shards: any number of studies in constant memory, split over processes, resumable.

The studies, in the order of their ids, are cut into shards. Each finished shard is a file of per-study statistics; a
process that is started again skips what is there. Processes of `torchrun` or `accelerate launch` (RANK and WORLD_SIZE
in the environment) take every WORLD_SIZE-th shard and meet in the folder only, so no collective call can time out. The
first process adds everything up; scores equal those of an evaluation in memory.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..metrics.meteor import METEOR_JAVA, METEOR_NLTK, meteor_java_absent, meteor_nltk_absent
from ..metrics.scorer import ReportScorer
from ..metrics.shared import build_scorers
from ..metrics.tokenization import tokenize
from ..text.cleaning import CLEANERS
from .cider_frequencies import CiderFrequencies, count_documents, merge_counts
from .pair_index import PairIndex, PairSources
from .protocol import library_versions
from .report_statistics import Progress, ReportStatistics, score_systems
from .result import EvaluationResult
from .run import main_labeller_first, warn_of_skipped
from .settings import ScoreSettings
from .shard_files import ShardFolder, stored_statistics
from .summary import Resampling, compare, make_protocol, still_absent, summarise

logger = logging.getLogger(__name__)

DEFAULT_SHARD_SIZE = 5_000
DEFAULT_RESAMPLING = Resampling()
_POLL_S = 0.5
# rank, number of processes, rank on this machine: torchrun and accelerate; the MPIs that accelerate knows
_ENVIRONMENTS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_TELL_S = 60.0


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this one is.

    Attributes:
        rank: 0 .. world - 1.
        world: number of processes.
        local_rank: among those of this machine; its GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @classmethod
    def from_environment(cls) -> Processes:
        """As `torchrun`, `accelerate launch` and `mpirun` state it.

        Raises:
            ConfigError: rank and number of processes contradict each other.
        """
        for names in _ENVIRONMENTS:
            stated = [os.environ.get(name) for name in names]
            if stated[0] is not None and stated[1] is not None:
                break
        else:
            return cls()
        try:
            rank, world, local = (int(value or 0) for value in stated)
        except ValueError as error:
            raise ConfigError(f"Of {', '.join(names)} in the environment, one is not a number.") from error
        if not 0 <= rank < world:
            raise ConfigError(f"{names[0]}={rank} and {names[1]}={world} in the environment do not fit together.")
        return cls(rank, world, local)

    @property
    def main(self) -> bool:
        return self.rank == 0

    def own(self, shards: int) -> range:
        return range(self.rank, shards, self.world)


def evaluate_shards(
    sources: PairSources,
    folder: str | os.PathLike[str],
    settings: ScoreSettings,
    *,
    shard_size: int = DEFAULT_SHARD_SIZE,
    resampling: Resampling = DEFAULT_RESAMPLING,
    allow_missing: bool = False,
    per_sample: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    scorers: Mapping[str, ReportScorer] | None = None,
    processes: Processes | None = None,
) -> EvaluationResult | None:
    """Score files of any size shard by shard; see the module's description.

    Args:
        sources: the files.
        folder: of the shards; started again with the same inputs and settings, it is continued.
        settings: what decides the scores.
        shard_size: studies per shard.
        resampling: of the intervals. May change between runs: it needs the statistics only.
        allow_missing: leave out studies without a prediction and count them.
        per_sample: also write one JSON line a study here.
        progress: as in `evaluate_reports`.
        scorers: metric to scorer, instead of building them.
        processes: default: from the environment.

    Returns:
        The result, as `evaluate_reports` gives it but without `per_sample`; None in every process but the first.

    Raises:
        ConfigError: a setting that cannot work, or a folder that belongs to another evaluation.
        DataError: as `evaluate_reports`.
    """
    settings.check()
    resampling.check()
    sources.check()
    if isinstance(shard_size, bool) or not isinstance(shard_size, int) or shard_size < 1:
        raise ConfigError(f"shard_size is {shard_size!r}. Use a whole number of at least 1.")
    if sources.versus is not None and allow_missing:
        raise ConfigError("A comparison needs both systems' reports for every study. Drop allow_missing or versus.")
    processes = processes or Processes.from_environment()
    if scorers is None:
        scorers = build_scorers(settings.clinical_metrics, _on_own_device(settings, processes).of_scorers())
    shards = ShardFolder(folder, _fingerprint(sources, settings, scorers, shard_size, allow_missing))
    run = _Run(sources, shards, settings, scorers, shard_size, processes, progress)
    run.prepare(allow_missing)
    run.score()
    if not processes.main:
        return None
    result = run.merge(resampling)
    if per_sample is not None:
        run.merge_rows(Path(per_sample))
    return result


def _on_own_device(settings: ScoreSettings, processes: Processes) -> ScoreSettings:
    if settings.device is None and processes.world > 1 and settings.clinical_metrics:
        import torch

        if torch.cuda.is_available():
            return replace(settings, device=f"cuda:{processes.local_rank % torch.cuda.device_count()}")
    return settings


def _meteors() -> list[str]:
    reasons = {METEOR_JAVA: meteor_java_absent(), METEOR_NLTK: meteor_nltk_absent()}
    return [name for name, reason in reasons.items() if reason is None]


def _fingerprint(
    sources: PairSources,
    settings: ScoreSettings,
    scorers: Mapping[str, ReportScorer],
    shard_size: int,
    allow_missing: bool,
) -> dict[str, Any]:
    from ..text.rules import RULES_VERSION

    return {
        "inputs": sources.fingerprint(),
        "settings": settings.deciding(),
        "scorers": {name: scorer.protocol() for name, scorer in scorers.items()},
        "meteor": _meteors() if "meteor" in settings.metrics else [],
        "rules": RULES_VERSION,
        "shard_size": shard_size,
        "allow_missing": allow_missing,
        "versions": library_versions(networks=bool(scorers)),
    }


@dataclass
class _Run:
    sources: PairSources
    folder: ShardFolder
    settings: ScoreSettings
    scorers: Mapping[str, ReportScorer]
    shard_size: int
    processes: Processes
    progress: Progress | None
    cider: CiderFrequencies | None = None
    layout: list[ReportStatistics] | None = None

    def prepare(self, allow_missing: bool) -> None:
        """Index of the files, made by the first process, and the document frequencies of CIDEr."""
        if self.processes.main:
            if self.folder.manifest() is None:
                summary = PairIndex.build(self.folder.index, self.sources, allow_missing=allow_missing)
                self.folder.start(summary.n, -(-summary.n // self.shard_size))
        else:
            self._wait(lambda: self.folder.manifest() is not None, "the index of the files")
        manifest = self.folder.manifest() or {}
        self.n, self.shards = manifest["n"], manifest["shards"]
        self.index = PairIndex(self.folder.index, self.sources)
        if "nlg" in self.settings.metrics:
            self._count_ngrams()
            self.cider = CiderFrequencies(self.folder.frequencies, self.n)

    def _fetch(self, number: int) -> tuple[list[str], list[list[str]], list[str]]:
        start = number * self.shard_size
        return self.index.fetch(start, min(self.n, start + self.shard_size))

    def _count_ngrams(self) -> None:
        clean = CLEANERS[self.settings.cleaning]
        for number in self.processes.own(self.shards):
            if not (self.folder.frequencies.exists() or self.folder.counts(number).exists()):
                references = [clean(text) for text in self._fetch(number)[2]]
                entries = count_documents(tokenize(references, self.settings.resolved_tokenizer))
                self.folder.write_counts(number, entries)
            self._tell("counting n-grams", len(self.processes.own(self.shards)))
        if not self.processes.main:
            self._wait(self.folder.frequencies.exists, "the document frequencies")
        elif not self.folder.frequencies.exists():
            parts = [self.folder.counts(number) for number in range(self.shards)]
            self._wait(lambda: all(path.exists() for path in parts), "the n-gram counts of other processes")
            merge_counts(parts, self.folder.frequencies)
            for path in parts:
                path.unlink()

    def score(self) -> None:
        """This process's shards, without those that are finished."""
        own = self.processes.own(self.shards)
        kept = 0
        for number in own:
            if self.folder.about(number) is not None:
                kept += 1
            else:
                study_ids, systems, references = self._fetch(number)
                statistics = self._score(systems, references)
                self.folder.write(number, study_ids, statistics, rank=self.processes.rank)
                self.layout = statistics
            self._tell("shards", len(own))
        if kept:
            logger.info("%d of %d shards were finished before.", kept, len(own))

    def _score(self, systems: Sequence[Sequence[str]], references: Sequence[str]) -> list[ReportStatistics]:
        statistics = score_systems(systems, references, self.settings, scorers=self.scorers, cider=self.cider)
        if "meteor" in self.settings.metrics:
            for name in _meteors():
                reasons = [system.absent[name] for system in statistics if name in system.absent]
                if reasons:  # a METEOR of some shards only would be a METEOR of nothing
                    raise DataError(f"{name} failed: {reasons[0]} Run again: finished shards stay.")
        return statistics

    def merge(self, resampling: Resampling) -> EvaluationResult:
        """The result of all shards, once all processes have finished theirs."""
        waiting = set(range(self.shards))

        def finished() -> bool:
            waiting.difference_update([number for number in waiting if self.folder.about(number) is not None])
            return not waiting

        self._wait(finished, "the shards of other processes")
        abouts = [self.folder.about(number) or {} for number in range(self.shards)]
        summary = self.index.summary
        count = 2 if summary.has_versus else 1
        if self.layout is None:  # every shard was there already: any pair shows how the statistics are laid out
            self.layout = self._score([["No effusion."] * 2] * count, ["No effusion."] * 2)
        layout = self.layout
        names = [[sorted(group.corpus()) for group in system.groups] for system in layout]
        for number, about in enumerate(abouts):
            if [system["scores"] for system in about["systems"]] != names:
                raise DataError(
                    f"{self.folder.shard(number)} holds other scores than expected. Delete it and run again."
                )
        lengths = [about["n"] for about in abouts]
        statistics = [stored_statistics(self.folder, place, layout[place].groups, lengths) for place in range(count)]
        labellers = layout[0].labellers
        absent: dict[str, str] = {}
        counts: dict[str, int] = {}
        for about in abouts:
            absent |= about["systems"][0]["absent"]
            for name, value in about["systems"][0]["counts"].items():
                counts[name] = counts.get(name, 0) + value
        scores, tables = summarise(
            statistics[0], labellers, zero_division=self.settings.zero_division, resampling=resampling
        )
        ordered = main_labeller_first(labellers)
        protocol = make_protocol(
            self.settings,
            self.scorers,
            ordered,
            resampling,
            section=self.sources.section,
            split=summary.split,
            column=summary.column,
            absent=still_absent(absent, scores),
            counts=counts,
            studies=summary.studies,
            skipped=summary.skipped,
            empty_predictions=summary.empty_predictions,
            sources=summary.sources,
            phantom=summary.phantom,
            generation=summary.generation,
            sha256={name: summary.sha256[name] for name in ("predictions", "references")},
        )
        warn_of_skipped(protocol)
        comparison: dict[str, Any] = {}
        if summary.has_versus:
            comparison = {"sha256": summary.sha256["versus"], **compare(statistics[1], statistics[0], resampling)}
        return EvaluationResult(
            n=self.n,
            scores=scores,
            observations=tables[ordered[0]] if ordered else {},
            diversity={
                "predictions": self._diversity("reports"),
                "references": self._diversity("references"),
            },
            protocol=protocol,
            comparison=comparison,
            more_observations={name: tables[name] for name in ordered[1:]},
        )

    def _diversity(self, name: str) -> dict[str, float]:
        hashes = np.concatenate([self.folder.array(number, name) for number in range(self.shards)])
        counts = np.unique(hashes, return_counts=True)[1]
        return {
            "reports": len(hashes),
            "unique": len(counts),
            "unique_share": len(counts) / len(hashes),
            "most_common_share": int(counts.max()) / len(hashes),
        }

    def merge_rows(self, target: Path) -> None:
        """All rows per study in one file, written atomically."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                for number in range(self.shards):
                    file.write(self.folder.rows(number).read_bytes())
            temporary.replace(target)
        except OSError as error:
            raise DataError(f"{target} could not be written ({error.strerror}). Choose another place.") from error
        finally:
            temporary.unlink(missing_ok=True)

    def _tell(self, stage: str, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, 1, total)

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        told = time.monotonic()
        while not done():
            if self.processes.world == 1:
                raise DataError(f"{self.folder.folder}: {what} went missing. Was the folder changed meanwhile?")
            if time.monotonic() - told > _TELL_S:
                logger.warning("Process %d waits for %s.", self.processes.rank, what)
                told = time.monotonic()
            time.sleep(_POLL_S)
