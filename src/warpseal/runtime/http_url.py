"""URLs that strangers name: token URIs, redirects, webhooks.

The one place that parses them; any text may come.
"""

from __future__ import annotations

from yarl import URL


class InvalidUrl(ValueError):
    """A text is no http(s) URL with a host."""


def parse_http_url(text: str, base: URL | None = None) -> URL:
    """Return an http(s) URL with a host, percent-encoded.

    base: URL to which the text may be relative.
    Raises InvalidUrl.
    """
    try:
        url = URL(text) if base is None else base.join(URL(text))
        # Encoded once more, since a joined URL is not normalized, and read as a whole: yarl parses
        # some parts late.
        url = URL(str(url))
        is_valid = url.scheme in ("http", "https") and bool(url.raw_host) and bool(url.port)
        _ = url.raw_user, url.raw_password
    except Exception as error:
        # yarl 1.25 raises IndexError for http://[::1]@/x, and other classes than ValueError may
        # follow.
        raise InvalidUrl("the URL is malformed") from error
    if not is_valid:
        raise InvalidUrl("expected http:// or https:// and a host")
    return url
