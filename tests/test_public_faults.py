"""Every fault of the sample data that touches data, training or generation has tests of its own; metrics' are in
metrics/test_cases.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

FAULTS = {
    "iu-placeholder": [
        "text/test_cleaning.py::test_cleaning_is_idempotent_and_the_same_rule_for_both_sides",
        "text/test_rules.py::test_public_case_placeholders_are_never_a_label",
    ],
    "nan-findings": [
        "text/test_cleaning.py::test_missing_findings_of_the_public_case_in_both_readings",
        "evaluation/test_inputs.py",
    ],
    "mono1-order": ["data/test_dicom.py::test_monochrome1_is_inverted_once_after_the_window"],
    "vlm-token-count": [
        "modeling/lead/test_processing_lead.py::test_prompts_are_never_cut",
        "modeling/lead/test_processing_lead.py::test_reports_are_cut_and_counted",
        "modeling/lead/test_processing_lead.py::test_text_with_truncation_that_cuts_an_image",
        "modeling/lead/test_processing_lead.py::test_text_without_placeholders",
        "modeling/lead/test_processing_lead.py::test_placeholders_equal_features",
        "modeling/lead/test_generation_lead.py::test_image_tokens_that_do_not_fit_are_one_error",
        "trainers/test_lead_trainer.py::test_a_prompt_that_does_not_fit_names_the_study",
    ],
    "dpo-blind": [
        "modeling/lead/test_trl_lead.py::test_first_step_of_dpo",
        "modeling/palm/test_trl_palm.py::test_first_step_is_log_two",
    ],
    "pad-side": [
        "modeling/lead/test_processing_lead.py::test_sides",
        "modeling/lead/test_processing_lead.py::test_generation_starts_behind_the_prompt",
        "modeling/lead/test_modeling_lead.py::test_a_batch_is_its_rows",
    ],
    "lora-zero-grad": ["trainers/test_lead_trainer.py::test_gradient_checkpointing_reaches_every_lora_matrix"],
    "modules-to-save": [
        "trainers/test_lead_adaptation.py::test_modules_that_train_whole",
        "trainers/test_lead_trainer.py::test_adapter_and_merged_model_give_the_same_logits",
        "trainers/test_lead_trainer.py::test_an_adapter_loads_in_a_fresh_process",
        "trainers/test_lead_trainer.py::test_an_adapter_that_lacks_a_tensor_is_refused",
    ],
    "hub-relative-import": [
        "modeling/lead/test_hub_code_lead.py::test_folders_load_without_the_package",
        "modeling/chexbert/test_modeling_chexbert.py::test_loads_alone_as_custom_code",
    ],
}
# faults of what this package does not do
ABSENT = {"xrv-align": "no network of torchxrayvision is read", "gradcam-last-block": "no Grad-CAM is computed"}


def test_every_public_fault_is_covered(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "public_faults.jsonl"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    others = {row["id"] for row in rows if not row["area"].startswith("metrics/")}
    assert others <= {*FAULTS, *ABSENT}
    assert not {*FAULTS, *ABSENT} - {row["id"] for row in rows}


@pytest.mark.parametrize(("fault", "test"), [(fault, test) for fault, tests in FAULTS.items() for test in tests])
def test_the_named_tests_exist(fault: str, test: str) -> None:
    file, _, name = test.partition("::")
    source = (HERE / file).read_text()
    assert re.search(rf"^def {name}\(", source, re.MULTILINE) if name else fault in source


@pytest.mark.parametrize("what", ["torchxrayvision", "grad_cam", "GradCAM"])
def test_what_is_absent_is_absent(what: str) -> None:
    sources = (HERE.parent / "rrg_hf").rglob("*.py")
    assert not [path.name for path in sources if what.lower() in path.read_text().lower()]
