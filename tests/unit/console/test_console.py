"""What both commands show a person: text for terminals, what programs do to one, shells that were left, completion."""

import argparse
import io
import itertools
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warren_console import text
from warren_console.ansi import QUERY, Modes, WithoutQueries
from warren_console.completion import completed, script
from warren_console.left import Left
from warren_console.output import Output, say


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestCleaning:
    @given(st.text())
    def test_nothing_is_left_that_a_terminal_would_obey(self, hostile: str) -> None:
        cleaned = text.clean(hostile)
        assert all(unicodedata.category(character)[0] != "C" for character in cleaned)
        assert not set(cleaned) & set("\n\r\t\x0b\x0c\x85\u2028\u2029")
        assert text.clean(cleaned) == cleaned

    @given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
    def test_what_is_harmless_stays(self, harmless: str) -> None:
        assert text.clean(harmless) == harmless

    def test_escapes_lose_their_power(self) -> None:
        assert text.clean("\x1b]0;title\x07\x1b[2Jred\x9b31m\u202eevil\x00") == "]0;title[2Jred31mevil"
        assert text.clean_lines("a\x1b[H\r\nb\n") == "a[H \nb\n"


class TestHeights:
    @given(st.integers(0, 30), st.integers(0, 30))
    def test_what_is_not_shown_is_counted(self, count: int, rows: int) -> None:
        lines = [f"line {number}" for number in range(count)]
        shown = text.fitted(lines, rows)
        assert len(shown) <= rows
        if count <= rows:
            assert shown == lines
        elif rows:
            assert shown == [*lines[: rows - 1], f"… {count - rows + 1} more"]


class TestWidths:
    @given(st.text(), st.integers(0, 40))
    def test_what_is_cut_fits(self, anything: str, columns: int) -> None:
        cleaned = text.clean(anything)
        assert text.width(text.cut(cleaned, columns)) <= columns
        if text.width(cleaned) <= columns:
            assert text.cut(cleaned, columns) == cleaned

    def test_wide_characters_take_two_columns(self) -> None:
        assert text.width("日本") == 4
        assert text.cut("日本語", 5) == "日本…"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *[(0, "0s"), (59.9, "59s"), (60, "1m"), (599, "9m59s"), (3599, "59m59s"), (3600, "1h"), (7199, "1h59m")],
        *[(3605, "1h"), (86_399, "23h59m"), (86_400, "1d"), (172_799, "1d23h"), (30 * 86_400, "30d")],
    ],
)
def test_spans_have_two_units_at_most(seconds: float, words: str) -> None:
    assert text.span(seconds) == words


def test_times_are_relative() -> None:
    at = (None, 100_000, 40_000, 220_001, 35_000)
    assert [text.relative(at_ms, 100_000) for at_ms in at] == ["-", "0s ago", "1m ago", "in 2m", "1m5s ago"]


def test_what_is_ahead_is_as_it_was_asked_for_although_the_answer_took_a_moment() -> None:
    assert text.relative(600_000, 12) == "in 10m"
    assert text.relative(7_200_000, 499) == "in 2h"


def test_sizes_are_as_people_say_them() -> None:
    assert [text.size(count) for count in (None, 0, 999, 1500, 20_000_000, 3e12)] == [
        *("-", "0 B", "999 B", "1.5 kB", "20 MB", "3.0 TB")
    ]
    assert [text.megabytes(count) for count in (None, 512, 1536, 4096)] == ["-", "512 MB", "1.5 GB", "4 GB"]


class TestTables:
    def test_columns_are_aligned_also_under_wide_characters(self) -> None:
        out = Output(stream := io.StringIO(), as_json=False)
        out.table(("NAME", ">SIZE", "NOTE"), [("日本", 5, "x"), ("a", 1234, "")])
        assert stream.getvalue() == "NAME  SIZE  NOTE\n日本     5  x\na     1234\n"

    def test_on_a_terminal_the_header_is_bold_and_lines_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "12")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        out = Output(stream := _Terminal(), as_json=False)
        out.table(("ID", "NOTE"), [("sb-1", "a long note")])
        assert stream.getvalue() == "\x1b[1mID    NOTE\x1b[0m\nsb-1  a lon…\n"
        monkeypatch.setenv("NO_COLOR", "1")
        Output(plain := _Terminal(), as_json=False).table(("ID",), [("sb-1",)])
        assert plain.getvalue() == "ID\nsb-1\n"

    def test_hostile_cells_stay_in_their_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_COLOR", "1")
        out = Output(stream := _Terminal(), as_json=False)
        out.table(("A", "B"), [("x\ny\r", "\x1b[31m\x9b1mz")])
        out.facts({"reason": "\x1b]52;c;aGk=\x07\nnext"})
        assert "\x1b" not in stream.getvalue()
        assert stream.getvalue().count("\n") == 3


class TestModes:
    def test_a_terminal_that_is_as_it_was_is_left_alone(self) -> None:
        modes = Modes()
        modes.saw(b"\x1b[?2004hplain \x1b[31mred\x1b[0m\x1b[?1049h\x1b[?25l\x1b[?1049l\x1b[?25h\x1b[?2004l")
        assert modes.undo() == b""

    def test_what_was_switched_is_switched_back_the_screen_last(self) -> None:
        modes = Modes()
        modes.saw(b"\x1b[?1049h\x1b[?1;1006h\x1b[?25l")
        assert modes.undo().endswith(b"\x1b[?1l\x1b[?25h\x1b[?1006l\x1b[?1049l")

    @given(st.integers(0, 24))
    def test_a_sequence_may_come_in_pieces(self, cut: int) -> None:
        data = b"text\x1b[?1049h\x1b[?25lmore text"
        modes = Modes()
        modes.saw(data[:cut])
        modes.saw(data[cut:])
        assert modes.undo().endswith(b"\x1b[?25h\x1b[?1049l")


VIM_ASKS = b"\x1b[>c\x1b[6n\x1b]11;?\x07\x1b]10;?\x1b\\\x1bP+q436f\x1b\\\x1b[?12$p\x1b[14t\x1b[?u\x1b[c\x05\x1b[>q"


class TestWithoutQueries:
    @given(st.lists(st.integers(0, len(VIM_ASKS) + 12), max_size=6))
    def test_questions_go_and_the_rest_stays_however_it_is_cut(self, cuts: list[int]) -> None:
        data = b"\x1b[1;31mone" + VIM_ASKS + b"\x1b[2Jtwo\x1b[?1049h"
        edges = [0, *sorted(cuts), len(data)]
        filtered = WithoutQueries()
        shown = b"".join(filtered(data[a:b]) for a, b in itertools.pairwise(edges)) + filtered.rest()
        assert shown == b"\x1b[1;31mone\x1b[2Jtwo\x1b[?1049h"

    @given(st.binary())
    def test_nothing_else_is_lost(self, data: bytes) -> None:
        filtered = WithoutQueries()
        assert filtered(data) + filtered.rest() == QUERY.sub(b"", data)


def test_shells_that_were_left_are_found_the_last_one_first(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    left = Left("a", "sb-a", environ)
    assert left.take() is None
    for pid in (7, 8, 7):
        left.put(pid)
    assert Left("a", "sb-b", environ).take() is None
    assert Left("b", "sb-a", environ).take() is None  # another command's
    assert [Left("a", "sb-a", environ).take() for _ in range(3)] == [7, 8, None]
    assert list((tmp_path / "a" / "left").iterdir()) == []


def test_a_home_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    left = Left("a", "sb-a", {"XDG_STATE_HOME": str(tmp_path / "file")})
    left.put(7)
    assert left.take() is None


def test_a_line_for_the_person_is_the_programs_and_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    say("a", "x\x1b[31m\ny")
    assert capsys.readouterr() == ("", "a: x[31m y\n")


class TestCompletion:
    def complete(self, *words: str) -> list[str]:
        parser = argparse.ArgumentParser(prog="a")
        commands = parser.add_subparsers()
        copy = commands.add_parser("copy")
        copy.add_argument("--mode", choices=("fast", "safe"))
        copy.add_argument("source")
        copy.add_argument("target")
        commands.add_parser("__complete")
        return completed(parser, words, lambda name: [f"{name}-2", f"{name}-1", f"{name}-2"])

    def test_the_tree_gives_commands_options_and_choices(self) -> None:
        assert self.complete() == self.complete("") == self.complete("c") == ["copy"]
        assert self.complete("copy", "--m") == ["--mode"]
        assert self.complete("copy", "--mode", "") == ["fast", "safe"]

    def test_what_is_not_in_the_tree_is_asked_for_by_its_name(self) -> None:
        assert self.complete("copy", "s") == ["source-1", "source-2"]
        assert self.complete("copy", "--mode", "safe", "here", "") == ["target-1", "target-2"]
        assert self.complete("copy", "-", "") == ["target-1", "target-2"]  # a lone - is a word
        assert self.complete("copy", "here", "there", "") == self.complete("copy", "--", "") == []

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_scripts_name_their_program(self, shell: str) -> None:
        assert "some __complete --" in script("some", shell)
        assert "PROGRAM" not in script("some", shell)
