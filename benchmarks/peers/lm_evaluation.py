"""lm-eval in its own environment, where nothing of Addnorm is.

lm_evaluation.py FOLDER: reads `runs.json` there and the tasks beside it, writes
`answers.json`: run -> task -> what the model answered to each request.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager


def main(folder: Path) -> None:
    runs = json.loads((folder / "runs.json").read_text())
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    tasks = TaskManager(include_path=str(folder), include_defaults=False)
    answers = {
        name: _answers(simple_evaluate(**run, tasks=names, task_manager=tasks, device="cpu"))
        for name, run in runs.items()
    }
    (folder / "answers.json").write_text(json.dumps(answers))


def _answers(evaluation: Any) -> dict[str, Any]:
    """Task -> for each document, in order, [log-likelihood, is greedy] or the log-likelihood."""
    return {
        task: [
            answer
            for sample in sorted(samples, key=lambda sample: sample["doc_id"])
            for answer in sample["filtered_resps"]
        ]
        for task, samples in evaluation["samples"].items()
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
