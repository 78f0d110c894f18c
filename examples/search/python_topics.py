"""A corpus to try a search with: paragraphs of Python's own documentation, as JSON lines.

python examples/search/python_topics.py FOLDER
"""

import json
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

folder, seen = Path(sys.argv[1]), set()
folder.mkdir()
for name, page in topics.items():
    paragraphs = [" ".join(paragraph.split()) for paragraph in page.split("\n\n")]
    prose = [text for text in paragraphs if re.match("[A-Z].{60}", text) and text not in seen]
    seen.update(prose)
    if prose:
        lines = (json.dumps({"topic": name, "text": text}) + "\n" for text in dict.fromkeys(prose))
        (folder / f"{name}.jsonl").write_text("".join(lines))
