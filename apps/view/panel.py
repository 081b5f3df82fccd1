"""The panel in which a text is looked at: HTML parts in, clicks out. It knows nothing of either.

A Streamlit component whose whole script is here: nothing is loaded from anywhere, and what it is
given was escaped by `pages.token_view`. An element with `data-go` sends that word when clicked;
the slider sends `tau:…` as it moves, one at a time, the latest wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from ...analysis.pages.token_charts import CHART_CSS
from ...analysis.pages.token_view import TOKEN_CSS

_CSS = (
    TOKEN_CSS
    + CHART_CSS
    + """
.sw-panel { color: var(--st-text-color); display: grid; gap: 1rem 1.5rem; min-width: 0;
  grid-template-columns: minmax(0, 5fr) minmax(0, 3fr); font-size: 14px; line-height: 1.5; }
.sw-panel.sw { border: 0; overflow: visible; border-radius: 0; }
.sw-panel .wide { grid-column: 1 / -1; }
.sw-panel [data-part]:empty { display: none; }
.sw-panel [hidden] { display: none !important; }
.sw-panel .side:has([data-part=lengths]:empty) { display: none; }
.sw-panel:has([data-part=lengths]:empty) { grid-template-columns: minmax(0, 1fr); }
.sw-panel h4 { font-size: 1.05rem; font-weight: 600; margin: 0 0 .3rem; padding: 0; }
.sw-panel .sw-text { min-height: 8rem; outline-offset: -2px; }
.sw-panel .row { display: flex; gap: .8rem; align-items: center; flex-wrap: wrap;
  color: var(--dim); }
.sw-panel .row > div { display: contents; }
.sw-panel button { font: inherit; color: inherit; background: var(--shade); cursor: pointer;
  border: 1px solid var(--line); border-radius: 6px; padding: .1rem .6rem; }
.sw-panel input[type=range] { flex: 1 1 14rem; accent-color: var(--st-primary-color); }
.sw-context { font: 13px/1.9 ui-monospace, monospace; white-space: pre-wrap;
  border: 1px solid var(--line); border-radius: 8px; padding: .4rem .8rem; margin-top: .5rem;
  overflow-wrap: anywhere; }
@media (max-width: 900px) { .sw-panel { grid-template-columns: minmax(0, 1fr); } }
"""
)

_HTML = """
<div class="sw sw-panel">
  <div class="wide row sw-tau" hidden>
    <label for="sw-tau"><b>threshold τ</b></label>
    <input id="sw-tau" type="range" min="0" max="1" step="0.01"
      title="The gate copies where the probe's score is at least τ. Moving it replays the trace.">
    <div data-part="tau"></div>
  </div>
  <div class="wide" data-part="predicted"></div>
  <div class="wide" data-part="legend"></div>
  <div>
    <div class="sw"><div class="sw-hint" data-part="hint"></div>
      <div class="sw-text" tabindex="0" data-part="text"></div></div>
    <div class="row" style="margin-top:.5rem"><div data-part="pages"></div></div>
    <div class="sw-context" data-part="context"></div>
  </div>
  <div class="side">
    <h4>Accepted length</h4>
    <div data-part="lengths"></div>
    <div class="row"><div data-part="filter"></div></div>
    <h4 style="margin-top:.8rem">Steps</h4>
    <div data-part="steps"></div>
  </div>
  <div class="wide" data-part="heat_title"></div>
  <div class="wide" data-part="heat"></div>
</div>
"""

_JS = """
export default function ({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".sw-panel");
  const text = root.querySelector(".sw-text");
  const top = text.scrollTop;
  for (const place of root.querySelectorAll("[data-part]")) {
    const wanted = data.parts[place.dataset.part] ?? "";
    if (place._shown !== wanted) { place.innerHTML = wanted; place._shown = wanted; }
  }
  text.scrollTop = top;
  if (root._chosen !== data.chosen) {
    root._chosen = data.chosen;
    const mark = text.querySelector(".chosen");
    if (mark) {
      const box = text.getBoundingClientRect(), at = mark.getBoundingClientRect();
      if (at.top < box.top || at.bottom > box.bottom)
        text.scrollTop += at.top - box.top - box.height / 3;
    }
  }
  if (!root._begun) {
    root._begun = true;
    const begin = text.querySelector(".chosen") ?? text.querySelector(".first");
    if (begin) text.scrollTop +=
      begin.getBoundingClientRect().top - text.getBoundingClientRect().top - text.clientHeight / 4;
  }
  if (data.follow) text.scrollTop = text.scrollHeight;
  const slider = root.querySelector("#sw-tau");
  slider.parentElement.hidden = data.tau === null;
  if (root._asked !== undefined && root._next === root._asked) { root._next = undefined; }
  if (root._next === undefined && data.tau !== null) slider.value = data.tau;
  root._asked = undefined;
  root.dataset.tau = data.tau ?? "";
  root.dataset.turn = data.turn;
  const ask = () => {
    if (root._asked !== undefined || root._next === undefined) return;
    root._asked = root._next;
    setTriggerValue("go", "tau:" + root._asked);
  };
  slider.oninput = () => { root._next = slider.value; ask(); };
  ask();
  root.onclick = (event) => {
    const chosen = event.target.closest("[data-go]");
    if (!chosen) return;
    const word = chosen.dataset.go;
    const span = event.shiftKey && word.startsWith("token:");
    if (span) window.getSelection()?.removeAllRanges();
    setTriggerValue("go", span ? "to:" + word.slice(6) : word);
  };
  text.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Escape: 0 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    setTriggerValue("go", by ? "move:" + by : "clear:");
  };
}
"""

_mount = st.components.v2.component(
    "switchsd_panel", html=_HTML, css=_CSS, js=_JS, isolate_styles=False
)


def panel(
    parts: dict[str, str],
    *,
    key: str,
    on_go: Callable[[str], None],
    chosen: int | None = None,
    tau: float | None = None,
    follow: bool = False,
) -> None:
    """Show the parts; `on_go` is told what is clicked before the page is drawn again.

    Args:
        parts: HTML of each place of the panel, already escaped.
        key: of the panel.
        on_go: gets `token:5`, `length:3`, `tau:0.41` …
        chosen: position to keep in view.
        tau: where the slider stands; None hides it.
        follow: keep the end in view, while tokens arrive.
    """

    def told() -> None:
        sent = st.session_state[key].get("go")
        if isinstance(sent, str):
            on_go(sent)

    turn = st.session_state.get(f"{key}:turn", 0) + 1
    st.session_state[f"{key}:turn"] = turn
    data: dict[str, Any] = {
        "parts": parts, "chosen": chosen, "tau": tau, "follow": follow, "turn": turn,
    }  # fmt: skip
    _mount(key=key, data=data, on_go_change=told)
