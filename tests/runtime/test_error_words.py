"""Errors of libraries are shown in words of the operating system or of their kind, without their
own texts.
"""

from __future__ import annotations

import errno
import socket

import aiohttp
import pytest

from warpseal.runtime.process import error_words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TimeoutError(), "timed out"),
        (
            ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 9650)"),
            "connection refused",
        ),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "name or service not known",
        ),
        (aiohttp.ServerDisconnectedError("https://user:key@node"), "server disconnected error"),
        (aiohttp.InvalidURL("https://user:key@node"), "invalid url"),
        (KeyError("secret"), "key error"),
    ],
    ids=repr,
)
def test_an_error_is_shown_in_words_without_its_own_text(error: BaseException, words: str) -> None:
    assert error_words(error) == words
