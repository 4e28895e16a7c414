"""Every option of the server: kinds of values, the table of options, and how they are loaded."""

from manyhands.config.database import DatabaseAddress
from manyhands.config.kinds import (
    Address,
    Broker,
    BrokerAddress,
    Endpoint,
    Endpoints,
    Listen,
    Plain,
)
from manyhands.config.options import LISTENERS, OPTIONS, VARIABLE_PREFIX, Config, Option
from manyhands.config.profiles import Profile
from manyhands.config.reader import (
    FILE_VARIABLE,
    PROFILE_VARIABLE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    ConfigError,
    LoadedConfig,
    as_toml,
    load_config,
    load_profiles,
    read_tokens_file,
    warnings_of,
)
from manyhands.config.tokens import Token

__all__ = [
    "FILE_VARIABLE",
    "LISTENERS",
    "OPTIONS",
    "PROFILE_VARIABLE",
    "TOKEN_VARIABLE",
    "URL_VARIABLE",
    "VARIABLE_PREFIX",
    "Address",
    "Broker",
    "BrokerAddress",
    "Config",
    "ConfigError",
    "DatabaseAddress",
    "Endpoint",
    "Endpoints",
    "Listen",
    "LoadedConfig",
    "Option",
    "Plain",
    "Profile",
    "Token",
    "as_toml",
    "load_config",
    "load_profiles",
    "read_tokens_file",
    "warnings_of",
]
