"""Registers the models of this package with the transformers Auto classes, without importing transformers.

`import transformers` costs more than a second, so `import rrg_hf` must not do it. The registration therefore waits
for the module that holds each Auto mapping: at once when it is already imported, else right after its import.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_AUTO = "transformers.models.auto"

# model_type -> (configuration class, {name of an Auto mapping: class}), both by the module under rrg_hf.modeling
_LEAD, _LEAD_PROCESSING = "lead.modeling_lead", "lead.processing_lead"
_MODELS: dict[str, tuple[tuple[str, str], dict[str, tuple[str, str]]]] = {
    "chexbert": (
        ("chexbert.configuration_chexbert", "CheXbertConfig"),
        {
            "MODEL_MAPPING": ("chexbert.modeling_chexbert", "CheXbertForReportLabeling"),
            "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING": ("chexbert.modeling_chexbert", "CheXbertForReportLabeling"),
        },
    ),
    "lead_internvl": (
        ("lead.configuration_lead", "LeadInternVLConfig"),
        {
            "MODEL_MAPPING": (_LEAD, "LeadInternVLModel"),
            "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING": (_LEAD, "LeadInternVLForCausalLM"),
            "PROCESSOR_MAPPING": (_LEAD_PROCESSING, "LeadInternVLProcessor"),
        },
    ),
    "lead_mistral3": (
        ("lead.configuration_lead", "LeadMistral3Config"),
        {
            "MODEL_MAPPING": (_LEAD, "LeadMistral3Model"),
            "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING": (_LEAD, "LeadMistral3ForCausalLM"),
            "PROCESSOR_MAPPING": (_LEAD_PROCESSING, "LeadMistral3Processor"),
        },
    ),
    "lead_qwen3_vl": (
        ("lead.configuration_lead", "LeadQwen3VLConfig"),
        {
            "MODEL_MAPPING": (_LEAD, "LeadQwen3VLModel"),
            "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING": (_LEAD, "LeadQwen3VLForCausalLM"),
            "PROCESSOR_MAPPING": (_LEAD_PROCESSING, "LeadQwen3VLProcessor"),
        },
    ),
    "palm": (
        ("palm.configuration_palm", "PalmConfig"),
        {
            "MODEL_MAPPING": ("palm.modeling_palm", "PalmModel"),
            "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING": ("palm.modeling_palm", "PalmForReportGeneration"),
            "PROCESSOR_MAPPING": ("palm.processing_palm", "PalmProcessor"),
        },
    ),
    "radgraph": (
        ("radgraph.configuration_radgraph", "RadGraphConfig"),
        {"MODEL_MAPPING": ("radgraph.modeling_radgraph", "RadGraphModel")},
    ),
}


class _Import:
    """Imports a class of rrg_hf.modeling when called."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = f"{__package__}.modeling.{module}", name

    def __call__(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


class _OnFirstUse(dict[Any, Any]):
    """A dict some of whose values, and of whose keys that are classes, are imported when they are first asked for.

    Importing any transformers model loads the Auto mappings half-way through, so a registration may not import our own
    modules yet, not even configurations: they would need the very modules that are still loading.
    """

    def __init__(self, ready: dict[Any, Any]) -> None:
        super().__init__(ready)
        self._waiting: dict[str, tuple[_Import, _Import]] = {}  # by the key's module and name

    def wait_for(self, key: _Import, value: _Import) -> None:
        """An entry whose key is a class that is not imported yet."""
        self._waiting[f"{key.module}.{key.name}"] = (key, value)

    def _settle(self) -> None:
        while self._waiting:
            _, (key, value) = self._waiting.popitem()
            self.setdefault(key(), value)

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or _path(key) in self._waiting

    def __getitem__(self, key: Any) -> Any:
        if (entry := self._waiting.pop(_path(key), None)) is not None:
            self[key] = entry[1]
        value = super().__getitem__(key)
        if isinstance(value, _Import):
            value = self[key] = value()
        return value

    def __len__(self) -> int:
        return super().__len__() + len(self._waiting)

    def __iter__(self) -> Iterator[Any]:  # overridden so that dict(self) reads the entries
        self._settle()
        return super().__iter__()

    def keys(self) -> Any:
        self._settle()
        return super().keys()

    def items(self) -> Any:
        return {key: self[key] for key in self}.items()

    def values(self) -> Any:
        return {key: self[key] for key in self}.values()


def _path(key: Any) -> str:
    return f"{key.__module__}.{key.__qualname__}" if isinstance(key, type) else ""


def _extra_content(mapping: Any) -> _OnFirstUse:
    """What others add to an Auto mapping, with our entries waiting in it."""
    if not isinstance(mapping._extra_content, _OnFirstUse):
        mapping._extra_content = _OnFirstUse(mapping._extra_content)
    return mapping._extra_content


def _register_configs() -> None:
    content = _extra_content(sys.modules[f"{_AUTO}.configuration_auto"].CONFIG_MAPPING)
    for model_type, (config, _) in _MODELS.items():
        content.setdefault(model_type, _Import(*config))


def _register_classes(module: str) -> None:
    """Our classes in those Auto mappings that a module defines."""
    defined = vars(sys.modules[module])
    for config, classes in _MODELS.values():
        for mapping, entry in classes.items():
            if mapping in defined:
                _extra_content(defined[mapping]).wait_for(_Import(*config), _Import(*entry))


def _register_pipelines() -> None:
    importlib.import_module(".pipeline", __package__)  # registers its task when it is imported


_REGISTRATIONS: dict[str, Callable[[], None]] = {
    f"{_AUTO}.configuration_auto": _register_configs,
    f"{_AUTO}.modeling_auto": partial(_register_classes, f"{_AUTO}.modeling_auto"),
    f"{_AUTO}.processing_auto": partial(_register_classes, f"{_AUTO}.processing_auto"),
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
