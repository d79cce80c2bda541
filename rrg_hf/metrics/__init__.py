"""Scores of generated reports. Functions take texts, tokens or label states and return numbers; files and protocols
are the business of `rrg_hf.evaluation`."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import ConfigError

INSTALL_HINT = 'pip install "rrg_hf[metrics]"'


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
