"""Contention: who slows whom on a shared card (TT101).

`series` lays a node's rows on a grid, `controls` builds what moves a victim without its neighbours, `whiten` takes out
the memory of its noise, `shift` tests a pair against all shifts of the suspect, `direction` and `vetoes` look at the
confounders that a correlation cannot see, `channel` names the resource, `pairs` puts them together for a card,
`verdict` decides.
"""

from analyzer.contention.detector import ContentionDetector

__all__ = ["ContentionDetector"]
