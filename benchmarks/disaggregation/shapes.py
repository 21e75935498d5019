"""Define what is asked in the map and in the check: lengths, targets, links, and what others have published.

Fixed before anything was run; nothing here is changed by a result.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL, GPU, DEGREE = "llama-3.1-70b", "h100", 4

# The map. Medians; the 99th percentile is twice as long.
PROMPTS, ANSWERS, TAIL = (256, 1024, 4096), (32, 128, 512), 2
SLOS = {
    "strict": "ttft=500(p90),itl=40(p90)",  # the p90 of each answer's own gaps
    "usual": "ttft=1000(p90),tpot=50(p90)",
    "loose": "ttft=4000(p90),tpot=150(p90)",
}
LINKS = {"25 GbE": 25 * 0.8, "100 GbE": 100 * 0.8, "4 × NDR 400": 4 * 400 * 0.7}  # Gbit/s of an engine that really pass


@dataclass(frozen=True, slots=True)
class Published:
    """prompts, answers: as `parse_lengths` has them. slowdowns: instead of targets, times of a request that is alone
    (TTFT of a prompt at the 90th percentile of lengths, TPOT), kept by nine of ten. baseline: the layout that they
    compare with. engines: of four GPUs, in all; None: as many as the best split of up to four has. ratio: of rates, as
    published, least and most."""

    name: str
    source: str
    prompts: str
    answers: str
    slos: str | None
    slowdowns: tuple[float, float] | None
    baseline: str
    ratio: tuple[float, float]
    engines: int | None = None

    @property
    def pays(self) -> bool:
        return self.ratio[0] > 1


# DistServe's targets for a 66B model on A100s, divided by three, which is about what an H100 is faster by; its lengths'
# means (ShareGPT: 756 and 200 tokens; LongBench: 1,738 and 91) as lognormal distributions.
PUBLISHED = (
    Published(
        "a chatbot",
        "DistServe, arXiv 2401.09670: 2.0 to 3.4 times the rate of engines that compute whole prompts",
        "lognormal:490:4280",
        "lognormal:130:1136",
        "ttft=833(p90),tpot=50(p90)",
        None,
        "whole prompts",
        (2.0, 3.41),
    ),
    Published(
        "conversations",
        "Splitwise, arXiv 2311.18677: 1.4 times the rate at 20 % less cost, 2.35 times at the same cost and power",
        "lognormal:1020:4142",
        "lognormal:129:601",
        None,
        (3.0, 1.5),
        "whole prompts",
        (1.4, 2.35),
    ),
    Published(
        "a small deployment",
        "reported by those who serve small ones: 20 to 30 % less than the same GPUs together",
        "lognormal:500:2000",
        "lognormal:250:1000",
        "ttft=1000(p90),tpot=50(p90)",
        None,
        "chunked",
        (0.7, 0.8),
        engines=2,
    ),
)
