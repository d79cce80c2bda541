"""The transformers Auto classes know our models after `import rrg_hf`, whatever is imported in whatever order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PROCESSOR_CLASSES, make_checkpoint
from tests.tiny_palm import make_tiny_palm

CHECK = """
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
folder = {folder!r}
assert type(AutoConfig.from_pretrained(folder)).__name__ == "PalmConfig"
assert type(AutoModel.from_pretrained(folder)).__name__ == "PalmModel"
assert type(AutoModelForImageTextToText.from_pretrained(folder)).__name__ == "PalmForReportGeneration"
processor = AutoProcessor.from_pretrained(folder)
assert type(processor).__name__ == "PalmProcessor"
assert processor.tokenizer.get_vocab() != processor.text_tokenizer.get_vocab()
lead = {lead!r}
assert type(AutoConfig.from_pretrained(lead)).__name__ == "LeadInternVLConfig"
assert type(AutoModel.from_pretrained(lead)).__name__ == "LeadInternVLModel"
assert type(AutoModelForImageTextToText.from_pretrained(lead)).__name__ == "LeadInternVLForCausalLM"
assert type(AutoProcessor.from_pretrained(lead)).__name__ == "LeadInternVLProcessor"
print("all four")
"""

ORDERS = {
    "package_first": "import rrg_hf",
    "package_then_auto": "import rrg_hf; from transformers import AutoModel",
    "package_then_tagger": "import rrg_hf; from transformers import AutoModelForTokenClassification",
    "package_then_processor": "import rrg_hf; from transformers import AutoProcessor",
    "package_then_a_model": "import rrg_hf; from transformers import GPT2LMHeadModel",
    # whose configuration module imports the Auto classes half-way through, and ours imports it
    "package_then_a_backbone": "import rrg_hf; from transformers import InternVLConfig",
    "package_then_trainer": "import rrg_hf; from transformers import Trainer",
    "transformers_first": "import transformers; import rrg_hf",
    "auto_first": "from transformers import AutoModelForImageTextToText, AutoProcessor; import rrg_hf",
    "a_model_first": "from transformers import Dinov2Model; import rrg_hf",
    "public_name": "import rrg_hf; rrg_hf.PalmModel",
    "lead_configuration": "from rrg_hf.modeling.lead.configuration_lead import LeadQwen3VLConfig",
    "lead_module": "from rrg_hf.modeling.lead.modeling_lead import LeadMistral3ForCausalLM",
    "module": "from rrg_hf.modeling.palm.modeling_palm import PalmForReportGeneration",
    "training_module": "from rrg_hf.modeling.palm.alignment_palm import PalmForAlignment",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("palm")
    make_tiny_palm(path)
    return path


@pytest.fixture(scope="module")
def lead_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain, path = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("lead")
    make_checkpoint("internvl", plain)
    LEAD_CLASSES["internvl"].from_pretrained(plain, lead_config=LEAD_TINY).save_pretrained(path)
    PROCESSOR_CLASSES["internvl"].from_pretrained(plain).save_pretrained(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_auto_classes_after_any_import_order(folder: Path, lead_folder: Path, order: str) -> None:
    code = ORDERS[order] + CHECK.format(folder=str(folder), lead=str(lead_folder))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip().endswith("all four")


def test_package_import_stays_light() -> None:
    code = "import sys, rrg_hf; print([m for m in ('torch', 'transformers', 'rrg_hf.modeling') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
def test_inference_loads_no_training_code() -> None:
    code = (
        "import sys, rrg_hf; rrg_hf.PalmForReportGeneration, rrg_hf.PalmProcessor;"
        "print([m for m in sys.modules if m.startswith('rrg_hf.modeling.palm.')"
        " and ('alignment' in m or 'evidence' in m or 'training' in m)], 'ot' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "[] False"
