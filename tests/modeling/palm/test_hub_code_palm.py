"""A PALM folder with its own code, as on the Hub: it loads where rrg_hf is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]

SAVE = """
import sys, torch
from rrg_hf.modeling.palm import PalmConfig, PalmForReportGeneration, PalmProcessor
source, target = sys.argv[1:]
PalmConfig.register_for_auto_class()
PalmForReportGeneration.register_for_auto_class("AutoModelForImageTextToText")
PalmProcessor.register_for_auto_class()
PalmForReportGeneration.from_pretrained(source).save_pretrained(target)
PalmProcessor.from_pretrained(source).save_pretrained(target)
"""

RUN = """
import json, sys
class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "rrg_hf":
            raise ImportError("rrg_hf is not installed here")
sys.meta_path.insert(0, NoPackage())
import numpy as np, torch
from transformers import AutoModelForImageTextToText, AutoProcessor
folder = sys.argv[1]
for loader in (AutoModelForImageTextToText, AutoProcessor):
    try:
        loader.from_pretrained(folder, trust_remote_code=False)
    except ValueError as error:
        assert "trust_remote_code" in str(error) or "custom code" in str(error), error
    else:
        raise SystemExit("custom code ran without consent")
model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True)
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
assert type(model).__module__.startswith("transformers_modules."), type(model)
assert type(processor).__module__.startswith("transformers_modules."), type(processor)
image = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
inputs = processor(images=[image, image.T.copy()], indication=["Cough.", None])
ids = model.generate(**inputs, max_new_tokens=8, num_beams=2, eos_token_id=None)
model.save_pretrained(sys.argv[2])
processor.save_pretrained(sys.argv[2])
assert not any(name.split(".")[0] == "rrg_hf" for name in sys.modules)
print(json.dumps(ids.tolist()))
"""

LOCAL = """
import json, sys
import numpy as np
from rrg_hf.modeling.palm import PalmForReportGeneration, PalmProcessor
model = PalmForReportGeneration.from_pretrained(sys.argv[1])
processor = PalmProcessor.from_pretrained(sys.argv[1])
image = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
inputs = processor(images=[image, image.T.copy()], indication=["Cough.", None])
print(json.dumps(model.generate(**inputs, max_new_tokens=8, num_beams=2, eos_token_id=None).tolist()))
"""


def run(code: str, *arguments: Path, cwd: Path, cache: Path) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(REPOSITORY)
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip().splitlines()[-1] if result.stdout.strip() else ""


@pytest.mark.slow
def test_folder_loads_without_the_package(tiny_palm_dir: Path, tmp_path: Path) -> None:
    folder, again, cache = tmp_path / "hub", tmp_path / "again", tmp_path / "modules"
    run(SAVE, tiny_palm_dir, folder, cwd=tmp_path, cache=cache)
    assert {path.name for path in folder.glob("*.py")} == {
        "configuration_palm.py",
        "convert_palm.py",
        "layers_palm.py",
        "modeling_palm.py",
        "outputs_palm.py",
        "processing_palm.py",
    }, "inference code only, flat"
    assert json.loads((folder / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "configuration_palm.PalmConfig",
        "AutoModelForImageTextToText": "modeling_palm.PalmForReportGeneration",
    }
    remote = json.loads(run(RUN, folder, again, cwd=tmp_path, cache=cache))
    assert remote == json.loads(run(LOCAL, folder, cwd=tmp_path, cache=cache))
    assert {path.name for path in again.glob("*.py")} == {path.name for path in folder.glob("*.py")}
    assert (again / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
