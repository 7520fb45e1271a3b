"""The command `bidr`: results on standard output, progress and errors on standard error, one line an error.

Exit codes: 0 success; 1 internal error; 2 user error; 3 repaired with losses (bidr repair); 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence

from bidr.errors import BidrError, ConfigError, StoppedError, name_missing_extra

STOPPED, TO_PUT_RIGHT, OUR_FAULT, PIPE_CLOSED = 130, 2, 1, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug(args)
    try:
        _check_encoding(args)
        code = _run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # --help has printed already
        return int(stop.code or 0)
    except BrokenPipeError:
        # The reader closed the pipe; the interpreter must not flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        code, message = explain_error(error)
        print("bidr:", " ".join(message.split()), file=sys.stderr)
        return code
    return code


def explain_error(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an error."""
    if isinstance(error, BidrError):
        return (STOPPED if isinstance(error, StoppedError) else TO_PUT_RIGHT), str(error)
    if isinstance(error, KeyboardInterrupt):
        return STOPPED, "stopped; what was finished is kept: run the same command again to go on from there"
    if isinstance(error, ModuleNotFoundError) and (missing := name_missing_extra("this command", error)):
        return TO_PUT_RIGHT, str(missing)
    refused = explain_write_error(error)
    if refused:
        return TO_PUT_RIGHT, refused
    if isinstance(error, MemoryError):
        reason = f" ({error})" if str(error) else ""
        return TO_PUT_RIGHT, f"not enough memory{reason}; use fewer documents or a machine with more"
    return OUR_FAULT, f"unexpected {type(error).__name__}: {error}; run it again with --debug and report what it shows"


def explain_write_error(error: BaseException) -> str | None:
    """Return the message for a failed write, also if a native library reports it by an exception of its own."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if "(os error " in str(error) or "PytorchStreamWriter" in str(error) or "inline_container" in str(error):
        return f"a file could not be written ({error}); free some space on the disk or choose another folder"
    return None


def _take_debug(args: list[str]) -> bool:
    """Remove --debug, which is valid with every verb, and return whether it was given."""
    end = args.index("--") if "--" in args else len(args)
    if "--debug" in args[:end]:
        args.remove("--debug")
        return True
    return os.environ.get("BIDR_DEBUG", "0") not in ("", "0")


def _check_encoding(args: list[str]) -> None:
    """Refuse arguments that are invalid in the terminal's encoding: they could be neither stored nor printed."""
    for number, word in enumerate(args, start=1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding().upper()
            raise ConfigError(
                f"argument {number}: given {word!a}, expected {encoding} text; "
                "check the terminal's encoding, or rename the file"
            ) from error


def _run(args: list[str]) -> int:
    from bidr.cli import config_parsing
    from bidr.cli.base import check_outputs
    from bidr.cli.help import format_help
    from bidr.cli.registry import VERBS, format_overview
    from bidr.utils.files import write_json
    from bidr.utils.progress import is_peer_process

    if not args or args[0] in ("-h", "--help", "help"):
        print(format_overview())
        return 0
    if args[0] == "--version":
        from bidr._version import __version__

        print(f"bidr {__version__}")
        return 0
    name, *flags = args
    if name not in VERBS:
        raise ConfigError(
            f"unknown verb {name!r}{config_parsing.suggest_name(name, VERBS) or ';'} verbs are {', '.join(VERBS)}"
        )
    kind = VERBS[name]
    before_dashes = flags[: flags.index("--")] if "--" in flags else flags
    if {"-h", "--help", "--help-all"} & set(before_dashes):
        print(format_help(kind, name, show_all="--help-all" in before_dashes))
        return 0
    verb = config_parsing.parse_flags(kind, flags, f"bidr {name}", kind.make_defaults(flags))
    check_outputs(verb.list_outputs())
    result = verb.run()
    if is_peer_process():
        return result.code
    print(result.text)
    if verb.json:
        write_json(verb.json, result.value)
    return result.code
