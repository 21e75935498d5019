"""Trains the built-in model: a small Llama and its tokenizer, from the questions and answers in `data/`.

What it knows: the text (JSON lines of questions, answer and follow-ups), the chat template, the shape of the model, and
how to vary a question so that the model listens to its words and not to its punctuation. What it does not know: the
engine. It needs torch, transformers and tokenizers, none of which belongs to the install, and writes a plain Hugging
Face folder:

    python builtin/train.py                     # trains, writes src/inflight/builtin_model, prints how much was learned
    python builtin/train.py --evaluate          # only measures the folder that is there

A conversation is a list of turns (question, answer). The loss falls on the answers and on their end token; the
question counts a little, which gives plain completion a sense of the subject. Rows of one batch have similar length
and are padded on the right, where causal attention cannot see the padding.
"""

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
DATA = HERE / "data"
UNSEEN = HERE / "unseen.jsonl"  # questions in other words, never trained on
OUTPUT = HERE.parent / "src" / "inflight" / "builtin_model"

END, END_OF_TEXT = "<|end|>", "<|endoftext|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
SPECIAL_TOKENS = [END_OF_TEXT, END, *ROLES]
VOCABULARY = 2048
MAX_LENGTH = 1024
ROPE_THETA = 10000.0

# Accepts a system message, content given as a list of parts, missing content, and an empty list of messages.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role in ['system', 'developer'] -%}{{- '<|system|>\\n' -}}"
    "{%- elif message.role == 'assistant' -%}{{- '<|assistant|>\\n' -}}"
    "{%- else -%}{{- '<|user|>\\n' -}}{%- endif -%}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- elif message.content is iterable -%}"
    "{%- for part in message.content -%}{%- if part.text is string -%}{{- part.text -}}{%- endif -%}{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>\\n' -}}{%- endif -%}"
)

DRILL_TOKENS = 14
QUESTION_WEIGHT = 0.05  # of a question's tokens in the loss, an answer's being 1
SYSTEM_MESSAGES = [
    "You are a helpful assistant.",
    "You are a helpful assistant that answers questions about LLM serving.",
    "Answer the question briefly.",
    "You are an expert on batching. Be concise and correct.",
    "You are the assistant of inflight.",
]
OPENINGS = [
    "Please explain: ", "Please tell me: ", "Can you tell me: ", "Tell me, ", "I would like to know: ", "Hello, ",
    "Hi! ", "Hey, ", "Quick question: ", "A question: ", "So ", "And ", "Ok, ", "Please, ", "In short, ",
    "I have a question. ",
]  # fmt: skip
CLOSINGS = [" please", " please?", ", please", " Thanks!", " in simple words", " exactly?", "?"]
# Rewordings of "What is X?"; X keeps its article, so the sentences stay readable.
WHAT_IS = [
    "Please explain {}", "Explain {}", "Can you explain {}?", "Could you explain {} to me?",
    "Can you tell me what {} is?", "Tell me about {}", "Tell me what {} is", "What does {} mean?",
    "What exactly is {}?", "Define {}", "Describe {}",
    "What's {}?", "whats {}", "I want to know what {} is", "What do you know about {}?", "Do you know what {} is?",
    "How would you define {}?", "Give me a definition of {}", "What is meant by {}?", "{}?", "{}",
]  # fmt: skip
# Beginnings of questions that may be exchanged for one another.
EXCHANGES = {
    "What is the difference between ": ["Difference between ", "What's the difference between ", "Compare "],
    "What is ": ["What's ", "whats ", "What exactly is "],
    "What does ": ["what does "],
    "How do I ": [
        "How can I ",
        "How to ",
        "How should I ",
        "How would I ",
        "How do you ",
        "How can one ",
        "how do we ",
    ],
    "How does ": ["How exactly does ", "Explain how "],
    "How is ": ["How exactly is ", "In which way is "],
    "Why is ": ["Why exactly is ", "How come ", "For what reason is "],
    "Why do ": ["Why exactly do ", "How come "],
    "Why does ": ["Why exactly does ", "How come "],
    "Which ": ["What ", "Tell me which "],
    "Can I ": ["Is it possible to ", "May I ", "Could I ", "Can we ", "Can you "],
    "Should I ": ["Is it wise to ", "Should we ", "Would you "],
    "Explain ": ["Please explain ", "Can you explain ", "Explain to me ", "I want to understand "],
    "What happens ": ["What will happen ", "Tell me what happens "],
}
SMALL_WORDS = {"the", "a", "an", "of", "in", "is", "are", "do", "does", "for", "to", "my", "it"}


@dataclass(frozen=True)
class Entry:
    """One answer, the questions that ask for it, and the entries that may follow it in a conversation."""

    questions: list[str]
    answer: str
    follow_ups: list["Entry"]
    topic: str

    @classmethod
    def read(cls, record: dict, topic: str) -> "Entry":
        follow_ups = [cls.read(each, topic) for each in record.get("follow_ups", [])]
        return cls(record["questions"], record["answer"], follow_ups, topic)


Turns = list[tuple[str, str]]


def read_entries(folder: Path) -> list[Entry]:
    return [
        Entry.read(json.loads(line), path.stem)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def listed_conversations(entries: list[Entry]) -> Iterator[Turns]:
    """Every listed question once, exactly as written; a follow-up comes after its parent's first question."""
    for entry in entries:
        for question in entry.questions:
            yield [(question, entry.answer)]
        for follow_up in entry.follow_ups:
            for question in follow_up.questions:
                yield [(entry.questions[0], entry.answer), (question, follow_up.answer)]


# --- varying questions ---------------------------------------------------------------------------------------------


def misspell(text: str, rng: random.Random) -> str:
    """Drops, doubles or swaps one letter of a longer word."""
    words = text.split(" ")
    long_words = [i for i, word in enumerate(words) if len(word) > 4]
    if not long_words:
        return text
    i = rng.choice(long_words)
    word = words[i]
    at = rng.randrange(1, len(word) - 1)
    words[i] = rng.choice([
        word[:at] + word[at + 1 :],
        word[:at] + word[at] + word[at:],
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
    ])  # fmt: skip
    return " ".join(words)


def reword(question: str, rng: random.Random) -> str:
    """A small variation that keeps the meaning: another opening, case, punctuation, a dropped small word, a slip."""
    text = question
    if text.startswith(("What is ", "What are ")) and len(text.split()) <= 7 and rng.random() < 0.35:
        subject = text.split(" ", 2)[2].rstrip("?")
        text = rng.choice(WHAT_IS).format(subject)
    elif rng.random() < 0.25:
        for beginning, others in EXCHANGES.items():
            if text.startswith(beginning):
                text = rng.choice(others) + text[len(beginning) :]
                break
    if rng.random() < 0.5:
        text = text.replace(" versus ", " vs ")
    if rng.random() < 0.15:
        opening = rng.choice(OPENINGS)
        text = opening + (text if text[:2].isupper() else text[0].lower() + text[1:])
    if rng.random() < 0.1:
        text = text.rstrip("?.! ") + rng.choice(CLOSINGS)
    if rng.random() < 0.1:
        words = text.split(" ")
        small = [i for i, word in enumerate(words) if word.lower() in SMALL_WORDS]
        dropped = small if rng.random() < 0.3 else rng.sample(small, min(1, len(small)))
        text = " ".join(word for i, word in enumerate(words) if i not in dropped)
    if rng.random() < 0.1:
        text = misspell(text, rng)
    if rng.random() < 0.15:
        text = text.replace("-", " ")
    if rng.random() < 0.3:
        text = text.rstrip("?!. ")
    if rng.random() < 0.3:
        text = text.lower()
    elif rng.random() < 0.03:
        text = text.upper()
    return text or question


def ask(entry: Entry, rng: random.Random) -> str:
    question = rng.choice(entry.questions)
    return question if rng.random() < 0.3 else reword(question, rng)


def conversations_of_epoch(entries: list[Entry], rng: random.Random) -> Iterator[Turns]:
    """Each answer once, asked in varied words; some after unrelated turns, so that longer chats work."""
    short = [entry for entry in entries if len(entry.answer) < 400]
    for entry in entries:
        turns = [(ask(entry, rng), entry.answer)]
        while rng.random() < 0.25:
            other = rng.choice(short)
            turns.insert(0, (ask(other, rng), other.answer))
        yield turns
        for follow_up in entry.follow_ups:
            yield [(ask(entry, rng), entry.answer), (ask(follow_up, rng), follow_up.answer)]


def drills_of_epoch(entries: list[Entry], drills: int, rng: random.Random) -> Iterator[Turns]:
    """Single questions whose rows will be cut short: how an answer begins is the hard part, and these are cheap."""
    for entry in entries:
        for _ in range(max(drills, len(entry.questions) // 2)):
            yield [(ask(entry, rng), entry.answer)]


# --- tokenizer and token rows ---------------------------------------------------------------------------------------


def train_tokenizer(entries: list[Entry]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for turns in listed_conversations(entries) for text in turns[-1]]
    texts += [text.lower() for turns in listed_conversations(entries) for text in turns[-1][:1]]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=ROLES,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


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
    """Turns conversations into rows, token for token as the chat template does."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.exact = tokenizer.backend_tokenizer
        # For questions in training: now and then a word is cut differently, which helps with words never seen.
        self.varied = Tokenizer.from_str(self.exact.to_str())
        self.varied.model.dropout = 0.05
        self.system, self.user, self.assistant = (self.exact.token_to_id(role) for role in ROLES)
        self.end, self.end_of_text = self.exact.token_to_id(END), self.exact.token_to_id(END_OF_TEXT)
        self.newline = self.encode("\n")

    def encode(self, text: str, varied: bool = False) -> list[int]:
        return (self.varied if varied else self.exact).encode(text, add_special_tokens=False).ids

    def chat(self, turns: Turns, varied: bool = False, system: str | None = None, only_last: bool = False) -> Row:
        tokens: list[int] = []
        weights: list[float] = []

        def add(ids: list[int], weight: float) -> None:
            tokens.extend(ids)
            weights.extend([weight] * len(ids))

        if system is not None:
            add([self.system, *self.newline, *self.encode(system), self.end, *self.newline], 0.0)
        for number, (question, answer) in enumerate(turns):
            add([self.user, *self.newline], 0.0)
            add(self.encode(question, varied), 0.0 if only_last else QUESTION_WEIGHT)
            add([self.end, *self.newline, self.assistant, *self.newline], 0.0)
            add([*self.encode(answer), self.end], 0.0 if only_last and number < len(turns) - 1 else 1.0)
            if number < len(turns) - 1:
                add(self.newline, 0.0)
        return Row(tokens, weights)

    def plain(self, text: str) -> Row:
        """The text alone, for plain completion."""
        tokens = [*self.encode(text), self.end_of_text]
        return Row(tokens, [0.3] * len(tokens))


def batches_by_length(rows: list[Row], tokens_per_batch: int) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in sorted(rows, key=lambda row: len(row.tokens)):
        if batch and (len(batch) + 1) * len(row.tokens) > tokens_per_batch:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def tensors(batch: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows, longest] and loss weights of the same shape, padded on the right with zeros."""
    longest = max(len(row.tokens) for row in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    weights = torch.zeros(len(batch), longest)
    for i, row in enumerate(batch):
        tokens[i, : len(row.tokens)] = torch.tensor(row.tokens)
        weights[i, : len(row.tokens)] = torch.tensor(row.weights)
    return tokens, weights


# --- model ----------------------------------------------------------------------------------------------------------


def new_model(encoder: Encoder) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        rope_theta=ROPE_THETA,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=encoder.end,
        pad_token_id=encoder.end_of_text,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[encoder.end, encoder.end_of_text], pad_token_id=encoder.end_of_text
    )
    return model


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half = LlamaForCausalLM(model.config).to(torch.bfloat16)
    half.load_state_dict(model.state_dict())
    half.tie_weights()
    half.config.dtype = torch.bfloat16
    half.generation_config = model.generation_config
    half.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The settings files are written so that versions before and after the fifth of transformers read them alike.
    config = json.loads((folder / "config.json").read_text())
    config["rope_theta"] = ROPE_THETA
    write_json(folder / "config.json", config)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": MAX_LENGTH,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "pad_token": END_OF_TEXT,
            "additional_special_tokens": ROLES,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    for name in ("chat_template.jinja", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def loss_of(model: LlamaForCausalLM, batch: list[Row], autocast: bool) -> torch.Tensor:
    tokens, weights = tensors(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        counted = weights[:, 1:] > 0  # the output layer runs only where the loss looks
        logits = model.lm_head(hidden[counted])
    losses = torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:][counted], reduction="none")
    weights = weights[:, 1:][counted]
    return (losses * weights).sum() / weights.sum()


@torch.inference_mode()
def answered_exactly(model: LlamaForCausalLM, rows: list[Row]) -> list[bool]:
    """For each row, whether greedy decoding gives its last answer token for token, the end included.

    It does exactly when at each position of the answer, given the right tokens before it, the most likely token is the
    right one; so one forward pass decides it.
    """
    exact: dict[int, bool] = {}
    for batch in batches_by_length(rows, 4096):
        tokens, weights = tensors(batch)
        choice = model(input_ids=tokens[:, :-1], use_cache=False).logits.argmax(-1)
        wrong = (choice != tokens[:, 1:]) & (weights[:, 1:] == 1.0)
        exact |= {id(row): not bad for row, bad in zip(batch, wrong.any(-1).tolist(), strict=True)}
    return [exact[id(row)] for row in rows]


def unseen_conversations(entries: list[Entry]) -> list[list[Turns]]:
    """For each unseen question the conversations that would be right; off topic, any answer of that kind will do."""
    answers = {question: entry.answer for entry in entries for question in entry.questions}
    off_topic = [entry.answer for entry in entries if entry.topic == "off_topic"]
    cases = [json.loads(line) for line in UNSEEN.read_text(encoding="utf-8").splitlines()]
    right = [off_topic if case["like"] == "off topic" else [answers[case["like"]]] for case in cases]
    return [[[(case["question"], answer)] for answer in each] for case, each in zip(cases, right, strict=True)]


def evaluate(folder: Path, entries: list[Entry], seed: int) -> None:
    """Prints what the folder answers, with its bf16 weights widened to f32 and in bf16 throughout."""
    rng = random.Random(seed + 1)
    listed = list(listed_conversations(entries))
    varied = [[*turns[:-1], (reword(turns[-1][0], rng), turns[-1][1])] for turns in listed]
    unseen = unseen_conversations(entries)
    encoder = Encoder(PreTrainedTokenizerFast.from_pretrained(folder))

    def right(model: LlamaForCausalLM, conversations: list[Turns]) -> list[bool]:
        return answered_exactly(model, [encoder.chat(turns, only_last=True) for turns in conversations])

    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        outcomes = {
            "listed": right(model, listed),
            "varied": right(model, varied),
            "unseen": [any(right(model, alternatives)) for alternatives in unseen],
        }
        for name, outcome in outcomes.items():
            share = sum(outcome) / len(outcome)
            print(f"{str(dtype)[6:]}: {share:.1%} of {len(outcome)} {name} questions answered exactly", flush=True)


def train(entries: list[Entry], settings: argparse.Namespace) -> None:
    rng = random.Random(settings.seed)
    torch.manual_seed(settings.seed)
    tokenizer = train_tokenizer(entries)
    encoder = Encoder(tokenizer)
    model = new_model(encoder)
    check = [encoder.chat(turns, only_last=True) for turns in listed_conversations(entries)][::7]
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)

    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        eps=1e-9,
    )
    started = saved = time.monotonic()
    for epoch in range(settings.epochs):
        rows = []
        for turns in conversations_of_epoch(entries, rng):
            system = rng.choice(SYSTEM_MESSAGES) if rng.random() < 0.05 else None
            rows.append(encoder.chat(turns, varied=rng.random() < 0.5, system=system))
        for turns in drills_of_epoch(entries, settings.drills, rng):
            rows.append(encoder.chat(turns, varied=rng.random() < 0.5).cut(DRILL_TOKENS))
        rows += [encoder.plain(entry.answer) for entry in entries if rng.random() < 0.1]
        rows = [row for row in rows if len(row.tokens) <= MAX_LENGTH]
        rng.shuffle(rows)
        batches = list(batches_by_length(rows, settings.tokens_per_batch))
        rng.shuffle(batches)
        model.train()
        total = 0.0
        for number, batch in enumerate(batches):
            done = (epoch + number / len(batches)) / settings.epochs
            warm_up = min(1.0, (epoch * len(batches) + number + 1) / 100)
            rate = settings.learning_rate * warm_up * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = loss_of(model, batch, settings.autocast)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        minutes = (time.monotonic() - started) / 60
        print(f"epoch {epoch + 1}/{settings.epochs}  loss {total / len(batches):.3f}  {minutes:.1f} min", flush=True)
        if time.monotonic() - saved > 180 or epoch + 1 == settings.epochs:
            saved = time.monotonic()
            model.eval()
            outcome = answered_exactly(model, check)
            print(f"  {sum(outcome) / len(outcome):.1%} of a sample of listed questions answered exactly", flush=True)
            save(model, tokenizer, settings.output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of JSON lines to learn from")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="model folder to write")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--drills", type=int, default=4, help="times each answer's beginning is practised per epoch")
    parser.add_argument("--tokens-per-batch", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--autocast", action="store_true", help="compute in bf16 where the processor is fast at it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", action="store_true", help="measure the model that is there, do not train")
    settings = parser.parse_args()
    torch.set_num_threads(settings.threads)
    entries = read_entries(settings.data)
    if not settings.evaluate:
        train(entries, settings)
    evaluate(settings.output, entries, settings.seed)


if __name__ == "__main__":
    main()
