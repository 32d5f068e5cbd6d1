"""Writes the settings of run.toml into formats.md, from the code that reads them: `python docs/settings.py`."""

import dataclasses
import typing
from pathlib import Path

from swarm_diloco.manifest import TABLES
from swarm_diloco.settings_file import field_types, write_value
from swarm_diloco_bootstrap.config_file import COMMENTS

FORMATS = Path(__file__).with_name("formats.md")
BEGIN, END = "<!-- settings -->\n", "<!-- end of settings -->\n"


def settings_text() -> str:
    """One table of Markdown for each table of the manifest."""
    return "\n".join(_table(name, kind) for name, kind in TABLES.items())


def with_settings(page: str) -> str:
    """`page` with its settings as the code has them."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{settings_text()}\n{END}{after}"


def _table(name: str, kind: type) -> str:
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    heading = f"[[{name}]]" if name == "file" else f"[{name}]"
    lines = [f"### {heading}", "", COMMENTS[name][""], ""]
    lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for key, hint in field_types(kind).items():
        default = "" if defaults[key] is dataclasses.MISSING else f"`{write_value(defaults[key])}`"
        lines.append(f"| `{key}` | {_type(hint)} | {default} | {_cell(COMMENTS[name].get(key, ''))} |")
    return "\n".join(lines) + "\n"


def _type(hint: object) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f'"{choice}"' for choice in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"list of {_type(typing.get_args(hint)[0])}"
    names: dict[object, str] = {int: "integer", float: "number", str: "text"}
    return names[hint]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    FORMATS.write_text(with_settings(FORMATS.read_text()))
