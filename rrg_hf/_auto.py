"""Registers the models of this package with the transformers Auto classes, without importing transformers.

`import transformers` costs more than a second, so `import rrg_hf` must not do it. The registration therefore waits
for the module that holds each Auto mapping: at once when it is already imported, else right after its import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AUTO = "transformers.models.auto"


class _OnFirstUse(dict[Any, Any]):
    """A dict whose values may be functions without arguments, called when the value is first read.

    Importing any transformers model loads the Auto mappings half-way through, so a registration may not import our own
    models yet: they would need the very modules that are still loading.
    """

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, _Import):
            value = self[key] = value()
        return value

    def __iter__(self) -> Iterator[Any]:  # overridden so that dict(self) reads the values
        return super().__iter__()

    def items(self) -> Any:
        return {key: self[key] for key in self}.items()

    def values(self) -> Any:
        return {key: self[key] for key in self}.values()


class _Import:
    """Imports a class of this package when called."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> Any:
        return getattr(importlib.import_module(f".{self.module}", __package__), self.name)


def _register_on_first_use(mapping: Any, config_class: type, module: str, name: str) -> None:
    """`AutoX.register(config_class, ...)` for a class that is imported when the mapping is asked for it."""
    if not isinstance(mapping._extra_content, _OnFirstUse):
        mapping._extra_content = _OnFirstUse(mapping._extra_content)
    mapping._extra_content[config_class] = _Import(module, name)


def _lead_configs() -> dict[str, Any]:
    """LEAD's backbones by the name that their classes have in the middle."""
    from .modeling.lead.configuration_lead import LeadInternVLConfig, LeadMistral3Config, LeadQwen3VLConfig

    return {"Qwen3VL": LeadQwen3VLConfig, "InternVL": LeadInternVLConfig, "Mistral3": LeadMistral3Config}


def _register_configs() -> None:
    models = getattr(sys.modules.get(f"{_AUTO}.modeling_auto"), "__spec__", None)
    if not getattr(models, "_initializing", False):
        _add_configs()
    # else importing our configurations needs names that modeling_auto has yet to define: `_register_models` does it


def _add_configs() -> None:
    from transformers import AutoConfig

    from .modeling.chexbert.configuration_chexbert import CheXbertConfig
    from .modeling.palm.configuration_palm import PalmConfig
    from .modeling.radgraph.configuration_radgraph import RadGraphConfig

    AutoConfig.register(CheXbertConfig.model_type, CheXbertConfig, exist_ok=True)
    AutoConfig.register(PalmConfig.model_type, PalmConfig, exist_ok=True)
    AutoConfig.register(RadGraphConfig.model_type, RadGraphConfig, exist_ok=True)
    for config_class in _lead_configs().values():
        AutoConfig.register(config_class.model_type, config_class, exist_ok=True)


def _register_models() -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        MODEL_MAPPING,
    )

    from .modeling.chexbert.configuration_chexbert import CheXbertConfig
    from .modeling.palm.configuration_palm import PalmConfig
    from .modeling.radgraph.configuration_radgraph import RadGraphConfig

    _add_configs()
    for mapping in (MODEL_MAPPING, MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING):
        _register_on_first_use(
            mapping, CheXbertConfig, "modeling.chexbert.modeling_chexbert", "CheXbertForReportLabeling"
        )
    _register_on_first_use(MODEL_MAPPING, PalmConfig, "modeling.palm.modeling_palm", "PalmModel")
    _register_on_first_use(MODEL_MAPPING, RadGraphConfig, "modeling.radgraph.modeling_radgraph", "RadGraphModel")
    _register_on_first_use(
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, PalmConfig, "modeling.palm.modeling_palm", "PalmForReportGeneration"
    )
    for name, config_class in _lead_configs().items():
        module = "modeling.lead.modeling_lead"
        _register_on_first_use(MODEL_MAPPING, config_class, module, f"Lead{name}Model")
        _register_on_first_use(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, config_class, module, f"Lead{name}ForCausalLM")


def _register_processors() -> None:
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    from .modeling.palm.configuration_palm import PalmConfig

    _register_on_first_use(PROCESSOR_MAPPING, PalmConfig, "modeling.palm.processing_palm", "PalmProcessor")
    for name, config_class in _lead_configs().items():
        module = "modeling.lead.processing_lead"
        _register_on_first_use(PROCESSOR_MAPPING, config_class, module, f"Lead{name}Processor")


def _register_pipelines() -> None:
    importlib.import_module(".pipeline", __package__)  # registers its task when it is imported


_REGISTRATIONS: dict[str, Callable[[], None]] = {
    f"{_AUTO}.configuration_auto": _register_configs,
    f"{_AUTO}.modeling_auto": _register_models,
    f"{_AUTO}.processing_auto": _register_processors,
    "transformers.pipelines": _register_pipelines,
}


class _AfterImport(Loader):
    """Runs the real loader, then the registration."""

    def __init__(self, loader: Loader, register: Callable[[], None]) -> None:
        self.loader = loader
        self.register = register

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module must look as if nobody had wrapped its loader (pickling and inspect read these).
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.register()


class _AutoModuleFinder(MetaPathFinder):
    """Finds the Auto modules with the finders behind it and wraps their loader once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _REGISTRATIONS:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _AfterImport(spec.loader, _REGISTRATIONS[fullname])
                return spec
        return None


def install() -> None:
    """Register now what can be registered, and the rest when transformers loads it."""
    waiting = False
    for name, register in _REGISTRATIONS.items():
        if name in sys.modules:
            register()
        else:
            waiting = True
    if waiting and not any(isinstance(finder, _AutoModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AutoModuleFinder())


def register_all() -> None:
    """Register everything, importing transformers if need be."""
    for name in _REGISTRATIONS:
        importlib.import_module(name)
    install()
