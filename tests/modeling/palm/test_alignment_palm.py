"""Pathology-aware alignment: Sinkhorn, losses, queue, gathering over processes."""

from __future__ import annotations

import copy
import json
import math
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ot
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rrg_hf.modeling.palm import PalmForAlignment, PalmForReportGeneration, PalmProcessor
from rrg_hf.modeling.palm.alignment_palm import (
    contrastive_loss,
    cross_entropy,
    gather_rows,
    prototype_assignment,
    sinkhorn_assignment,
)
from tests.modeling.palm.conftest import make_lively
from tests.tiny_palm import SENTENCES, make_tiny_palm


def plain_sinkhorn(cost: np.ndarray, epsilon: float, iterations: int = 20_000) -> np.ndarray:
    """Sinkhorn-Knopp by scaling exp(-C / eps), in float64, with uniform marginals."""
    kernel = np.exp(-(cost - cost.min()) / epsilon)
    rows, columns = np.full(cost.shape[0], 1 / cost.shape[0]), np.full(cost.shape[1], 1 / cost.shape[1])
    v = np.ones_like(columns)
    for _ in range(iterations):
        u = rows / (kernel @ v)
        v = columns / (kernel.T @ u)
    return u[:, None] * kernel * v[None]


def unit_rows(count: int, width: int, seed: int) -> torch.Tensor:
    rows = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows / rows.norm(dim=1, keepdim=True)


@pytest.mark.parametrize(("samples", "prototypes"), [(8, 14), (32, 14), (1, 14), (5, 1), (14, 14)])
def test_assignment_equals_plain_sinkhorn(samples: int, prototypes: int) -> None:
    z, p = unit_rows(samples, 16, 0), unit_rows(prototypes, 16, 1)
    cost = (-(z @ p.T) / 0.1).numpy()
    plan = sinkhorn_assignment(torch.from_numpy(cost), 0.5)
    np.testing.assert_allclose(plan.numpy(), plain_sinkhorn(cost, 0.5), atol=1e-7)
    np.testing.assert_allclose(plan.sum(1), 1 / samples, atol=1e-6)
    np.testing.assert_allclose(plan.sum(0), 1 / prototypes, atol=1e-6)


def test_assignment_equals_pot() -> None:
    cost = -(unit_rows(12, 16, 0) @ unit_rows(14, 16, 1).T) / 0.1
    expected = ot.sinkhorn(
        np.full(12, 1 / 12), np.full(14, 1 / 14), cost.numpy(), 0.5, method="sinkhorn", stopThr=1e-12
    )
    np.testing.assert_allclose(sinkhorn_assignment(cost, 0.5).numpy(), expected, atol=1e-7)


def test_assignment_minimises_the_papers_objective() -> None:
    """<T, C> - eps H(T) is lower than for feasible plans around it (Eq. 10)."""
    cost = -(unit_rows(6, 8, 0) @ unit_rows(4, 8, 1).T)
    plan = sinkhorn_assignment(cost, 0.5)

    def objective(t: torch.Tensor) -> float:
        return float((t * cost).sum() + 0.5 * (t * t.log()).sum())

    generator = torch.Generator().manual_seed(2)
    for _ in range(20):
        step = torch.randn(6, 4, generator=generator, dtype=torch.float64)
        step = step - step.mean(0) - step.mean(1, keepdim=True) + step.mean()  # keeps the marginals
        assert objective(plan) < objective(plan + 0.5 * plan.min() * step / step.abs().max())


def test_large_costs_do_not_underflow(shared_dir: Path) -> None:
    """POT#54: plain Sinkhorn returns an all-zero plan for these, which reads as a perfect match."""
    path = shared_dir / "cases" / "public_faults.jsonl"
    case = next(row for row in map(json.loads, path.open()) if row["id"] == "sinkhorn-underflow")
    assert "[[800,900],[900,800]], reg=1" in case["minimal_input"]
    cost = torch.tensor([[800.0, 900.0], [900.0, 800.0]], dtype=torch.float64)
    plan = sinkhorn_assignment(cost, 1.0)
    torch.testing.assert_close(plan, torch.eye(2, dtype=torch.float64) / 2)
    assert math.isclose(float((plan * cost).sum()), 800.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_unmet_marginals_are_an_error() -> None:
    cost = -(unit_rows(12, 16, 0) @ unit_rows(14, 16, 1).T) / 0.01
    with pytest.raises(ValueError, match=r"marginals are off by .* after 1 iterations.*sinkhorn_epsilon"):
        sinkhorn_assignment(cost, 0.5, max_iterations=1)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (torch.tensor([[float("nan"), 0.0]]), "NaN or infinite"),
        (torch.tensor([[float("inf"), 0.0]]), "NaN or infinite"),
        (torch.zeros(0, 14), "with entries"),
        (torch.zeros(3), "with entries"),
    ],
)
def test_bad_costs(cost: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sinkhorn_assignment(cost, 0.5)


def test_missing_pot_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match="pip install POT"):
        sinkhorn_assignment(torch.zeros(2, 2), 0.5)


def reference_losses(z_i: np.ndarray, z_t: np.ndarray, p: np.ndarray, tau: float, eps: float) -> tuple[float, float]:
    """Eq. 10-12, written out with loops over samples and prototypes."""
    (batch, _), k = z_i.shape, len(p)

    def assignment(z: np.ndarray) -> np.ndarray:
        plan = plain_sinkhorn(-(z @ p.T) / tau, eps)
        return plan / plan.sum(1, keepdims=True)

    def softmax(z: np.ndarray) -> np.ndarray:
        scores = np.exp(z @ p.T / tau)
        return scores / scores.sum(1, keepdims=True)

    def entropy(t: np.ndarray, s: np.ndarray) -> float:
        return -sum(t[i, j] * math.log(s[i, j]) for i in range(batch) for j in range(k)) / batch

    t_i, t_t, s_i, s_t = assignment(z_i), assignment(z_t), softmax(z_i), softmax(z_t)
    return entropy(t_i, s_t) + entropy(t_t, s_i), entropy(t_i, s_i) + entropy(t_t, s_t)


def align_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: batch[key] for key in ("pixel_values", "report_input_ids", "report_attention_mask")}


@pytest.fixture
def stage(lively: PalmForReportGeneration) -> PalmForAlignment:
    """With spread-out prototypes: those of a random text encoder nearly coincide, and every loss is 4 ln K."""
    return PalmForAlignment.from_palm(lively).eval()


def test_losses_equal_the_reference(stage: PalmForAlignment, batch: dict[str, torch.Tensor]) -> None:
    stage.double()
    inputs = align_inputs(batch)
    output = stage(**inputs)
    prototypes = torch.nn.functional.normalize(stage.model.prototypes, dim=-1)
    arrays = [tensor.detach().numpy() for tensor in (output.image_embeds, output.text_embeds, prototypes)]
    multi, uni = reference_losses(*arrays, tau=0.1, eps=0.5)
    assert abs(multi - uni) > 0.1 and abs(uni - 2 * math.log(14)) > 0.1, "a case that tells the losses apart"
    assert math.isclose(output.multi_loss.item(), multi, rel_tol=1e-6)
    assert math.isclose(output.uni_loss.item(), uni, rel_tol=1e-6)
    assert math.isclose(output.loss.item(), multi + uni, rel_tol=1e-6)
    assert output.contrastive_loss is None


def test_embeddings_are_those_of_the_model(stage: PalmForAlignment, batch: dict[str, torch.Tensor]) -> None:
    output = stage(**align_inputs(batch))
    palm = stage.model
    assert torch.equal(output.image_embeds, palm.pool(palm.get_image_features(batch["pixel_values"])))
    features = palm.get_text_features(batch["report_input_ids"], batch["report_attention_mask"])
    assert torch.equal(output.text_embeds, palm.pool(features))


def test_flags_change_what_they_say(lively: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    inputs = align_inputs(batch)
    base = PalmForAlignment.from_palm(lively).eval()(**inputs).loss.item()
    for name, value in {
        "alignment_temperature": 0.2,
        "sinkhorn_epsilon": 1.0,
        "normalize_embeddings": False,
    }.items():
        other = copy.deepcopy(lively)
        setattr(other.config, name, value)
        assert PalmForAlignment.from_palm(other).eval()(**inputs).loss.item() != pytest.approx(base, rel=1e-6), name


def test_gradients_match_finite_differences(stage: PalmForAlignment, batch: dict[str, torch.Tensor]) -> None:
    """With T held fixed, as no gradient flows through it."""
    stage.double()
    inputs = align_inputs(batch)
    stage(**inputs).loss.backward()
    targets: list[torch.Tensor] = []
    original = stage._assign

    def record(*arguments: Any) -> torch.Tensor:
        targets.append(original(*arguments))
        return targets[-1]

    stage._assign = record  # type: ignore[method-assign]
    stage(**inputs)
    replay = [0]

    def fixed(*arguments: Any) -> torch.Tensor:
        replay[0] += 1
        return targets[(replay[0] - 1) % 2]

    stage._assign = fixed  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(0)
    palm = stage.model
    parts = {
        "vision": list(palm.vision_model.parameters()),
        "text": list(palm.text_model.parameters()),
        "projections": [*palm.image_projection.parameters(), *palm.text_projection.parameters()],
        "prototypes": [palm.prototypes],
    }
    for part, candidates in parts.items():
        parameters = [p for p in candidates if p.grad is not None]
        directions = [torch.randn(p.shape, generator=generator, dtype=torch.float64) for p in parameters]
        analytic = sum((p.grad * d).sum().item() for p, d in zip(parameters, directions, strict=True))
        step, losses = 1e-5, []
        for amount in (step, -2 * step):
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.data.add_(direction, alpha=amount)
            losses.append(stage(**inputs).loss.item())
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.data.add_(direction, alpha=step)
        assert math.isclose(analytic, (losses[0] - losses[1]) / (2 * step), rel_tol=1e-5, abs_tol=1e-8), part


def test_every_trainable_weight_gets_a_gradient(
    model: PalmForReportGeneration, batch: dict[str, torch.Tensor]
) -> None:
    stage = PalmForAlignment.from_palm(model).train()
    stage(**align_inputs(batch)).loss.backward()
    for name, parameter in stage.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    trained = {name.split(".")[1] for name, parameter in stage.named_parameters() if parameter.requires_grad}
    assert trained == {"vision_model", "text_model", "image_projection", "text_projection", "prototypes"}
    assert float(model.model.prototypes.grad.abs().max()) > 0, "the stage shares the model's weights"


def test_contrastive_ablation(model: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    model.config.alignment = "contrastive"
    stage = PalmForAlignment.from_palm(model).double().eval()
    output = stage(**align_inputs(batch))
    z_i, z_t = output.image_embeds.detach().numpy(), output.text_embeds.detach().numpy()
    scores = z_i @ z_t.T / 0.1
    expected = 0.0
    for i in range(3):
        expected -= math.log(math.exp(scores[i, i]) / sum(math.exp(scores[i, j]) for j in range(3)))
        expected -= math.log(math.exp(scores[i, i]) / sum(math.exp(scores[j, i]) for j in range(3)))
    assert math.isclose(output.loss.item(), expected / 6, rel_tol=1e-9)
    assert output.contrastive_loss.item() == output.loss.item()
    assert output.multi_loss is None and output.uni_loss is None
    output.loss.backward()
    for name, parameter in stage.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert stage.model.prototypes.requires_grad is False


def test_contrastive_loss_of_perfect_pairs() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    expected = -math.log(math.exp(10) / (math.exp(10) + 3))
    assert math.isclose(contrastive_loss(eye, eye, 0.1).item(), expected, rel_tol=1e-9)
    assert math.isclose(contrastive_loss(eye, eye.roll(1, 0), 0.1).item(), 10 + expected, rel_tol=1e-9)


def test_cross_entropy_is_smallest_for_equal_distributions() -> None:
    targets = torch.softmax(unit_rows(5, 7, 0) * 3, dim=1)
    entropy = -(targets * targets.log()).sum(1).mean()
    torch.testing.assert_close(cross_entropy(targets, targets.log()), entropy)
    assert cross_entropy(targets, torch.zeros(5, 7)) > entropy


def test_assignment_has_no_gradient_and_rows_of_one() -> None:
    z = unit_rows(6, 8, 0).requires_grad_()
    p = unit_rows(4, 8, 1).requires_grad_()
    targets = prototype_assignment(z, p, 0.1, 0.5)
    assert not targets.requires_grad
    torch.testing.assert_close(targets.sum(1), torch.ones(6, dtype=torch.float64))


def test_queue_takes_part_in_the_transport(lively: PalmForReportGeneration, batch: dict[str, torch.Tensor]) -> None:
    lively.config.alignment_queue_size = 4
    for module in lively.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    stage = PalmForAlignment.from_palm(lively).train()
    inputs = align_inputs(batch)
    first = stage(**inputs)
    assert stage.queue_length.item() == 3
    assert torch.equal(stage.image_queue[:3], first.image_embeds.detach())
    second = stage(**inputs)
    assert stage.queue_length.item() == 4, "the oldest fall out"
    prototypes = torch.nn.functional.normalize(stage.model.prototypes, dim=-1)
    rows = second.image_embeds.detach()
    expected = prototype_assignment(torch.cat([rows, rows]), prototypes, 0.1, 0.5)[:3]
    logits = second.image_embeds @ prototypes.T / 0.1
    text_rows = second.text_embeds.detach()
    text_expected = prototype_assignment(torch.cat([text_rows, text_rows]), prototypes, 0.1, 0.5)[:3]
    uni = cross_entropy(expected, logits) + cross_entropy(text_expected, second.text_embeds @ prototypes.T / 0.1)
    torch.testing.assert_close(second.uni_loss, uni.detach(), rtol=1e-5, atol=1e-5)
    stage.eval()
    stage(**inputs)
    assert stage.queue_length.item() == 4, "evaluation leaves the queue alone"


def test_from_palm_starts_the_prototypes_when_asked(model: PalmForReportGeneration, processor: PalmProcessor) -> None:
    named = model.model.prototypes.detach().clone()
    with torch.no_grad():
        model.model.prototypes.fill_(0.5)
    PalmForAlignment.from_palm(model)
    assert (model.model.prototypes == 0.5).all(), "left as they are by default"
    PalmForAlignment.from_palm(model, text_tokenizer=processor)
    torch.testing.assert_close(model.model.prototypes, named)


def test_pairs_are_required(stage: PalmForAlignment, batch: dict[str, torch.Tensor]) -> None:
    inputs = align_inputs(batch)
    with pytest.raises(ValueError, match="3 images but 2 reports"):
        stage(inputs["pixel_values"], inputs["report_input_ids"][:2])


def test_training_lowers_the_loss(stage: PalmForAlignment, batch: dict[str, torch.Tensor]) -> None:
    optimizer = torch.optim.AdamW([p for p in stage.parameters() if p.requires_grad], lr=3e-3)
    inputs, losses = align_inputs(batch), []
    for _ in range(8):
        loss = stage(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


# --- two processes ---------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# alignment, studies of rank 0 and of rank 1, queue size
CASES = [("prototype", (3, 3), 0), ("prototype", (4, 2), 0), ("contrastive", (3, 3), 0), ("prototype", (3, 3), 8)]


def distributed_steps(rank: int, port: int, folder: str) -> None:
    """Forward and backward of a rank's share under DDP for each case; saves loss and gradients."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    results = []
    for alignment, sizes, queue in CASES:
        stage, inputs = distributed_setup(folder, alignment, queue)
        start = 0 if rank == 0 else sizes[0]
        share = {key: value[start : start + sizes[rank]] for key, value in inputs.items()}
        results.append(step(torch.nn.parallel.DistributedDataParallel(stage), share, 2 if queue else 1))
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


def step(stage: torch.nn.Module, inputs: dict[str, torch.Tensor], count: int) -> dict[str, Any]:
    """Loss and gradients of the last of `count` passes (a second one sees the queue that the first one filled)."""
    for _ in range(count):
        stage.zero_grad()
        loss = stage(**inputs).loss
        loss.backward()
    gradients = {name.removeprefix("module."): p.grad for name, p in stage.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), "gradients": gradients}


def distributed_setup(folder: str, alignment: str, queue: int) -> tuple[PalmForAlignment, dict[str, torch.Tensor]]:
    model = make_lively(PalmForReportGeneration.from_pretrained(folder)).double()
    model.config.alignment, model.config.alignment_queue_size = alignment, queue
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    stage = PalmForAlignment.from_palm(model)
    if queue:
        stage.double().train()
    else:
        stage.double().eval()
    processor = PalmProcessor.from_pretrained(folder)
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (56, 56), dtype=np.uint8) for _ in range(6)]
    return stage, align_inputs(dict(processor(images=images, report=list(SENTENCES[:6]))))


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Loss and gradients under DDP equal those of one process on the global batch, also for uneven shares."""
    make_tiny_palm(tmp_path)
    mp.spawn(distributed_steps, args=(free_port(), str(tmp_path)), nprocs=2, join=True)
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    for index, (alignment, _, queue) in enumerate(CASES):
        stage, inputs = distributed_setup(str(tmp_path), alignment, queue)
        expected = step(stage, inputs, 2 if queue else 1)
        for results in ranks:
            torch.testing.assert_close(results[index]["loss"], expected["loss"], rtol=1e-9, atol=1e-9)
            gradients = results[index]["gradients"]
            assert gradients.keys() == expected["gradients"].keys()
            for name, gradient in expected["gradients"].items():
                torch.testing.assert_close(gradients[name], gradient, rtol=1e-6, atol=1e-10, msg=name)


def test_one_process_gathers_nothing() -> None:
    rows = torch.randn(3, 4)
    assert gather_rows(rows) is rows
