"""From a YAML file and flags of the same names to a config; what is wrong with them, in one line."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, Namespace

from gpt.errors import UserError
from gpt.training.config import RunConfig

_SECTIONS: dict[str, Any] = {f.name: f.default_factory for f in fields(RunConfig) if is_dataclass(f.default_factory)}
_COMMAND_LINE = "the command line"
_OTHER_OPTIONS = ("config", "resume", "check", "json", "help")  # of train.py, beside the config's keys
# The vocabulary comes with the data, so it is no option.
_SKIPPED = {"model": {"vocab_size"}}


def config_parser() -> ArgumentParser:
    """The options of a run, as jsonargparse shows them in ``--help``: sections and fields with their docstrings."""
    parser = ArgumentParser(prog="train.py", exit_on_error=False, add_help=False)
    parser.add_class_arguments(RunConfig, skip=set(_SECTIONS), sub_configs=False, as_group=True)
    for name, section in _SECTIONS.items():
        parser.add_class_arguments(section, name, skip=_SKIPPED.get(name, set()), sub_configs=False)
    for action in parser._actions:
        if action.dest in _SECTIONS:  # jsonargparse offers a file per section; one file for all is enough
            action.help = SUPPRESS
    return parser


def config_keys() -> list[str]:
    """Every key of the config, as ``section.field`` or, outside the sections, ``field``."""
    skipped = {f"{name}.{key}" for name, keys in _SKIPPED.items() for key in keys}
    return [key for key in flat(asdict(RunConfig())) if key not in skipped]


def flat(config: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping of sections to their keys as one of ``section.key``; what is in no section stays as it is."""
    flattened: dict[str, Any] = {}
    for name, value in config.items():
        keys = {f".{key}": leaf for key, leaf in value.items()} if isinstance(value, dict) else {"": value}
        flattened.update({f"{name}{key}": leaf for key, leaf in keys.items()})
    return flattened


def parse_config(config_file: Path, flags: list[str]) -> RunConfig:
    """Read a YAML file, then flags over it.

    Args:
        config_file: the YAML file; every key is optional.
        flags: ``--section.key value`` or ``--section.key=value``.

    Raises:
        ValueError: an unknown key (with the nearest known one), a wrong type, or a value out of range.
    """
    parser = config_parser()
    content = _read_yaml(config_file)
    for key in flat(content):
        _check_known(key, str(config_file))
    for flag in flags:
        if flag.startswith("--"):
            _check_known(flag[2:].partition("=")[0], _COMMAND_LINE)
    try:
        return _build(parser.parse_args(flags, namespace=parser.parse_object(content)))
    except (ArgumentError, TypeError) as error:
        raise UserError(_readable(str(error))) from None


def _build(values: Namespace) -> RunConfig:
    sections = {name: section(**vars(values[name])) for name, section in _SECTIONS.items()}
    return RunConfig(**{**{f.name: values[f.name] for f in fields(RunConfig) if f.name not in _SECTIONS}, **sections})


def _read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"there is no config file {path}; see configs/ for some")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {_one_line(str(error))}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} must be a mapping of sections to keys, such as 'model: {{num_layers: 4}}'")
    return content


class _StrictLoader(yaml.SafeLoader):
    """Plain values only, and no key twice: of two equal keys, YAML would silently take the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        return mapping


def _check_known(key: str, where: str) -> None:
    known = config_keys()
    if key in known:
        return
    if key in _SECTIONS:
        examples = ", ".join(name for name in known if name.startswith(f"{key}."))
        raise UserError(f"{key!r} in {where} is a section; give its keys: {examples}")
    # A lone field name, or a section misspelt, is matched on the part that is right.
    if where == _COMMAND_LINE:
        known = [*known, *_OTHER_OPTIONS]
    by_last_part = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    nearest = by_last_part or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
    raise UserError(f"unknown key {key!r} in {where}; {hint}")


def _readable(message: str) -> str:
    """Say what jsonargparse says of a wrong value, in this project's words."""
    message = _one_line(message)
    match = re.fullmatch(
        r'Parser key "(.+?)": .*?(Expected a .+?)\.? (?:Got value|Given value type: .+? Given value): (.+)', message
    )
    if match is None:
        return message
    key, wanted, got = match.groups()
    wanted = " or ".join(re.findall(r"Expected a (?:typing\.)?(.+?)(?: - |$)", wanted))
    wanted = re.sub(r"<class '(\w+)'>", r"\1", wanted).replace("Literal", "one of ")
    wanted = re.sub(r"^bool\b", "true or false", wanted)
    return f"{key} is {got!r}; it must be {wanted}"


def _one_line(message: str) -> str:
    return " ".join(message.split())
