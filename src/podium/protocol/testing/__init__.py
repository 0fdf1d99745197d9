"""The promises of a transport as checks: run one, ours or your own, through all of them.

from podium.protocol.testing import PROMISES, Subject

@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_my_transport(promise): promise(Subject(lambda: (MyTransport(), MyTransport())))

A promise uses all ends from one thread, in turns, and works both ends where one may need the other to go on; but for
`one_receives_while_another_looks`, which is about threads.
"""

from podium.protocol.schema import SenderId
from podium.protocol.testing.inference import INFERENCE, REPLY, REQUEST
from podium.protocol.testing.parameters import PARAMETERS, WEIGHTS
from podium.protocol.testing.samples import SAMPLES, SMALL
from podium.protocol.testing.senders import SENDERS
from podium.protocol.testing.subject import Subject, opened

__all__ = [
    "INFERENCE",
    "PARAMETERS",
    "PROMISES",
    "SAMPLES",
    "SENDERS",
    "Subject",
    "check_transport",
]


def closing_twice_is_harmless(subject: Subject) -> None:
    """Every end, and the transport."""
    with opened(subject) as (serving, connecting, _):
        receiver = serving.sample_receiver(SMALL)
        sender = connecting.sample_sender(receiver.endpoint, SMALL, SenderId(0, 0), 2)
        publisher = serving.parameter_publisher("main", WEIGHTS)
        reader = connecting.parameter_reader(publisher.endpoint, WEIGHTS)
        server = serving.inference_server(REQUEST, REPLY)
        client = connecting.inference_client(server.endpoint, REQUEST, REPLY, SenderId(0, 0), [2], 1.0)
        for end in (sender, receiver, reader, publisher, client, server, connecting, serving):
            end.close()
            end.close()


PROMISES = (*SAMPLES, *SENDERS, *PARAMETERS, *INFERENCE, closing_twice_is_harmless)


def check_transport(subject: Subject) -> None:
    """Run all promises, one after another."""
    for promise in PROMISES:
        promise(subject)
