"""The viewer: `streamlit run apps/viewer.py [-- --runs FOLDER]` opens the newest complete run.

Only the shell: which page, which run, and what to say when it cannot be shown. The pages are
modules of `switchsd.apps`, imported when they are opened; what they show comes from tested
functions of `switchsd.analysis`. Nothing here imports a model library, so the page is there in
seconds.

Streamlit runs this file as a script, hence the absolute imports.
"""

from __future__ import annotations

import os
import sys

import streamlit as st

STYLE = """<style>.stMainBlockContainer { padding-top: 4.25rem; }
.sw-table { overflow-x: auto; }
.sw-table table, .sw-panel table:not(.sw-heat) { border-collapse: collapse; font-size: 14px; }
.sw-table th, .sw-table td, .sw-panel [data-part=predicted] th, .sw-panel [data-part=predicted] td
  { text-align: right; padding: .3rem .9rem .3rem 0; border: 0;
    border-bottom: 1px solid light-dark(#d9dce1, #3a3f47); font-variant-numeric: tabular-nums; }
.sw-table th:first-child, .sw-table td:first-child { text-align: left; }
.sw-panel .note { font-size: 13px; color: var(--dim); margin-top: .25rem; }
</style>"""


def main() -> None:
    """Draw the whole page; a mistake in what it was given is said in words and the app stays up."""
    st.set_page_config(page_title="SwitchSD Lab", page_icon="🔀", layout="wide")
    st.html(STYLE)
    with st.sidebar:
        st.title("SwitchSD Lab", anchor=False)
        st.caption("When does a language model copy from its context, and what does knowing save?")
        # the browser fetches what components need while pandas is imported below
        st.components.v2.component("switchsd_nothing", html="<span></span>")(key="nothing")
    from switchsd.apps.screens.router import show
    from switchsd.apps.view.address import said_in_words
    from switchsd.apps.view.run_data import runs_folder
    from switchsd.decoding.policies import load_policies

    with said_in_words():
        load_policies()
        show(runs_folder(sys.argv[1:], os.environ))


main()
