"""What becomes known of one request on its way, for the log, the metrics and the traces. Never its content."""

from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from addnorm.service.scheduling.deadline import Deadline


@dataclass
class RequestContext:
    """What becomes known of a request on its way; logged and counted at its end. Never its content."""

    request_id: str
    started: float  # time.monotonic(): the deadline counts from here
    status: int = 500
    model: str = ""
    key: str = ""  # the name of the API key
    code: str = ""  # of an error
    param: str = ""  # the field that the error is about
    real_tokens: int = 0
    pad_tokens: int = 0
    deadline: Deadline | None = None  # where the request has one
    first_byte_s: float | None = (
        None  # after it came; when the first bytes of the answer's body had been written
    )
    stages_s: dict[str, float] = field(default_factory=dict)
    decoded_from: float = 0.0  # on time.monotonic(); the stages follow each other from there

    def times_ms(self) -> dict[str, float]:
        """Of the stages, and the deadline and the first byte, where they are known."""
        seconds = dict(self.stages_s)
        if self.first_byte_s is not None:
            seconds["first_byte"] = self.first_byte_s
        if self.deadline:
            seconds["timeout"] = self.deadline.timeout_s
        return {f"{name}_ms": round(value * 1000, 3) for name, value in seconds.items()}

    def spans(self) -> dict[str, tuple[float, float]]:
        """Each stage's start and end."""
        ends = list(accumulate(self.stages_s.values(), initial=self.decoded_from))
        return dict(zip(self.stages_s, pairwise(ends), strict=True))
