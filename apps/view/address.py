"""Choices that live in the page's address, so that a link shows what its sender saw."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from ...analysis.pages.linked_view import Choice
from ...errors import SwitchSDError


def literal(text: str) -> str:
    """Text as Markdown that shows it as it is: every character Markdown might read is escaped."""
    safe = "".join(f"\\{c}" if c.isascii() and not c.isalnum() and c > " " else c for c in text)
    return safe.replace("\n", " ")


@contextmanager
def said_in_words() -> Iterator[None]:
    """What is wrong with the input is said where it would have been shown; the rest stays.

    A run is foreign input: what its tables hold that no check foresaw ends here too, and the log
    has where it came from.
    """
    try:
        yield
    except (SwitchSDError, OSError) as error:
        st.error(literal(str(error)))
    except Exception as error:
        logging.getLogger(__name__).exception("a page could not be drawn")
        said = f"{type(error).__name__}: {error}"
        st.error(f"This could not be drawn ({literal(said)}); the log says where it failed.")


def remembered_choice(
    name: str,
    options: Sequence[str],
    *,
    default: str | None = None,
    shown: Callable[[str], str] = str,
    help: str | None = None,
    key: str | None = None,
    known: Sequence[str] = (),
) -> str:
    """A select box whose choice is the address's `?name=…`; an unknown one is said, not hidden.

    Args:
        name: in the address, and the label.
        options: what can be chosen.
        default: chosen where the address says nothing; the first if None.
        shown: how an option is written.
        help: beside the box.
        key: what the choice is remembered by; `choice:name` if None.
        known: names that are right elsewhere: they are passed over without a word.
    """
    key = key or f"choice:{name}"
    if st.session_state.get(key) not in options:
        wanted = st.query_params.get(name)
        before = [word for word in st.session_state.get(f"kept:{name}", ()) if word in options]
        chosen = before[0] if before else default if default in options else options[0]
        if wanted in options:
            chosen = wanted
        elif wanted is not None and wanted not in known:
            st.warning(
                f"There is no {name} called {literal(wanted)} here; showing {literal(str(chosen))}."
            )
        st.session_state[key] = chosen
    chosen = st.selectbox(name.capitalize(), options, key=key, format_func=shown, help=help)
    # Streamlit forgets a box that is not drawn: what was chosen last is what comes back
    kept = [word for word in st.session_state.get(f"kept:{name}", ()) if word != chosen]
    st.session_state[f"kept:{name}"] = [chosen, *kept]
    put_in_address(name, chosen)
    return str(chosen)


def address_number(name: str, low: float, high: float) -> float | None:
    """The address's number of that name; None where there is none between the two."""
    try:
        value = float(st.query_params.get(name, ""))
    except ValueError:
        return None
    return value if low <= value <= high else None


def put_in_address(name: str, value: object) -> None:
    """Set the address's word of that name; None or an empty text removes it."""
    text = "" if value is None else str(value)
    if text:
        if st.query_params.get(name) != text:  # each write is a message to the browser
            st.query_params[name] = text
    elif name in st.query_params:
        del st.query_params[name]


def choice_from_address() -> Choice:
    """What the address says is chosen in the text; what it says wrongly is left out."""
    token = _numbers("token")
    span = _numbers("span")
    return Choice(
        token=token[0] if token else None,
        lengths=frozenset(_numbers("lengths")),
        span=(min(span), max(span)) if len(span) == 2 else None,
    )


def choice_to_address(choice: Choice) -> None:
    """Write the choice into the address."""
    put_in_address("token", choice.token)
    put_in_address("lengths", " ".join(str(length) for length in sorted(choice.lengths)))
    put_in_address("span", "" if choice.span is None else f"{choice.span[0]} {choice.span[1]}")


def _numbers(name: str) -> list[int]:
    words = st.query_params.get(name, "").split()
    return [int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10]
