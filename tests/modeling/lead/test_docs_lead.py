"""The Python of docs/lead.md runs as it stands there, on a tiny backbone and a phantom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rrg_hf.data.phantom import phantom_dataset, phantom_study
from rrg_hf.modeling.lead import LeadQwen3VLConfig, LeadQwen3VLForCausalLM, LeadQwen3VLProcessor
from tests.lead_model import make_lead_model
from tests.tiny_lead import make_checkpoint

PAGE = Path(__file__).resolve().parents[3] / "docs" / "lead.md"


def test_every_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for cls in (LeadQwen3VLConfig, LeadQwen3VLForCausalLM, LeadQwen3VLProcessor):
        monkeypatch.setattr(cls, "_auto_class", None)  # the page registers them; other tests save without code
    Image.fromarray(phantom_study(0, size=64).image).save("chest.png")
    make_checkpoint("qwen3_vl", tmp_path / "plain")
    make_lead_model(tmp_path / "lead_output")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 5
    space: dict[str, Any] = {"rows": phantom_dataset(4, size=64), "report": "The heart is normal."}
    for code in blocks:
        exec(code.replace("Qwen/Qwen3-VL-2B-Instruct", "plain").replace("=128", "=4"), space)
    assert space["inputs"]["input_ids"].shape[0] == len(space["sequences"]) == 1
    assert {"configuration_lead.py", "model.safetensors"} <= {path.name for path in Path("to_share").iterdir()}
    assert Path("experts.json").is_file() and space["gates"].strongest_words(5)
