"""All code examples: importing this module fills EXAMPLES."""

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
from code_examples.example import EXAMPLES as EXAMPLES

MODULES = (
    text,
    vision,
    images,
    shapes,
    sequences,
    graphs,
    structured,
    generative,
    adversaries,
    mechanics,
)
