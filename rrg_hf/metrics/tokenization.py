"""Tokenisers of the text metrics. BLEU, ROUGE-L, CIDEr and METEOR depend on the tokeniser as much as on the text, so
each has a name and a rule that the protocol repeats."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError, DataError
from . import require_pycocoevalcap

DEFAULT_TOKENIZER = "default"

_NOT_A_REPORT = " A text without any letter or digit has no tokens."
# tokeniser name -> its rule, in words for the protocol
TOKENIZERS: dict[str, str] = {
    "default": (
        "Lower-case. A number keeps its decimal or thousands marks (2.5); a word keeps inner hyphens and apostrophes; "
        "every other punctuation mark is a token of its own." + _NOT_A_REPORT
    ),
    "whitespace": (
        "The cleaned text split at white space, case kept; the convention of the R2Gen family, whose cleaning already "
        "lower-cases and sets off the full stops." + _NOT_A_REPORT
    ),
    "full_stop": (
        "The text with a space before every full stop, split at white space, case kept; the convention of "
        "CvT2DistilGPT2, RGRG and SS-ACL, which score uncleaned text. A decimal number falls into two tokens."
        + _NOT_A_REPORT
    ),
    "ptb": (
        "Stanford PTBTokenizer 3.4.1 (needs Java) with -lowerCase, then the punctuation tokens dropped that "
        "pycocoevalcap drops; the convention of COCO captioning." + _NOT_A_REPORT
    ),
}

_TOKEN = re.compile(r"\d+(?:[.,]\d+)+|\w+(?:['-]\w+)*|[^\w\s]")
_PTB_TIMEOUT_S = 120


def check_tokenizer(name: str) -> None:
    """Fail early if a tokeniser cannot run here.

    Raises:
        ConfigError: unknown name, or 'ptb' without Java or pycocoevalcap.
    """
    if name not in TOKENIZERS:
        raise ConfigError(f"Unknown tokeniser {name!r}. Use one of {sorted(TOKENIZERS)}.")
    if name == "ptb":
        require_pycocoevalcap()
        if shutil.which("java") is None:
            raise ConfigError(
                "The 'ptb' tokeniser runs the Stanford tokenizer, which needs Java, and no `java` was found. Install "
                "a Java runtime or use the 'default' tokeniser."
            )


def tokenize(texts: Sequence[str], tokenizer: str = DEFAULT_TOKENIZER) -> list[list[str]]:
    """Tokens of each text. A text that tokenises to punctuation only ("." or "...") yields no tokens.

    The last rule is there because a degenerate report of full stops would otherwise share tokens with every reference.

    Args:
        texts: cleaned reports.
        tokenizer: a key of `TOKENIZERS`.

    Raises:
        ConfigError: see `check_tokenizer`.
    """
    check_tokenizer(tokenizer)
    if tokenizer == "ptb":
        tokens = _ptb(texts)
    elif tokenizer == "whitespace":
        tokens = [text.split() for text in texts]
    elif tokenizer == "full_stop":
        tokens = [text.replace(".", " .").split() for text in texts]
    else:
        tokens = [_TOKEN.findall(text.lower().replace("’", "'")) for text in texts]
    return [words if any(map(_has_content, words)) else [] for words in tokens]


def _has_content(token: str) -> bool:
    return any(character.isalnum() for character in token)


def pycocoevalcap_folder(*parts: str) -> Path:
    """A folder inside the installed pycocoevalcap, where its Java archives are."""
    require_pycocoevalcap()
    import pycocoevalcap

    # A namespace package: it has no __file__.
    return Path(next(iter(pycocoevalcap.__path__))).joinpath(*parts)


def _ptb(texts: Sequence[str]) -> list[list[str]]:
    """One JVM for all texts. pycocoevalcap's own wrapper writes its input into site-packages and shifts lines when a
    text is empty or ends the batch blank, hence this one."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS, STANFORD_CORENLP_3_4_1_JAR

    lines = [" ".join(text.split()) for text in texts]
    kept = [index for index, line in enumerate(lines) if line]
    tokens: list[list[str]] = [[] for _ in lines]
    if not kept:
        return tokens
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", STANFORD_CORENLP_3_4_1_JAR]
    command += ["edu.stanford.nlp.process.PTBTokenizer", "-preserveLines", "-lowerCase"]
    try:
        done = subprocess.run(
            command,
            cwd=pycocoevalcap_folder("tokenizer"),
            input="".join(f"{lines[index]}\n" for index in kept).encode(),
            capture_output=True,
            timeout=_PTB_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"The PTB tokeniser gave no answer within {_PTB_TIMEOUT_S} s.") from error
    output = done.stdout.decode("utf-8", errors="replace").split("\n")[:-1]
    if done.returncode != 0 or len(output) != len(kept):
        raise DataError(
            f"The PTB tokeniser failed: exit code {done.returncode}, {len(output)} lines for {len(kept)} texts. "
            "Use the 'default' tokeniser."
        )
    for index, line in zip(kept, output, strict=True):
        tokens[index] = [token for token in line.split() if token not in PUNCTUATIONS]
    return tokens
