"""What a run tells the outside: the training log that outlives it, and a report table that is sent only on request."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .report_config import TABLE_TRACKERS

logger = logging.getLogger(__name__)

TRAIN_LOG_NAME = "train_log.jsonl"


class TrainLogCallback(TrainerCallback):
    """Writes every logged line to `train_log.jsonl` in the output folder, for training curves.

    One JSON object a line with "stage", "step", "epoch" and the numbers logged there. When a run is resumed, the file
    is first rewritten from the checkpoint's own history, so that no step appears twice.

    Args:
        stage: written to each line.
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def _line(self, logs: Mapping[str, Any]) -> str:
        numbers = {name: value for name, value in logs.items() if isinstance(value, (int, float))}
        return json.dumps({"stage": self.stage, **numbers}) + "\n"

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        path = Path(str(args.output_dir)) / TRAIN_LOG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"tmp-{path.name}")
        temporary.write_text("".join(map(self._line, state.log_history)), encoding="utf-8")
        temporary.replace(path)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not state.is_world_process_zero or not state.log_history:
            return
        path = Path(str(args.output_dir)) / TRAIN_LOG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(self._line(state.log_history[-1]))


def read_train_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a `train_log.jsonl`, or of the one in a folder. A line cut short by a crash is left out."""
    file = Path(path)
    if file.is_dir():
        file = file / TRAIN_LOG_NAME
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            logger.warning("%s holds a line that is no JSON; it is left out.", file.name)
    return lines


class ReportTable:
    """Sends generated and reference reports to trackio or wandb as a table. Only for a run that sets `log_reports`.

    Args:
        trackers: names out of `report_to`; those that cannot show a table are left alone.
    """

    def __init__(self, trackers: str | Sequence[str] | None) -> None:
        names = [trackers] if isinstance(trackers, str) else list(trackers or ())
        self.trackers = [name for name in names if name in TABLE_TRACKERS]
        logger.warning(
            "log_reports is set: report texts go to %s. Do not do this with data under a use agreement.",
            " and ".join(self.trackers),
        )

    def send(self, rows: Sequence[Mapping[str, str]], step: int) -> None:
        """Send the table. For the main process, after an evaluation, while the trackers' runs are open.

        Args:
            rows: mappings with "study_id", "reference" and "report".
            step: optimizer step of the evaluation.
        """
        columns = ["study_id", "reference", "report"]
        data = [[row[column] for column in columns] for row in rows]
        for name in self.trackers:
            tracker = importlib.import_module(name)
            tracker.log({"reports": tracker.Table(columns=columns, data=data), "train/global_step": step})
