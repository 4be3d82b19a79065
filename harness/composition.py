"""Hydra composition of cells from the packaged `conf` folder, from anywhere and in milliseconds.

A full composition costs about 30 ms, so it is done once per distinct choice of groups (path, model,
workload); plain values are merged into a copy of it. Nothing is read from the working directory.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from harness.errors import one_line
from harness.overrides import OPTIONAL_GROUPS, nearest, parse_override
from paths.api import UserError
from paths.registry import registered_paths

CONFIG_NAME = "config"


def packaged_conf() -> Path:
    """The conf folder that came with this installation."""
    return Path(next(iter(conf.__path__))).resolve()


@dataclass(frozen=True, kw_only=True)
class _Base:
    """One composition of groups with the keys that values may set."""

    config: DictConfig
    keys: frozenset[str]


class Composer:
    """Composes cells; one per command."""

    def __init__(self, config_dirs: Sequence[Path] = (), *, packaged: Path | None = None) -> None:
        """`packaged`: another folder in place of our conf, for a baseline of another revision."""
        self.folders = (packaged or packaged_conf(), *config_dirs)
        self._plugins = registered_paths()
        self._bases: dict[tuple[str, ...], _Base] = {}
        self._parsed: dict[str, Override] = {}
        self.groups = self._find_groups()

    def compose(self, cell: Sequence[str]) -> dict[str, Any]:
        """The composed configuration of one cell as plain data. Raises UserError."""
        overrides = [self._parse(text) for text in cell]
        groups = tuple(text for text, o in zip(cell, overrides, strict=True) if self._is_group(o))
        values = [o for o in overrides if not self._is_group(o)]
        try:
            base = self._base(groups)
            config = copy.deepcopy(base.config)
            for override in values:
                self._apply(config, base, override)
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
            raise UserError(
                f"cannot compose {' '.join(cell) or 'the defaults'}: {one_line(error)}"
            ) from error
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}

    def _parse(self, text: str) -> Override:
        if text not in self._parsed:
            self._parsed[text] = parse_override(text)
        return self._parsed[text]

    def _is_group(self, override: Override) -> bool:
        return override.key_or_group in self.groups and isinstance(override.value(), str | list)

    def _find_groups(self) -> Mapping[str, list[str]]:
        """Group → its options, over the packaged and the user's folders and the plug-ins."""
        options: dict[str, set[str]] = {"path": set(self._plugins)}
        for folder in self.folders:
            for file in sorted(folder.glob("*/*.yaml")):
                options.setdefault(file.parent.name, set()).add(file.stem)
        return {group: sorted(names) for group, names in options.items()}

    def _base(self, groups: tuple[str, ...]) -> _Base:
        if groups not in self._bases:
            self._bases[groups] = self._compose_groups(groups)
        return self._bases[groups]

    def _compose_groups(self, groups: tuple[str, ...]) -> _Base:
        plugin: str | None = None
        overrides = [search_path_override(self.folders[1:])]
        for text in groups:
            override = self._parse(text)
            self._check_options(override)
            if override.key_or_group == "path" and self._is_plugin(override.value()):
                plugin = str(override.value())
            else:
                overrides.append(f"+{text}" if text.startswith(OPTIONAL_GROUPS) else text)
        with initialize_config_dir(str(self.folders[0]), version_base=None):
            config = compose(CONFIG_NAME, overrides=overrides)
        if plugin is not None:
            OmegaConf.update(config, "path", {"name": plugin, "impl": self._plugins[plugin]}, force_add=True)
        return _Base(config=config, keys=frozenset(_all_keys(OmegaConf.to_container(config))))

    def _check_options(self, override: Override) -> None:
        group, name = override.key_or_group, override.value()
        known = self.groups[group]
        if isinstance(name, list):
            raise UserError(f"{override.input_line}: a cell has one {group}; to sweep, write {group}=a,b")
        if name not in known:
            raise UserError(
                f"{group}={name}: unknown; known: {', '.join(known)}{nearest(str(name), known)}"
                f" Add your own as DIR/{group}/{name}.yaml with --config-dir DIR."
            )

    def _is_plugin(self, name: Any) -> bool:
        files = (folder / "path" / f"{name}.yaml" for folder in self.folders)
        return name in self._plugins and not any(file.is_file() for file in files)

    def _apply(self, config: DictConfig, base: _Base, override: Override) -> None:
        key = override.key_or_group
        if key == "path.name":
            raise UserError(
                f"{override.input_line}: a label says what ran, so it cannot be set; copy the path's YAML to"
                " DIR/path/NAME.yaml, change its name and use --config-dir DIR +path=NAME"
            )
        if key not in base.keys and not (override.is_add() or override.is_force_add()):
            known = base.keys | self.groups.keys()
            raise UserError(
                f"{override.input_line}: unknown key {key}{nearest(key, known)} See --help for all."
            )
        OmegaConf.update(config, key, override.value(), merge=True, force_add=True)


def search_path_override(folders: Sequence[Path]) -> str:
    """Adds the user's folders to Hydra's search path."""
    return f"hydra.searchpath=[{','.join(map(_quoted, folders))}]"


def _quoted(folder: Path) -> str:
    text = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return f"'file://{text}'"


def _all_keys(node: Any, prefix: str = "") -> list[str]:
    """Dotted names of every node below."""
    if not isinstance(node, dict):
        return []
    names: list[str] = []
    for key, value in node.items():
        names.append(f"{prefix}{key}")
        names += _all_keys(value, f"{prefix}{key}.")
    return names
