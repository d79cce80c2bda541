"""Type weights of RaTEScore (Zhao et al. 2024, "RaTEScore: A Metric for Radiology Report Generation").

A weight says how much it matters that an entity of one type finds its closest match in one of another; the authors
fitted one set on ratings of long reports and one on short ones. The order of the two types counts.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import ConfigError

TYPES = ("abnormality", "anatomy", "disease", "non-abnormality", "non-disease")
_PRESENT = frozenset({"abnormality", "disease"})
_ABSENT = frozenset({"non-abnormality", "non-disease"})

# rows: type of the entity that looks for a match; columns: type of the match; both in the order of TYPES
_LONG = (
    (0.4276119164393705, 0.6240929990607657, 0.0034478181112993847, 0.5431049700217344, 0.27005425386213877),
    (0.7487824274337533, 0.2856134859160784, 0.4592143222158069, 0.02097055139911715, 0.00013736314126696204),
    (0.8396510075734789, 0.9950209388542061, 0.8460555030578727, 0.9820689020512646, 0.3789136708096537),
    (0.16546764653692908, 0.018670610691852826, 0.719397354576018, 0.0009357166071730684, 0.0927333564267591),
    (0.7759420231214385, 0.1839139293714062, 0.10073046076318157, 0.03860183811876373, 0.34065681486566446),
)
_SHORT = (
    (0.4070293318365468, 0.6952639610605605, 0.28342529466226446, 0.9479148658006686, 0.23875064111146294),
    (0.5829759950441763, 0.7709590751917746, 0.0006059634829551632, 0.794672584951181, 0.27982942400798977),
    (0.8840397619834857, 0.9637659445696822, 0.19018958438059513, 0.6962283914800402, 0.943727057946997),
    (0.1712744286898638, 0.4485149671497294, 0.00045065329822896076, 0.0007887930317199857, 0.8555432840895761),
    (0.9555801066212176, 0.13122106162635216, 0.6072996585919443, 0.05650711141169969, 0.3214769399791204),
)


@dataclass(frozen=True)
class TypeWeights:
    """Weights of matches by type.

    Attributes:
        name: "long", "short", or the file they come from.
        weights: float64 (5, 5), rows and columns in the order of `TYPES`.
        factors: float64 (5, 5), what a cosine is multiplied with: `negation_weight` where one type says present and
            the other absent, else 1.
        negation_weight: see `factors`.
    """

    name: str
    weights: np.ndarray
    factors: np.ndarray
    negation_weight: float


def _type_weights(name: str, weights: np.ndarray, negation_weight: float) -> TypeWeights:
    crosses = [[{first, second} & _PRESENT and {first, second} & _ABSENT for second in TYPES] for first in TYPES]
    factors = np.where(np.array(crosses, dtype=bool), negation_weight, 1.0)
    return TypeWeights(name, weights, factors, negation_weight)


MATRICES = {
    "long": _type_weights("long", np.array(_LONG), 0.8716553966489615),
    "short": _type_weights("short", np.array(_SHORT), 0.3611577852354489),
}


def load_matrix(matrix: str | os.PathLike[str] = "long") -> TypeWeights:
    """Weights by name or from a file.

    Args:
        matrix: "long" (the published default), "short", or a JSON file in the published format: one number for each
            ordered pair of types, named like "disease_non-abnormality", and "neg_weight".

    Raises:
        ConfigError: neither a known name nor a readable file, or a file that lacks a pair, has one too many, or holds
            something else than a finite number of at least 0.
    """
    name = os.fspath(matrix) if isinstance(matrix, (str, os.PathLike)) else repr(matrix)
    if name.lower() in MATRICES:
        return MATRICES[name.lower()]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"matrix is {name!r}. Use one of {sorted(MATRICES)} or the path of a JSON file of weights.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"The RaTEScore weights {path.name} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"The RaTEScore weights {path.name} hold a {type(content).__name__}, not an object.")
    values = {str(key).lower(): value for key, value in content.items()}
    wanted = {f"{first}_{second}" for first in TYPES for second in TYPES} | {"neg_weight"}
    missing, unknown = sorted(wanted - set(values)), sorted(set(values) - wanted)
    if missing or unknown:
        raise ConfigError(
            f"The RaTEScore weights {path.name} lack {missing or 'nothing'} and have the unknown keys "
            f"{unknown or 'none'}. Needed is one number for each ordered pair of {list(TYPES)}, and neg_weight."
        )
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ConfigError(f"{key} is {value!r} in {path.name}. Use a number of at least 0.")
    rows = [[float(values[f"{first}_{second}"]) for second in TYPES] for first in TYPES]
    return _type_weights(path.name, np.array(rows), float(values["neg_weight"]))
