"""RadGraph's rewards: agreement of two report graphs. Pure functions of annotations, whoever made them.

An annotation has the published format: {"entities": {"1": {"tokens", "label", "relations": [[label, entity number]],
...}}}. Sources: Delbrouck et al. 2022 ("Improving the Factual Correctness of Radiology Report Generation with Semantic
Rewards", rewards simple, partial and complete, there RG_E, RG_ER and a bar over RG_ER) and Yu et al. 2023 ("Evaluating
progress in automatic chest X-ray radiology report generation", entity and relation F1).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any, NamedTuple

from ..errors import ConfigError

Annotation = Mapping[str, Any]

LEVELS = ("simple", "partial", "complete")


class Overlap(NamedTuple):
    """How far two sets agree; every 0/0 is 0."""

    precision: float
    recall: float
    f1: float


class CombinedF1(NamedTuple):
    """The RadGraph component of RadCliQ."""

    entity: float
    relation: float
    combined: float


NO_OVERLAP = Overlap(0.0, 0.0, 0.0)


def overlap(hypothesis: Set[Any], reference: Set[Any]) -> Overlap:
    """Precision, recall and F1 of a set against a reference set."""
    shared = len(hypothesis & reference)
    if not shared:
        return NO_OVERLAP
    precision, recall = shared / len(hypothesis), shared / len(reference)
    return Overlap(precision, recall, 2 * precision * recall / (precision + recall))


def graph_facts(annotation: Annotation, level: str, *, lowercase: bool = True) -> set[tuple[Any, ...]]:
    """What a report states, as far as a reward level sees it.

    Args:
        annotation: a report's graph.
        level: "simple": (tokens, label) of every entity. "partial": the same, with a mark on entities that have a
            relation of their own. "complete": (tokens, label) of entities without relations, and (tokens, label,
            relation, tokens of the other entity) of every relation.
        lowercase: compare tokens in lower case, as radgraph's repository does. False is what the released package
            0.1.18 does, under the same version number: case counts, except in the relations of "complete".

    Raises:
        ConfigError: another level.
    """
    if level not in LEVELS:
        raise ConfigError(f"Unknown reward level {level!r}. Use one of {list(LEVELS)}.")
    entities = annotation["entities"]
    facts: set[tuple[Any, ...]] = set()
    for entity in entities.values():
        tokens = entity["tokens"].lower() if lowercase else entity["tokens"]
        if level == "complete" and entity["relations"]:
            for relation, target in entity["relations"]:
                facts.add((entity["tokens"].lower(), entity["label"], relation, entities[target]["tokens"].lower()))
        elif level == "partial" and entity["relations"]:
            facts.add((tokens, entity["label"], True))
        else:
            facts.add((tokens, entity["label"]))
    return facts


def graph_reward(
    hypothesis: Annotation, reference: Annotation, level: str = "partial", *, lowercase: bool = True
) -> Overlap:
    """Reward of a generated report's graph against the reference's; `f1` is the reward, 0 if either has no entity.

    Args:
        hypothesis, reference: graphs of the two reports.
        level, lowercase: see `graph_facts`.
    """
    return overlap(*(graph_facts(graph, level, lowercase=lowercase) for graph in (hypothesis, reference)))


def combined_f1(hypothesis: Annotation, reference: Annotation) -> CombinedF1:
    """Entity F1, relation F1 and their mean, case-sensitive.

    Entities are (tokens, label), relations (entity, other entity, label). 0/0 is 0: two equal reports without
    relations get 0.5.
    """
    entity = overlap(*(_entities(graph) for graph in (hypothesis, reference))).f1
    relation = overlap(*(_relations(graph) for graph in (hypothesis, reference))).f1
    return CombinedF1(entity, relation, (entity + relation) / 2)


def _entities(annotation: Annotation) -> set[tuple[str, str]]:
    return {(entity["tokens"], entity["label"]) for entity in annotation["entities"].values()}


def _relations(annotation: Annotation) -> set[tuple[Any, ...]]:
    entities = annotation["entities"]
    return {
        ((entity["tokens"], entity["label"]), (entities[other]["tokens"], entities[other]["label"]), relation)
        for entity in entities.values()
        for relation, other in entity["relations"]
    }
