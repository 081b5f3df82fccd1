"""Choices that live in the page's address, so that a link shows what its sender saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import streamlit as st


def literal(text: str) -> str:
    """Text as Markdown that shows it as it is: every character Markdown might read is escaped."""
    safe = "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c > " " else c for c in text)
    return safe.replace("\n", " ")


def remembered_choice(
    name: str,
    options: Sequence[str],
    *,
    default: str | None = None,
    shown: Callable[[str], str] = str,
    help: str | None = None,
) -> str:
    """A select box whose choice is the address's `?name=…`; an unknown one is said, not hidden."""
    key = f"choice:{name}"
    if st.session_state.get(key) not in options:
        wanted = st.query_params.get(name)
        chosen = default if default in options else options[0]
        if wanted in options:
            chosen = wanted
        elif wanted is not None:
            st.warning(
                f"There is no {name} called {literal(wanted)} here; showing {literal(str(chosen))}."
            )
        st.session_state[key] = chosen
    chosen = st.selectbox(name.capitalize(), options, key=key, format_func=shown, help=help)
    st.query_params[name] = str(chosen)
    return str(chosen)
