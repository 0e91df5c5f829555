"""The page's files and the headers that they are sent with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["HEADERS", "PAGE"]

PAGE = Path(__file__).parent / "page"

# Nothing but the page's own files runs, styles or is asked for anything, and no script may turn text into HTML or code:
# a fault in the page's handling of a model's text then shows as an error, not as a script that runs.
_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}

HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
