"""sentence-transformers' LogitScore: a language model as a reranker. Its score is the logit of one
token after a sequence, such as "yes", less that of another, such as "no"."""

from dataclasses import dataclass
from pathlib import Path

import torch

from addnorm.model.checkpoints import json_files
from addnorm.model.checkpoints.family import HeadTable
from addnorm.model.checkpoints.reader import CheckpointError, Reader
from addnorm.model.config import Config, HeadConfig
from addnorm.model.transformer import Head

MADE = "causal_logits"  # what the transformer's module calls the logits that this one reads


@dataclass(frozen=True)
class LogitScore:
    """Ids of tokens. no: None if its logit is not taken away."""

    folder: Path
    yes: int
    no: int | None

    def check(self, table: HeadTable | None, config: Config) -> None:
        """CheckpointError if the model has no logits of tokens, or not of these."""
        if table is None or not table.tied or table.dense or table.pick != "every":
            raise CheckpointError(f"{self.folder}: config.json names no language model to score by")
        for token in (self.yes, self.no):
            if token is not None and not 0 <= token < config.vocab_size:
                raise CheckpointError(
                    f"{self.folder}: token {token}: 0 to {config.vocab_size - 1} are in the"
                    " vocabulary"
                )

    def fill(self, head: Head, table: HeadTable, reader: Reader, config: Config) -> None:
        """One row of the language model's matrix less another."""
        shape = torch.Size([config.vocab_size, config.d_model])
        rows = reader.read(f"{table.linear}.weight", shape).float()
        score = rows[self.yes] if self.no is None else rows[self.yes] - rows[self.no]
        head.linear.weight.copy_(score[None])


HEAD = HeadConfig("last", 1, bias=False)


def read(folder: Path) -> LogitScore:
    """CheckpointError if its config.json is broken."""
    file = folder / "config.json"
    config = json_files.settings(file)
    if (read_from := config.get("module_input_name", MADE)) != MADE:
        raise CheckpointError(f"{file}: module_input_name is {read_from!r}, supported is {MADE!r}")
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    for name, token in (("true_token_id", yes), ("false_token_id", no)):
        if type(token) is not int and (name == "true_token_id" or token is not None):
            raise CheckpointError(f"{file}: {name} is {token!r}: the id of a token is needed")
    return LogitScore(folder, yes, no)  # type: ignore[arg-type]
