"""Proofs that two processes know the secret of their run, which neither of them sends.

    process 0                                  process 1
    challenge a                        --->
                                       <---    hello with challenge b, proof of (a, hello)
    accepted, proof of (a, b, accepted) -->
    welcome, proof of (a, b, welcome)  --->

Challenges are random and new in each connection, so that a recorded hello or welcome is worthless
in another one. A proof is an HMAC with the secret as its key (RFC 2104), over SHA-256. Nothing is
encrypted, and messages after the welcome have no proofs: the handshake keeps strangers out, but not
somebody who can change what travels between two machines of the run.
"""

import dataclasses
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any, Self

from millrace.errors import OptionError
from millrace.records.json_text import parse_json

VARIABLE = "MILLRACE_SECRET"
_CHALLENGE_BYTES = 32
_SHORTEST = 16  # characters; who has recorded one handshake can try out short secrets at leisure


def new_secret() -> str:
    """Returns a random secret for a run, or a challenge."""
    return secrets.token_hex(_CHALLENGE_BYTES)


def secret_of(environment: Mapping[str, str]) -> str:
    """Returns the secret in MILLRACE_SECRET; the empty one without it.

    Raises:
        OptionError: if it is so short that it can be guessed.
    """
    secret = environment.get(VARIABLE, "").strip()  # a file's last line ends with a line break
    if 0 < len(secret) < _SHORTEST:
        raise OptionError(
            f"{VARIABLE} has {len(secret)} characters, and could be guessed from a recorded "
            f"connection. Set it to at least {_SHORTEST} random ones, the same in every process: "
            f"export {VARIABLE}=$(openssl rand -hex 32)"
        )
    return secret


@dataclasses.dataclass(frozen=True, slots=True)
class Handshake:
    """The secret of one side, and the challenges of a connection."""

    secret: str = dataclasses.field(repr=False)
    challenge: str  # of process 0
    answer: str = ""  # the challenge of the other process; empty before process 0 knows it

    def with_answer(self, answer: str) -> Self:
        """Returns the handshake in which the other process has set its challenge, too."""
        return dataclasses.replace(self, answer=answer)

    def seal(self, **message: object) -> dict[str, str]:
        """Returns a message with a proof, to be sent."""
        text = json.dumps(message)
        return {"kind": "sealed", "text": text, "proof": self._proof(text)}

    def open(self, sealed: object) -> dict[str, Any] | None:
        """Returns the message that the other side has sealed; None if its proof is not right."""
        if not isinstance(sealed, dict) or sealed.get("kind") != "sealed":
            return None
        text, proof = sealed.get("text"), sealed.get("proof")
        if not isinstance(text, str) or not isinstance(proof, str):
            return None
        if not hmac.compare_digest(self._proof(text).encode(), proof.encode(errors="replace")):
            return None
        return parse_json(text)

    def _proof(self, text: str) -> str:
        # As JSON, so that no two lists of texts have the same bytes.
        covered = json.dumps([self.challenge, self.answer, text]).encode()
        return hmac.new(self.secret.encode(), covered, hashlib.sha256).hexdigest()
