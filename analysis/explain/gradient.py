"""Attribution of an MLP probe along its gradient: exact at one activation, and nowhere else.

A ReLU probe is linear as long as no hidden unit switches. Around an activation x its logit is
g · x + c, with g its gradient there; g splits over the parts of the stream as a linear probe's
weights do, and c is the `remainder`. The parts sum to the logit, but g belongs to this activation:
taking a part away would switch units, so a part is no claim about what its absence would do, and
parts of different positions are measured along different directions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from ...probing.lens import Lens
from ...probing.training.mlp import MlpProbe
from .attribution import Attribution, part_sites, read_rows, split


def gradient_attribution(
    lens: Lens, ids: Sequence[int], probe: MlpProbe, site: str, positions: Sequence[int]
) -> Attribution:
    """Gradient times part, for an MLP probe; the part `remainder` is what the gradient leaves.

    Args:
        lens: the model, on either backend.
        ids: the text.
        probe: with one hidden layer of ReLU units.
        site: where it reads.
        positions: where in the text.

    Raises:
        SwitchSDError: as `attribution.attribute`.
    """
    streams = read_rows(lens, ids, [*part_sites(site), site], positions)
    x = streams[site].flatten(1).double()
    logit = torch.from_numpy(probe.logit(x.float().cpu().numpy())).double().to(x.device)
    inner = torch.from_numpy(probe.inner).double().to(x.device)
    hidden_bias = torch.from_numpy(probe.inner_bias).double().to(x.device)
    active = (x @ inner + hidden_bias > 0).double()
    gradient = (active * torch.from_numpy(probe.outer).double().to(x.device)) @ inner.T
    parts, values = split(lens, site, streams, gradient)
    parts.append(("remainder", "bias", -1, -1))
    values.append((logit - (x * gradient).sum(1))[:, None])
    return Attribution(
        site,
        np.asarray(positions),
        pd.DataFrame(parts, columns=["part", "kind", "layer", "index"]),
        torch.cat(values, 1).cpu().numpy(),
        logit.cpu().numpy(),
    )
