"""LEAD on Qwen3-VL, InternVL and Mistral 3: pathology experts gated into every decoder layer.

Source: "Layer-wise Expert-aligned Decoding for Faithful Radiology Report Generation" (arXiv 2602.04617). Each class
loads a plain backbone checkpoint: the backbone's weights are read, LEAD's parts start fresh, and because the last
layer of every phi_l starts at zero the fresh model computes exactly what its backbone does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import transformers.models.auto.modeling_auto  # noqa: F401 (first: the backbones' modules need it whole)
from torch import nn
from torch.nn import functional as F
from transformers import initialization as init
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.internvl.modeling_internvl import InternVLForConditionalGeneration, InternVLModel
from transformers.models.mistral3.modeling_mistral3 import Mistral3ForConditionalGeneration, Mistral3Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration, Qwen3VLModel
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .configuration_lead import NO_FINDING, LeadInternVLConfig, LeadMistral3Config, LeadQwen3VLConfig
from .layers_lead import (
    LeadExpertBranch,
    LeadExperts,
    LeadFusion,
    LeadFusionLayer,
    LeadScaledLinear,
    LeadZeroLinear,
)
from .outputs_lead import LeadCausalLMOutput, LeadModelOutput

logger = logging.get_logger(__name__)

# What tells a backbone's tower where one image ends, by backbone; the others need nothing.
_LAYOUT_ARGUMENTS = ("image_grid_thw", "image_sizes")


class _FusionHook:
    """Forward hook of a decoder layer: adds the layer's expert message to its output.

    An object, not a closure, so that models can be copied and pickled. The state arrives as a keyword argument of the
    layer, never as an attribute, so that recomputation under gradient checkpointing sees the same one.
    """

    def __init__(self, owner: Any, layer_index: int) -> None:
        self.owner = owner
        self.layer_index = layer_index

    def __call__(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        states = kwargs.get("lead_states")
        if states is None:
            return None
        hidden_states = output[0] if isinstance(output, tuple) else output
        fused, gate = self.owner.lead_fusion(hidden_states, states[:, self.layer_index], self.layer_index)
        collected = kwargs.get("lead_gates")
        if collected is not None and gate is not None:
            collected.append(gate.detach().float().mean(-1))
        return (fused, *output[1:]) if isinstance(output, tuple) else fused


class _LoadsPlainBackbone:
    """Loading a plain backbone says in one line that LEAD's parts are fresh.

    A saved LEAD model that lacks any of them gets transformers' full report of missing keys.
    """

    def _adjust_missing_and_unexpected_keys(self, loading_info: Any) -> None:
        super()._adjust_missing_and_unexpected_keys(loading_info)  # type: ignore[misc]
        saved_by = self.config.architectures or ()  # type: ignore[attr-defined]
        own = {key for key in self.state_dict() if "lead_" in key}  # type: ignore[attr-defined]
        # LeadConfig's readers drop a backbone's `architectures`; saving a LEAD model writes its own.
        if not any(name.startswith("Lead") for name in saved_by) and own <= loading_info.missing_keys:
            loading_info.missing_keys = loading_info.missing_keys - own
            logger.warning(
                "%s was loaded from a plain backbone; LEAD's %d tensors start fresh and are to be trained.",
                type(self).__name__,
                len(own),
            )


class LeadModelMixin(_LoadsPlainBackbone):
    """LEAD on a multimodal backbone without its LM head: `lead_experts` once per image, `lead_fusion` in every layer.

    Forward takes the backbone's arguments and, besides:

    Args:
        lead_states (`torch.FloatTensor` of shape `(batch_size, num_layers, width)`, *optional*):
            What [`LeadExpertBranch`] returned for these images. Computed where pixels or `mm_encoder_outputs` are
            given.
        output_gates (`bool`, *optional*):
            Whether to return the mean gate per layer and token.
    """

    image_tower: ClassVar[str] = "vision_tower"
    # Quantizers leave these modules alone, as fresh parts cannot learn in 4 bits; a saved LEAD model that is read in
    # float16 keeps them in float32. Once as they are named in this model, once as in one around it.
    _keep_in_fp32_modules: Any = ("lead_experts", "lead_fusion", r".*\.lead_experts", r".*\.lead_fusion")
    # of the backbone
    config: Any
    language_model: Any
    get_image_features: Any
    # (image_outputs, image_grid_thw, image_sizes) -> (number of images, D_v); each class knows its tower's layout
    _mean_over_patches: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        text_config, lead_config = config.get_text_config(), config.lead_config
        size, num_layers = text_config.hidden_size, text_config.num_hidden_layers
        self.lead_experts = LeadExpertBranch(lead_config, config.vision_config.hidden_size, size, num_layers)
        self.lead_fusion = LeadFusion(lead_config, size, num_layers) if lead_config.fusion != "none" else None
        if self.lead_fusion is not None:
            for index, layer in enumerate(self.language_model.layers):
                layer.register_forward_hook(_FusionHook(self, index), with_kwargs=True)
        self.post_init()  # type: ignore[attr-defined]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        # Called for everything below this model: transformers asks the nearest PreTrainedModel above a module.
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, LeadExperts):
            for name, parameter in module.named_parameters():
                if name.startswith("weight"):
                    # bmm weights: He et al.'s fan-in rule; a std of 0.02 on a D_v-wide mean would silence the experts
                    init.normal_(parameter, mean=0.0, std=(2.0 / parameter.shape[1]) ** 0.5)
                else:
                    init.zeros_(parameter)
        elif isinstance(module, LeadScaledLinear):
            init.normal_(module.weight, mean=0.0, std=module.in_features**-0.5)
        elif isinstance(module, LeadZeroLinear):
            init.zeros_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, LeadFusionLayer) and module.beta is not None:
            init.zeros_(module.beta)

    def pool_images(
        self,
        image_outputs: Any,
        input_ids: torch.Tensor | None,
        batch_size: int,
        image_grid_thw: torch.Tensor | None = None,
        image_sizes: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean of the visual tower's last hidden state, before the merger, over the patches and images of each sample.

        Args:
            image_outputs: what `get_image_features` returned for all images of the batch.
            input_ids: (B, T); tells which sample an image belongs to.
            batch_size: B.
            image_grid_thw, image_sizes: the backbone's own description of the images' sizes.

        Returns:
            (B, D_v), zeros in rows without an image, and (B,) bool, whether there is one.
        """
        per_image = self._mean_over_patches(image_outputs, image_grid_thw, image_sizes)
        tokens = torch.tensor([len(tokens) for tokens in image_outputs.pooler_output], device=per_image.device)
        if input_ids is None:
            if len(tokens) != batch_size:
                raise ValueError(
                    f"{len(tokens)} images for {batch_size} rows of `inputs_embeds`: which image belongs to which row "
                    "cannot be told. Pass `input_ids`, or `lead_states`."
                )
            owner = torch.arange(batch_size, device=per_image.device)
        else:
            owner = self._image_owners(input_ids, tokens)
        counts = torch.bincount(owner, minlength=batch_size)
        sums = per_image.new_zeros(batch_size, per_image.shape[-1]).index_add(0, owner, per_image)
        return sums / counts.clamp(min=1).unsqueeze(-1).to(sums.dtype), counts > 0

    def _image_owners(self, input_ids: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(number of images,), the row of each image, from the image tokens that each takes up."""
        per_row = (input_ids == self.config.image_token_id).sum(-1).to(tokens.device)
        ends, last = per_row.cumsum(0), tokens.cumsum(0)
        owner = torch.searchsorted(ends, last - tokens, right=True)
        if int(ends[-1]) != int(last[-1]) or not torch.equal(owner, torch.searchsorted(ends, last - 1, right=True)):
            raise ValueError(
                f"The rows of `input_ids` have {per_row.tolist()} image tokens, but the images take "
                f"{tokens.tolist()}. Was a prompt cut inside an image, or written without its images?"
            )
        return owner

    def prepare_lead_states(
        self, image_outputs: Any, input_ids: torch.Tensor | None, batch_size: int, **layout: Any
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Expert states for decoding and expert logits, once per batch of images; see `pool_images` for the arguments.

        Returns:
            (B, L, width) or None without fusion, and (B, C) with NaN in rows without an image.
        """
        pooled, has_image = self.pool_images(image_outputs, input_ids, batch_size, **layout)
        parameter = next(self.lead_experts.parameters())
        pooled, has_image = pooled.to(parameter.device, parameter.dtype), has_image.to(parameter.device)
        states, logits = self.lead_experts(pooled, has_image)
        return states, logits.masked_fill(~has_image.unsqueeze(-1), float("nan"))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        pixel_values: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        mm_encoder_outputs: dict[str, Any] | None = None,
        lead_states: torch.Tensor | None = None,
        output_gates: bool | None = None,
        **kwargs: Any,
    ) -> LeadModelOutput:
        layout = {name: kwargs[name] for name in _LAYOUT_ARGUMENTS if kwargs.get(name) is not None}
        if pixel_values is not None:
            if mm_encoder_outputs is not None and mm_encoder_outputs.get("image") is not None:
                raise ValueError("Give `pixel_values` or `mm_encoder_outputs`, not both.")
            accepted = inspect.signature(self.get_image_features).parameters
            image_outputs = self.get_image_features(
                pixel_values, return_dict=True, **{name: layout[name] for name in layout if name in accepted}
            )
            mm_encoder_outputs = {**(mm_encoder_outputs or {}), "image": image_outputs}
        expert_logits = None
        image_outputs = (mm_encoder_outputs or {}).get("image")
        if image_outputs is not None and lead_states is None:
            batch_size = len(input_ids) if input_ids is not None else len(inputs_embeds)  # type: ignore[arg-type]
            lead_states, expert_logits = self.prepare_lead_states(image_outputs, input_ids, batch_size, **layout)
        gates: list[torch.Tensor] | None = None
        if lead_states is not None:
            kwargs["lead_states"] = lead_states
            if output_gates:
                gates = kwargs["lead_gates"] = []
        outputs = super().forward(  # type: ignore[misc]
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            mm_encoder_outputs=mm_encoder_outputs,
            return_dict=True,
            **kwargs,
        )
        return LeadModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            image_outputs=outputs.image_outputs,
            expert_logits=expert_logits,
            gates=_stack_gates(gates),
        )


class LeadQwen3VLModel(LeadModelMixin, Qwen3VLModel):
    config: LeadQwen3VLConfig
    config_class = LeadQwen3VLConfig
    image_tower = "visual"

    def get_rope_index(self, input_ids, mm_token_type_ids, image_grid_thw=None, *args, **kwargs):
        # The first thing that generate() computes; with the wrong number of image tokens it fails in index arithmetic.
        if image_grid_thw is not None:
            merged = self.config.vision_config.spatial_merge_size**2  # type: ignore[union-attr]
            self._image_owners(input_ids, image_grid_thw.prod(-1) // merged)
        return super().get_rope_index(input_ids, mm_token_type_ids, image_grid_thw, *args, **kwargs)

    def _mean_over_patches(self, image_outputs, image_grid_thw, image_sizes):
        # (patches of all images, D_v), one image after the other
        return _segment_means(image_outputs.last_hidden_state, image_grid_thw.prod(-1))


class LeadInternVLModel(LeadModelMixin, InternVLModel):
    config: LeadInternVLConfig
    config_class = LeadInternVLConfig

    def _mean_over_patches(self, image_outputs, image_grid_thw, image_sizes):
        return image_outputs.last_hidden_state[:, 1:].mean(1)  # (tiles, 1 + patches, D_v); the first is [CLS]


class LeadMistral3Model(LeadModelMixin, Mistral3Model):
    config: LeadMistral3Config
    config_class = LeadMistral3Config

    def _mean_over_patches(self, image_outputs, image_grid_thw, image_sizes):
        # (1, patches of all images, D_v)
        patch_size = self.config.vision_config.patch_size  # type: ignore[union-attr]
        sizes = torch.as_tensor(image_sizes, device=image_outputs.last_hidden_state.device)
        return _segment_means(image_outputs.last_hidden_state[0], (sizes // patch_size).prod(-1))


class LeadForCausalLMMixin(_LoadsPlainBackbone):
    """LM head, losses and generation of a LEAD model.

    Forward takes the backbone's arguments, those of [`LeadModelMixin`] and:

    Args:
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            Token ids to learn, -100 where there is nothing to learn.
        expert_labels (`torch.FloatTensor` of shape `(batch_size, num_experts)`, *optional*):
            1 present, 0 absent, anything negative or NaN unknown (ignored).
        num_known_labels (`int` or `torch.Tensor`, *optional*):
            Known labels of all batches that one optimizer step adds up. The expert loss is then this batch's part of
            their mean, as `num_items_in_batch` makes the language loss a part of the mean over tokens.
    """

    inner_class: ClassVar[type[nn.Module]]
    # of the backbone
    config: Any
    model: Any
    loss_function: Any

    def __init__(self, config: Any) -> None:
        # The backbone's __init__ would build the backbone's inner model; its parent's builds none.
        super(self.backbone_class, self).__init__(config)  # type: ignore[attr-defined,call-arg]
        self.model = self.inner_class(config)
        text_config = config.get_text_config()
        self.lm_head = nn.Linear(text_config.hidden_size, text_config.vocab_size, bias=False)
        self.post_init()  # type: ignore[attr-defined]

    @property
    def is_gradient_checkpointing(self) -> bool:
        """The old name of `is_activation_checkpointing`, which PEFT and TRL read and transformers warns of."""
        return self.is_activation_checkpointing  # type: ignore[attr-defined]

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        expert_labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        num_known_labels: int | torch.Tensor | None = None,
        **kwargs: Any,
    ) -> LeadCausalLMOutput:
        num_items_in_batch = kwargs.pop("num_items_in_batch", None)
        kwargs.pop("return_dict", None)
        outputs = self.model(input_ids=input_ids, return_dict=True, **kwargs)
        logits = self.lm_head(slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep))
        language_loss = expert_loss = None
        if labels is not None:
            language_loss = self.loss_function(
                logits=logits,
                labels=labels,
                vocab_size=self.config.get_text_config().vocab_size,
                num_items_in_batch=num_items_in_batch,
            )
        if expert_labels is not None:
            if outputs.expert_logits is None:
                raise ValueError("`expert_labels` were given without an image. Pass `pixel_values` too.")
            expert_loss = expert_cross_entropy(outputs.expert_logits, expert_labels, num_known_labels)
            if num_known_labels is None and labels is not None and num_items_in_batch is not None:
                # The language loss is now this batch's part of a mean over several batches (gradient accumulation)
                # or processes. Parts of the expert loss must add up to a mean too, or lambda would grow with them.
                share = (labels[..., 1:] != -100).sum() / num_items_in_batch
                expert_loss = expert_loss * share.to(expert_loss.device)
        loss = language_loss
        if expert_loss is not None:
            weighted = self.config.lead_config.expert_loss_weight * expert_loss
            loss = weighted if loss is None else loss + weighted.to(loss.device)
        return LeadCausalLMOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            image_outputs=outputs.image_outputs,
            language_loss=language_loss,
            expert_loss=expert_loss,
            expert_logits=outputs.expert_logits,
            gates=outputs.gates,
        )

    @torch.no_grad()
    def predict_experts(
        self,
        pixel_values: torch.Tensor,
        input_ids: torch.LongTensor | None = None,
        image_grid_thw: torch.Tensor | None = None,
        image_sizes: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """What the experts see, without running the language model.

        Args:
            pixel_values, image_grid_thw, image_sizes: the images, as in `forward`.
            input_ids: (B, T); tells which sample an image belongs to. Without them each image is a sample.
            kwargs: the other inputs of a batch; not looked at.

        Returns:
            (B, C) float32 probabilities, NaN in rows without an image.
        """
        layout = {"image_grid_thw": image_grid_thw, "image_sizes": image_sizes}
        layout = {name: value for name, value in layout.items() if value is not None}
        accepted = inspect.signature(self.model.get_image_features).parameters
        image_outputs = self.model.get_image_features(
            pixel_values, return_dict=True, **{name: layout[name] for name in layout if name in accepted}
        )
        batch_size = len(image_outputs.pooler_output) if input_ids is None else len(input_ids)
        _, logits = self.model.prepare_lead_states(image_outputs, input_ids, batch_size, **layout)
        return logits.float().sigmoid()

    def predicted_observations(self, probabilities: torch.Tensor) -> list[list[str] | None]:
        """Names of the predicted observations of each sample, for the prompt.

        Args:
            probabilities: (B, C), see `predict_experts`.

        Returns:
            Names from `config.lead_config.expert_threshold` on, in the experts' order; "No Finding" only alone; None
            for a sample without an image.
        """
        lead = self.config.lead_config
        names: list[list[str] | None] = []
        for row in probabilities.tolist():
            if any(value != value for value in row):
                names.append(None)
                continue
            found = [
                name for name, value in zip(lead.expert_names, row, strict=True) if value >= lead.expert_threshold
            ]
            names.append([name for name in found if name != NO_FINDING] or found)
        return names

    def prompt_observations(self, **inputs: Any) -> list[list[str] | None] | None:
        """What expert prompting writes into the prompts of a batch.

        Args:
            inputs: a batch whose prompts name no observations; see `predict_experts`.

        Returns:
            See `predicted_observations`; None for a model that is prompted without.
        """
        if not self.config.lead_config.expert_prompting:
            return None
        return self.predicted_observations(self.predict_experts(**inputs))

    def _maybe_prepare_encoder_kwargs_for_generation(
        self,
        inputs_tensor: torch.Tensor,
        model_kwargs: dict[str, Any],
        model_input_name: str | None,
        generation_config: Any,
    ) -> dict[str, Any]:
        # Runs before rows are repeated for beams and return sequences: the states are computed once per sample, and
        # generate() repeats them like any other tensor and passes them to every step.
        layout = {name: model_kwargs[name] for name in _LAYOUT_ARGUMENTS if model_kwargs.get(name) is not None}
        model_kwargs = super()._maybe_prepare_encoder_kwargs_for_generation(  # type: ignore[misc]
            inputs_tensor, model_kwargs, model_input_name, generation_config
        )
        image_outputs = (model_kwargs.get("mm_encoder_outputs") or {}).get("image")
        if image_outputs is not None and model_kwargs.get("lead_states") is None:
            input_ids = inputs_tensor if model_input_name != "inputs_embeds" else model_kwargs.get("input_ids")
            if input_ids is not None and input_ids.shape[1] == 0:
                input_ids = None
            states, logits = self.model.prepare_lead_states(image_outputs, input_ids, len(inputs_tensor), **layout)
            if states is None:  # nothing is injected; an empty state says that the experts need not run again
                states = logits.new_zeros(len(logits), 0, 0)
            model_kwargs["lead_states"] = states
        return model_kwargs


def _with_backbone_signature(forward: Callable[..., Any], backbone: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` under the backbone's signature plus LEAD's arguments.

    generate() and Trainer read a model's signature to learn what it takes.
    """

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            names = [name for name in inspect.signature(backbone).parameters if name != "self"]
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        return forward(self, **kwargs)

    signature = inspect.signature(backbone)
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in ("expert_labels", "num_known_labels", "lead_states", "output_gates")
    ]
    parameters = list(signature.parameters.values())
    place = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    wrapped.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters[:place], *own, *parameters[place:]], return_annotation=LeadCausalLMOutput
    )
    wrapped.__name__, wrapped.__doc__ = "forward", forward.__doc__
    wrapped.__qualname__ = forward.__qualname__
    return wrapped


class LeadQwen3VLForCausalLM(LeadForCausalLMMixin, Qwen3VLForConditionalGeneration):
    """LEAD on Qwen3-VL (2B, 4B, 8B, ...): image and chat prompt in, report out.

    `from_pretrained` takes a saved LEAD model or a plain `Qwen/Qwen3-VL-*` checkpoint.
    """

    config: LeadQwen3VLConfig
    config_class = LeadQwen3VLConfig
    inner_class = LeadQwen3VLModel
    backbone_class = Qwen3VLForConditionalGeneration
    forward = _with_backbone_signature(LeadForCausalLMMixin.forward, Qwen3VLForConditionalGeneration.forward)


class LeadInternVLForCausalLM(LeadForCausalLMMixin, InternVLForConditionalGeneration):
    """LEAD on InternVL (the `-hf` checkpoints); see [`LeadQwen3VLForCausalLM`]."""

    config: LeadInternVLConfig
    config_class = LeadInternVLConfig
    inner_class = LeadInternVLModel
    backbone_class = InternVLForConditionalGeneration
    forward = _with_backbone_signature(LeadForCausalLMMixin.forward, InternVLForConditionalGeneration.forward)


class LeadMistral3ForCausalLM(LeadForCausalLMMixin, Mistral3ForConditionalGeneration):
    """LEAD on Mistral 3 and Ministral 3; see [`LeadQwen3VLForCausalLM`]."""

    config: LeadMistral3Config
    config_class = LeadMistral3Config
    inner_class = LeadMistral3Model
    backbone_class = Mistral3ForConditionalGeneration
    forward = _with_backbone_signature(LeadForCausalLMMixin.forward, Mistral3ForConditionalGeneration.forward)


def expert_cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, num_known: int | torch.Tensor | None = None
) -> torch.Tensor:
    """Mean binary cross-entropy over known labels (Sec. II-D), in float32.

    Args:
        logits: (B, C); a NaN row has no image and is ignored.
        labels: (B, C); 1 present, 0 absent, negative or NaN unknown.
        num_known: divide the sum by this instead of the known labels of these rows.

    Returns:
        A scalar; 0 (with a gradient of 0) when no label is known.

    Raises:
        ValueError: shapes differ, or a label above 0 is not 1.
    """
    if logits.shape != labels.shape:
        raise ValueError(
            f"`expert_labels` has shape {tuple(labels.shape)}, the experts' logits {tuple(logits.shape)}."
        )
    labels = labels.to(device=logits.device, dtype=torch.float32)
    known = (labels >= 0) & ~logits.isnan()  # NaN >= 0 is False
    targets = torch.where(known, labels, 0.0)
    if bool(((targets != 0) & (targets != 1)).any()):
        raise ValueError("`expert_labels` holds values other than 0, 1 and unknown (negative or NaN).")
    losses = F.binary_cross_entropy_with_logits(
        torch.where(known, logits.float(), 0.0), targets, weight=known.float(), reduction="sum"
    )
    count = known.sum() if num_known is None else torch.as_tensor(num_known, device=losses.device)
    return losses / count.clamp(min=1)


def _segment_means(values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Means over consecutive runs of rows: (N, D) and (S,) with sum N -> (S, D)."""
    lengths = lengths.to(values.device)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    sums = values.new_zeros(len(lengths), values.shape[-1], dtype=torch.float32).index_add(0, owner, values.float())
    return (sums / lengths.unsqueeze(-1)).to(values.dtype)


def _stack_gates(gates: list[torch.Tensor] | None) -> torch.Tensor | None:
    if not gates:
        return None
    return torch.stack([gate.to(gates[0].device) for gate in gates], dim=1)


def _register_key_renaming() -> None:
    """Give the subclasses their backbones' renaming of old checkpoint keys.

    transformers looks it up by class, so a subclass would skip it and silently keep a random language model.
    """
    for outer, inner, model_type, inner_name in (
        (LeadInternVLForCausalLM, LeadInternVLModel, "internvl", "InternVLModel"),
        (LeadMistral3ForCausalLM, LeadMistral3Model, "mistral3", "Mistral3Model"),
        (LeadQwen3VLForCausalLM, LeadQwen3VLModel, "qwen3_vl", "Qwen3VLModel"),
    ):
        for cls, key in ((outer, model_type), (inner, inner_name)):
            mapping = get_checkpoint_conversion_mapping(key)
            if mapping:
                register_checkpoint_conversion_mapping(cls.__name__, mapping, overwrite=True)


_register_key_renaming()

__all__ = [
    "LeadInternVLForCausalLM",
    "LeadInternVLModel",
    "LeadMistral3ForCausalLM",
    "LeadMistral3Model",
    "LeadQwen3VLForCausalLM",
    "LeadQwen3VLModel",
    "expert_cross_entropy",
]
