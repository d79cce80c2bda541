"""What LEAD costs: a LEAD model against its own backbone in one run, random weights, the same tensors in both.

    python benchmarks/lead_decode.py decode                         # tokens/s, several lengths and beams
    python benchmarks/lead_decode.py train                          # seconds of a training step, and its memory
    python benchmarks/lead_decode.py parameters                     # what LEAD adds to 2B, 4B and 8B, by module

Shapes are Qwen3-VL's own widths, heads and ranks with fewer layers and a smaller vocabulary, so that they fit a CPU:
LEAD's cost arises in every layer, so the ratio hardly moves with the number of layers, and a small vocabulary makes it
worse, not better. `--layers 0 --vocab-size 151936` takes everything (on a GPU). Repetitions alternate between the two
models; a row gives medians of seconds and the median ratio of neighbours. Seconds are processor seconds with one CPU
thread, so that other work on the machine hardly matters, else wall clock. Ratios count; seconds depend on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import multiprocessing
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Qwen3VLForConditionalGeneration

from rrg_hf.modeling.lead import LeadQwen3VLConfig, LeadQwen3VLForCausalLM

TARGET = 0.95
IMAGE_TOKEN = 5
_ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True}
_SMALL_TOWER = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_LARGE_TOWER = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
# (text configuration, tower, tied embeddings) as in the published config.json files
SHAPES: dict[str, tuple[dict[str, int], dict[str, Any], bool]] = {
    "2b": (
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
        _SMALL_TOWER,
        True,
    ),
    "4b": (
        {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
        _SMALL_TOWER,
        True,
    ),
    "8b": (
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
        _LARGE_TOWER,
        False,
    ),
}


def configuration(
    shape: str,
    *,
    layers: int = 0,
    tower_layers: int = 0,
    vocab_size: int = 151_936,
    lead: dict[str, Any] | None = None,
) -> LeadQwen3VLConfig:
    """Qwen3-VL's configuration of that shape with LEAD's defaults.

    Args:
        shape: a key of `SHAPES`.
        layers, tower_layers: decoder and tower layers; 0 for all of them.
        vocab_size: 151,936 is the published one.
        lead: settings of `LeadConfig` that differ from the defaults.
    """
    text, tower, tied = SHAPES[shape]
    text, tower = dict(text), dict(tower)
    text["num_hidden_layers"] = layers or text["num_hidden_layers"]
    if tower_layers:
        # three DeepStack levels, which is also what the first three decoder layers expect
        levels = range(max(0, tower_layers - 3), tower_layers)
        tower = {**tower, "depth": tower_layers, "deepstack_visual_indexes": list(levels)}
    return LeadQwen3VLConfig(
        text_config={
            **text,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": vocab_size,
            "rope_parameters": _ROPE,
            "tie_word_embeddings": tied,
            "pad_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={**tower, "num_heads": 16, "patch_size": 16, "out_hidden_size": text["hidden_size"]},
        lead_config=lead or {},
        image_token_id=IMAGE_TOKEN,
        video_token_id=6,
        vision_start_token_id=7,
        vision_end_token_id=8,
        tie_word_embeddings=tied,
    )


def build(config: LeadQwen3VLConfig, dtype: torch.dtype, device: str) -> LeadQwen3VLForCausalLM:
    """Random weights; LEAD's parts are moved away from zero, since a sum with zeros may cost less."""
    torch.manual_seed(0)
    with torch.device(device):
        model = LeadQwen3VLForCausalLM._from_config(config, dtype=dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lead_" in name:
                parameter.add_(0.01 * torch.randn_like(parameter))
    return model.eval()


def backbone_of(model: LeadQwen3VLForCausalLM) -> Qwen3VLForConditionalGeneration:
    """The plain model over the same tensors: no copy, and equal luck with memory and caches."""
    settings = {k: v for k, v in model.config.to_dict().items() if k not in ("lead_config", "model_type")}
    config = Qwen3VLForConditionalGeneration.config_class(**settings)
    with torch.device("meta"):
        plain = Qwen3VLForConditionalGeneration._from_config(config, dtype=model.dtype)
    state = {name: value for name, value in model.state_dict(keep_vars=True).items() if "lead_" not in name}
    plain.load_state_dict(state, assign=True)
    for module, other in zip(plain.modules(), _backbone_modules(model), strict=True):
        for name, value in other._buffers.items():  # rotary frequencies are not saved, so still on "meta"
            module._buffers[name] = value
        if isinstance(getattr(other, "original_inv_freq", None), torch.Tensor):
            module.original_inv_freq = other.original_inv_freq
    plain.tie_weights()
    return plain.eval()


def _backbone_modules(model: nn.Module) -> Iterator[nn.Module]:
    return (module for name, module in model.named_modules() if "lead_" not in name)


def make_inputs(config: LeadQwen3VLConfig, rows: int, prompt: int, device: str, dtype: torch.dtype) -> dict[str, Any]:
    """`rows` prompts of one 256 x 256 image (64 tokens) and `prompt` words."""
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(10, config.get_text_config().vocab_size, (rows, prompt), generator=generator)
    image = torch.tensor([7, *[IMAGE_TOKEN] * 64, 8]).expand(rows, -1)
    input_ids = torch.cat([words[:, :4], image, words[:, 4:]], dim=1)
    pixels = torch.randn(rows * 256, 3 * 2 * 16 * 16, generator=generator)
    return {
        "input_ids": input_ids.to(device),
        "attention_mask": torch.ones_like(input_ids, device=device),
        "mm_token_type_ids": (input_ids == IMAGE_TOKEN).int().to(device),
        "pixel_values": pixels.to(device, dtype),
        "image_grid_thw": torch.tensor([[1, 16, 16]] * rows, device=device),
    }


@torch.inference_mode()
def check_pair(plain: nn.Module, lead: LeadQwen3VLForCausalLM, inputs: dict[str, Any]) -> None:
    """Without anything to inject the two models are one; with it they differ."""
    expected, actual = plain(**inputs).logits, lead(**inputs).logits
    states = lead.model.lead_experts(torch.zeros(1, lead.config.vision_config.hidden_size).to(expected))[0]
    silent = lead(**inputs, lead_states=torch.zeros_like(states)).logits
    if not torch.equal(expected, silent) or torch.equal(expected, actual):
        raise RuntimeError("The two models do not share a backbone, or LEAD injects nothing.")


def seconds(work: Callable[[], Any], device: str) -> float:
    """Processor seconds with one CPU thread, else wall clock."""
    clock = time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def alternate(works: list[Callable[[], Any]], repeats: int, device: str) -> list[list[float]]:
    """Seconds of each work in each repetition, taking turns; odd repetitions go the other way round."""
    taken: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for repeat in range(repeats):
        order = range(len(works)) if repeat % 2 == 0 else reversed(range(len(works)))
        for index in order:
            taken[index].append(seconds(works[index], device))
    return taken


def summary(backbone: list[float], lead: list[float]) -> dict[str, float]:
    """Median seconds, and the speed of LEAD as a fraction of the backbone's."""
    ratios = sorted(first / second for first, second in zip(backbone, lead, strict=True))
    return {
        "backbone": statistics.median(backbone),
        "lead": statistics.median(lead),
        "ratio": statistics.median(ratios),
        "ratio_low": ratios[0],
        "ratio_high": ratios[-1],
    }


def run_decode(arguments: argparse.Namespace, config: LeadQwen3VLConfig) -> list[dict[str, Any]]:
    dtype, device = getattr(torch, arguments.dtype), arguments.device
    lead = build(config, dtype, device)
    plain = backbone_of(lead)
    rows: list[dict[str, Any]] = []
    check_pair(plain, lead, make_inputs(config, 1, arguments.prompt, device, dtype))
    print(f"{'batch':>5} {'beams':>5} {'tokens':>6}  {'backbone tok/s':>14}  {'LEAD tok/s':>10}  {'ratio':>6}  range")
    for batch in arguments.batches:
        inputs = make_inputs(config, batch, arguments.prompt, device, dtype)
        for beams in arguments.beams:
            for length in arguments.lengths:
                settings = {
                    "num_beams": beams,
                    "repetition_penalty": 1.05 if beams > 1 else 1.0,
                    "do_sample": False,
                    "min_new_tokens": length,
                    "max_new_tokens": length,
                    "suppress_tokens": [IMAGE_TOKEN, 6, 7, 8],
                }
                works = [partial(m.generate, **inputs, **settings) for m in (plain, lead)]
                with torch.inference_mode():
                    produced = works[1]().shape[1] - inputs["input_ids"].shape[1]
                    if produced != length:
                        raise RuntimeError(f"{produced} tokens were generated instead of {length}.")
                    taken = alternate(works, arguments.repeats, device)
                row = {"batch": batch, "beams": beams, "new_tokens": length, **summary(*taken)}
                row["backbone_tokens_per_s"] = batch * length / row.pop("backbone")
                row["lead_tokens_per_s"] = batch * length / row.pop("lead")
                rows.append(row)
                print(
                    f"{batch:>5} {beams:>5} {length:>6}  {row['backbone_tokens_per_s']:>14.2f}  "
                    f"{row['lead_tokens_per_s']:>10.2f}  {row['ratio']:>6.3f}  "
                    f"{row['ratio_low']:.3f}-{row['ratio_high']:.3f}",
                    flush=True,
                )
    worst = min(row["ratio"] for row in rows)
    print(f"lowest ratio {worst:.3f}, wanted {TARGET}: {'met' if worst >= TARGET else 'missed'}")
    return rows


def training_batch(
    config: LeadQwen3VLConfig, rows: int, length: int, device: str, dtype: torch.dtype
) -> dict[str, Any]:
    inputs = make_inputs(config, rows, length, device, dtype)
    labels = inputs["input_ids"].clone()
    labels[:, : 64 + 20] = -100
    return {**inputs, "labels": labels, "use_cache": False}


def prepare_training(model: nn.Module, checkpointing: bool) -> nn.Module:
    """The paper's hybrid training: LoRA r 64 on the language model's attention, tower and LEAD parts trained fully."""
    from peft import LoraConfig, get_peft_model

    full = ["visual"] + (["lead_experts", "lead_fusion"] if hasattr(model.model, "lead_experts") else [])
    wrapped = get_peft_model(
        model,
        LoraConfig(
            r=64,
            lora_alpha=128,
            target_modules=r".*language_model\.layers\.\d+\.self_attn\.[qkvo]_proj",
            modules_to_save=full,
        ),
    )
    if checkpointing:
        wrapped.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return wrapped.train()


def training_step(model: nn.Module, batch: dict[str, Any]) -> Callable[[], None]:
    """Forward, backward and AdamW on what is trained; without the expert loss for a plain backbone."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)

    def step() -> None:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()

    return step


def _training_part(arguments: argparse.Namespace, kind: str) -> tuple[nn.Module, Callable[[], None]]:
    dtype, device = getattr(torch, arguments.dtype), arguments.device
    config = shape_of(arguments)
    model = build(config, dtype, device)
    batch = training_batch(config, arguments.batches[0], arguments.lengths[0], device, dtype)
    if kind == "lead":
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(0, 2, (len(batch["input_ids"]), config.lead_config.num_experts), generator=generator)
        batch["expert_labels"] = labels.float().to(device)
        trained = prepare_training(model, arguments.checkpointing)
    else:
        plain = backbone_of(model)
        del model
        trained = prepare_training(plain, arguments.checkpointing)
    return trained, training_step(trained, batch)


def peak_memory(arguments: argparse.Namespace, kind: str, connection: Any) -> None:
    """GiB at the peak of two steps in a process of its own."""
    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    _, step = _training_part(arguments, kind)
    for _ in range(2):
        step()
    if arguments.device == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    else:
        peak = torch.cuda.max_memory_allocated() / 2**30
    connection.send(peak)


def run_train(arguments: argparse.Namespace, config: LeadQwen3VLConfig) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    peaks = {}
    for kind in ("backbone", "lead"):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=peak_memory, args=(arguments, kind, sender))
        process.start()
        sender.close()
        with contextlib.suppress(EOFError):
            peaks[kind] = receiver.recv()
        process.join()
        if kind not in peaks:
            raise RuntimeError(f"The process that measures the memory of {kind} ended with code {process.exitcode}.")
    steps = [_training_part(arguments, kind)[1] for kind in ("backbone", "lead")]
    taken = alternate(steps, arguments.repeats, arguments.device)
    row = summary(*taken)
    row["time_ratio"] = 1 / row["ratio"]
    row |= {"backbone_peak_gib": peaks["backbone"], "lead_peak_gib": peaks["lead"]}
    row["memory_ratio"] = peaks["lead"] / peaks["backbone"]
    print(
        f"step: backbone {row['backbone']:.2f} s, LEAD {row['lead']:.2f} s, time x {row['time_ratio']:.3f} "
        f"({1 / row['ratio_high']:.3f}-{1 / row['ratio_low']:.3f})\n"
        f"peak memory: backbone {peaks['backbone']:.2f} GiB, LEAD {peaks['lead']:.2f} GiB, x {row['memory_ratio']:.3f}"
    )
    return [row]


def added_parameters(config: LeadQwen3VLConfig) -> dict[str, int]:
    """Parameters of LEAD's modules, and of the backbone, without allocating any."""
    with torch.device("meta"):
        model = LeadQwen3VLForCausalLM._from_config(copy.deepcopy(config))
    places = {
        "lead_experts.experts": "experts",
        "lead_experts.aggregation": "aggregation",
        "lead_experts.projections": "projections phi_l",
        "lead_experts.gate_contexts": "gate (W_e)",
        "gate_hidden": "gate (W_h)",
        "gate_output": "gate (output)",
        "lead_fusion": "interaction (beta, LayerNorm)",
    }
    counts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        place = next((label for part, label in places.items() if part in name), "backbone")
        counts[place] += parameter.numel()
    return dict(counts)


def run_parameters(arguments: argparse.Namespace, config: LeadQwen3VLConfig) -> list[dict[str, Any]]:
    table = {shape: added_parameters(configuration(shape, lead=arguments.lead)) for shape in SHAPES}
    names = [name for name in table["2b"] if name != "backbone"]
    print(f"{'millions of parameters':<32}" + "".join(f"{shape:>10}" for shape in table))
    for name in names:
        print(f"{name:<32}" + "".join(f"{row.get(name, 0) / 1e6:>10.1f}" for row in table.values()))
    added = {shape: sum(row.values()) - row["backbone"] for shape, row in table.items()}
    print(f"{'all of LEAD':<32}" + "".join(f"{count / 1e6:>10.1f}" for count in added.values()))
    print(f"{'backbone':<32}" + "".join(f"{row['backbone'] / 1e6:>10.1f}" for row in table.values()))
    print(f"{'added':<32}" + "".join(f"{100 * added[s] / table[s]['backbone']:>9.1f}%" for s in table))
    return [{"shape": shape, **row} for shape, row in table.items()]


def shape_of(arguments: argparse.Namespace) -> LeadQwen3VLConfig:
    return configuration(
        arguments.shape,
        layers=arguments.layers,
        tower_layers=arguments.tower_layers,
        vocab_size=arguments.vocab_size,
        lead=arguments.lead,
    )


RUNS = {"decode": run_decode, "train": run_train, "parameters": run_parameters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--shape", choices=SHAPES, default="2b")
    parser.add_argument("--layers", type=int, default=7, help="decoder layers; 0 for all")
    parser.add_argument("--tower-layers", type=int, default=6, help="layers of the visual tower; 0 for all")
    parser.add_argument("--vocab-size", type=int, default=37_984, help="the published one is 151936")
    parser.add_argument("--lead", type=json.loads, default={}, help="JSON of LeadConfig settings that differ")
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 128], help="new tokens (train: words per row)")
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt", type=int, default=40, help="words around the image in a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkpointing", action="store_true", help="train: recompute activations")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; one measures most evenly")
    parser.add_argument("-o", "--output", type=Path, help="JSON file with the figures")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        torch.set_num_threads(arguments.threads)
    config = shape_of(arguments)
    where = f"{arguments.device}, {torch.get_num_threads()} threads" if arguments.device == "cpu" else arguments.device
    if arguments.what != "parameters":
        text = config.get_text_config()
        print(
            f"{arguments.shape}: width {text.hidden_size}, {text.num_hidden_layers} layers, vocabulary "
            f"{text.vocab_size}, {arguments.dtype}, {where}, torch {torch.__version__}, {sys.platform}"
        )
    rows = RUNS[arguments.what](arguments, config)
    if arguments.output:
        settings = {key: value for key, value in vars(arguments).items() if key not in ("output", "what")}
        content = {"what": arguments.what, "settings": settings, "rows": rows}
        temporary = arguments.output.with_name(arguments.output.name + ".tmp")
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(arguments.output)


if __name__ == "__main__":
    main()
