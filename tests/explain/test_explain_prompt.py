"""One prompt explained: the tokens, the page, the figures, and what the command refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from planted_induction import INDUCTION, VOCAB, planted_lens
from switchsd import SwitchSDError
from switchsd.analysis.explain.prompt import Explanation, explain_prompt, top_sources
from switchsd.analysis.explain.run import explanation_page, head_parts, parts_table
from switchsd.analysis.figures.explain import (
    attention_to_source,
    head_map,
    kind_shares,
    score_against_share,
    waterfall,
    waterfall_rows,
)
from switchsd.probing.copy_probe import CopyProbe
from switchsd.probing.lens import Lens
from switchsd.runs import Run

PROMPT = [3, 1, 4, 15, 9, 2, 6, 20]
COMPLETION = [3, 1, 4, 15, 9, 2, 6, 11]


@pytest.fixture(scope="module")
def planted() -> Lens:
    return planted_lens()


def probe_of(lens: Lens, offset: int = 1) -> CopyProbe:
    """Reads how much token 2 is written: the copy after 9."""
    weight = torch.zeros(lens.d_model)
    weight[2] = 1.0
    return CopyProbe(
        "blocks.1.hook_resid_post", offset, 0.5, weight, -1.0, lens.name, lens.fingerprint
    )


@pytest.fixture(scope="module")
def found(planted: Lens) -> Explanation:
    return explain_prompt(planted, probe_of(planted), [*PROMPT, *COMPLETION], len(PROMPT))


def test_the_copy_token_with_the_highest_score_is_chosen_and_explained(found: Explanation) -> None:
    assert found.chosen == 13  # the copied 2, read at the 9 before it
    assert found.read == 12
    assert found.copy_source == 5  # the 2 of the prompt
    assert found.tokens["copied"].tolist() == [False] * 8 + [True] * 7 + [False]
    assert found.tokens.loc[13, "source"] == 5
    assert found.tokens.loc[:7, "score"].isna().all()
    assert found.tokens.loc[8:, "score"].notna().all()
    assert found.tokens.loc[13, "read"] == 12
    parts = found.parts()
    assert parts["value"].sum() == pytest.approx(found.tokens.loc[13, "logit"], abs=1e-4)
    assert parts["part"].iloc[0] == "head 1.2"
    assert found.kinds()["value"].sum() == pytest.approx(parts["value"].sum())


def test_its_part_comes_from_the_copy_source(found: Explanation) -> None:
    heads = found.parts().query("kind == 'head'").head(1)
    row = top_sources(found, heads).iloc[0]
    assert row["source"] == 5
    assert row["attention"] > 0.95
    assert row["copy_source_value"] == pytest.approx(row["source_value"])


def test_any_token_can_be_named(planted: Lens) -> None:
    ids = [*PROMPT, *COMPLETION]
    named = explain_prompt(planted, probe_of(planted), ids, len(PROMPT), token=4)
    assert (named.chosen, named.read) == (4, 3)
    assert named.tokens.loc[4, "read"] == 3  # in the prompt, answered for because it was named
    assert named.tokens["score"].notna().sum() == 9
    for token, words in ((16, "tokens 0–15"), (0, "1 is the first")):
        with pytest.raises(SwitchSDError, match=words):
            explain_prompt(planted, probe_of(planted), ids, len(PROMPT), token=token)


def test_a_text_without_copies_is_refused_unless_a_token_is_named(planted: Lens) -> None:
    ids = list(range(16))
    with pytest.raises(SwitchSDError, match="none of the 8 tokens after the prompt is a copy"):
        explain_prompt(planted, probe_of(planted), ids, 8)
    assert explain_prompt(planted, probe_of(planted), ids, 8, token=9).chosen == 9
    other = replace(probe_of(planted), fingerprint="0" * 32)
    with pytest.raises(SwitchSDError, match="trained on"):
        explain_prompt(planted, other, ids, 8, token=9)


def test_the_page_holds_what_it_shows(found: Explanation) -> None:
    html = explanation_page(found, model="planted", dtype="float32", head=INDUCTION, top=5)
    for words in ("Head 1.2", "head 1.2", "waterfall", "head-map", 'id="attention"', "planted"):
        assert words in html
    assert 'src="http' not in html
    assert html.count('data-tip="') == 16
    table = parts_table(found, 3)
    assert table["part"].iloc[0] == "head 1.2"
    assert table["most from"].iloc[0].startswith("5 ")


# ---- figures --------------------------------------------------------------------------------


def test_the_head_map_draws_its_table_and_leaves_gaps_blank() -> None:
    heads = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 1], "share": [0.1, -0.2, 0.4]})
    drawn = head_map(heads, "share", "share")
    z = np.array(drawn.data[0].z, dtype=float)
    assert z[0].tolist() == [0.1, -0.2]
    assert np.isnan(z[1, 0])
    assert z[1, 1] == 0.4
    assert (drawn.data[0].zmin, drawn.data[0].zmax) == (-0.4, 0.4)  # zero is the middle
    positive = head_map(heads.assign(share=heads["share"].abs()), "share", "share")
    assert positive.data[0].zmin == 0


def test_the_waterfall_sums_what_it_does_not_show() -> None:
    parts = pd.DataFrame({"part": list("abcd"), "value": [0.1, -3.0, 2.0, 0.25]})
    rows = waterfall_rows(parts, top=2)
    assert rows["part"].tolist() == ["c", "b", "2 other parts"]
    assert rows["value"].tolist() == pytest.approx([2.0, -3.0, 0.35])
    drawn = waterfall(parts, top=2)
    assert list(drawn.data[0].x) == pytest.approx([2.0, -3.0, 0.35, -0.65])
    assert list(drawn.data[0].measure)[-1] == "total"
    assert waterfall_rows(parts, top=9)["part"].tolist() == ["c", "d", "a", "b"]
    with pytest.raises(SwitchSDError, match="at least 1"):
        waterfall(parts, top=0)


def test_attention_marks_the_copy_source(found: Explanation) -> None:
    mine = found.sources.query("layer == 1 and head == 2")
    drawn = attention_to_source(mine, found.tokens, found.copy_source)
    bar = drawn.data[0]
    assert list(bar.y) == pytest.approx(mine["attention"].tolist())
    colours = list(bar.marker.color)
    assert [place for place, colour in enumerate(colours) if colour != colours[0]] == [5]
    values = attention_to_source(mine, found.tokens, -1, column="value")
    assert list(values.data[0].y) == pytest.approx(mine["value"].tolist())
    with pytest.raises(SwitchSDError, match="one head"):
        attention_to_source(found.sources, found.tokens, 5)


def test_link_and_kinds_draw_their_tables() -> None:
    link = pd.DataFrame(
        {"layer": [0, 1], "head": [2, 3], "score": [0.1, 0.9], "share": [0.0, 0.3],
         "share_low": [-0.1, 0.2], "share_high": [0.1, 0.5]}
    )  # fmt: skip
    drawn = score_against_share(link)
    assert list(drawn.data[0].x) == [0.1, 0.9]
    assert list(drawn.data[0].error_y.array) == pytest.approx([0.1, 0.2])
    kinds = pd.DataFrame(
        {"kind": ["head", "mlp", "bias"], "share": [0.7, 0.3, 0.0],
         "share_low": [0.6, 0.2, 0.0], "share_high": [0.8, 0.4, 0.0]}
    )  # fmt: skip
    assert list(kind_shares(kinds).data[0].x) == [0.7, 0.3]
    with pytest.raises(SwitchSDError, match="lacks share"):
        kind_shares(kinds.drop(columns="share"))


def test_head_parts_are_those_of_the_model(found: Explanation) -> None:
    assert len(head_parts(found)) == 8
    assert VOCAB > 20


# ---- the command ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--prompt or with --file"),
        (("--prompt", "a", "--file", "b"), "one of them"),
        (("--prompt", "  "), "empty"),
        (("--file", "/no/such/file"), "cannot read"),
        (("--prompt", "a", "--head", "twelve"), "LAYER.HEAD"),
        (("--prompt", "a", "--top", "0"), "--top 0"),
        (("--of", "runs/demo", "--prompt", "a"), "leave out --prompt"),
        (("--of", "runs/demo"), "say which text of runs/demo with --prompt-id"),
    ],
)
def test_bad_options_are_refused_before_the_model_loads(
    switchsd: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    done = switchsd("explain", *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.model
def test_the_default_model_explains_a_prompt(lens: Lens, tmp_path: Path) -> None:
    from switchsd import Options, generate
    from switchsd.analysis.explain.run import completed, decoded_text, run_explain
    from switchsd.probing.shipped import shipped_probe

    probe = shipped_probe(lens)
    text = "Repeat word for word: seven brave little ducks crossed the muddy pond."
    ids, n_prompt = completed(lens, text, max_new_tokens=16)
    run, found = run_explain(lens, probe, ids, n_prompt, tmp_path / "explain")
    assert found.tokens.loc[found.chosen, "copied"]
    assert found.attribution.max_relative_error < 1e-4
    assert len(head_parts(found)) == 21 * 9
    assert Run(run.path).manifest()["state"] == "complete"
    assert run.metrics()["token"] == found.chosen
    assert (run.path / "explain.html").stat().st_size > 10_000
    for head, words in (((30, 0), "no head 30.0"), ((3, 9), "no head 3.9"),
                        ((25, 1), "does not write to")):  # fmt: skip
        with pytest.raises(SwitchSDError, match=words):
            run_explain(lens, probe, ids, n_prompt, tmp_path / "other", head=head)
    with pytest.raises(SwitchSDError, match="is a copy"):
        run_explain(lens, probe, *completed(lens, "Say hi.", max_new_tokens=4), tmp_path / "other")
    assert not (tmp_path / "other").exists()  # nothing is written for what was refused

    # the same token of the same text, taken from a run that decoded it under a gate
    result = generate(
        lens, ids[:n_prompt], "switchsd", max_new_tokens=16, options=Options(probe=probe)
    )
    decoded = Run.start(tmp_path / "decoded", command="demo", config={})
    decoded.describe(model={"fingerprint": lens.fingerprint})
    rows = result.trace.tokens_frame().assign(policy="switchsd", prompt_id="p")
    decoded.write_table("tokens", rows)
    assert decoded_text(decoded, "p", model=lens.fingerprint) == (ids, n_prompt)
    recorded = rows.set_index("position").loc[found.chosen, "score"]
    assert recorded == pytest.approx(found.tokens.loc[found.chosen, "score"], abs=1e-4)
    with pytest.raises(SwitchSDError, match="no prompt q; it has p"):
        decoded_text(decoded, "q", model=lens.fingerprint)
    with pytest.raises(SwitchSDError, match="another model"):
        decoded_text(decoded, "p", model="other")
    with pytest.raises(SwitchSDError, match="by switchsd, not by pld"):
        decoded_text(decoded, "p", model=lens.fingerprint, policy="pld")
    other = rows.assign(policy="pld", id=rows["id"].where(rows["position"] < len(ids) - 1, 7))
    decoded.write_table("tokens", pd.concat([rows, other]))
    with pytest.raises(SwitchSDError, match=r"differ .* say whose with --policy"):
        decoded_text(decoded, "p", model=lens.fingerprint)
    assert decoded_text(decoded, "p", model=lens.fingerprint, policy="pld")[0][-1] == 7
