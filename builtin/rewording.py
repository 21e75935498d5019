"""Questions in other words: another case, punctuation or beginning, a dropped word, a misspelling.

What it knows: English phrases that may be exchanged, so that the model listens to a question's words and not to its
form. What it does not know: the questions and their answers.
"""

import random

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
