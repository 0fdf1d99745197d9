"""Workers: actor, learner, evaluator, and the fused loop that is both at once. They know no transport."""
