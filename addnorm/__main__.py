"""`addnorm COMMAND`: picks the command, and imports only what that command needs."""

import sys
from importlib import import_module

COMMANDS = {
    "export": ("addnorm.export.command", "write a certified bundle of a preset or a checkpoint"),
    "verify": ("addnorm.export.command", "make a bundle's certificate again"),
    "serve": ("addnorm.service.command", "serve a folder of bundles"),
    "settings": (
        "addnorm.service.command",
        "list the settings in force, and where each comes from",
    ),
    "load": ("addnorm.load.bench.run", "send load to a server and check every answer"),
}
USAGE = "\n".join(
    ["usage: addnorm COMMAND [OPTIONS]", ""]
    + [f"  {name:10s}{meaning}" for name, (_, meaning) in COMMANDS.items()]
    + ["", "`addnorm COMMAND --help` lists the options of one command."]
)


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
    elif name not in COMMANDS:
        sys.exit(f"addnorm: there is no command {name!r}\n\n{USAGE}")
    else:
        getattr(_imported(name), name)(arguments)


def _imported(name: str) -> object:
    try:
        return import_module(COMMANDS[name][0])
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("addnorm"):
            raise
        extra = "export" if name in ("export", "verify") else "dev"
        sys.exit(
            f"addnorm {name} needs the package {error.name}: run `pip install 'addnorm[{extra}]'`"
        )


if __name__ == "__main__":
    main()
