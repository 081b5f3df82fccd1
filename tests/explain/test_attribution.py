"""Attribution: the parts are the logit, on every supported site and shape of model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from switchsd import SwitchSDError
from switchsd.analysis.explain.attribution import (
    attribute,
    layers_below,
    part_sites,
    read_rows,
    split,
)
from switchsd.analysis.explain.reading import Reading, reading
from switchsd.analysis.explain.sources import source_shares
from switchsd.probing.lens import Lens
from switchsd.probing.training.families import LinearProbe
from switchsd.probing.training.mlp import MlpProbe
from tiny_models import probe_for

STREAMS = ("hook_resid_pre", "hook_resid_mid", "hook_resid_post", "hook_attn_out", "hook_mlp_out",
           "attn.hook_z")  # fmt: skip
IDS = [3, 9, 14, 3, 9, 27, 1, 30, 3, 9, 14, 2]


def random_reading(lens: Lens, site: str) -> Reading:
    generator = torch.Generator().manual_seed(5)
    return Reading(site, torch.randn(lens.site_width(site), generator=generator), 0.7)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("backend", ["live", "bridge"])
def test_parts_sum_to_the_logit_at_every_site(
    tiny: Callable[..., Lens], kind: str, backend: str
) -> None:
    lens = tiny(kind, backend=backend, seed=3)
    if kind == "gpt2":  # its biases start at zero; they have to count
        for name, weight in lens.model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(weight, generator=torch.Generator().manual_seed(len(name)))
    for layer in range(3):
        for stream in STREAMS:
            site = f"blocks.{layer}.{stream}"
            probe = random_reading(lens, site)
            found = attribute(lens, IDS, probe, [11, 0, 5])
            x = lens.forward(torch.tensor([IDS]), sites=[site]).streams[site][0].flatten(1)
            logit = (x @ probe.weight + 0.7)[[11, 0, 5]]
            assert found.logit == pytest.approx(logit.numpy(), rel=1e-5, abs=1e-4)
            assert found.max_relative_error < 1e-4, site
            strict = np.abs(found.values.sum(1) - found.logit) / np.abs(found.values).sum(1)
            assert strict.max() < 2e-6, site  # of what is added up: the logit may be near zero
            assert found.values[:, -1] == pytest.approx(0.7)
            assert found.parts["part"].iloc[-1] == "bias"
            assert not found.parts["part"].duplicated().any()


@pytest.mark.model
def test_parts_sum_to_the_logit_on_the_default_model(lens: Lens) -> None:
    ids = lens.tokenizer.encode("The cat sat on the mat. The cat sat on the mat. The cat")
    for site in ("blocks.0.hook_resid_pre", "blocks.20.hook_resid_mid", "blocks.29.hook_resid_post",
                 "blocks.14.hook_attn_out", "blocks.19.hook_mlp_out", "blocks.9.hook_resid_pre",
                 "blocks.3.attn.hook_z"):  # fmt: skip
        width = lens.site_width(site)
        weight = torch.randn(width, generator=torch.Generator().manual_seed(1)) / width**0.5
        found = attribute(lens, ids, Reading(site, weight, -0.5), range(len(ids)))
        assert found.max_relative_error < 1e-4, site
    from switchsd.probing.shipped import shipped_probe

    probe = shipped_probe(lens)
    found = attribute(lens, ids, reading(probe), range(2, len(ids)))
    assert found.max_relative_error < 1e-4
    score = 1 / (1 + np.exp(-found.logit))
    at = lens.forward(torch.tensor([ids]), sites=[probe.site]).streams[probe.site][0, 2:]
    assert score == pytest.approx(probe.score(at).numpy(), abs=1e-5)


def test_what_lies_below_each_site(tiny: Callable[..., Lens]) -> None:
    assert layers_below("blocks.1.hook_resid_pre") == (1, 1)
    assert layers_below("blocks.1.hook_resid_mid") == (2, 1)
    assert layers_below("blocks.1.hook_resid_post") == (2, 2)
    lens = tiny("llama")
    counts = {
        "blocks.0.hook_resid_pre": {"embedding": 1, "bias": 1},
        "blocks.1.hook_resid_mid": {"embedding": 1, "head": 8, "mlp": 1, "bias": 1},
        "blocks.2.hook_resid_post": {"embedding": 1, "head": 12, "mlp": 3, "bias": 1},
        "blocks.2.hook_attn_out": {"head": 4, "bias": 1},
        "blocks.2.hook_mlp_out": {"neuron": 48, "bias": 1},
        "blocks.2.attn.hook_z": {"head": 4, "bias": 1},
    }
    for site, expected in counts.items():
        found = attribute(lens, IDS, random_reading(lens, site), [4])
        assert found.parts["kind"].value_counts().to_dict() == expected, site


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_part_is_what_its_head_wrote(tiny: Callable[..., Lens], kind: str) -> None:
    """Zeroing one head's columns of the output projection takes exactly its part away."""
    lens = tiny(kind)
    site = "blocks.1.hook_attn_out"
    probe = random_reading(lens, site)
    before = attribute(lens, IDS, probe, [7])
    block = lens.model.base_model.layers[1].self_attn.o_proj if kind == "llama" else (
        lens.model.base_model.h[1].attn.c_proj
    )  # fmt: skip
    with torch.no_grad():
        mine = slice(2 * lens.d_head, 3 * lens.d_head)
        if kind == "llama":
            block.weight[:, mine] = 0
        else:
            block.weight[mine] = 0
    after = attribute(lens, IDS, probe, [7])
    part = before.at(7).set_index("part").loc["head 1.2", "value"]
    assert abs(part) > 1e-2
    assert before.logit[0] - after.logit[0] == pytest.approx(part, rel=1e-3, abs=1e-5)
    assert after.at(7).set_index("part").loc["head 1.2", "value"] == 0


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_a_head_s_shares_by_source_sum_to_its_part(tiny: Callable[..., Lens], kind: str) -> None:
    lens = tiny(kind, backend="bridge")
    for site in ("blocks.2.hook_resid_mid", "blocks.1.hook_attn_out", "blocks.1.attn.hook_z"):
        probe = random_reading(lens, site)
        shares = source_shares(lens, IDS, probe, 6)
        assert shares["source"].max() == 6
        parts = attribute(lens, IDS, probe, [6]).at(6)
        heads = parts[parts["kind"] == "head"].set_index(["layer", "index"])["value"]
        summed = shares.groupby(["layer", "head"])[["value", "attention"]].sum()
        assert len(summed) == len(heads)
        assert summed["value"].to_numpy() == pytest.approx(heads.to_numpy(), rel=1e-4, abs=1e-4)
        assert summed["attention"].to_numpy() == pytest.approx(1.0, abs=1e-5)


def test_share_by_source_by_hand(tiny: Callable[..., Lens]) -> None:
    """One head, one key: attention times the value the projection gives, in grouped-query order."""
    lens = tiny("llama", backend="bridge")
    site = "blocks.1.hook_attn_out"
    probe = random_reading(lens, site)
    shares = source_shares(lens, IDS, probe, 5).set_index(["layer", "head", "source"])
    names = [f"blocks.1.{s}" for s in ("hook_resid_pre", "attn.hook_pattern")]
    s = lens.forward(torch.tensor([IDS]), sites=names).streams
    attention = lens.model.model.layers[1].self_attn
    with torch.no_grad():
        v = attention.v_proj(lens.model.model.layers[1].input_layernorm(s[names[0]][0]))
        for head, key_head in ((0, 0), (1, 0), (2, 1), (3, 1)):
            mine = slice(head * 8, head * 8 + 8)
            wrote = v[3, key_head * 8 : key_head * 8 + 8] @ attention.o_proj.weight[:, mine].T
            expected = s[names[1]][0, head, 5, 3] * (wrote @ probe.weight)
            assert shares.loc[(1, head, 3), "value"] == pytest.approx(float(expected), rel=1e-3)


def test_the_scaler_goes_into_the_bias(tiny: Callable[..., Lens]) -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    lens = tiny("llama")
    site = "blocks.2.hook_resid_mid"
    x = lens.forward(torch.tensor([IDS]), sites=[site]).streams[site][0].double().numpy()
    y = np.arange(len(IDS)) % 3 == 0
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
    scaler, line = model[0], model[1]
    folded = line.coef_[0] / scaler.scale_
    bias = float(line.intercept_[0] - folded @ scaler.mean_)
    probe = Reading(site, torch.tensor(folded).float(), bias)
    found = attribute(lens, IDS, probe, range(len(IDS)))
    assert found.logit == pytest.approx(model.decision_function(x), abs=1e-4)
    assert found.max_relative_error < 1e-4
    shift = float((line.coef_[0] * scaler.mean_ / scaler.scale_).sum())
    assert found.values[0, -1] == pytest.approx(float(line.intercept_[0]) - shift, abs=1e-4)


def mlp_probe(width: int) -> MlpProbe:
    random = np.random.default_rng(0)
    return MlpProbe(
        random.normal(size=(width, 6)).astype(np.float32),
        random.normal(size=6).astype(np.float32),
        random.normal(size=6).astype(np.float32),
        0.3,
    )


def test_an_mlp_probe_is_refused_and_its_gradient_splits(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    site = "blocks.1.hook_resid_post"
    probe = mlp_probe(lens.d_model)
    with pytest.raises(SwitchSDError, match="no exact attribution"):
        reading(probe, site)
    streams = read_rows(lens, IDS, [*part_sites(site), site], [2, 8])
    x = streams[site]
    leaf = x.double().requires_grad_()
    hidden = torch.relu(leaf @ torch.from_numpy(probe.inner) .double()
                        + torch.from_numpy(probe.inner_bias))  # fmt: skip
    (hidden @ torch.from_numpy(probe.outer).double()).sum().backward()
    embedding = lens.forward(torch.tensor([IDS]), sites=["blocks.0.hook_resid_pre"])
    e = embedding.streams["blocks.0.hook_resid_pre"][0, [2, 8]].double()
    assert leaf.grad is not None
    parts, values = split(lens, site, streams, leaf.grad)  # each row has weights of its own
    assert parts[0][0] == "embedding"
    assert values[0][:, 0].numpy() == pytest.approx((e * leaf.grad).sum(1).numpy(), rel=1e-4)
    whole = (x.double() * leaf.grad).sum(1).numpy()
    assert torch.cat(values, 1).sum(1).numpy() == pytest.approx(whole, rel=1e-4, abs=1e-6)


def test_readings_of_linear_probes(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    copy = probe_for(lens, bias=0.2)
    assert reading(copy) == Reading(copy.site, copy.weight, 0.2)
    line = LinearProbe(np.ones(32, np.float32), 0.1)
    assert reading(line, "blocks.0.hook_mlp_out").site == "blocks.0.hook_mlp_out"
    with pytest.raises(SwitchSDError, match="name the site"):
        reading(line)


def test_bad_input_is_named(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    probe = random_reading(lens, "blocks.1.hook_resid_mid")
    with pytest.raises(SwitchSDError, match="position 12 lies outside the 12 tokens"):
        attribute(lens, IDS, probe, [12])
    with pytest.raises(SwitchSDError, match="name at least one"):
        attribute(lens, IDS, probe, [])
    with pytest.raises(SwitchSDError, match="no sum over heads"):
        part_sites("blocks.0.mlp.hook_post")
    with pytest.raises(SwitchSDError, match="layers 0–2"):
        attribute(lens, IDS, Reading("blocks.7.hook_resid_mid", torch.ones(32), 0.0), [1])
    with pytest.raises(SwitchSDError, match="bridge"):
        source_shares(lens, IDS, probe, 4)
    bridge = tiny("llama", backend="bridge")
    with pytest.raises(SwitchSDError, match="no head writes"):
        source_shares(bridge, IDS, random_reading(lens, "blocks.0.hook_resid_pre"), 4)
    gemma = tiny("gemma3")
    with pytest.raises(SwitchSDError, match="norm between its heads"):
        attribute(gemma, IDS, random_reading(gemma, "blocks.1.hook_resid_mid"), [1])


def test_order_and_repeats_of_positions_are_kept(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama")
    probe = random_reading(lens, "blocks.1.hook_resid_mid")
    one = [attribute(lens, IDS, probe, [p]).logit[0] for p in (9, 2, 9)]
    assert attribute(lens, IDS, probe, [9, 2, 9]).logit == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_neurons_and_values_are_what_the_layers_compute(
    tiny: Callable[..., Lens], kind: str
) -> None:
    live, bridge = tiny(kind), tiny(kind, backend="bridge")
    tokens = torch.tensor([IDS])
    post, value = "blocks.1.mlp.hook_post", "blocks.1.attn.hook_v"
    neurons = live.forward(tokens, sites=[post]).streams[post]
    assert neurons.shape[-1] == live.site_width(post) == bridge.site_width(post)
    assert torch.allclose(neurons, bridge.forward(tokens, sites=[post]).streams[post], atol=1e-5)
    v = bridge.forward(tokens, sites=[value]).streams[value]
    assert v.shape == (1, len(IDS), bridge.n_kv_heads, bridge.d_head)
    assert bridge.site_width(value) == v.shape[2] * v.shape[3]
    with pytest.raises(SwitchSDError, match="bridge"):
        live.forward(tokens, sites=[value])


def test_a_pattern_s_rows_are_its_queries(tiny: Callable[..., Lens]) -> None:
    lens = tiny("llama", backend="bridge")
    site, rows = "blocks.1.attn.hook_pattern", torch.zeros(1, len(IDS), dtype=torch.bool)
    rows[0, [2, 7]] = True
    whole = lens.forward(torch.tensor([IDS]), sites=[site]).streams[site][0]
    part = lens.forward(torch.tensor([IDS]), sites=[site], rows=rows).streams[site]
    assert torch.equal(part, whole[:, [2, 7]].transpose(0, 1))
