"""How EqSoft-EM is cooled: from soft to nearly hard over the whole of stage 2, by temperatures in the cost's units."""

from typing import Any

from polyreply.em.settings import EMSettings

_NATS = (4.0, 0.1)
"""First and last temperature where the cost is the NLL of a whole response."""
_TOKENS = 12
"""About the mean length of a response: where the likelihood is a mean over tokens, costs are so much smaller."""
_POSTERIOR = (0.4, 0.01)
"""Where the cost is the posterior, which is between 0 and 1 whatever the likelihood."""


def cooling(em: EMSettings, steps: int) -> dict[str, Any]:
    """Settings of EqSoft-EM by dotted names; temperatures that a preset itself names are left as they are."""
    default, over_all = EMSettings(), {"em.anneal_steps": steps}
    if (em.temperature, em.final_temperature) != (default.temperature, default.final_temperature):
        return over_all
    begin, end = _POSTERIOR if em.cost == "posterior" else _NATS
    scale = _TOKENS if em.likelihood == "mean" and em.cost == "nll" else 1
    return {"em.temperature": begin / scale, "em.final_temperature": end / scale, **over_all}
