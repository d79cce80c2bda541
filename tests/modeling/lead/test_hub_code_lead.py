"""LEAD folders with their own code, as on the Hub: they load where rrg_hf is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

SAVE = """
import json, sys, torch
import numpy as np
from tests.tiny_lead import LEAD_CLASSES, LEAD_TINY, PROCESSOR_CLASSES, perturb
plain, target = sys.argv[1:]
image = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
results = {}
for family, cls in LEAD_CLASSES.items():
    cls.config_class.register_for_auto_class()
    cls.register_for_auto_class("AutoModelForImageTextToText")
    PROCESSOR_CLASSES[family].register_for_auto_class()
    model = perturb(cls.from_pretrained(f"{plain}/{family}", lead_config=LEAD_TINY)).eval()
    processor = PROCESSOR_CLASSES[family].from_pretrained(f"{plain}/{family}", image_size=64)
    model.save_pretrained(f"{target}/my-{family}.v1")
    processor.save_pretrained(f"{target}/my-{family}.v1")
    inputs = processor([image, [image.T.copy(), image]], indication=["Cough.", None], report=["Clear.", "Edema."])
    with torch.no_grad():
        results[family] = model(**inputs, expert_labels=torch.ones(2, 14)).loss.item()
print(json.dumps(results))
"""

RUN = """
import json, sys, torch
class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "rrg_hf":
            raise ImportError("rrg_hf is not installed here")
sys.meta_path.insert(0, NoPackage())
import numpy as np
from transformers import AutoModelForImageTextToText, AutoProcessor
image = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
results = {}
for family in ("qwen3_vl", "internvl", "mistral3"):
    folder = f"{sys.argv[1]}/my-{family}.v1"
    for loader in (AutoModelForImageTextToText, AutoProcessor):
        try:
            loader.from_pretrained(folder, trust_remote_code=False)
        except ValueError as error:
            assert "trust_remote_code" in str(error) or "custom code" in str(error), error
        else:
            raise SystemExit("custom code ran without consent")
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    assert type(processor).__module__.startswith("transformers_modules."), type(processor)
    inputs = processor([image, [image.T.copy(), image]], indication=["Cough.", None], report=["Clear.", "Edema."])
    with torch.no_grad():
        results[family] = model(**inputs, expert_labels=torch.ones(2, 14)).loss.item()
    model.generate(**processor([image]), max_new_tokens=3, num_beams=2, suppress_tokens=[5, 6, 7, 8])
    model.save_pretrained(f"{sys.argv[2]}/my-{family}.v1")
    processor.save_pretrained(f"{sys.argv[2]}/my-{family}.v1")
assert not any(name.split(".")[0] == "rrg_hf" for name in sys.modules)
print(json.dumps(results))
"""


def run(code: str, *arguments: Path, cwd: Path, cache: Path) -> dict[str, float]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_folders_load_without_the_package(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    hub, again, cache = tmp_path / "hub", tmp_path / "again", tmp_path / "modules"
    plain = next(iter(checkpoints.values())).parent
    here = run(SAVE, plain, hub, cwd=tmp_path, cache=cache)
    for family in checkpoints:
        folder = hub / f"my-{family}.v1"
        assert {path.name for path in folder.glob("*.py")} == {
            "configuration_lead.py",
            "image_lead.py",
            "layers_lead.py",
            "modeling_lead.py",
            "outputs_lead.py",
            "processing_lead.py",
        }, "inference code only, flat"
        name = {"qwen3_vl": "Qwen3VL", "internvl": "InternVL", "mistral3": "Mistral3"}[family]
        assert json.loads((folder / "config.json").read_text())["auto_map"] == {
            "AutoConfig": f"configuration_lead.Lead{name}Config",
            "AutoModelForImageTextToText": f"modeling_lead.Lead{name}ForCausalLM",
        }
    there = run(RUN, hub, again, cwd=tmp_path, cache=cache)
    assert there == here
    for family in checkpoints:
        old, new = hub / f"my-{family}.v1", again / f"my-{family}.v1"
        assert {path.name for path in new.glob("*.py")} == {path.name for path in old.glob("*.py")}
        assert (new / "model.safetensors").read_bytes() == (old / "model.safetensors").read_bytes()
