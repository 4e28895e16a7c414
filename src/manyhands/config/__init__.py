"""Every option of the server: kinds of values, the table of options, and how it is filled."""

from manyhands.config.kinds import (
    LISTENERS_BUILT,
    Address,
    Broker,
    BrokerAddress,
    Endpoint,
    Endpoints,
    Listen,
    Plain,
)
from manyhands.config.loading import (
    FILE_VARIABLE,
    ConfigError,
    LoadedConfig,
    as_toml,
    load_config,
)
from manyhands.config.options import OPTIONS, Config, Option

__all__ = [
    "FILE_VARIABLE",
    "LISTENERS_BUILT",
    "OPTIONS",
    "Address",
    "Broker",
    "BrokerAddress",
    "Config",
    "ConfigError",
    "Endpoint",
    "Endpoints",
    "Listen",
    "LoadedConfig",
    "Option",
    "Plain",
    "as_toml",
    "load_config",
]
