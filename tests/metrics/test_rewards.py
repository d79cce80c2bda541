from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrg_hf.errors import ConfigError, DataError
from rrg_hf.metrics import load, make_reward_fn, nlg, nlg_scorer
from rrg_hf.metrics.meteor import METEOR_JAVA, METEOR_NLTK
from rrg_hf.metrics.nlg import NLG_SCORES
from rrg_hf.metrics.radgraph import RadGraphF1, RulesGraphReader
from rrg_hf.metrics.scorer import ReportScorer, ScorerOutput
from rrg_hf.metrics.statistics import StudyStatistics, mean_statistics, optional_mean_statistics

REFERENCES = ["Small left pleural effusion.", "The lungs are clear.", "Mild cardiomegaly."]


class Fixed(ReportScorer):
    """Gives the numbers it was made with."""

    name = "fixed"
    primary_key = "errors"
    higher_is_better = False

    def __init__(self, statistics: StudyStatistics, absent: dict[str, str] | None = None) -> None:
        self.statistics = statistics
        self.absent = absent or {}
        self.seen: tuple[list[str], list[str]] = ([], [])

    def score(self, predictions: Sequence[str], references: Sequence[str]) -> ScorerOutput:
        self.seen = list(predictions), list(references)
        return ScorerOutput([self.statistics], self.absent)

    def protocol(self) -> dict[str, Any]:
        return {}


def test_rewards_are_the_scores_of_each_sample() -> None:
    reward = make_reward_fn("radgraph_f1", backend="rules")
    texts = ["Small left pleural effusion.", "Edema.", "Cardiomegaly."]
    rewards = reward(prompts=["p"] * 3, completions=texts, reference=REFERENCES, completion_ids=[[1]] * 3)
    rows = RadGraphF1(RulesGraphReader()).compute(texts, REFERENCES, per_sample=True)["per_sample"]
    assert rewards == rows["rules_radgraph_partial"] and rewards[0] == 1.0 and rewards[1] == 0.0
    assert reward.__name__ == "rules_radgraph_partial"
    other = make_reward_fn(load("radgraph_f1", backend="rules"), "rules_radgraph_simple", reference="findings")
    assert other(completions=texts, findings=REFERENCES) == rows["rules_radgraph_simple"]


def test_conversations() -> None:
    reward = make_reward_fn(RadGraphF1(RulesGraphReader()))
    said = {"role": "assistant", "content": REFERENCES[0]}
    completions: list[Any] = [
        [{"role": "assistant", "content": "Edema."}, {"role": "user", "content": "Again."}, said],
        [{"role": "assistant", "content": [{"type": "text", "text": REFERENCES[0]}, {"type": "image"}]}],
        [{"role": "assistant", "content": None}],
        [],
    ]
    assert reward(None, completions, reference=[REFERENCES[0]] * 4) == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(DataError, match="Completion 0 is a int"):
        reward(completions=[3], reference=["x"])


def test_more_reward_is_better() -> None:
    errors = mean_statistics({"errors": np.array([2.0, -1.0]), "matches": np.array([1.0, 0.0])})
    texts: dict[str, Any] = {"completions": ["a", "b"], "reference": ["a", "b"]}
    assert make_reward_fn(Fixed(errors))(**texts) == [-2.0, 1.0]
    assert make_reward_fn(Fixed(errors), maximize=False)(**texts) == [2.0, -1.0]
    assert make_reward_fn(Fixed(errors), "matches")(**texts) == [1.0, 0.0]


NLG_REFERENCES = ["The lungs are clear.", "Mild cardiomegaly without edema."]
NLG_REPORTS = ["The lungs are clear.", "Mild cardiomegaly."]
NLG_PARTS = ("bleu_statistics", "rouge_l_per_study", "cider_per_study")


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        (None, {"bleu_statistics"}),
        ("bleu_1", {"bleu_statistics"}),
        ("rouge_l", {"rouge_l_per_study"}),
        ("rouge_score_l", {"rouge_score_statistics"}),
        ("meteor_1.5_java", {"meteor_java_statistics"}),
        ("meteor_nltk", {"meteor_nltk_statistics"}),
    ],
)
def test_text_scores_compute_what_the_key_needs(
    key: str | None, parts: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java would take 10 s at every step of a training."""
    called = []

    def counted(module: Any, name: str, replacement: Any = None) -> None:
        function = replacement or getattr(module, name)

        def call(*arguments: Any, **settings: Any) -> Any:
            called.append(name)
            return function(*arguments, **settings)

        monkeypatch.setattr(module, name, call)

    for name in NLG_PARTS:
        counted(nlg, name)
    counted(nlg_scorer, "rouge_score_statistics")
    for name, score in (("meteor_java_statistics", METEOR_JAVA), ("meteor_nltk_statistics", METEOR_NLTK)):
        counted(nlg_scorer, name, lambda *_, score=score: mean_statistics({score: np.array([1.0, 0.5])}))
    monkeypatch.setattr(nlg_scorer, "meteor_java_absent", lambda: None)
    monkeypatch.setattr(nlg_scorer, "meteor_nltk_absent", lambda: None)
    scorer = nlg_scorer.ReportNlg(meteor="both", rouge_score=True)
    rewards = make_reward_fn(scorer, key)(completions=NLG_REPORTS, reference=NLG_REFERENCES)
    assert set(called) == parts
    whole = scorer.compute(NLG_REPORTS, NLG_REFERENCES, per_sample=True)["per_sample"]
    assert rewards == whole[key or "bleu_4"] and rewards[0] == pytest.approx(1.0)


def test_a_narrow_scorer_says_what_it_left_out() -> None:
    scorer = nlg_scorer.ReportNlg(meteor=None)
    narrow = scorer.only("rouge_l").compute(NLG_REPORTS, NLG_REFERENCES)
    assert {name for name in narrow if name in NLG_SCORES} == {"rouge_l"}
    assert narrow["protocol"]["absent"].keys() == {*NLG_SCORES, METEOR_JAVA, METEOR_NLTK} - {"rouge_l"}
    assert set(narrow["protocol"]["average"]) == {"rouge_l"}
    assert {"bleu_1", "bleu_4"} <= scorer.only("bleu_2").compute(NLG_REPORTS, NLG_REFERENCES).keys()
    assert scorer.only("nonsense") is scorer
    assert set(scorer.compute(NLG_REPORTS, NLG_REFERENCES)) >= set(NLG_SCORES)  # the scorer itself is as it was


def test_no_score_is_none_and_nan_is_an_error() -> None:
    texts: dict[str, Any] = {"completions": ["a", "b", "c"], "reference": ["a", None, "c"]}
    unread = Fixed(optional_mean_statistics({"errors": np.array([np.nan, 3.0])}))
    assert make_reward_fn(unread)(**texts) == [None, None, -3.0] and unread.seen == (["a", "c"], ["a", "c"])
    broken = Fixed(mean_statistics({"errors": np.array([1.0, np.nan])}))
    with pytest.raises(DataError, match="fixed gave NaN for 'errors' of sample 2 of the batch"):
        make_reward_fn(broken)(**texts)
    infinite = Fixed(mean_statistics({"errors": np.array([np.inf, 1.0])}))
    with pytest.raises(DataError, match="sample 0"):
        make_reward_fn(infinite)(**texts)
    assert make_reward_fn(unread)(completions=["a"], reference=[None]) == [None]


def test_mistakes_are_named() -> None:
    scorer = Fixed(mean_statistics({"errors": np.zeros(1)}), {"meteor_nltk": "no WordNet"})
    reward = make_reward_fn(scorer)
    with pytest.raises(ConfigError, match=r"needs the column 'reference'.*\['answer'\]"):
        reward(completions=["a"], answer=["b"])
    with pytest.raises(DataError, match="2 completions but 1 references"):
        reward(completions=["a", "b"], reference=["b"])
    with pytest.raises(ConfigError, match=r"no score 'x'; it has \['errors'\]"):
        make_reward_fn(scorer, "x")(completions=["a"], reference=["b"])
    with pytest.raises(ConfigError, match="no score 'meteor_nltk': no WordNet"):
        make_reward_fn(scorer, "meteor_nltk")(completions=["a"], reference=["b"])
    with pytest.raises(ConfigError, match="'cider' of one report is no reward"):
        make_reward_fn(scorer, "cider")
    with pytest.raises(ConfigError, match="no report metric"):
        make_reward_fn(len)
    with pytest.raises(ConfigError, match="come too late"):
        make_reward_fn(scorer, backend="rules")
    with pytest.raises(ConfigError, match="no metric 'radgraph'"):
        make_reward_fn("radgraph")


@pytest.mark.filterwarnings("ignore")
def test_grpo_of_trl_learns_with_it(tmp_path: Path) -> None:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = ["<pad>", "<eos>", "report", "edema", "effusion", "no", "small", "left", "cardiomegaly", "."]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_embd=16, n_layer=1, n_head=2, n_positions=32))
    rows = [
        {"prompt": "report", "reference": "small left effusion ."},
        {"prompt": "report", "reference": "no edema ."},
    ]
    reward = make_reward_fn(RadGraphF1(RulesGraphReader()))
    arguments = GRPOConfig(
        str(tmp_path), max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=6,
        report_to=[], logging_steps=1, save_strategy="no", use_cpu=True, bf16=False, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model, reward_funcs=reward, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert 0.0 <= logged["rewards/rules_radgraph_partial/mean"] <= 1.0
