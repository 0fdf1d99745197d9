"""An environment's spec and codec as text: a run keeps it, so that its policy can be loaded without the environment.

text = dump_spec(env.spec, env.codec)
spec, codec = load_spec(text)
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from podium.core.specs import Action, Array, Box, Discrete, EnvSpec, MultiDiscrete, Observation
from podium.envs.codecs import ActionForm, Bytes, Categories, Codec, Form

FORMAT = 1


def dump_spec(spec: EnvSpec, codec: Codec) -> str:
    """Both as JSON."""
    tree = {
        "format": FORMAT,
        "observation": _dump_form(spec.observation),
        "action": _dump_action(spec.action),
        "masked": spec.masked,
        "agents": list(spec.agents),
        "given": _dump_form(codec.form),
        "taken": _dump_action_form(codec.action),
    }
    return json.dumps(tree, indent=1, allow_nan=False) + "\n"


def load_spec(text: str) -> tuple[EnvSpec, Codec]:
    """The inverse of `dump_spec`."""
    tree = json.loads(text)
    observation: Any = _load_form(tree["observation"])
    spec = EnvSpec(observation, _load_action(tree["action"]), tree["masked"], tuple(tree["agents"]))
    return spec, Codec(_load_form(tree["given"]), _load_action_form(tree["taken"]))


def _dump_form(form: Form | Observation) -> dict[str, Any]:
    match form:
        case Array():
            return {"array": list(form.shape), "dtype": form.dtype}
        case Categories():
            return {"categories": list(form.nvec), "start": list(form.start), "shape": list(form.shape)}
        case Bytes():
            return {"bytes": _dump_numbers(form.low), "to": _dump_numbers(form.high), "shape": list(form.shape)}
        case Mapping():
            return {"parts": {key: _dump_form(part) for key, part in form.items()}}


def _load_form(tree: dict[str, Any]) -> Form:
    match tree:
        case {"array": shape, "dtype": dtype}:
            return Array(tuple(shape), dtype)
        case {"categories": nvec, "start": start, "shape": shape}:
            return Categories(tuple(nvec), tuple(start), tuple(shape))
        case {"bytes": low, "to": high, "shape": shape}:
            return Bytes(*(np.array(side, np.uint8).reshape(shape) for side in (low, high)))
    return {key: _load_form(part) for key, part in tree["parts"].items()}


def _dump_action(action: Action) -> dict[str, Any]:
    match action:
        case Discrete(n):
            return {"discrete": n}
        case MultiDiscrete(nvec):
            return {"multi_discrete": list(nvec)}
        case Box(shape, low, high):
            return {"box": list(shape), "low": _dump_numbers(low), "high": _dump_numbers(high)}


def _load_action(tree: dict[str, Any]) -> Action:
    match tree:
        case {"discrete": n}:
            return Discrete(n)
        case {"multi_discrete": nvec}:
            return MultiDiscrete(tuple(nvec))
    low, high = (tuple(map(float, tree[side])) for side in ("low", "high"))
    return Box(tuple(tree["box"]), low, high)


def _dump_action_form(form: ActionForm) -> dict[str, Any]:
    tree = {"shape": list(form.shape), "dtype": form.dtype, "start": np.asarray(form.start).tolist()}
    if form.low is None or form.high is None:
        return tree
    return tree | {"low": _dump_numbers(form.low), "high": _dump_numbers(form.high)}


def _load_action_form(tree: dict[str, Any]) -> ActionForm:
    form = ActionForm(tuple(tree["shape"]), tree["dtype"], np.asarray(tree["start"]))
    if "low" not in tree:
        return form
    low, high = ([float(x) for x in tree[side]] for side in ("low", "high"))
    return replace(
        form, low=np.array(low, form.dtype).reshape(form.shape), high=np.array(high, form.dtype).reshape(form.shape)
    )


def _dump_numbers(values: Any) -> list[float | str]:
    """A flat list; JSON has no inf, so that it is text."""
    return [x if math.isfinite(x) else str(x) for x in np.ravel(values).tolist()]
