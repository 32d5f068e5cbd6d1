"""TOML text to frozen settings and back, with errors that name the line and what was probably meant."""

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from swarm_diloco.errors import ManifestError

S = TypeVar("S")

HEADER = re.compile(r"\s*\[{1,2}\s*\"?([\w-]+)\"?\s*\]{1,2}\s*(#.*)?$")
DEEP_KEY_PARTS = 16  # tomllib takes minutes for keys of 10^5 parts (measured); settings have two
DEEP_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{DEEP_KEY_PARTS - 1}}}[\w"'-]"""
)
ASSIGNMENT = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*=")


class SettingsFile:
    """One TOML document whose tables are settings dataclasses. All methods raise ManifestError in one line.

    Whoever opens one calls `check_tables` first, unless something in it says that it is of a newer form.
    """

    def __init__(self, data: bytes, name: str, catalogue: Mapping[str, type]) -> None:
        """`name` is what messages call the file; `catalogue` gives each table's dataclass."""
        self.name = name
        self._catalogue = catalogue
        try:
            self._text = data.decode()
            if DEEP_KEY.search(self._text):
                raise ValueError(f"a key of {DEEP_KEY_PARTS} parts or more")
            self._tables: dict[str, Any] = tomllib.loads(self._text)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ManifestError(f"{name} line {line}: not UTF-8 text") from error
        except (ValueError, RecursionError) as error:  # ValueError: TOML's own, and a number of thousands of digits
            raise ManifestError(_shown(f"{name} is not TOML: {error}")) from error

    def check_tables(self) -> None:
        """Refuse a table that no settings belong to, and a setting outside of any table."""
        for table, value in self._tables.items():
            if table not in self._catalogue:
                raise self._unknown_table(table, value)
            each = value if isinstance(value, list) else [value]
            if not all(isinstance(entry, dict) for entry in each):
                raise self.error(table, None, f"[{table}] is a table of settings, not a value")

    def has(self, table: str, key: str) -> bool:
        """Whether the setting is written in the file."""
        found = self._tables.get(table)
        return isinstance(found, dict) and key in found

    def value(self, table: str, key: str) -> object:
        """One value as it stands, unchecked; None if it is not there."""
        found = self._tables.get(table)
        return found.get(key) if isinstance(found, dict) else None

    def read(self, table: str, kind: type[S], *, base: S | None = None) -> S:
        """The table as `kind`. Settings that are missing come from `base`; without one, all must be there."""
        found = self._tables.get(table, {})
        if isinstance(found, list):
            raise self.error(table, None, f"[[{table}]] stands for a list; this table is written [{table}]")
        if base is None and table not in self._tables:
            raise ManifestError(f"{self.name}: the table [{table}] is missing")
        return self._build(table, kind, found, base, 0)

    def read_each(self, table: str, kind: type[S], *, limit: int) -> tuple[S, ...]:
        """The entries of [[table]], none if it is not there."""
        found = self._tables.get(table, [])
        if not isinstance(found, list):
            raise self.error(table, None, f"write [[{table}]], not [{table}]: it is a list")
        if len(found) > limit:
            raise ManifestError(f"{self.name}: {len(found)} entries [[{table}]], at most {limit} are allowed")
        return tuple(self._build(table, kind, entry, None, index) for index, entry in enumerate(found))

    def error(self, table: str | None, key: str | None, message: str, entry: int = 0) -> ManifestError:
        line = line_of(self._text, table, key, entry)
        return ManifestError(_shown(f"{self.name} line {line}: {message}" if line else f"{self.name}: {message}"))

    def _build(self, table: str, kind: type[S], found: dict[str, Any], base: S | None, entry: int) -> S:
        known = field_types(kind)
        for key in found:
            if key not in known:
                raise self.error(table, key, f"unknown setting {table}.{key}{self._suggestion(table, key)}", entry)
        values: dict[str, Any] = {}
        for key, hint in known.items():
            if key in found:
                values[key] = self._checked(table, key, found[key], hint, entry)
            elif base is not None:
                values[key] = getattr(base, key)
            elif not _may_be_absent(hint):
                raise self.error(table, None, f"the setting {table}.{key} is missing", entry)
        try:
            return kind(**values)
        except ValueError as error:
            named = [key for key in re.findall(r"\w+", str(error)) if key in known]
            message = str(error) if str(error).startswith(table) else f"{table}: {error}"
            raise self.error(table, named[0] if named else None, message, entry) from error

    def _checked(self, table: str, key: str, value: object, hint: object, entry: int) -> object:
        try:
            return value_as(value, hint)
        except ValueError as error:
            raise self.error(table, key, f"{table}.{key}: {error}", entry) from error

    def _unknown_table(self, table: str, value: object) -> ManifestError:
        if isinstance(value, dict | list):
            meant = difflib.get_close_matches(table, self._catalogue, n=1)
            hint = f"; did you mean [{meant[0]}]?" if meant else f"; there are {', '.join(self._catalogue)}"
            return self.error(table, None, f"unknown table [{table}]{hint}")
        return self.error(None, table, f"{table} stands in no table{self._suggestion('', table)}")

    def _suggestion(self, table: str, key: str) -> str:
        own = list(field_types(self._catalogue[table])) if table else []
        elsewhere = {name: other for other, kind in self._catalogue.items() for name in field_types(kind)}
        if key in elsewhere:
            return f"; {key} belongs under [{elsewhere[key]}]"
        for names in (own, elsewhere):
            if meant := difflib.get_close_matches(key, names, n=1):
                return f"; did you mean {table if names is own else elsewhere[meant[0]]}.{meant[0]}?"
        return f"; [{table}] has {', '.join(own)}" if table else ""


def field_types(kind: type) -> dict[str, Any]:
    """The dataclass' settings and their types, in order."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def value_as(value: object, hint: Any) -> Any:
    """`value`, as TOML gives it, as the type `hint`. Raises ValueError: another type, not finite, not printable.

    Strings are shown to strangers, so they hold nothing that a terminal obeys or an eye misses.
    """
    for leaf in _leaves(value):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            raise ValueError(f"{leaf} is not a finite number")
        if not isinstance(leaf, str | bool | int | float):
            raise ValueError(f"a {type(leaf).__name__} cannot stand here")
        if isinstance(leaf, str) and not leaf.isprintable():
            raise ValueError("has control or invisible characters")
    try:
        return TypeAdapter[Any](hint).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        raise ValueError(
            f"{reason[:1].lower()}{reason[1:]}, not {json.dumps(value, ensure_ascii=False)[:80]}"
        ) from None


def _shown(message: str) -> str:
    """One line that a terminal shows as it is: a file's keys may hold anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in message)


def _leaves(value: object) -> Iterable[object]:
    if isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _may_be_absent(hint: object) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)


def line_of(text: str, table: str | None, key: str | None, entry: int = 0) -> int | None:
    """The line (from 1) of `key` in the table, of the table's header without a key; None if it is written otherwise."""
    inside, seen = table is None, -1
    for number, line in enumerate(text.splitlines(), start=1):
        if header := HEADER.match(line):
            seen += header[1] == table
            inside = header[1] == table and seen == entry
            if inside and key is None:
                return number
        elif inside and key is not None and (assignment := ASSIGNMENT.match(line)) and assignment[1] == key:
            return number
    return None


def write_table(name: str, settings: object, comments: Mapping[str, str], *, is_list: bool = False) -> str:
    """The table as TOML, each setting with its comment above it. A setting that is None is left out."""
    lines = [f"[[{name}]]" if is_list else f"[{name}]"]
    for key in field_types(type(settings)):
        value = getattr(settings, key)
        lines += [f"# {line}" for line in comments.get(key, "").splitlines()]
        if value is not None:
            lines.append(f"{key} = {write_value(value)}")
    return "\n".join(lines) + "\n"


def write_value(value: object) -> str:
    """One value as TOML. Raises ValueError for what TOML or a settings file cannot hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return repr(float(value))
    if isinstance(value, str):
        value.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Sequence):
        return f"[{', '.join(write_value(inner) for inner in value)}]"
    raise ValueError(f"a {type(value).__name__} cannot be written as a setting")


def value_of_text(text: str, hint: Any) -> Any:
    """A command line option's text as the type `hint`; commas divide a list. Raises ValueError."""
    if str in (hint, *typing.get_args(hint)) or typing.get_origin(hint) is typing.Literal:
        return value_as(text, hint)
    if typing.get_origin(hint) is tuple:
        return value_as([part.strip() for part in text.split(",") if part.strip()], hint)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return value_as(value, hint)
