"""The engine: supervised processes that hold the models and execute stages; the driver that runs rounds on them."""
