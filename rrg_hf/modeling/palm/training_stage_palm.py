"""What PALM's two training stages before report generation have in common. Training only."""

from __future__ import annotations

import os
from typing import Any, TypeVar

import torch
from torch import nn

from .configuration_palm import PalmConfig
from .modeling_palm import PalmForReportGeneration, PalmPreTrainedModel

StageType = TypeVar("StageType", bound="PalmTrainingStage")


class PalmTrainingStage(PalmPreTrainedModel):
    """A loss around a PALM model, which it shares and does not copy: training the stage trains that model.

    Saving a stage saves the model, as a [`PalmForReportGeneration`] folder that the next stage, or generation, loads.
    What belongs to the stage alone (teacher, predictor, queue) is left out.

    Args:
        config: shapes and choices.
        palm: the model to train; a new one by default.
    """

    stage: str
    main_input_name = "pixel_values"
    # Trainer: the loss is a mean already and takes no `num_items_in_batch`.
    accepts_loss_kwargs = False

    def __init__(self, config: PalmConfig, palm: PalmForReportGeneration | None = None) -> None:
        super().__init__(config)
        if palm is None:
            palm = PalmForReportGeneration(config)
        # In a tuple, so that the LM head does not become a part of the stage.
        self._palm = (palm,)
        self.model = palm.model
        self.model.set_trainable(self.stage)

    @classmethod
    def from_palm(cls: type[StageType], model: PalmForReportGeneration, **kwargs: Any) -> StageType:
        """The stage for a PALM model.

        Args:
            model: `.model` of it is shared with the stage, and only the weights this stage trains keep
                `requires_grad`; `model.model.set_trainable("generate")` turns the others on again.
            kwargs: further arguments of the stage.
        """
        return cls(model.config, model, **kwargs)

    @classmethod
    def from_pretrained(  # type: ignore[override]
        cls: type[StageType], pretrained_model_name_or_path: str | os.PathLike[str], **kwargs: Any
    ) -> StageType:
        """The stage for a saved PALM model; `kwargs` as in [`PreTrainedModel.from_pretrained`]."""
        return cls.from_palm(PalmForReportGeneration.from_pretrained(pretrained_model_name_or_path, **kwargs))

    @property
    def palm(self) -> PalmForReportGeneration:
        """The model this stage trains, with its LM head."""
        return self._palm[0]

    def save_pretrained(  # type: ignore[override]
        self, save_directory: str | os.PathLike[str], **kwargs: Any
    ) -> None:
        """Save the PALM model without the stage's own parts; `kwargs` as in [`PreTrainedModel.save_pretrained`].

        A `state_dict` given for the stage (as `Trainer` does) is reduced to the model's weights.
        """
        state_dict = kwargs.pop("state_dict", None)
        if state_dict is not None:
            kept = {key: value for key, value in state_dict.items() if key.startswith("model.")}
            for key, value in self.palm.state_dict().items():
                kept.setdefault(key, kept["model.decoder.wte.weight"] if self._is_tied_head(key) else value)
            kwargs["state_dict"] = kept
        self.palm.save_pretrained(save_directory, **kwargs)

    def _is_tied_head(self, key: str) -> bool:
        return key in self.palm.all_tied_weights_keys

    def finish_init(self) -> None:
        """`post_init` for a stage: the shared model's weights are final already and must not be drawn anew."""
        for module in self.model.modules():
            module._is_hf_initialized = True
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.vision_model.embeddings.patch_embeddings


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Losses are summed in float32 or better."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


__all__ = ["PalmTrainingStage", "at_least_float32"]
