"""Report graphs in words: every main observation with its modifiers, location, certainty and what it suggests.

What radgraph calls processed annotations, for any number of reports, and for RadGraph v1's labels too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .graph_rewards import Annotation

_CERTAINTY = {
    "definitely present": "definitely present", "definitely absent": "definitely absent", "uncertain": "uncertain",
    "OBS-DP": "definitely present", "OBS-DA": "definitely absent", "OBS-U": "uncertain",
}  # fmt: skip
_TRIM = "\n .\"'"


class _Gathered(NamedTuple):
    """An entity with all that modifies it, by position."""

    tokens: list[str]
    starts: list[int]
    ends: list[int]
    labels: list[str]


def summarize_graph(annotation: Annotation) -> list[dict[str, Any]]:
    """Main observations of one report: entities that are observations and modify nothing.

    Args:
        annotation: a report's graph in the published format, labels of RadGraph v1 or RadGraph-XL.

    Returns:
        In the order of the report: {"observation": its words and those of its modifiers, in text order, lower case;
        "observation_start_ix", "observation_end_ix": their first and last words' positions; "located_at": places in
        words, without those that a longer one repeats; "located_at_start_ix"; "tags": [one of "definitely absent",
        "uncertain", "definitely present"], the first of these that any of its parts has; "suggestive_of": list of
        "a suggestive of b", or None}.
    """
    entities: Mapping[str, Mapping[str, Any]] = annotation["entities"]
    modifiers_of_observation = _modifiers(entities, _is_observation)
    modifiers_of_anatomy = _modifiers(entities, _is_anatomy)
    records = []
    for number, entity in entities.items():
        if not _is_observation(entity) or any(relation == "modify" for relation, _ in entity["relations"]):
            continue
        parts = _gather(entities, number, modifiers_of_observation)
        targets: dict[str, list[str]] = defaultdict(list)
        for relation, target in entity["relations"]:
            targets[relation].append(target)
        places = [_gather(entities, target, modifiers_of_anatomy) for target in targets["located_at"]]
        names = [" ".join(place.tokens).lower().strip(_TRIM) for place in places]
        kept = _not_repeated(names)
        suggestions = [f"{entity['tokens']} suggestive of {entities[t]['tokens']}" for t in targets["suggestive_of"]]
        records.append(
            {
                "observation": " ".join(dict.fromkeys(parts.tokens)).lower().strip(_TRIM),
                "observation_start_ix": list(dict.fromkeys(parts.starts)),
                "located_at": [names[index] for index in kept],
                "located_at_start_ix": [places[index].starts for index in kept],
                "tags": [_certainty(parts.labels)],
                "suggestive_of": [suggestions[i] for i in _not_repeated(suggestions)] if suggestions else None,
                "observation_end_ix": list(dict.fromkeys(parts.ends)),
            }
        )
    return records


def summarize_graphs(annotations: Iterable[Annotation]) -> list[dict[str, Any]]:
    """`summarize_graph` of many reports, each with its graph.

    Returns:
        One dict per report: {"processed_annotations": its records, "radgraph_annotations": its graph,
        "start_ix_to_label": label by the position of an entity's first word, "radgraph_text": its words}.
    """
    return [
        {
            "processed_annotations": summarize_graph(annotation),
            "radgraph_annotations": annotation,
            "start_ix_to_label": {
                str(entity["start_ix"]): entity["label"] for entity in annotation["entities"].values()
            },
            "radgraph_text": annotation["text"],
        }
        for annotation in annotations
    ]


def summary_lines(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """One line of text per record of `summarize_graph`."""
    lines = []
    for record in records:
        line = f"Observation: {record['observation']}"
        if record["located_at"]:
            line += f" [Location: {', '.join(record['located_at'])}]"
        if record["suggestive_of"]:
            line += f" [Suggestive of: {', '.join(record['suggestive_of'])}]"
        lines.append(f"{line} [Tag: {record['tags'][0]}]")
    return lines


def _is_observation(entity: Mapping[str, Any]) -> bool:
    return entity["label"].startswith(("Observation", "OBS-"))


def _is_anatomy(entity: Mapping[str, Any]) -> bool:
    return entity["label"].startswith(("Anatomy", "ANAT-"))


def _certainty(labels: Iterable[str]) -> str:
    found = {
        _CERTAINTY.get(label.rsplit("::", 1)[-1]) for label in labels if label.startswith(("Observation", "OBS-"))
    }
    return next((tag for tag in ("definitely absent", "uncertain") if tag in found), "definitely present")


def _modifiers(
    entities: Mapping[str, Mapping[str, Any]], of_kind: Callable[[Mapping[str, Any]], bool]
) -> dict[str, list[str]]:
    """Entity -> entities of a kind that modify it. Of two that only modify each other, the first keeps it."""
    modifiers: dict[str, list[str]] = {}
    for number, entity in entities.items():
        for relation, target in entity["relations"]:
            if relation == "modify" and of_kind(entity):
                modifiers.setdefault(target, []).append(number)
    kept: dict[str, list[str]] = {}
    for target, numbers in modifiers.items():
        if kept.get(numbers[0]) != [target]:
            kept[target] = numbers
    return kept


def _gather(entities: Mapping[str, Mapping[str, Any]], number: str, modifiers: Mapping[str, list[str]]) -> _Gathered:
    """An entity, its modifiers, their modifiers and so on, each once."""
    found: list[Mapping[str, Any]] = []  # an entity after its modifiers
    seen = {number}
    path = [(number, iter(modifiers.get(number, ())))]
    while path:
        current, rest = path[-1]
        following = next((modifier for modifier in rest if modifier not in seen), None)
        if following is None:
            found.append(entities[current])
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(modifiers.get(following, ()))))
    by_start: dict[int, str] = {}
    for entity in found:
        by_start.setdefault(entity["start_ix"], entity["tokens"])
    starts = sorted(entity["start_ix"] for entity in found)
    return _Gathered(
        [by_start[start] for start in starts],
        starts,
        sorted(entity["end_ix"] for entity in found),
        [entity["label"] for entity in found],
    )


def _not_repeated(names: list[str]) -> list[int]:
    """Indices of the names whose words no other name contains, in one piece and each."""
    return [
        index
        for index, name in enumerate(names)
        if not any(
            other != index and name in longer and set(name.split()) <= set(longer.split())
            for other, longer in enumerate(names)
        )
    ]
