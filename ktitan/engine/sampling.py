"""How the next token is chosen: checked options, transformers' own processors, and a random stream of its own.

The random numbers come from a CPU generator and choose by the inverse of the cumulative probabilities, so a seed gives
the same draws on every device, and torch's global generator is never touched.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ktitan.engine.quick_choice import Penalised, QuickChoice
from ktitan.errors import Fault, UnsupportedError
from ktitan.native.choosing import NativeChoice
from ktitan.native.library import state as library_state

__all__ = ["Sampler", "Sampling"]

# Random numbers that are drawn at a time.
_DRAWN = 64
# Below this the distribution is one token in float32 unless two logits are equal to the last bits.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Sampling:
    """Options of the choice; the defaults sample from the model's own distribution.

    Attributes:
        temperature: divides the logits, >= 0; 0 is greedy.
        top_p: smallest set of tokens with at least this probability, 0 to 1; 1 is off, 0 is greedy.
        top_k: so many likeliest tokens, >= 0; 0 is off, 1 is greedy.
        min_p: tokens with at least this share of the likeliest one's probability, 0 to 1; 0 is off, 1 is greedy.
        repetition_penalty: > 0; above 1 makes tokens that already stand in the sequence less likely; 1 is off.
        presence_penalty: subtracted once from the logit of every token that the answer holds already; 0 is off.
        frequency_penalty: subtracted as often as the answer holds the token; 0 is off.
        logit_bias: added to the logits of these token ids.
        seed: the same seed gives the same text; None draws a fresh one.
        greedy: always the likeliest token (after penalties and bias).

    Raises:
        UnsupportedError: every value outside its range, all at once.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    greedy: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for name in _RANGES if name != "seed" or self.seed is not None]
        faults = [fault for name in names if (fault := _fault(self, name))]
        faults += _bias_faults(self.logit_bias)
        if faults:
            raise UnsupportedError.from_faults(faults, f"{len(faults)} sampling options are out of range")

    @property
    def is_greedy(self) -> bool:
        """Whether only one token can be chosen, since an option says so or its limit does."""
        limits = (self.temperature < GREEDY_TEMPERATURE, self.top_p == 0, self.top_k == 1, self.min_p == 1)
        return self.greedy or any(limits)

    @classmethod
    def resolve(
        cls,
        generation_config: Any = None,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        presence_penalty: float | None = None,
        frequency_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        greedy: bool | None = None,
    ) -> Sampling:
        """Options given by the user (not None), completed from the model's `generation_config`.

        Who gives none of temperature, top_p, top_k and min_p gets what the model's authors chose: sampling where
        `do_sample` is true, else greedy. Who gives any of them wants sampling.
        """
        shaping = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
        given: dict[str, Any] = {**shaping, "repetition_penalty": repetition_penalty}
        values = {name: _default_of(generation_config, name) for name in given}
        given |= {
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "logit_bias": logit_bias,
        }
        values |= {name: value for name, value in given.items() if value is not None}
        if greedy is None:
            chosen = any(value is not None for value in shaping.values())
            greedy = not chosen and not getattr(generation_config, "do_sample", False)
        return cls(**values, seed=seed, greedy=greedy)


def _default_of(generation_config: Any, name: str) -> Any:
    """The model's own value of an option, or ktitan's default where the model says nothing."""
    value = getattr(generation_config, name, None)
    return _DEFAULTS[name] if value is None else value


_DEFAULTS = {one.name: one.default for one in fields(Sampling)}


def _fault(sampling: Sampling, name: str) -> Fault | None:
    """What is wrong with one option, if anything."""
    kinds, low, high, allowed = _RANGES[name]
    value: Any = getattr(sampling, name)
    return (
        None
        if _is_number(value, kinds, low, high)
        else Fault(f"{value!r} is not {allowed}", name, "leave it out to use the default")
    )


def _bias_faults(bias: Any) -> list[Fault]:
    """What is wrong with a logit bias: token ids are whole numbers >= 0, their values finite numbers."""
    if not isinstance(bias, Mapping):
        return [Fault(f"{bias!r} is not a map from token ids to numbers", "logit_bias", "write it as {id: number}")]
    remedy = "give ids of the model's vocabulary and finite numbers"
    return [
        Fault(f"{token!r}: {value!r} is not a token id with a number", "logit_bias", remedy)
        for token, value in bias.items()
        if not _is_number(token, int, 0) or not _is_number(value, (int, float), -sys.float_info.max)
    ]


def _is_number(value: Any, kinds: Any, low: float, high: float = sys.float_info.max) -> bool:
    """NaN fails every comparison, and a bool is no number here."""
    return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high


# Option -> types, least and greatest value, and the range in words.
_RANGES: dict[str, tuple[Any, float, float, str]] = {
    "temperature": ((int, float), 0, sys.float_info.max, "a number >= 0"),
    "top_p": ((int, float), 0, 1, "a number from 0 to 1"),
    "top_k": ((int,), 0, sys.maxsize, "a whole number >= 0 (0 is off)"),
    "min_p": ((int, float), 0, 1, "a number from 0 to 1"),
    "repetition_penalty": ((int, float), sys.float_info.min, sys.float_info.max, "a number > 0"),
    "presence_penalty": ((int, float), -100, 100, "a number from -100 to 100"),
    "frequency_penalty": ((int, float), -100, 100, "a number from -100 to 100"),
    # What torch.Generator.manual_seed takes.
    "seed": ((int,), -(2**63), 2**64 - 1, "a whole number from -2^63 to 2^64 - 1"),
}


class Sampler:
    """Chooses tokens of one sequence by `sampling`.

    Args:
        sampling: the options.
        prompt_ids: the sequence so far; only a repetition penalty looks at it.
    """

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int] = ()) -> None:
        self._greedy = sampling.is_greedy
        self._chosen: Counter[int] = Counter()
        self._processors = _processors(sampling, self._chosen)
        penalty = sampling.repetition_penalty
        self._penalised = None if penalty == 1 else Penalised(penalty, prompt_ids)
        self._quick = _quick(sampling)
        self._counts = bool(sampling.presence_penalty or sampling.frequency_penalty)
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)
        self._uniforms: list[float] = []

    def __call__(self, logits: torch.Tensor) -> int:
        """The next token's id for `logits` [1, V] of any float dtype and device.

        Raises:
            UnsupportedError: the logits hold NaN, so weights or the model's arithmetic are broken.
        """
        return self.choose(logits, self.draw())

    @property
    def native(self) -> NativeChoice | None:
        """The choice as native code makes it from the logits as they are; None where that takes more."""
        return self._quick if self._penalised is None and isinstance(self._quick, NativeChoice) else None

    def draw(self) -> float:
        """The random number of the next choice, in [0, 1)."""
        if self._greedy:
            return 0.0
        if not self._uniforms:
            numbers = torch.rand(_DRAWN, generator=self._generator, dtype=torch.float64)
            self._uniforms = numbers.flip(0).tolist()
        return self._uniforms.pop()

    def choose(self, logits: torch.Tensor, uniform: float) -> int:
        """As a call, with a number that was drawn."""
        token = self._quickly(logits, uniform)
        if token is None:
            token = self._plainly(logits, uniform)
        self.note(token)
        return token

    def note(self, token: int) -> None:
        """`token` is the next one of the sequence."""
        if self._counts:
            self._chosen[token] += 1
        if self._penalised is not None:
            self._penalised.add(token)

    def _quickly(self, logits: torch.Tensor, uniform: float) -> int | None:
        """The token that `_plainly` chooses, where that can be told with less work."""
        if self._quick is None or logits.device.type != "cpu":
            return None
        row = logits[0].detach().float().numpy()
        if self._penalised is not None:
            row = self._penalised.applied(row)
        return self._quick.choose(row, uniform)

    def _plainly(self, logits: torch.Tensor, uniform: float) -> int:
        """By transformers' processors, then the likeliest or a draw over the whole vocabulary."""
        ids = [] if self._penalised is None else self._penalised.ids.tolist()
        scores = self._processors(torch.tensor([ids], dtype=torch.int64, device=logits.device), logits.float())  # type: ignore[arg-type]
        return self._likeliest(scores) if self._greedy else self._draw(scores, uniform)

    @staticmethod
    def _likeliest(scores: torch.Tensor) -> int:
        best = scores[0].max(dim=-1)
        if math.isnan(best.values.item()):
            raise _not_a_number()
        return int(best.indices.item())

    @staticmethod
    def _draw(scores: torch.Tensor, uniform: float) -> int:
        cumulative = torch.softmax(scores[0].double(), dim=-1).cumsum(dim=-1)
        total = cumulative[-1].item()
        if math.isnan(total):
            raise _not_a_number()
        # The product may round up to the total, beyond which there is no token.
        point = min(uniform * total, math.nextafter(total, 0))
        # right=True skips tokens of probability zero, whose cumulative value equals their neighbour's.
        return int(torch.searchsorted(cumulative, point, right=True).item())


def _quick(sampling: Sampling) -> NativeChoice | QuickChoice | None:
    """How tokens are chosen with less work than by transformers' processors; None: by these."""
    greedy = sampling.is_greedy
    if sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty:
        return None
    if not greedy and sampling.min_p:
        return None
    if not greedy and not sampling.top_k:
        return QuickChoice(sampling.temperature, sampling.top_p)
    if library_state().handle is None:
        return None
    return NativeChoice() if greedy else NativeChoice(sampling.temperature, sampling.top_k, sampling.top_p)


def _not_a_number() -> UnsupportedError:
    return UnsupportedError("the model's logits hold NaN", "", "compute in float32 (dtype), and check the weights")


class _AnswerPenalty(LogitsProcessor):
    """OpenAI's presence and frequency penalties, which transformers lacks: only what was generated counts.

    logit[t] -= presence * (count[t] > 0) + frequency * count[t]
    (https://platform.openai.com/docs/api-reference/chat/create, "frequency and presence penalties").
    """

    def __init__(self, presence: float, frequency: float, chosen: Counter[int]) -> None:
        self._presence, self._frequency, self._chosen = presence, frequency, chosen

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [1, V] without the penalties of the tokens chosen so far."""
        if not self._chosen:
            return scores
        tokens = torch.tensor([[*self._chosen]], device=scores.device)
        counts = torch.tensor([[*self._chosen.values()]], dtype=scores.dtype, device=scores.device)
        return scores.scatter_add(1, tokens, -(self._presence + self._frequency * counts))


def _processors(sampling: Sampling, chosen: Counter[int]) -> LogitsProcessorList:
    """transformers' processors for the options that are on, in transformers' own order; `chosen` counts the answer."""
    chain = LogitsProcessorList()
    if sampling.logit_bias:
        chain.append(
            SequenceBiasLogitsProcessor([[[token], float(bias)] for token, bias in sampling.logit_bias.items()])
        )
    if sampling.presence_penalty or sampling.frequency_penalty:
        chain.append(_AnswerPenalty(sampling.presence_penalty, sampling.frequency_penalty, chosen))
    if sampling.repetition_penalty != 1:
        chain.append(RepetitionPenaltyLogitsProcessor(float(sampling.repetition_penalty)))
    if sampling.is_greedy:
        return chain
    if sampling.temperature != 1:
        chain.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k > 0:
        chain.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        chain.append(TopPLogitsWarper(float(sampling.top_p)))
    if sampling.min_p > 0:
        chain.append(MinPLogitsWarper(float(sampling.min_p)))
    return chain
