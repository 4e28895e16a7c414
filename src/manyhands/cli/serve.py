"""`manyhands serve`: starts the server with the effective configuration."""

from manyhands.cli.flags import (
    Flag,
    file_of,
    forget_environment,
    load_from_flags,
    with_config_flags,
)
from manyhands.config import warnings_of


@with_config_flags
def serve(**flags: Flag) -> None:
    """Start the server; it runs until a signal stops it.

    An option such as --log-format is also the environment variable MANYHANDS_LOG_FORMAT and the key
    log_format of the TOML file. A flag overrides the environment, which overrides the file.

    Examples:

      manyhands serve

      manyhands serve --data /var/lib/manyhands --http 127.0.0.1:8080

      MANYHANDS_LOG_FORMAT=json manyhands serve --config manyhands.toml
    """
    loaded = load_from_flags(flags)
    warnings = warnings_of(loaded, file_of(flags))
    forget_environment()

    from manyhands.app import run

    run(loaded.config, warnings)
