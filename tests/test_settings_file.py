"""settings_file: TOML to frozen settings and back, with errors that one can act on."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm_diloco.errors import ManifestError
from swarm_diloco.settings_file import SettingsFile, write_table


@dataclass(frozen=True, kw_only=True)
class Engine:
    power: int = 5
    ratio: float = 0.5
    label: str = "none"
    gears: tuple[int, ...] = ()
    quiet: bool = False
    note: str | None = None

    def __post_init__(self) -> None:
        if self.power < 0:
            raise ValueError(f"engine.power must not be negative, not {self.power}")


@dataclass(frozen=True, kw_only=True)
class Wheel:
    size: int


CATALOGUE = {"engine": Engine, "wheel": Wheel}


def open_text(text: str) -> SettingsFile:
    file = SettingsFile(text.encode(), "run.toml", CATALOGUE)
    file.check_tables()
    return file


def read(text: str) -> Engine:
    return open_text(text).read("engine", Engine, base=Engine())


printable = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), max_size=20)


@given(
    st.builds(
        Engine,
        power=st.integers(0, 2**63 - 1),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        label=printable,
        gears=st.lists(st.integers(-(2**63), 2**63 - 1)).map(tuple),
        quiet=st.booleans(),
        note=st.none() | printable,
    )
)
def test_settings_read_back_as_they_were_written(engine: Engine) -> None:
    text = write_table("engine", engine, {"power": "two\nlines", "note": "a comment"})
    assert open_text(text).read("engine", Engine) == engine


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_settings_or_one_line(data: bytes) -> None:
    message = ""
    try:
        file = SettingsFile(data, "run.toml", CATALOGUE)
        file.check_tables()
        file.read("engine", Engine, base=Engine())
        file.read_each("wheel", Wheel, limit=10)
    except ManifestError as error:
        message = str(error)
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[engine]\npower = 1\nratoi = 0.1\n",
            "run.toml line 3: unknown setting engine.ratoi; did you mean engine.ratio?",
        ),
        ("[engine]\nsize = 1\n", "run.toml line 2: unknown setting engine.size; size belongs under [wheel]"),
        ("[engnie]\npower = 1\n", "run.toml line 1: unknown table [engnie]; did you mean [engine]?"),
        ("power = 1\n", "run.toml line 1: power stands in no table; power belongs under [engine]"),
        ("# c\n[engine]\npower = 1.0\n", "run.toml line 3: engine.power: input should be a valid integer, not 1.0"),
        ("[engine]\npower = true\n", "run.toml line 2: engine.power: input should be a valid integer, not true"),
        ("[engine]\nlabel = 3\n", "run.toml line 2: engine.label: input should be a valid string, not 3"),
        ("[engine]\nratio = nan\n", "run.toml line 2: engine.ratio: nan is not a finite number"),
        ("[engine]\nratio = 1979-05-27\n", "run.toml line 2: engine.ratio: a date cannot stand here"),
        ('[engine]\nlabel = "a\\u001bb"\n', "run.toml line 2: engine.label: has control or invisible characters"),
        ("[engine]\n# power = 3\npower = -1\n", "run.toml line 3: engine.power must not be negative, not -1"),
        ("[engine]\n[engine]\n", "run.toml is not TOML: Cannot declare ('engine',) twice (at line 2, column 8)"),
        ("[engine]\npower = \n", "run.toml is not TOML: Invalid value (at line 2, column 9)"),
        (
            '[engine]\n"a\\u001b" = 1\n',
            "run.toml: unknown setting engine.a?; [engine] has power, ratio, label, gears, quiet, note",
        ),
        ("[[engine]]\n", "run.toml line 1: [[engine]] stands for a list; this table is written [engine]"),
    ],
)
def test_a_fault_is_named_with_its_line_and_what_was_meant(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as raised:
        read(text)
    assert str(raised.value) == message


def test_text_that_is_not_utf8_is_named_with_its_line() -> None:
    with pytest.raises(ManifestError, match=r"^run.toml line 2: not UTF-8 text$"):
        SettingsFile(b"[engine]\n\xff = 1\n", "run.toml", CATALOGUE)


@pytest.mark.parametrize("text", ["[engine]\npower = " + "9" * 5000, "x = " + "[" * 5000, "[engine]\npower = 1e999"])
def test_a_text_made_to_break_the_reader_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        read(text)


def test_a_missing_setting_is_an_error_only_where_nothing_stands_for_it() -> None:
    text = "[engine]\npower = 1\n"
    assert read(text) == Engine(power=1)
    with pytest.raises(ManifestError, match=r"^run.toml line 1: the setting engine.ratio is missing$"):
        open_text(text).read("engine", Engine)


def test_a_setting_that_may_be_absent_is_absent_when_left_out() -> None:
    text = write_table("engine", Engine(note=None), {})
    assert "note" not in text
    assert open_text(text).read("engine", Engine, base=None).note is None


def test_the_faulty_entry_of_a_list_is_the_one_named() -> None:
    text = "[[wheel]]\nsize = 1\n[[wheel]]\nsize = 'big'\n"
    with pytest.raises(ManifestError, match=r"^run.toml line 4: wheel.size"):
        open_text(text).read_each("wheel", Wheel, limit=10)


def test_a_list_past_its_limit_is_refused() -> None:
    with pytest.raises(ManifestError, match=r"3 entries \[\[wheel\]\], at most 2"):
        open_text("[[wheel]]\nsize = 1\n" * 3).read_each("wheel", Wheel, limit=2)


@pytest.mark.parametrize("text", ["[" + "a." * 400_000 + "a]", "a = {" + '"a" . ' * 90_000 + "a = 1}", "'a'." * 99])
def test_a_key_without_end_is_refused_before_it_is_read(text: str) -> None:
    """tomllib would take minutes and half a gigabyte for it."""
    with pytest.raises(ManifestError, match="a key of 16 parts"):
        open_text(text)
