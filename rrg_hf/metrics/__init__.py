"""Scores of generated reports. Functions take texts, tokens or label states and return numbers; files and protocols
are the business of `rrg_hf.evaluation`.

`load(name)` gives a metric as an `evaluate` module, `make_reward_fn(name)` as a reward function for TRL.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from .module import ReportMetric
    from .rewards import make_reward_fn

__all__ = ["METRICS", "load", "make_reward_fn", "metric_folder"]

INSTALL_HINT = 'pip install "rrg_hf[metrics]"'
# the packaged evaluate modules, one folder each
METRICS = ("chexbert_f1", "radgraph_f1", "ratescore", "green", "radcliq", "report_nlg")


def metric_folder(name: str) -> Path:
    """Folder of a packaged module, for `evaluate.load` or to publish as a Space.

    Raises:
        ConfigError: unknown name.
    """
    if name not in METRICS:
        raise ConfigError(f"There is no metric {name!r}. There are {list(METRICS)}.")
    return Path(__file__).parent / name


def load(name: str, backend: str | None = None, **settings: Any) -> ReportMetric:
    """A report metric as an `evaluate` module, e.g. `load("radgraph_f1", backend="rules")`.

    Args:
        name: one of `METRICS`.
        backend: what reads the reports; each metric's README lists its own. "rules" needs no weights.
        settings: of the metric, e.g. model, device, batch_size; and of `evaluate.load`, e.g. keep_in_memory.

    Returns:
        The module, with `primary_key`, `higher_is_better` and `scorer`.

    Raises:
        ConfigError: an unknown name or setting, weights that are not prepared, or `evaluate` is not installed; the
            message says what to run.
    """
    folder = metric_folder(name)
    if find_spec("evaluate") is None:
        raise ConfigError(f"load needs the evaluate library, which is not installed. Run: {INSTALL_HINT}")
    import evaluate

    for decided in ("path", "module_type"):
        if decided in settings:
            raise ConfigError(f"{name} has no setting {decided!r}: the metric's name decides it.")
    if backend is not None:
        settings["backend"] = backend
    if "revision" in settings:  # evaluate.load has a revision of its own, the script's
        settings["model_revision"] = settings.pop("revision")
    return evaluate.load(str(folder), module_type="metric", **settings)


def __getattr__(name: str) -> Any:
    if name == "make_reward_fn":
        from .rewards import make_reward_fn

        return make_reward_fn
    raise AttributeError(f"module 'rrg_hf.metrics' has no attribute {name!r}")


def require_pycocoevalcap() -> None:
    """Check the optional dependency that BLEU, ROUGE-L, CIDEr, METEOR 1.5 and the PTB tokeniser share.

    Raises:
        ConfigError: pycocoevalcap is not installed; the message holds the pip line.
    """
    if find_spec("pycocoevalcap") is None:
        raise ConfigError(
            "BLEU, ROUGE-L, CIDEr, METEOR 1.5 and the 'ptb' tokeniser need pycocoevalcap, which is not installed. "
            f"Run: {INSTALL_HINT}"
        )


def require_nltk() -> None:
    """Check the optional dependency of `meteor_nltk`.

    Raises:
        ConfigError: nltk is not installed; the message holds the pip line.
    """
    if find_spec("nltk") is None:
        raise ConfigError(f"meteor_nltk needs nltk, which is not installed. Run: {INSTALL_HINT}")
