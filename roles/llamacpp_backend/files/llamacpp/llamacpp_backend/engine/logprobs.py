"""Tokens with their log probabilities go out together with their text, and never show what a stop string hides."""

from __future__ import annotations

import codecs
from dataclasses import replace

from .job import TokenInfo


class InfoStream:
    """Holds tokens back until the text that they are a part of has gone out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._received = 0  # whole characters so far
        self._end = 0  # of the last token's text in characters; one that is still incomplete counts
        self._sent = ""
        self._held: list[tuple[int, int, TokenInfo]] = []  # start and end of its text, token

    def add(self, info: TokenInfo) -> None:
        """One more token."""
        start = self._end
        self._received += len(self._decoder.decode(info.text_bytes))
        self._end = max(start, self._received + bool(self._decoder.getstate()[0]))
        self._held.append((start, self._end, info))

    def release(self, text: str, is_last: bool) -> list[TokenInfo]:
        """The tokens whose text is out now that `text` has gone out; at the end also the visible part of one more."""
        self._sent += text
        visible = len(self._sent)
        ready: list[TokenInfo] = []
        for start, end, info in self._held:
            if end <= visible:
                ready.append(info)
                continue
            if is_last and start < visible:
                ready.append(replace(info, text_bytes=self._sent[start:].encode()))
            break
        del self._held[: len(ready)]
        return ready
