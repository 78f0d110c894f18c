"""One engine as requests see it: what runs it, how fast it is, how much waits for it."""

from collections.abc import Callable

from addnorm.service.engine.batch import AnyRows, Batch

# How the measured rate of a target follows its runs.
#
# SMOOTHING: weight of a new measurement. At 0.2 about five full runs replace the old rate. Larger
#   follows noise; smaller predicts wrongly for longer after the load of the machine changes.
# OPTIMISM: factor on the rate when a request is rejected for the rate alone. A wrong, low rate
#   would otherwise reject for ever, because only runs correct it. Larger tries hopeless requests
#   more often; smaller recovers later.
SMOOTHING = 0.2
OPTIMISM = 1.05

Run = Callable[[Batch], AnyRows]  # the one seam: a micro-batch in, a row for each of its tokens out


class Target:
    """One engine (model, version, precision) as requests see it: run function, rate, what waits."""

    def __init__(
        self,
        run: Run,
        token_budget: int,
        name: str = "",
        exact: bool = True,
        run_on_all_cores: Run | None = None,
        is_shared_out: bool = True,
    ) -> None:
        """token_budget: of a micro-batch; name: of the model; exact: whether equal bits are
        promised for co-batched sequences; run_on_all_cores: `run`, sooner while other workers are
        idle; None if there is no such thing; is_shared_out: whether idle workers share what waits.
        A GPU computes it sooner in one run."""
        self.run, self.name, self.exact = run, name, exact
        self.run_on_all_cores, self.is_shared_out = run_on_all_cores, is_shared_out
        self.token_budget = token_budget
        self.num_tokens = 0  # that wait
        self.tokens_per_s: float | None = None  # of one worker, smoothed; None until measured

    @property
    def s_per_token(self) -> float:
        """Seconds per token of one worker thread. 0 until measured."""
        return 1 / self.tokens_per_s if self.tokens_per_s else 0.0

    def update_rate(self, num_tokens: int, seconds: float) -> None:
        """A run took so long. One of less than half the token budget may raise the rate, but never
        lowers it: small runs are slower per token, and the rate is meant for times when much
        waits."""
        rate = num_tokens / max(seconds, 1e-6)
        if self.tokens_per_s is None:
            self.tokens_per_s = rate
        elif rate > self.tokens_per_s or 2 * num_tokens >= self.token_budget:
            self.tokens_per_s += SMOOTHING * (rate - self.tokens_per_s)

    def raise_rate(self) -> None:
        """A request was rejected for the rate alone, though nothing waited: it may be wrong."""
        if self.tokens_per_s:
            self.tokens_per_s *= OPTIMISM
