"""`--help` of every command, and what a wrong option is answered."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import get_args

import pytest

from addnorm.__main__ import COMMANDS, main
from addnorm.corpus import options as of_corpus
from addnorm.corpus.embedder import KINDS, DType
from addnorm.export import options as of_export
from addnorm.model.presets import PRESETS
from addnorm.service.command import GROUPS, OPTIONS, serve_parser
from addnorm.service.environment import read_settings
from addnorm.service.options import Parser, tell_once
from addnorm.service.settings import Settings

# packages of the extras
EXTRAS = (
    "torch", "onnx", "onnxscript", "onnx_ir", "tqdm", "transformers", "huggingface_hub",
    "sentencepiece", "sentence_transformers", "pyarrow", "httpx", "grpc", "model_signing",
    "OpenSSL", "ray",
)  # fmt: skip
MOST_LINES = 135  # of `serve --help` in 80 columns
HELP = """
import sys
for package in sys.argv[1].split(","):
    sys.modules[package] = None
import addnorm.__main__ as a
for words in map(str.split, sys.argv[2].split(",")):
    try:
        a.main([*words, "--help"])
    except SystemExit as ended:
        print("ended with", ended.code)
"""


def test_help_needs_no_extra() -> None:
    commands = [*COMMANDS, "load run", "load hold", "load beside"]
    words = [sys.executable, "-c", HELP, ",".join(EXTRAS), ",".join(commands)]
    done = subprocess.run(words, capture_output=True, text=True, env={"COLUMNS": "80"}, check=True)
    pages = done.stdout.split("ended with 0\n")
    assert len(pages) == len(commands) + 1, done.stderr
    for command, page in zip(commands, pages, strict=False):
        assert page.startswith(f"usage: addnorm {command} [OPTIONS]")
    serve = pages[commands.index("serve")]
    assert len(serve.splitlines()) <= MOST_LINES
    titles = re.findall(r"^([a-z ]+):$", serve, re.MULTILINE)
    assert titles[-4:] == [*GROUPS] == ["common settings", "security", "limits", "tuning"]
    assert "(default: 8000)" in serve
    assert "(default: measured at warm-up)" in " ".join(serve.split())


def test_every_setting_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(OPTIONS)


def test_settings_of_yes_and_no_are_flags() -> None:
    options = vars(serve_parser().parse_args(["--admin", "--no-truncate"]))
    given = {name: options[name] for name in Settings.model_fields if options.get(name) is not None}
    assert given == {"admin": True, "truncate": False}
    assert read_settings(**given).truncate is False


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("serve --prot 9000", "unrecognized arguments: --prot; did you mean --port?"),
        ("serve --admin=yes", "argument --admin/--no-admin: ignored explicit argument 'yes'"),
        ("embed a b", "the following arguments are required: --model"),
        ("check v --model x --sample 0", "argument --sample: '0' is not a whole number above 0"),
        ("export x --pre 3", "unrecognized arguments: --pre 3"),
        (
            "load run x --tolerence 3",
            "unrecognized arguments: --tolerence 3; did you mean --tolerance?",
        ),
    ],
)
def test_a_wrong_option_is_answered_shortly(
    words: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    command = words.partition(" -")[0].split()[0]
    said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith(f"addnorm {command}")
    assert problem in said
    assert hint == f"`{said.partition(':')[0]} --help` lists all options"


def test_choices_are_those_of_the_code() -> None:
    """The modules of options may not import it, as it needs extras."""
    assert tuple(KINDS) == of_corpus.OUTPUTS
    assert get_args(DType) == of_corpus.DTYPES
    assert tuple(sorted(PRESETS)) == of_export.PRESETS


@pytest.mark.parametrize(
    ("parser", "words", "name", "value"),
    [
        (of_corpus.embed_parser, "a b --bundle c/1 --precision int8", "model", "c/1@int8"),
        (
            of_corpus.check_parser,
            "a --url http://a --model b --precision fp32",
            "model",
            "http://a#b@fp32",
        ),
        (of_corpus.check_parser, "a --url http://a", "model", "http://a"),
        (of_corpus.check_parser, "a --bundle c/1", "model", "c/1"),
        (of_export.export_parser, "--checkpoint c --precision int8", "checkpoint", "c"),
        (of_export.keep_parser, "a --kept d --precision fp32,int8", "models", ["a@fp32,int8"]),
        (serve_parser, "a --precision int8 --port 1", "models", ["a@int8"]),
    ],
)
def test_options_of_the_version_before_work_and_tell_what_to_write(
    parser: Callable[[], Parser],
    words: str,
    name: str,
    value: object,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tell_once.cache_clear()
    options = parser().parse_args(words.split())
    assert getattr(options, name) == value
    told = capsys.readouterr().err
    for option in ("--bundle", "--url", "--checkpoint"):
        assert (f"{option} goes with the next version: write" in told) == (option in words)
