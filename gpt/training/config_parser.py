"""Parse a YAML file and flags of the same names to a config; report what is wrong with them in one line."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import SUPPRESS, ArgumentError, ArgumentParser, set_parsing_settings

from gpt.errors import UserError
from gpt.model.config import GPTConfig
from gpt.training.config import RunConfig

_COMMAND_LINE = "the command line"
_OTHER_OPTIONS = ("config", "resume", "check", "json", "help")  # train.py's own
_VOCAB_SIZE = "model.vocab_size"  # comes with the data
_TEXTS = ("run_name", "init_from", "checkpoints_dir", "data.path", "trainer.max_time", "attention_maps.probe_text")
SHAPE = ("context_length", "d_model", "num_layers", "num_heads", "qkv_bias")  # fields of the model that weights define


def config_parser() -> ArgumentParser:
    """The options of a run, whose help is the docstrings of the config's dataclasses."""
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = ArgumentParser(prog="train.py", exit_on_error=False, add_help=False)
    parser.add_class_arguments(RunConfig, sub_configs=False)
    for action in parser._actions:
        if action.dest not in config_keys():
            action.help = SUPPRESS  # the vocabulary size, and jsonargparse's config file per section
    return parser


def config_keys() -> list[str]:
    """Every key of the config, as ``section.field``, or ``field`` outside the sections."""
    return [key for key in flat(asdict(RunConfig())) if key != _VOCAB_SIZE]


def flat(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Flatten a mapping of sections to keys ``section.field``."""
    sections = {name: value for name, value in config.items() if isinstance(value, dict)}
    others = {str(name): value for name, value in config.items() if name not in sections}
    return others | {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def parse_config(config_file: Path, flags: list[str], shape_of: Callable[[str], GPTConfig] | None = None) -> RunConfig:
    """Read a YAML file, in which every key is optional, and apply flags ``--section.key value`` over it.

    ``shape_of`` gives the shape of the weights that ``init_from`` names, which replaces the defaults of the model's.

    Raises:
        UserError: an unknown key (with the nearest known one), a wrong type, or a value out of range.
    """
    content = read_yaml(config_file)
    values = parse_values(content, flags)
    if values.init_from and shape_of:
        shape = shape_of(values.init_from)
        content["model"] = {name: getattr(shape, name) for name in SHAPE} | (content.get("model") or {})
        values = parse_values(content, flags)
    try:
        return RunConfig(**vars(config_parser().instantiate(values)))
    except (ArgumentError, TypeError) as error:
        raise UserError(_readable(str(error))) from None


def parse_values(content: dict[str, Any], flags: list[str]) -> Any:
    """The values of every key, of the right types, before they are checked together."""
    for key in flags:
        if key.startswith("--"):
            _check_known(key[2:].partition("=")[0], _COMMAND_LINE)
    given = [flag.removeprefix("--").partition("=")[::2] for flag in [*flags, *map("=".join, pairwise(flags))]]
    for key, value in [*given, *flat(content).items()]:
        if key in config_keys() and key not in _TEXTS and re.fullmatch(r"[-+]?(0\d+|\d+(:\d+)+)", str(value)):
            raise UserError(f"{key} is {value}; write a decimal number")  # YAML 1.1 reads 040 as 32 and 1:40 as 100
    parser = config_parser()
    try:
        return parser.parse_args(flags, namespace=parser.parse_object(content))
    except (ArgumentError, TypeError) as error:
        raise UserError(_readable(str(error))) from None
    except RecursionError:
        raise UserError("a value is nested too deeply; expected one of the type in --help") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a config file: sections, with known keys."""
    if not path.is_file():
        raise UserError(f"there is no config file {path}; see configs/ for examples")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a date such as 2024-13-01
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise UserError(f"{path} must be a mapping of sections to keys, such as 'model: {{num_layers: 4}}'")
    content = content or {}
    for key in flat(content):
        _check_known(key, str(path))
    if dotted := next((key for key in content if "." in str(key)), None):
        raise UserError(f"{dotted!r} in {path} must be a key in its section, such as 'model: {{num_layers: 4}}'")
    return content


class _StrictLoader(yaml.SafeLoader):
    """Plain values only, and no duplicate keys, of which YAML would silently take the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]  # before those of a merge key, which may be given again
        if len({*map(str, keys)}) < len(keys):
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        return super().construct_mapping(node, deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Keep ``1:30:00``, ``2024-01-01`` and ``010`` as text; for YAML 1.1 they are in base 60, a date and octal."""
        if isinstance(node, yaml.ScalarNode) and not node.style and re.match(r"[-+]?([\d_]+[:-]|0)\d", node.value):
            node.tag = "tag:yaml.org,2002:str"
        return super().construct_object(node, deep)


def _check_known(key: str, where: str) -> None:
    known = config_keys()
    if key in known:
        return
    if fields := [name for name in known if name.startswith(f"{key}.")]:
        raise UserError(f"{key!r} in {where} is a section; give its keys: {', '.join(fields)}")
    if where == _COMMAND_LINE:
        known = [*known, *_OTHER_OPTIONS]
    # A field without its section, or with a misspelt one, is matched by the field.
    same_field = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    nearest = same_field or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
    raise UserError(f"unknown key {key!r} in {where}; {hint}")


def _readable(message: str) -> str:
    """Reword jsonargparse's message about a wrong type as one line."""
    message = " ".join(message.split())
    match = re.fullmatch(
        r'Parser key "(.+?)": .*?(Expected a .+?)\.? (?:Got value|Given value type: .+? Given value): ?(.*)', message
    )
    if match is None:
        return message
    key, expected, value = match.groups()
    expected = " or ".join(re.findall(r"Expected a (?:typing\.)?(.+?)(?: - |$)", expected))
    expected = re.sub(r"<class '(\w+)'>", r"\1", expected).replace("Literal", "one of ").replace("NoneType", "null")
    expected = re.sub(r"^bool\b", "true or false", expected)
    quotes = "; in YAML, put it in quotes" if "str" in expected.split() else ""
    return f"{key} is {value!r}; it must be {expected}{quotes}"
