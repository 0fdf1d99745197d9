"""Words of the TCP transport: what every message looks like, and what is refused as none.

A message is one part: raw bytes of arrays (perhaps none), then a msgpack array, then its length in four bytes. With the
words behind the numbers, arrays stay aligned and a fragment is written in place. Only fragments have further parts: one
for each array that holds stacked frames. Nothing here can name code; numbers and texts have limits.

 samples      Hello FragmentMessage Bye  ->    Welcome Refused Again Ping Credit
 parameters   Hello Fetch Bye      ->    Welcome Refused Again Ping Values Announce
 inference    Hello RequestMessage Bye    ->    Welcome Refused Again Ping AnswerMessage
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from podium.core.errors import MalformedError
from podium.protocol.schema import Field, Schema, SenderId, Version
from podium.protocol.streams import FragmentHeader

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)]
Text = Annotated[str, msgspec.Meta(max_length=256)]
FieldWords = tuple[Text, Annotated[list[Count], msgspec.Meta(max_length=32)], Text, Small]
SchemaWords = Annotated[list[FieldWords], msgspec.Meta(max_length=1 << 14)]
Stream = Literal["samples", "parameters", "inference"]

LENGTH = 4  # bytes that tell how long the words are
WORDS = 1 << 10  # bytes that suffice for all words but those with a schema or a list in them
HELLO = 1 << 20  # bytes that suffice for the schema of a network with thousands of arrays


NONE = Version(-1, 0)  # older than any


class Hello(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """A client's first word, said again when it is in doubt: `session` is one object's, so its repetition is known."""

    stream: Stream
    worker: Small
    incarnation: Count
    session: Count
    next: Count  # number of the next fragment: what is earlier is here, or lost
    sizes: Annotated[list[Annotated[int, msgspec.Meta(ge=1, lt=1 << 16)]], msgspec.Meta(max_length=1 << 12)]
    schemas: Annotated[list[SchemaWords], msgspec.Meta(max_length=2)]

    @property
    def sender(self) -> SenderId:
        """Who says it."""
        return SenderId(self.worker, self.incarnation)


class Bye(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=2):
    """A client's last word."""


class FragmentMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=3):
    """Behind the arrays of a fragment. `number` is the transport's own: credits do not rely on the caller's."""

    number: Count
    header: FragmentHeader


class Fetch(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=4):
    """A reader has read this version, and wants a newer one as soon as there is one: now, or when it is published."""

    read: Version  # NONE at first


class RequestMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=5):
    """Behind the rows of a slot."""

    slot: Small
    sequence: Count


class Welcome(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=11):
    """Answers Hello: of the fragments before `next`, these are held."""

    next: Count = 0
    held: list[Count] = []


class Refused(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=12):
    """Answers Hello, or comes when somebody newer has taken the place. Final."""

    reason: str


class Again(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=13):
    """Who are you? Answers whatever comes before Hello, as after a broken connection."""


class Ping(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=14):
    """Finds out whether there is still a way to a client, and means nothing to it."""


class Credit(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=15):
    """These fragments are released."""

    numbers: list[Count]


class Announce(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=16):
    """There is a newer version than the last you got. Said once until the next Fetch."""

    version: Version


class Values(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=17):
    """Behind the arrays of a version."""

    version: Version


class AnswerMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False, tag=18):
    """Behind the rows that answer a request."""

    slot: Small
    sequence: Count
    version: Version


_ENCODER = msgspec.msgpack.Encoder()
TO_SERVER = msgspec.msgpack.Decoder(Hello | Bye | FragmentMessage | Fetch | RequestMessage)
TO_CLIENT = msgspec.msgpack.Decoder(Welcome | Refused | Again | Ping | Credit | Announce | Values | AnswerMessage)


def words(message: msgspec.Struct) -> bytes:
    """A message's words and their length, to be put behind its arrays.

    >>> words(Bye())
    b'\\x91\\x02\\x02\\x00\\x00\\x00'
    """
    text = _ENCODER.encode(message)
    return text + len(text).to_bytes(LENGTH, "little")


def parse(decoder: msgspec.msgpack.Decoder[Any], part: bytes | memoryview) -> tuple[Any, int]:
    """The message of a part, and how many bytes of arrays come before it."""
    end = len(part) - LENGTH
    start = end - int.from_bytes(part[end:], "little") if end >= 0 else -1
    if start < 0:
        raise MalformedError(f"{len(part)} bytes that do not end with a length")
    try:
        return decoder.decode(part[start:end]), start
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: text that is no UTF-8
        raise MalformedError(str(error)) from error


def check_header(header: FragmentHeader) -> None:
    """Raise ValueError unless its numbers can be: msgpack knows that they are integers, not that they count."""
    slot, sequence, _, steps, produced = header
    if slot < 0 or sequence < 0 or steps < 0 or produced < 0:
        raise MalformedError(f"numbers of a header are not negative: {header}")


def schema_words(schema: Schema) -> list[FieldWords]:
    """A schema as it is said in Hello."""
    return [(field.name, list(field.shape), field.dtype, field.stack) for field in schema.fields]


def schema_difference(schema: Schema, said: Sequence[FieldWords]) -> str | None:
    """One line that says in what a peer's schema differs from ours; None if it does not."""
    return schema.difference(
        Schema(tuple(Field(name, tuple(shape), dtype, stack) for name, shape, dtype, stack in said))
    )
