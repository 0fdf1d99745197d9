"""What each replay worker of a plan does of its work."""

import math
from typing import TYPE_CHECKING

from podium.algorithms import learning
from podium.core.transports import TCP
from podium.workers.layout import Layouts
from podium.workers.learner import ROUND
from podium.workers.replay import Share
from podium.workers.replay_layout import make_replay_layouts

if TYPE_CHECKING:
    from podium.launch.plan import Plan

REQUEST_BYTES = 16_000_000
"""Of rows that replay workers give at a time, as far as updates can be cut: two requests are out, and containers often
have 64 MB of shared memory."""


def make_share(plan: "Plan", layouts: Layouts) -> Share:
    """What each replay worker does of a plan's work. A round of updates is asked for in parts that take no long time to
    train on, and no large memory to hold: it may be a thousand batches of pictures.
    """
    shards, experience, updates = plan.replay_workers, plan.replay, updates_of_a_round(plan)
    rows, steps = experience.batch_size // shards, _rows_of_a_round(plan) / shards
    answer = make_replay_layouts(experience, layouts).answer.schema
    batch_bytes = experience.batch_size * sum(field.nbytes for field in answer.fields)
    most = max(1, min(ROUND, REQUEST_BYTES // batch_bytes, TCP.most_rows // rows))
    part = max(n for n in range(1, min(most, updates) + 1) if updates % n == 0)
    parts = updates // part
    return Share(
        steps=steps / parts,
        starts=max(math.ceil(steps), -(-experience.starts // shards)),
        ahead=plan.schedule.credits(parts),
        updates=part,
        rows=rows,
    )


def updates_of_a_round(plan: "Plan") -> int:
    """Updates that are made of one fragment of all environments."""
    return learning.updates_per_fragment(plan.replay, _rows_of_a_round(plan))


def _rows_of_a_round(plan: "Plan") -> int:
    """Those of a fragment of all environments."""
    return plan.replay.length * plan.num_rows
