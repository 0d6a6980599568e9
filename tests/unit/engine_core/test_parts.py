"""The small parts: the store's order and memory, common prefixes, places for checkpoints, figures, logprobs."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_backend.engine.checkpoints import MAX_TURNS, TAIL, TURN_SPACING, prefill_marks
from llamacpp_backend.engine.job import TokenInfo
from llamacpp_backend.engine.logprobs import InfoStream
from llamacpp_backend.engine.metrics import Histogram, Metrics, length_edges
from llamacpp_backend.engine.store import MAX_ENTRIES, Entry, Ledger, StateStore, common_prefix, entry_bytes
from llamacpp_backend.text import TextStream


def entry(first: int, size: int = 10, checkpoints: dict[int, bytes] | None = None) -> Entry:
    return Entry([first, 2, 3], bytes([first % 256]) * size, checkpoints or {})


@given(st.lists(st.integers(0, 1), max_size=300), st.lists(st.integers(0, 1), max_size=300), st.integers(0, 300))
def test_common_prefix(a: list[int], b: list[int], limit: int) -> None:
    limit = min(limit, len(a), len(b))
    slow = 0
    while slow < limit and a[slow] == b[slow]:
        slow += 1
    assert common_prefix(a, b, limit) == slow
    assert common_prefix(a, a, len(a)) == len(a)


def test_the_least_recently_used_goes_first() -> None:
    store = StateStore(Ledger())
    first, second, third = entry(1), entry(2), entry(3)
    for one in (first, second, third):
        store.add(one)
    store.use(first)
    assert store.evict()
    assert list(store) == [third, first]
    store.remove(second)  # has gone already
    assert store.evict()
    assert store.evict()
    assert not store.evict()


def test_a_blob_in_two_places_counts_once_and_until_the_last_has_gone() -> None:
    ledger = Ledger()
    store = StateStore(ledger)
    blob = bytes(1000)
    first, second = entry(1, checkpoints={1: blob}), entry(2, checkpoints={1: blob})
    store.add(first)
    store.add(second)
    assert ledger.total == 1000 + 2 * entry_bytes(3, 10)
    store.remove(first)
    assert ledger.holds(blob)
    assert ledger.total == 1000 + entry_bytes(3, 10)
    store.remove(second)
    assert ledger.total == 0
    assert not ledger.holds(blob)


def test_the_number_of_entries_is_bounded() -> None:
    store = StateStore(Ledger())
    for number in range(MAX_ENTRIES + 5):
        store.add(entry(number))
    assert len(store) == MAX_ENTRIES
    assert next(iter(store)).tokens[0] == 5


@given(st.lists(st.integers(0, 3), min_size=1, max_size=400), st.sampled_from([0, 50, 128]))
def test_marks_lie_inside_the_prompt_apart_from_each_other(tokens: list[int], every: int) -> None:
    marks = prefill_marks(tokens, lambda token: token == 0, every)
    assert marks == sorted(set(marks))
    assert all(0 < mark < len(tokens) for mark in marks)
    assert all(after - before >= TURN_SPACING for before, after in pairwise(marks))
    last_turn = max((at + 1 for at in range(len(tokens) - 1) if tokens[at] == 0), default=0)
    assert last_turn < TURN_SPACING or last_turn in marks


def test_marks_of_a_chat_are_its_system_prompt_and_its_turns() -> None:
    tokens = [1] * 400
    for at in (99, 199, 389):
        tokens[at] = 0
    assert prefill_marks(tokens, lambda token: token == 0, 0) == [100, 200, 390]


def test_marks_of_a_document_are_steps_and_a_place_before_its_end() -> None:
    assert prefill_marks([1] * 1000, lambda _token: False, 400) == [400, 800, 1000 - TAIL]
    assert prefill_marks([1] * 100, lambda _token: False, 0) == []


def test_a_prompt_of_end_tokens_has_no_more_marks_than_a_conversation() -> None:
    assert len(prefill_marks([0] * 5000, lambda _token: True, 0)) <= MAX_TURNS + 1


def test_histogram_edges_are_upper_bounds_that_belong_to_their_bucket() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 6):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.total == 14


def test_length_edges() -> None:
    assert length_edges(2048) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


def test_every_figure_is_in_exactly_one_of_the_metrics_or_is_an_alias_for_routers() -> None:
    metrics = Metrics(2048)
    families = list(metrics.families())
    assert len({family.name for family in families}) == len(families)
    shown = {id(item) for family in families for item in family.series.values()}
    for name, value in vars(metrics).items():
        for item in value.values() if isinstance(value, dict) else [value]:
            assert id(item) in shown, name
    assert all((family.label == "") == (list(family.series) == [""]) for family in families)


# What the dashboards in vLLM's tree query, and what routers look for.
@pytest.mark.parametrize(
    "name",
    [
        "num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens_total generation_tokens_total",
        "request_success_total time_to_first_token_seconds inter_token_latency_seconds iteration_tokens_total",
        "request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds",
        "request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens request_generation_tokens",
        "request_max_num_generation_tokens prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total",
        "admission_rejections_total",
    ],
)
def test_names_that_dashboards_query(name: str) -> None:
    names = {family.name for family in Metrics(2048).families()}
    assert {f"vllm:{one}" for one in name.split()} <= names


pieces = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"", b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"xab"]), max_size=12
)


@given(pieces, st.sampled_from([[], ["ab"], ["é"], ["bb", "aé"]]))
def test_tokens_go_out_with_their_text_and_never_show_a_stop_string(data: list[bytes], stops: list[str]) -> None:
    text, infos = TextStream(stops), InfoStream()
    out, sent = "", []
    for at, item in enumerate(data):
        infos.add(TokenInfo(at, item, -1.0))
        piece = text.feed(item)
        out += piece
        sent += infos.release(piece, text.stopped)
        if text.stopped:
            break
        shown = b"".join(info.text_bytes for info in sent).decode("utf-8", "replace")
        assert out.startswith((shown, shown.rstrip("\ufffd")))
    if not text.stopped:
        piece = text.finish()
        out += piece
        sent += infos.release(piece, True)
    assert [info.token for info in sent] == list(range(len(sent)))
    assert b"".join(info.text_bytes for info in sent).decode("utf-8", "replace") == out
    assert text.stopped or len(sent) == len(data)
