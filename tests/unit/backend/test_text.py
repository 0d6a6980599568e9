"""Text in pieces: whole characters, no part of a stop string, and nothing that depends on where it is cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llamacpp_backend.text import StopFinder, TextStream


def stream(pieces: list[bytes], stops: list[str]) -> tuple[list[str], bool]:
    """The pieces of text that come out, and whether a stop string was found."""
    text = TextStream(stops)
    out = []
    for piece in pieces:
        out.append(text.feed(piece))
        if text.stopped:
            return out, True
    out.append(text.finish())
    return out, text.stopped


def expected(text: str, stops: list[str]) -> str:
    """The rule, told without any cutting: the text before the stop string that is complete first."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


def cut(data: bytes, places: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in itertools.pairwise(borders)]


# Few letters, so that stop strings occur, overlap, and almost occur.
WORDS = st.text("ab#é你😊", max_size=30)
STOPS = st.lists(st.text("ab#é你😊", min_size=1, max_size=4), max_size=4)
PLACES = st.lists(st.integers(0, 1000), max_size=40)


@given(WORDS, STOPS, PLACES)
@example("a###b", ["###"], [2, 3])
@example("abab#", ["ab#", "b#"], [1, 2, 3, 4])
def test_cutting_changes_nothing(text: str, stops: list[str], places: list[int]) -> None:
    out, _ = stream(cut(text.encode(), places), stops)
    assert "".join(out) == expected(text, stops)


@given(st.text(), STOPS)
def test_byte_by_byte_gives_whole_characters(text: str, stops: list[str]) -> None:
    out, stopped = stream([bytes([byte]) for byte in text.encode()], stops)
    assert "".join(out) == expected(text, stops)
    assert all("\ufffd" not in piece for piece in out) or "\ufffd" in text
    assert stopped == any(stop in text for stop in stops)


@given(WORDS, STOPS, PLACES)
def test_no_part_of_a_found_stop_string_comes_out(text: str, stops: list[str], places: list[int]) -> None:
    sent = ""
    stream_ = TextStream(stops)
    for piece in cut(text.encode(), places):
        sent += stream_.feed(piece)
        assert text.startswith(sent)
        assert not any(stop in sent for stop in stops)
        # What is sent can't be taken back: it must be the answer's whatever comes later.
        assert expected(text, stops).startswith(sent)


@given(st.binary(max_size=30), PLACES)
def test_any_bytes_give_the_same_text_however_cut(data: bytes, places: list[int]) -> None:
    out, _ = stream(cut(data, places), [])
    assert "".join(out) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("length", [1, 2, 3])
def test_tail_of_a_cut_character_becomes_one_replacement(length: int) -> None:
    out, stopped = stream([b"ok ", "😊".encode()[:length]], ["###"])
    assert out == ["ok ", "", "\ufffd"]
    assert not stopped


def test_tail_may_complete_a_stop_string() -> None:
    assert stream([b"ok", b"\xf0"], ["k\ufffd"]) == (["o", "", ""], True)


def test_held_back_text_comes_at_the_end() -> None:
    assert stream([b"a##"], ["###"]) == (["a", "##"], False)


def test_stop_over_several_tokens() -> None:
    assert stream([b"a<", b"/", b"s", b"> tail"], ["</s>"]) == (["a", "", "", ""], True)


@pytest.mark.parametrize(
    ("stops", "text", "result"),
    [
        (["bc", "abcd"], "xabcde", "xa"),  # the one that is complete first
        (["bcd", "abcd"], "xabcde", "x"),  # both end together: the longer
        (["abcd", "bcd"], "xabcde", "x"),
        (["aab"], "aaab", "a"),  # begins inside a failed beginning
        (["abab"], "abaabab", "aba"),
        ([], "###", "###"),
    ],
)
def test_overlapping_stops(stops: list[str], text: str, result: str) -> None:
    for size in range(1, len(text) + 1):
        pieces = [text[start : start + size].encode() for start in range(0, len(text), size)]
        assert "".join(stream(pieces, stops)[0]) == result


def test_nothing_comes_after_a_stop() -> None:
    finder = StopFinder(["x"])
    assert finder.feed("ax") == "a"
    assert finder.feed("more") == ""
    assert finder.flush() == ""


def test_nothing_is_held_back_without_need() -> None:
    text = TextStream(["</s>", "###"])
    assert [text.feed(piece) for piece in (b"a", b" b<", b"c", b"# d")] == ["a", " b", "<c", "# d"]
