"""Networks: from an observation tree to a policy's outputs and a value, with or without memory."""
