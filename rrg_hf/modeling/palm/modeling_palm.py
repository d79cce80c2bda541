"""PALM: image (and indication) in, radiology report out.

Source: "Learning to See Locally and Align Clinically with Pathology Semantics for Radiology Report Generation",
Sec. 3.2 and 3.4. The training-only parts are beside this file: Masked Evidence Modeling (3.1) and pathology-aware
alignment (3.3).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.generation import GenerationMixin
from transformers.modeling_utils import PreTrainedModel
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.dinov2.modeling_dinov2 import Dinov2Model
from transformers.models.gpt2.modeling_gpt2 import GPT2Model
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from .configuration_palm import PalmConfig
from .convert_palm import BackboneReport, load_backbones, load_text_tokenizer
from .layers_palm import PalmFusion, PalmProjection
from .outputs_palm import PalmModelOutput, PalmReportGenerationOutput

logger = logging.get_logger(__name__)

_COINCIDENT_COSINE = 0.999


class PalmPreTrainedModel(PreTrainedModel):
    config: PalmConfig
    config_class = PalmConfig
    base_model_prefix = "model"
    input_modalities = ["image", "text"]  # noqa: RUF012 (transformers declares it on the base class)
    supports_gradient_checkpointing = True
    _no_split_modules = ["Dinov2Layer", "BertLayer", "GPT2Block", "PalmLayer"]  # noqa: RUF012
    _supports_sdpa = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, PalmModel):
            init.normal_(module.prototypes, mean=0.0, std=self.config.initializer_range)


class PalmModel(PalmPreTrainedModel):
    """Everything but the LM head: encoders, projections, prototypes, fusion and decoder.

    Args:
        config: shapes and choices.
    """

    def __init__(self, config: PalmConfig) -> None:
        super().__init__(config)
        decoder_width = config.decoder_config.hidden_size
        self.vision_model = Dinov2Model(config.vision_config)
        self.text_model = BertModel(config.text_config, add_pooling_layer=False)
        self.image_projection = PalmProjection(config, config.vision_config.hidden_size)
        self.text_projection = PalmProjection(config, config.text_config.hidden_size)
        self.prototypes = nn.Parameter(torch.empty(config.num_prototypes, config.projection_dim))
        self.fusion = PalmFusion(config)
        self.decoder_projection: nn.Module = nn.Identity()
        if config.projection_dim != decoder_width:
            self.decoder_projection = nn.Linear(config.projection_dim, decoder_width)
        self.decoder: Any = GPT2Model(config.decoder_config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.wte

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.wte = value

    def set_trainable(self, stage: str | None = None) -> None:
        """Set `requires_grad` for a training stage, so that every trainable weight of it gets a gradient.

        Args:
            stage: "mem" trains the visual encoder; "align" both encoders, the projections and the prototypes;
                "generate" all but the prototypes; None everything. DINOv2's own mask token takes part in none of the
                three.
        """
        if stage not in (None, "mem", "align", "generate"):
            raise ValueError(f"Unknown stage {stage!r}. Use 'mem', 'align', 'generate' or None.")
        self.requires_grad_(stage in (None, "generate"))
        if stage is None:
            return
        self.vision_model.requires_grad_(True)
        if self.vision_model.embeddings.mask_token is not None:
            self.vision_model.embeddings.mask_token.requires_grad_(False)
        for module in (self.text_model, self.image_projection, self.text_projection):
            module.requires_grad_(stage != "mem")
        self.prototypes.requires_grad_(stage == "align" and self.config.alignment == "prototype")

    def get_image_features(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """F_I of Eq. 7.

        Args:
            pixel_values: (B, 3, H, W), normalised; H and W at least one patch.

        Returns:
            (B, N_I, D): [CLS], then the patches row by row.
        """
        return self.image_projection(self.vision_model(pixel_values=pixel_values).last_hidden_state)

    def get_text_features(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """F_T of Eq. 7.

        Args:
            input_ids: (B, N_T) ids of the text encoder's tokenizer.
            attention_mask: (B, N_T), 1 for tokens and 0 for padding.

        Returns:
            (B, N_T, D); the first token is [CLS].
        """
        limit = self.config.text_config.max_position_embeddings
        if input_ids.shape[1] > limit:
            raise ValueError(
                f"{input_ids.shape[1]} tokens, but the text encoder has {limit} positions. Lower `text_max_length` or "
                "`indication_max_length` of the processor."
            )
        hidden = self.text_model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.text_projection(hidden)

    def pool(self, features: torch.Tensor) -> torch.Tensor:
        """z of Eq. 8: the [CLS] token of (B, N, D) features, as (B, D), of unit length by default."""
        return self.normalize(features[:, 0])

    def normalize(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Unit length along the last axis, or the input itself with `normalize_embeddings=False`."""
        return nn.functional.normalize(embeddings, dim=-1) if self.config.normalize_embeddings else embeddings

    @torch.no_grad()
    def initialize_prototypes(self, text_tokenizer: Any, names: Sequence[str] | None = None) -> None:
        """Start the prototypes from the text encoder's view of pathology names (Sec. 3.3).

        Args:
            text_tokenizer: the text encoder's tokenizer, or a [`PalmProcessor`].
            names: one per prototype, in order; as many of `config.prototype_names` as there are prototypes by
                default. Prototypes beyond the names keep their values.

        Raises:
            ValueError: more `names` than prototypes, or none.
        """
        if names is None:
            names, unused = (
                self.config.prototype_names[: self.config.num_prototypes],
                self.config.prototype_names[self.config.num_prototypes :],
            )
            if unused:
                logger.warning("%d prototypes: the names %s start none.", self.config.num_prototypes, unused)
        names = list(names)
        if not names:
            raise ValueError("No prototype names given. Pass `names`, or leave the prototypes at their random start.")
        if len(names) > self.config.num_prototypes:
            raise ValueError(
                f"{len(names)} names for {self.config.num_prototypes} prototypes. "
                "Raise `num_prototypes` or shorten `prototype_names`."
            )
        tokenizer = getattr(text_tokenizer, "text_tokenizer", text_tokenizer)
        tokens = tokenizer(names, padding=True, return_tensors="pt").to(self.prototypes.device)
        training = self.training
        self.eval()
        embeddings = self.pool(self.get_text_features(tokens["input_ids"], tokens["attention_mask"]))
        self.train(training)
        self.prototypes[: len(names)] = embeddings.to(self.prototypes.dtype)
        directions = nn.functional.normalize(embeddings.float(), dim=-1)
        closest = (directions @ directions.T).fill_diagonal_(-1).max().item()
        if closest > _COINCIDENT_COSINE:
            logger.warning(
                "The text encoder barely tells some prototype names apart (cosine %.4f): their prototypes start "
                "together and alignment may not part them. An untrained text encoder does this; random prototypes "
                "serve better there.",
                closest,
            )

    def encode(
        self,
        pixel_values: torch.Tensor,
        indication_input_ids: torch.Tensor | None = None,
        indication_attention_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The decoder's memory U (Eq. 14).

        Args:
            pixel_values: (B, 3, H, W).
            indication_input_ids: (B, N_Ind) ids of the text encoder's tokenizer, or None when no study has an
                indication. A row whose mask is all 0 is a study without one.
            indication_attention_mask: (B, N_Ind); all ones by default.

        Returns:
            U, (B, N_U, D), and its mask, (B, N_U), or None when there is nothing to mask.
        """
        image_features = self.get_image_features(pixel_values)
        if indication_input_ids is None:
            return self.fusion(image_features)
        if indication_input_ids.shape[0] != pixel_values.shape[0]:
            raise ValueError(
                f"{pixel_values.shape[0]} images but {indication_input_ids.shape[0]} indications. Give one indication "
                "per image, None where there is none."
            )
        if indication_attention_mask is None:
            indication_attention_mask = torch.ones_like(indication_input_ids)
        # A row without any visible token would make softmax divide zero by zero. The text encoder may look at its
        # padding; the fusion never sees the result.
        text_mask = indication_attention_mask.clone()
        text_mask[:, 0] = 1
        indication_features = self.get_text_features(indication_input_ids, text_mask)
        return self.fusion(image_features, indication_features, indication_attention_mask)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        indication_input_ids: torch.Tensor | None = None,
        indication_attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> PalmModelOutput:
        """
        Args:
            input_ids: (B, T) decoder token ids. With a filled `cache`, only the new ones.
            attention_mask: (B, T_past + T), 1 for tokens and 0 for padding.
            pixel_values: (B, 3, H, W); not needed when `encoder_hidden_states` is given.
            indication_input_ids: (B, N_Ind), text encoder ids.
            indication_attention_mask: (B, N_Ind).
            encoder_hidden_states: U, (B, N_U, D), from `encode`.
            encoder_attention_mask: (B, N_U), from `encode`.
            position_ids: (B, T) positions of the tokens in the report; counted from `attention_mask` by default.
            inputs_embeds: (B, T, d), instead of `input_ids`.
            cache: keys and values of earlier tokens.
            use_cache: whether to return the cache.
            kwargs: passed to the decoder, e.g. `output_attentions`.

        Returns:
            [`PalmModelOutput`], or a tuple with `return_dict=False`.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give exactly one of `input_ids` and `inputs_embeds`.")
        if kwargs.get("output_attentions") and self.decoder.config._attn_implementation != "eager":
            raise ValueError(
                f"Attention weights are not computed by {self.decoder.config._attn_implementation!r} attention. Call "
                "`model.set_attn_implementation('eager')` or load with `attn_implementation='eager'`."
            )
        if encoder_hidden_states is None:
            if pixel_values is None:
                raise ValueError("Give `pixel_values`, or `encoder_hidden_states` from `encode`.")
            encoder_hidden_states, encoder_attention_mask = self.encode(
                pixel_values, indication_input_ids, indication_attention_mask
            )
        tokens = input_ids if input_ids is not None else inputs_embeds
        assert tokens is not None  # for the type checker
        if encoder_hidden_states.shape[0] != tokens.shape[0]:
            raise ValueError(
                f"{encoder_hidden_states.shape[0]} images but {tokens.shape[0]} token sequences. Give one of each."
            )
        if position_ids is None and attention_mask is not None and attention_mask.ndim == 2:
            # Padding does not move a report: the first real token is at 0, whichever side the padding is on.
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]

        past = cache.get_seq_length() if cache is not None else 0
        self._check_length(tokens.shape[1], past, encoder_hidden_states.shape[1])

        memory = self.decoder_projection(encoder_hidden_states)
        decoder_inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "attention_mask": attention_mask,
            "position_ids": position_ids,
        }
        hidden_prefix = 0
        if self.config.decoder_input == "cross_attention":
            decoder_inputs |= {"encoder_hidden_states": memory, "encoder_attention_mask": encoder_attention_mask}
        else:
            hidden_prefix = memory.shape[1] if past == 0 else 0
            decoder_inputs |= self._with_prefix(decoder_inputs, memory, encoder_attention_mask, past)

        kwargs["return_dict"] = True
        outputs = self.decoder(**decoder_inputs, cache=cache, use_cache=use_cache, **kwargs)
        hidden_states = outputs.hidden_states
        if hidden_states is not None:
            hidden_states = tuple(layer[:, hidden_prefix:] for layer in hidden_states)
        return PalmModelOutput(
            last_hidden_state=outputs.last_hidden_state[:, hidden_prefix:],
            cache=outputs.cache,
            hidden_states=hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions or None,
            encoder_last_hidden_state=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
        )

    def _check_length(self, new: int, past: int, memory: int) -> None:
        """Past the last position the decoder's lookup would fail with an index error (on GPUs, an assertion)."""
        if self.config.decoder_input == "prefix":
            past = max(past - memory, 0)
        limit = self.config.decoder_config.max_position_embeddings
        if past + new > limit:
            raise ValueError(
                f"A report of {past + new} tokens, but the decoder has {limit} positions. Lower `report_max_length` "
                "of the processor, or `max_new_tokens` when generating."
            )

    def _with_prefix(
        self, inputs: dict[str, Any], memory: torch.Tensor, memory_mask: torch.Tensor | None, past: int
    ) -> dict[str, Any]:
        """Decoder inputs with U in front of the report's tokens (`decoder_input="prefix"`).

        U stands at position 0 throughout: its order is already in it, and 1,370 image tokens would not fit into
        GPT-2's 1,024 positions. The report counts from 0 as it did in pretraining.
        """
        embeddings = inputs["inputs_embeds"]
        if embeddings is None:
            embeddings = self.decoder.wte(inputs["input_ids"])
        batch, length = embeddings.shape[:2]
        prefix = memory.shape[1]
        past_tokens = max(past - prefix, 0)
        mask, positions = inputs["attention_mask"], inputs["position_ids"]
        if mask is None:
            mask = torch.ones(batch, past_tokens + length, dtype=torch.long, device=embeddings.device)
        if positions is None:
            positions = torch.arange(past_tokens, past_tokens + length, device=embeddings.device)[None]
        positions = positions.expand(batch, -1)
        if memory_mask is None:
            memory_mask = mask.new_ones(batch, prefix)
        if past == 0:
            embeddings = torch.cat([memory.to(embeddings.dtype), embeddings], dim=1)
            positions = torch.cat([positions.new_zeros(batch, prefix), positions], dim=1)
        return {
            "input_ids": None,
            "inputs_embeds": embeddings,
            "attention_mask": torch.cat([memory_mask.to(mask.dtype), mask], dim=1),
            "position_ids": positions,
        }


class PalmForReportGeneration(PalmPreTrainedModel, GenerationMixin):
    """PALM with its language-modelling head: writes reports (Sec. 3.4).

    It has the shape of a decoder-only model with extra inputs, so that `generate` and TRL's trainers take it as it is.

    Args:
        config: shapes and choices.

    Example:

    ```python
    >>> import rrg_hf
    >>> from transformers import AutoModelForImageTextToText, AutoProcessor

    >>> model = AutoModelForImageTextToText.from_pretrained("path/to/palm")
    >>> processor = AutoProcessor.from_pretrained("path/to/palm")
    >>> inputs = processor(images=image, indication="Cough.")
    >>> processor.batch_decode(model.generate(**inputs, num_beams=3), skip_special_tokens=True)
    ```"""

    _tied_weights_keys = {"lm_head.weight": "model.decoder.wte.weight"}  # noqa: RUF012

    def __init__(self, config: PalmConfig) -> None:
        super().__init__(config)
        self.model = PalmModel(config)
        self.lm_head = nn.Linear(config.decoder_config.hidden_size, config.decoder_config.vocab_size, bias=False)
        self.loss_type = "ForCausalLM"
        # What `from_backbones` did; None for a model built or loaded in any other way.
        self.backbone_report: BackboneReport | None = None
        self.post_init()
        if self.generation_config.pad_token_id is None:
            eos = self.generation_config.eos_token_id
            self.generation_config.pad_token_id = eos[0] if isinstance(eos, list) else eos

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.lm_head = new_embeddings

    def get_decoder(self) -> nn.Module:
        return self.model.decoder

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
        indication_input_ids: torch.Tensor | None = None,
        indication_attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **kwargs: Any,
    ) -> PalmReportGenerationOutput:
        """The arguments of [`PalmModel.forward`], and

        Args:
            labels: (B, T) decoder ids to predict, -100 where there is nothing to predict. Position t is predicted
                from the tokens before t: pass the ids themselves, unshifted.
            logits_to_keep: number of last positions, or an index tensor, to compute logits for; 0 for all.

        Returns:
            [`PalmReportGenerationOutput`], or a tuple with `return_dict=False`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            pixel_values=pixel_values,
            indication_input_ids=indication_input_ids,
            indication_attention_mask=indication_attention_mask,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            cache=cache,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            vocab_size = self.config.decoder_config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=vocab_size, **kwargs)
        return PalmReportGenerationOutput(
            loss=loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_attention_mask=outputs.encoder_attention_mask,
        )

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        *,
        pixel_values: torch.Tensor | None = None,
        indication_input_ids: torch.Tensor | None = None,
        indication_attention_mask: torch.Tensor | None = None,
        encoder_hidden_states: torch.Tensor | None = None,
        encoder_attention_mask: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """Write reports. The image and the indication are encoded once, however many beams or samples are asked for.

        Args:
            inputs: (B, T) decoder ids to continue, padded on the left; also as `input_ids`. The BOS token by default.
            pixel_values: (B, 3, H, W).
            indication_input_ids: (B, N_Ind), text encoder ids.
            indication_attention_mask: (B, N_Ind); a row of zeros is a study without an indication.
            encoder_hidden_states: U from `encode`, instead of the three above.
            encoder_attention_mask: U's mask from `encode`.
            kwargs: `num_beams`, `max_new_tokens`, `do_sample`, ... as in [`GenerationMixin.generate`].

        Returns:
            (B * num_return_sequences, T + new) ids that begin with the prompt, or a generation output object with
            `return_dict_in_generate=True`.
        """
        if encoder_hidden_states is None:
            if pixel_values is None:
                raise ValueError("`generate` needs `pixel_values`, or `encoder_hidden_states` from `encode`.")
            encoder_hidden_states, encoder_attention_mask = self.model.encode(
                pixel_values, indication_input_ids, indication_attention_mask
            )
        input_ids = kwargs.pop("input_ids", None)
        if inputs is not None and input_ids is not None:
            raise ValueError("Give the prompt as `inputs` or as `input_ids`, not both.")
        inputs = input_ids if inputs is None else inputs
        if inputs is None:
            generation_config = kwargs.get("generation_config") or self.generation_config
            bos = kwargs.get("bos_token_id", generation_config.bos_token_id)
            bos = self.config.bos_token_id if bos is None else bos
            if bos is None:
                raise ValueError("No BOS token: set `bos_token_id` in the configuration, or pass `input_ids`.")
            inputs = torch.full(
                (encoder_hidden_states.shape[0], 1), bos, dtype=torch.long, device=encoder_hidden_states.device
            )
            kwargs.pop("attention_mask", None)
        if kwargs.get("attention_mask") is None:
            # Stated, because BOS is also GPT-2's padding token and `generate` would take the prompt for padding.
            kwargs["attention_mask"] = torch.ones_like(inputs)
        if self.config.decoder_input == "prefix" and kwargs.get("cache_implementation") == "static":
            raise ValueError(
                "A static cache has no room for the prefix tokens of `decoder_input='prefix'`. Use the default cache."
            )
        return super().generate(
            inputs,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            **kwargs,
        )

    @classmethod
    def from_backbones(
        cls,
        vision: str | os.PathLike[str],
        text: str | os.PathLike[str],
        decoder: str | os.PathLike[str],
        *,
        text_tokenizer: Any = None,
        initialize_prototypes: bool = True,
        hub_kwargs: dict[str, Any] | None = None,
        **config_kwargs: Any,
    ) -> PalmForReportGeneration:
        """Build PALM from three pretrained backbones.

        Projections, fusion and cross-attention start at random (seed first). The prototypes start from the encoded
        pathology names when a text tokenizer is given or found beside the text encoder.

        Args:
            vision: folder or Hub id of a DINOv2 checkpoint, such as `microsoft/rad-dino`.
            text: of a BERT checkpoint, such as `microsoft/BiomedVLP-CXR-BERT-specialized`. Of CXR-BERT the BERT part
                is read, without running its remote code.
            decoder: of a GPT-2 checkpoint, such as `distilgpt2`.
            text_tokenizer: the text encoder's tokenizer; looked for in `text` by default.
            initialize_prototypes: False leaves the prototypes at their random start, for an untrained text encoder.
            hub_kwargs: download options such as `revision` or `cache_dir`, for all three.
            config_kwargs: fields of [`PalmConfig`].

        Returns:
            The model, in float32 and eval mode, with `backbone_report` saying what was loaded, dropped and new.

        Raises:
            ValueError: a checkpoint of another architecture, or one whose encoder weights are missing or unknown.
        """
        hub_kwargs = dict(hub_kwargs or {})
        backbones, report = load_backbones(vision, text, decoder, config_kwargs, hub_kwargs)
        config = PalmConfig(
            vision_config=backbones["vision_model"].config,
            text_config=backbones["text_model"].config,
            decoder_config=backbones["decoder"].config,
            **config_kwargs,
        )
        for part in (config.vision_config, config.text_config, config.decoder_config):
            if Path(part._name_or_path).is_dir():
                part._name_or_path = ""  # a folder of this machine does not belong into a published config.json
        model = cls(config)
        for name, backbone in backbones.items():
            getattr(model.model, name).load_state_dict(backbone.state_dict(), strict=True)
        model.tie_weights()
        if initialize_prototypes and text_tokenizer is None:
            text_tokenizer = load_text_tokenizer(text, hub_kwargs)
        if not initialize_prototypes or not config.prototype_names:
            logger.info("The prototypes start at random, as asked.")
        elif text_tokenizer is None:
            logger.warning("No text tokenizer found in %s: the prototypes start at random.", text)
        else:
            model.model.initialize_prototypes(text_tokenizer)
        model.backbone_report = report
        logger.info("%s", report)
        return model.eval()


__all__ = [
    "PalmForReportGeneration",
    "PalmModel",
    "PalmPreTrainedModel",
]
