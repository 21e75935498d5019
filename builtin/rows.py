"""Rows of tokens to learn from, and how messages become one.

What it knows: the chat form, token for token as `chat_template.jinja` writes it, and which tokens the loss looks at:
what the assistant says and its end, and a little of what is asked. What it does not know: where the text comes from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer
from tokens import END, END_OF_TEXT, ROLES
from transformers import PreTrainedTokenizerFast

QUESTION_WEIGHT = 0.05  # of a question's tokens in the loss, an answer's being 1
PLAIN_WEIGHT = 0.3


@dataclass(frozen=True)
class Message:
    """weight: of its tokens in the loss. varied: its words may be cut into other tokens than usual."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    weight: float = 0.0
    varied: bool = False


@dataclass(frozen=True)
class Row:
    """Token ids and, for each of them, its weight in the loss when it is the one to be predicted."""

    tokens: list[int]
    weights: list[float]

    def cut(self, answer_tokens: int) -> "Row":
        """Up to the first few tokens of the answer."""
        end = self.weights.index(1.0) + answer_tokens
        return Row(self.tokens[:end], self.weights[:end])


class Encoder:
    """Turns messages into rows."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.exact = tokenizer.backend_tokenizer
        # For questions in training: now and then a word is cut differently, which helps with words never seen.
        self.varied = Tokenizer.from_str(self.exact.to_str())
        self.varied.model.dropout = 0.05
        self.roles = {role: self.exact.token_to_id(mark) for role, mark in ROLES.items()}
        self.end, self.end_of_text = self.exact.token_to_id(END), self.exact.token_to_id(END_OF_TEXT)
        self.newline = self.encode("\n")

    def encode(self, text: str, varied: bool = False) -> list[int]:
        return (self.varied if varied else self.exact).encode(text, add_special_tokens=False).ids

    def chat(self, messages: Sequence[Message], only_last: bool = False) -> Row:
        """only_last: the loss looks at the last message alone. The row ends with that message's end token."""
        tokens: list[int] = []
        weights: list[float] = []
        for number, message in enumerate(messages):
            is_last = number == len(messages) - 1
            weight = message.weight if is_last or not only_last else 0.0
            text = self.encode(message.text, message.varied)
            end_weight = weight if message.role == "assistant" else 0.0
            tokens += [self.roles[message.role], *self.newline, *text, self.end]
            weights += [0.0] * (1 + len(self.newline)) + [weight] * len(text) + [end_weight]
            if not is_last:
                tokens += self.newline
                weights += [0.0] * len(self.newline)
        return Row(tokens, weights)

    def plain(self, text: str) -> Row:
        """The text alone, for plain completion."""
        tokens = [*self.encode(text), self.end_of_text]
        return Row(tokens, [PLAIN_WEIGHT] * len(tokens))


def batches_by_length(rows: list[Row], tokens_per_batch: int) -> Iterator[list[Row]]:
    """Rows of one batch have similar length; they are padded on the right, where causal attention cannot see."""
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if batch and (len(batch) + 1) * len(row.tokens) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch
