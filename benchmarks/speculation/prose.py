"""Prose that says nothing and repeats nothing: sentences of a small grammar over a wide vocabulary, drawn by a seed."""

from __future__ import annotations

import random


def words(text: str) -> list[str]:
    return text.split()


_NOUNS = words("""
harbour orchard lantern ferry glacier violin market kettle bridge parcel meadow compass tunnel apron chimney ladder
sparrow cellar anchor notebook barrel cathedral pebble willow carriage blanket thunder archive saddle furnace island
mirror pasture button garden needle quarry window turnip sailor cousin baker tailor gardener pilot widow miller poet
referee dentist hermit juggler carpenter tortoise heron badger salmon beetle walrus onion pepper saffron marble
copper velvet paper amber gravel ocean valley desert canyon river marsh forest corner staircase balcony attic
railway clock telescope umbrella whistle bucket candle feather ribbon basket hammer pillow curtain trumpet drum
melody rumour bargain quarrel promise secret journey shadow winter morning twilight storm frost rainbow avalanche
earthquake harvest festival wedding election auction lecture puzzle recipe letter telegram painting statue fountain
""")
_ADJECTIVES = words("""
crooked silver hollow patient narrow crimson quiet restless ancient brittle gentle clumsy distant fragile golden
humble jealous lonely muddy nervous orderly pale rusty salty tender uneven vivid weary zealous bitter cheerful damp
eager faint greedy hidden icy jolly kind lazy modest noisy odd proud quick rough steep tidy useless vague wooden
young awkward broad cautious dreary elegant foreign grateful heavy idle loyal mellow native obvious polite rare
shallow thirsty urgent wicked
""")
_VERBS = words("""
admired borrowed carried described envied followed guarded hated ignored joined kissed lifted mended noticed offered
painted questioned repaired sold trusted understood visited watched abandoned baked chased doubted examined forgot
gathered hid imitated kept lost measured needed ordered polished quoted rescued stole taught used valued weighed
accused buried copied dragged emptied found greeted heard invited judged knew left missed nursed opened praised
refused searched tasted untied warned adored blamed cleaned drew exchanged feared
""")
_GERUNDS = words("""
singing waiting digging sleeping arguing counting whispering sailing knitting walking guessing mourning cooking
travelling bargaining listening hurrying gambling reading climbing fishing laughing marching dreaming swimming
""")
_ADVERBS = words("""
slowly gladly barely often secretly twice suddenly always quietly rarely bravely carelessly almost promptly together
openly seldom badly neatly finally warmly sternly blindly eventually
""")
_PLACES = words("behind beside above under near beyond inside against across around below past toward without along")
_LINKS = words("while because although before after unless until whenever since so")
_OPENINGS = words("Meanwhile Yesterday Indeed Perhaps Nevertheless Later Afterwards Still Elsewhere Instead")
_NUMBERS = words("two three four five six seven eight nine ten eleven twelve thirteen fourteen forty sixty ninety")


def sentence(rng: random.Random) -> str:
    """One, of one to three clauses."""
    text = _clause(rng)
    if rng.random() < 0.4:
        text = f"{text}{rng.choice([',', ''])} {rng.choice(_LINKS)} {_clause(rng)}"
    if rng.random() < 0.25:
        text = f"{rng.choice(_OPENINGS)}, {text}"
    if rng.random() < 0.15:
        text = f"{text}; {_clause(rng)}"
    return text[0].upper() + text[1:] + rng.choice("....?!")


def _clause(rng: random.Random) -> str:
    subject, verb = _thing(rng), rng.choice(_VERBS)
    forms = (
        lambda: f"{subject} {verb} {_thing(rng)}",
        lambda: f"{subject} {rng.choice(_ADVERBS)} {verb} {_thing(rng)}",
        lambda: f"{subject} {verb} {_thing(rng)} {rng.choice(_PLACES)} {_thing(rng)}",
        lambda: f"{rng.choice(_PLACES)} {_thing(rng)} {subject} was {rng.choice(_GERUNDS)}",
        lambda: f"{subject} kept {rng.choice(_GERUNDS)} and {verb} {_thing(rng)} {rng.choice(_ADVERBS)}",
        lambda: f"{subject}, {rng.choice(_GERUNDS)} {rng.choice(_PLACES)} {_thing(rng)}, {verb} {_thing(rng)}",
        lambda: f"{rng.choice(_GERUNDS)} {rng.choice(_ADVERBS)} made {subject} {rng.choice(_ADJECTIVES)}",
        lambda: f"there were {rng.choice(_NUMBERS)} {rng.choice(_NOUNS)}s {rng.choice(_PLACES)} {subject}",
    )
    return rng.choice(forms)()


def _thing(rng: random.Random) -> str:
    noun = rng.choice(_NOUNS)
    forms = (
        lambda: f"the {noun}",
        lambda: f"the {rng.choice(_ADJECTIVES)} {noun}",
        lambda: f"my {noun}",
        lambda: f"every {noun} of {rng.choice(_NUMBERS)}",
        lambda: f"her {rng.choice(_ADJECTIVES)}, {rng.choice(_ADJECTIVES)} {noun}",
        lambda: f"that {noun} {rng.choice(_PLACES)} the {rng.choice(_NOUNS)}",
        lambda: f"{rng.choice(_NUMBERS)} {rng.choice(_ADJECTIVES)} {noun}s",
        lambda: f"some {noun}'s {rng.choice(_NOUNS)}",
        lambda: f"no {noun}",
    )
    return rng.choice(forms)()
