"""A page that scores one generated report; runs as a Space or with `python app.py`."""

from pathlib import Path

import evaluate
import gradio as gr

metric = evaluate.load(str(Path(__file__).with_name("ratescore.py")), backend="rules")


def score(prediction: str, reference: str) -> dict:
    return metric.compute(predictions=[prediction], references=[reference])


gr.Interface(
    score,
    [gr.Textbox(lines=5, label="Generated report"), gr.Textbox(lines=5, label="Reference report")],
    gr.JSON(label="Scores (entities by rules; the networks need prepared weights)"),
    title="ratescore",
    description=metric.info.description,
).launch()
