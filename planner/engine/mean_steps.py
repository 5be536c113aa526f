"""Steps of mean content: so many decodes of one mean context, and so many prompt tokens of one mean kind.

Theory asks for nothing else, for many steps at once. They are read from the tables of a timer in compiled code; tests
hold them to `StepTimer.times_s` within 1e-12.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.core import FloatArray, compiled
from planner.engine.single_steps import StepTables, curve_at, seconds_beside_attention


@dataclass(frozen=True, eq=False)
class MeanSteps:
    """Step times of a replica from decodes and prompt tokens of mean content.

    Attributes:
        tables: of the replica (`StepTimer.mean_tables`).
        decode_context: tokens a decode attends to.
        chunks: prompt chunks per prompt token.
        attention_tokens: prompt tokens at which their attention is tabulated, rising, shape (P,).
        attention_s: that attention [s], shape (P,).
    """

    tables: StepTables
    decode_context: float
    chunks: float
    attention_tokens: FloatArray
    attention_s: FloatArray

    def times_s(self, decodes: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        """Duration [s] of each step, `StepTimer.times_s` of its mean content.

        Args:
            decodes: sequences, any shape.
            prompt_tokens: new prompt tokens, same shape.

        Returns:
            The same shape.

        Raises:
            Nothing.
        """
        if decodes.ndim != 1:
            return self.times_s(decodes.ravel(), prompt_tokens.ravel()).reshape(decodes.shape)
        return self._times_s(decodes, decodes * self.decode_context, prompt_tokens)

    def decodes_s(self, decodes: FloatArray, decode_context: FloatArray) -> FloatArray:
        """Duration [s] of steps of decodes alone, of any mean context.

        Args:
            decodes: sequences, shape (n,).
            decode_context: tokens that all of them attend to, shape (n,).

        Returns:
            Shape (n,).

        Raises:
            Nothing.
        """
        return self._times_s(decodes, decode_context, np.zeros(decodes.size))

    def _times_s(self, decodes: FloatArray, decode_context: FloatArray, prompt_tokens: FloatArray) -> FloatArray:
        attention = self.chunks, self.attention_tokens, self.attention_s
        return _times_s(self.tables, *attention, decodes, decode_context, prompt_tokens)


@compiled(makes_arrays=True)
def _times_s(
    tables: StepTables,
    chunks: float,
    attention_tokens: FloatArray,
    attention_s: FloatArray,
    decodes: FloatArray,
    decode_context: FloatArray,
    prompt_tokens: FloatArray,
) -> FloatArray:
    seconds = np.empty(decodes.size)
    for step in range(decodes.size):
        tokens = prompt_tokens[step]
        prompts_s = curve_at(attention_tokens, attention_s, tokens)
        content = decodes[step], decode_context[step], tokens, tokens * chunks, prompts_s
        seconds[step] = seconds_beside_attention(tables, *content)
    return seconds
