"""Sizes and sources of the study of explanations."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SwitchSDError


@dataclass(frozen=True)
class ExplainConfig:
    """Sizes of the study.

    Attributes:
        benchmarks: whose prompts everything is judged on.
        n_prompts: of them, in all.
        max_prompt_tokens: longer prompts are passed over.
        completion_tokens: budget of each completion.
        train_prompts: CopyDiversity prompts that heads are ranked on and means are taken over.
        ks: numbers of heads ablated together.
        draws: sets of random heads at the headline number, half as many at the others.
        pairs: prompts patched.
        exact_units: units of each patched exactly, for each figure.
        steering_prompts: prompts steered.
        doses: in standard deviations of the site.
        random_directions: controls of each dose.
        data_dir: folder of the benchmarks; `$SWITCHSD_DATA` if empty.
        seed: of training prompts, draws and intervals.
    """

    benchmarks: tuple[str, ...] = ("humaneval", "math500", "cnndm", "mtbench")
    n_prompts: int = 64
    max_prompt_tokens: int = 200
    completion_tokens: int = 64
    train_prompts: int = 64
    ks: tuple[int, ...] = (1, 3, 10, 20)
    draws: int = 6
    pairs: int = 20
    exact_units: int = 20
    steering_prompts: int = 24
    doses: tuple[float, ...] = (-16.0, -8.0, 4.0, 8.0, 16.0)
    random_directions: int = 3
    data_dir: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        least = {
            "n_prompts": 2, "max_prompt_tokens": 1, "completion_tokens": 1, "train_prompts": 10,
            "draws": 1, "pairs": 1, "exact_units": 1, "steering_prompts": 2,
            "random_directions": 1,
        }  # fmt: skip
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise SwitchSDError(f"{name} = {getattr(self, name)}: has to be at least {minimum}")
        if not self.ks or min(self.ks) < 1 or not self.doses:
            raise SwitchSDError("name at least one number of heads (1 or more) and one dose")
