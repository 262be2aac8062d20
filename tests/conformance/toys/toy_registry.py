"""The toys of the modules beside this one, by the names of their backends."""

from rdzv_plugins import Backend

MADE = {}


def toy(name):
    """What is below makes the descriptor of the backend NAME, or is a class for its module's ``backend``."""

    def register(made):
        MADE[name] = made
        return made

    return register


def registered(like, name, backend):
    """The descriptor of the backend NAME, which is made as that toy is; ``backend`` makes one of a class."""
    made = MADE[like]
    found = backend(name, made) if isinstance(made, type) else made(name)
    assert isinstance(found, Backend)
    return found
