"""Tables for people: the words, the marks and the sentences follow from the numbers."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from demo_run import SITE, decoding, sites
from switchsd.analysis.pages.tables import (
    decoding_sentence,
    decoding_table,
    main_policy,
    probe_sentence,
    sites_table,
    to_html,
    to_markdown,
    yield_table,
)
from switchsd.errors import SwitchSDError

PROBE = {
    "auroc": 0.9,
    "auroc_low": 0.88,
    "auroc_high": 0.92,
    "f1": 0.8,
    "f1_always_copy": 0.7,
    "n_test_tokens": 1234,
}


def test_sites_table_is_layer_by_stream_with_the_chosen_one_marked() -> None:
    table = sites_table(sites(), chosen=SITE)
    assert list(table.columns) == ["layer", "attn_out", "resid_mid", "mlp_out", "resid_post"]
    assert table.loc[3, "attn_out"] == "0.920 ★"
    assert table.loc[0, "resid_post"] == f"{sites().query('layer == 0')['auroc'].iloc[1]:.3f}"
    assert table.map(lambda value: "★" in value).to_numpy().sum() == 1


def test_sites_table_marks_the_chosen_site_even_where_another_is_better() -> None:
    table = sites_table(sites(), chosen="blocks.0.hook_mlp_out")
    assert table.loc[0, "mlp_out"].endswith("★")


def test_decoding_table_keeps_the_order_and_says_percent_and_yes_no() -> None:
    table = decoding_table(decoding().assign(token_exact=[True, True, False, True]))
    assert table["policy"].to_list() == ["vanilla", "PLD", "CopySpec", "SwitchSD"]
    last = table.iloc[-1]
    assert (last["tokens/s"], last["speed over vanilla"]) == ("26.8", "1.34×")
    assert (last["copy steps"], last["accepted a copy"]) == ("12.3%", "4.56")
    assert table["token-exact"].to_list() == ["yes", "yes", "no", "yes"]


def test_decoding_table_shows_a_missing_number_as_missing() -> None:
    table = decoding_table(decoding().assign(mean_accepted_copy=[np.nan, 1.0, 1.0, 1.0]))
    assert table["accepted a copy"].iloc[0] == "–"
    assert set(table["accepted a draft"]) == {"–"}  # of a run that does not say
    known = decoding_table(decoding().assign(mean_accepted_neural=[np.nan, np.nan, np.nan, 1.5]))
    assert known["accepted a draft"].to_list() == ["–", "–", "–", "1.50"]


def test_yield_table_separates_states_and_loops() -> None:
    table = yield_table(
        pd.DataFrame(
            {
                "probe_on": [True, True, False, False],
                "accepted": [20, 4, 0, 2],
                "in_loop": [True, False, False, False],
            }
        )
    )
    assert table["mean accepted"].to_list() == ["12.00", "1.00", "4.00", "1.00"]
    assert table["all 20 accepted"].to_list() == ["50.0%", "0.0%", "0.0%", "0.0%"]
    assert table["n"].to_list() == ["2", "2", "1", "2"]


def test_sentence_when_switchsd_is_fastest() -> None:
    text = decoding_sentence(decoding())
    assert text.startswith("On 3 prompts, SwitchSD decoded 1.34 times as fast as vanilla (26.8 ")
    assert "next fastest policy, PLD, was 7% slower" in text
    assert "token for token" in text


def test_sentence_is_honest_when_drafting_does_not_pay() -> None:
    slow = decoding().assign(speedup=[1.0, 1.1, 0.9, 0.8])
    text = decoding_sentence(slow)
    assert "more slowly than vanilla, at 0.80 times its speed" in text
    assert "PLD was faster still, by 38%" in text
    even = decoding_sentence(decoding().assign(speedup=[1.0, 0.7, 0.7, 1.01]))
    assert "about as fast as vanilla" in even


def test_sentence_names_policies_that_are_not_exact() -> None:
    text = decoding_sentence(decoding().assign(token_exact=[True, False, True, False]))
    assert "Not token-exact" in text
    assert "PLD, SwitchSD" in text
    assert "token for token" not in text


def test_sentence_without_switchsd_or_without_drafting() -> None:
    others = decoding().query("policy != 'switchsd'")
    assert main_policy(others) == "pld"
    assert "PLD decoded 1.25" in decoding_sentence(others)
    assert "nothing to compare" in decoding_sentence(others.head(1))


def test_probe_sentence_holds_f1_against_always_copy() -> None:
    assert "F1 at τ is 0.800, above the 0.700" in probe_sentence(PROBE)
    assert "no better than the 0.850" in probe_sentence({**PROBE, "f1_always_copy": 0.85})


def test_markdown_and_html_show_cells_literally() -> None:
    table = pd.DataFrame({"a|b": ["<b>x</b>", "1 ★"]})
    assert to_markdown(table).splitlines() == [
        "| a\\|b |",
        "| --- |",
        "| \\<b>x\\</b> |",
        "| 1 ★ |",
    ]
    page = to_html(table)
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>" not in page
    assert "<td class=star>1 ★</td>" in page


def test_a_table_without_its_columns_is_refused() -> None:
    with pytest.raises(SwitchSDError, match="lacks tokens_per_s"):
        decoding_table(pd.DataFrame({"policy": ["vanilla"]}))
