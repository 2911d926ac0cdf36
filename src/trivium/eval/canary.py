"""The canary's stopping rule: are the people whom the candidate serves as content as those whom the incumbent serves?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from trivium.errors import InputError
from trivium.eval.gate import Decision, Evidence

Visit = tuple[bool, float]
"""Whether the candidate served it, and the satisfaction with it, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Canary:
    """Rolls back (`reject`) once people are shown to be less content with the candidate, promotes once it is shown that they
    are not less content by `margin` or more, and holds until then.

    `error` bounds the chance of ever rolling back a candidate with which people are as content, and that of ever promoting one
    with which they are less content by `margin`, however often one looks. Between the two either may happen; where both are
    shown, it is rolled back.
    """

    margin: float = 0.05
    error: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.error < 0.5:
            raise InputError(f"a canary's margin is in (0, 1) and its error in (0, 0.5), not {self.margin} and {self.error}")

    def decide(self, visits: Iterable[Visit]) -> Decision:
        """The decision from all visits so far, in the order in which they came. InputError for a satisfaction outside [0, 1].

        Nobody is served by both, so there are no pairs. Visits are cut into blocks, each ending with the first visit after
        which it has some of both kinds; a block's difference of means is in [-1, 1], and its mean is that of the two
        satisfactions, since where a block ends depends on who served and not on how content people were. On these differences
        one bets as in `betting` (blocks as in Turner, Ly and Grünwald's test of two samples, arXiv:2106.02693; betting on their
        means is ours). A change of the traffic between blocks touches both kinds alike.

        Who is served by which must be drawn by lot, and visits count as independent: where few people come often, hand in one
        number per person.
        """
        differences = list(block_differences(visits))
        evidence = Evidence.of(differences, self.margin, self.error, self.error)
        harm = replace(evidence, margin=0.0)
        if harm.fails:
            return Decision("reject", f"people are less content with it: {harm} blocks of visits", {"live": harm})
        if evidence.passes:
            reason = f"people are not less content with it by {self.margin:g}: {evidence} blocks of visits"
            return Decision("promote", reason, {"live": evidence})
        return Decision("hold", f"nothing is shown yet: {evidence} blocks of visits", {"live": evidence})


def block_differences(visits: Iterable[Visit]) -> Iterator[float]:
    """The difference of means, candidate less incumbent, of each whole block. Raises as `Canary.decide`."""
    block: dict[bool, list[float]] = {True: [], False: []}
    for by_candidate, satisfaction in visits:
        if not 0 <= satisfaction <= 1:
            raise InputError(f"a satisfaction of {satisfaction} is not in [0, 1]: scale what people said")
        block[by_candidate].append(satisfaction)
        if block[True] and block[False]:
            yield fmean(block[True]) - fmean(block[False])
            block = {True: [], False: []}
