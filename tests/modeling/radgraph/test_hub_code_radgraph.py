"""A RadGraph folder loads with the Auto classes, with the package and, carrying its own code, without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_radgraph import SHAPES, converted, make_archive

REPOSITORY = Path(__file__).parents[3]
REPORTS = ["No effusion in left lung.", "", "mild edema likely"]

SAVE = """
import sys
from rrg_hf.modeling.radgraph import RadGraphConfig, RadGraphModel
from transformers import AutoTokenizer
RadGraphConfig.register_for_auto_class()
RadGraphModel.register_for_auto_class("AutoModel")
RadGraphModel.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2])
"""

RUN = """
import json, sys
class NoPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "rrg_hf":
            raise ImportError("rrg_hf is not installed here")
sys.meta_path.insert(0, NoPackage())
from transformers import AutoModel, AutoTokenizer
model = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
assert type(model).__module__.startswith("transformers_modules."), type(model)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
assert not any(name.split(".")[0] == "rrg_hf" for name in sys.modules)
print(json.dumps(model.annotate(json.loads(sys.argv[2]), tokenizer)))
"""

AUTO = """
import json, sys
import rrg_hf
from transformers import AutoConfig, AutoModel, AutoTokenizer
assert type(AutoConfig.from_pretrained(sys.argv[1])) is rrg_hf.RadGraphConfig
model = AutoModel.from_pretrained(sys.argv[1]).eval()
assert type(model) is rrg_hf.RadGraphModel
print(json.dumps(model.annotate(json.loads(sys.argv[2]), AutoTokenizer.from_pretrained(sys.argv[1]))))
"""


def run(code: str, *arguments: str, cwd: Path) -> str:
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(cwd / "modules"),
        "OMP_NUM_THREADS": "1",
    }
    environment["PYTHONPATH"] = str(REPOSITORY)
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environment,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip()


@pytest.mark.slow
def test_auto_classes_with_and_without_the_package(tmp_path: Path) -> None:
    from rrg_hf.modeling.radgraph import convert_radgraph

    archive, tokenizer = make_archive(tmp_path, SHAPES["v1"])
    folder = convert_radgraph(archive, tokenizer, tmp_path / "converted")
    model, words = converted("v1")
    expected = model.annotate(REPORTS, words)

    assert json.loads(run(AUTO, str(folder), json.dumps(REPORTS), cwd=tmp_path)) == expected
    run(SAVE, str(folder), str(tmp_path / "hub"), cwd=tmp_path)
    assert {path.name for path in (tmp_path / "hub").glob("*.py")} == {
        "configuration_radgraph.py",
        "layers_radgraph.py",
        "modeling_radgraph.py",
        "words_radgraph.py",
    }, "inference code only, flat"
    assert json.loads(run(RUN, str(tmp_path / "hub"), json.dumps(REPORTS), cwd=tmp_path)) == expected
