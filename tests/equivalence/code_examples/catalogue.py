"""All code examples, in the order of their groups."""

from code_examples import (
    adversaries,
    generative,
    graphs,
    images,
    mechanics,
    sequences,
    shapes,
    structured,
    text,
    vision,
)
from code_examples.example import EXAMPLES as REGISTERED
from code_examples.example import GROUPS

MODULES = (
    *(text, vision, images, shapes, sequences, graphs),
    *(structured, generative, adversaries, mechanics),
)
EXAMPLES = dict(sorted(REGISTERED.items(), key=lambda item: GROUPS.index(item[1].group)))
