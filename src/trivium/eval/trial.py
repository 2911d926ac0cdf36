"""A trial before the gate: candidate and incumbent on the same tasks, a few at a time, until it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trivium.errors import InputError
from trivium.eval.gate import Decision, Gate
from trivium.eval.pinned import PinnedSuite
from trivium.eval.suite import Result
from trivium.policy import Policy


@dataclass(slots=True)
class Trial:
    """What was decided, and what both policies scored on each suite until then."""

    decision: Decision
    candidate: dict[str, Result] = field(default_factory=dict)
    incumbent: dict[str, Result] = field(default_factory=dict)


async def trial(gate: Gate, suites: Mapping[str, PinnedSuite], candidate: Policy, incumbent: Policy, batch: int = 32) -> Trial:
    """Attempt `batch` tasks of each open suite with both policies, ask the gate, and go on until it promotes or rejects, or all
    tasks were attempted. A suite that is passed costs nothing more. The gate's error holds for all these looks together.

    Each policy needs an engine of its own, on which nobody publishes meanwhile: InputError where a version changes, and where
    a suite is missing. Raises as `evaluate`.
    """
    if missing := gate.margins.keys() - suites.keys():
        raise InputError(f"the gate asks for suite {min(missing)}, which is not among {sorted(suites)}")
    versions = candidate.version, incumbent.version
    open_, done = set(gate.margins), 0
    so_far = Trial(Decision("hold", "nothing was measured"))
    while open_ and so_far.decision.verdict == "hold":
        for name in sorted(open_):
            suite = suites[name]
            for policy, results in ((candidate, so_far.candidate), (incumbent, so_far.incumbent)):
                part = await suite.measure(policy, done, done + batch)
                results[name] = Result.merge([results[name], part]) if name in results else part
        if (candidate.version, incumbent.version) != versions:
            raise InputError("weights were published to a policy on trial: give the trial engines of its own")
        done += batch
        so_far.decision = gate.decide(so_far.candidate, so_far.incumbent)
        open_ = {  # none where a score is missing, which no further task brings
            name
            for name in open_ & so_far.decision.evidence.keys()
            if not so_far.decision.evidence[name].passes and done < len(suites[name].tasks)
        }
    return so_far
